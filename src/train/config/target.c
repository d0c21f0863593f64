/* SPDX-License-Identifier: Apache-2.0 */
/* Matches target_modules, modules_to_save, rank_pattern and alpha_pattern as PEFT does. PCRE2 executes the regular
 * expressions of Python. */
#include "config/target.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* Returns 1 if before + regex + after matches all of text, 0 if not. */
static int match(const char *before, const char *regex, const char *after, const char *text, const char *key,
                 struct fsdpck_error *err)
{
    char pattern[4096], why[200];
    int code, n = snprintf(pattern, sizeof pattern, "%s%s%s", before, regex, after);
    PCRE2_SIZE at;
    if (n < 0 || (size_t)n >= sizeof pattern)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s': a pattern longer than 4000 bytes", key);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &at, NULL);
    if (!compiled) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key '%s': \"%.200s\" is no regular expression: %s", key,
                                regex, why);
    }
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(compiled, NULL);
    int rc =
        data ? pcre2_match(compiled, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, data, NULL) : PCRE2_ERROR_NOMEMORY;
    pcre2_match_data_free(data);
    pcre2_code_free(compiled);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "key '%s': \"%.200s\" cannot be matched (PCRE2 error %d)",
                                key, regex, rc);
    return rc >= 0;
}

bool target_is_named(const char *path, const char *name)
{
    size_t n = strlen(path), m = strlen(name);
    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '.');
}

/* Finds the first pattern that matches: its value and its index. */
static int find_pattern(const struct train_pattern *patterns, size_t n, const char *key, const char *path,
                        double *value, size_t *which, struct fsdpck_error *err)
{
    *which = TARGET_NO_PATTERN;
    for (size_t i = 0; i < n; i++) {
        int rc = match("(.*\\.)?(", patterns[i].regex, ")", path, key, err);
        if (rc < 0)
            return rc;
        if (rc) {
            *value = patterns[i].value;
            *which = i;
            return 0;
        }
    }
    return 0;
}

int target_matches(const struct target_modules *modules, const char *path, struct fsdpck_error *err)
{
    if (modules->regex)
        return match("(?:", modules->regex, ")", path, modules->key, err);
    for (size_t i = 0; i < modules->nnames; i++) {
        if (target_is_named(path, modules->names[i]))
            return 1;
    }
    return 0;
}

static int is_chosen(const struct train_lora_config *lora, const char *path, bool is_linear, bool is_head,
                     struct fsdpck_error *err)
{
    const struct target_modules modules = { "lora.target_modules", lora->target_regex, lora->target_names,
                                            lora->ntarget_names };
    return lora->all_linear ? is_linear && !is_head : target_matches(&modules, path, err);
}

static bool ends_with(const char *text, size_t n, const char *end)
{
    const size_t m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

bool target_saves(const char *name, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
        if (ends_with(path, (size_t)(dot - path), name))
            return true;
    return ends_with(path, strlen(path), name);
}

bool target_is_saved(const struct train_lora_config *lora, const char *path)
{
    for (size_t i = 0; i < lora->nmodules_to_save; i++)
        if (target_saves(lora->modules_to_save[i], path))
            return true;
    return false;
}

/* Returns 1 if the module is trained in full, so it gets no adapter. For this test, PEFT matches names as patterns for
 * whole components of the path; for copies, it compares the end of the path. If only the latter matches, both rules
 * choose the module, and PEFT fails. */
static int exclude_saved(const struct train_lora_config *lora, const char *path, struct fsdpck_error *err)
{
    for (size_t i = 0; i < lora->nmodules_to_save; i++) {
        int rc = match("(^|.*\\.)(?:", lora->modules_to_save[i], ")($|\\..*)", path, "lora.modules_to_save", err);
        if (rc)
            return rc;
    }
    if (target_is_saved(lora, path))
        return fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "keys 'lora.modules_to_save' and 'lora.target_modules' both choose %s by the end of its path: write the "
            "whole name of the module in modules_to_save, or leave it out",
            path);
    return 0;
}

/* The rank and the scale of what is chosen. */
static int settle(const struct train_lora_config *lora, const char *path, struct target *out, struct fsdpck_error *err)
{
    double r = (double)lora->r, alpha = lora->alpha;
    size_t rank_pattern, alpha_pattern = TARGET_NO_PATTERN;
    int rc = find_pattern(lora->rank_pattern, lora->nrank_pattern, "lora.rank_pattern", path, &r, &rank_pattern, err);
    if (!rc)
        rc = find_pattern(lora->alpha_pattern, lora->nalpha_pattern, "lora.alpha_pattern", path, &alpha, &alpha_pattern,
                          err);
    *out = (struct target){ .chosen = !rc,
                            .r = (int64_t)r,
                            .scale = alpha / (lora->use_rslora ? sqrt(r) : r),
                            .rank_pattern = rank_pattern,
                            .alpha_pattern = alpha_pattern };
    return rc;
}

int target_find(const struct train_lora_config *lora, const char *path, bool is_linear, bool is_head,
                struct target *out, struct fsdpck_error *err)
{
    *out = (struct target){ 0 };
    int rc = is_chosen(lora, path, is_linear, is_head, err);
    if (rc <= 0)
        return rc;
    rc = exclude_saved(lora, path, err);
    if (rc)
        return rc < 0 ? rc : 0;
    return settle(lora, path, out, err);
}

int target_find_parameter(const struct train_lora_config *lora, const char *name, struct target *out,
                          struct fsdpck_error *err)
{
    *out = (struct target){ 0 };
    for (size_t i = 0; i < lora->ntarget_parameters; i++)
        if (target_is_named(name, lora->target_parameters[i]))
            return settle(lora, name, out, err);
    return 0;
}
