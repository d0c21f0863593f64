/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_config.json and tensor names: the input is a configuration, a NUL, and names, one per line. Properties: an
 * accepted configuration answers for every module; written out again, it is accepted with the same answers; a name
 * parses the same without its wrappers. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "lora/config.h"
#include "lora/names.h"
#include "lora/pattern.h"

static void check_name(const struct fsdpck_lora_config *c, const char *name)
{
    struct fsdpck_arena a = { 0 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_lora_name n, bare;
    uint64_t r;
    double alpha;
    int rc = fsdpck_lora_name_parse(&a, name, &n, &err);
    FUZZ_CHECK(rc == err.code);
    if (rc == 0) {
        char *wrapped = malloc(strlen(name) + 12);
        FUZZ_CHECK(wrapped != NULL);
        strcpy(stpcpy(wrapped, "_orig_mod."), name);
        FUZZ_CHECK(fsdpck_lora_name_parse(&a, wrapped, &bare, &err) == FSDPCK_ERR_LIMIT ||
                   (bare.role == n.role && strcmp(bare.module, n.module) == 0));
        free(wrapped);
        if (c) {
            struct fsdpck_error why = { 0 };
            FUZZ_CHECK(fsdpck_lora_config_rank(c, n.module, &r, &why) == why.code && (why.code || r > 0));
            why = (struct fsdpck_error){ 0 };
            FUZZ_CHECK(fsdpck_lora_config_alpha(c, n.module, &alpha, &why) == why.code &&
                       (why.code || isfinite(alpha)));
            fsdpck_lora_config_targets(c, n.module);
            fsdpck_lora_config_leaves_out(c, n.module);
            const char *saved = fsdpck_lora_config_saves(c, n.module);
            FUZZ_CHECK(!saved || fsdpck_lora_saves(saved, n.module));
            uint64_t *rows;
            size_t nrows;
            why = (struct fsdpck_error){ 0 };
            FUZZ_CHECK(fsdpck_lora_config_tokens(c, &a, n.module, &rows, &nrows, &why) == why.code &&
                       (!rows || (nrows && !why.code)));
        }
    }
    fsdpck_arena_free(&a);
}

static void check_written(const struct fsdpck_lora_config *c)
{
    struct fsdpck_text t = { 0 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_lora_config again;
    struct fsdpck_text pattern = { 0 };
    fsdpck_text_printf(&pattern, "{\"q\":");
    fsdpck_lora_config_number(&pattern, c->alpha);
    fsdpck_text_printf(&pattern, "}");
    const struct fsdpck_lora_facts facts = { .r = c->r,
                                             .alpha = c->alpha,
                                             .rank_pattern = "{}",
                                             .alpha_pattern = pattern.data,
                                             .modules_to_save = "null",
                                             .dora = c->dora };
    FUZZ_CHECK(fsdpck_lora_config_write(c, &facts, "", &t, &err) == 0);
    FUZZ_CHECK(fsdpck_lora_config_parse(&again, "again", t.data, t.nbytes, &err) == 0);
    FUZZ_CHECK(again.r == c->r && again.alpha == c->alpha && again.dora == c->dora && again.rslora == c->rslora &&
               again.bias == c->bias);
    fsdpck_lora_config_free(&again);
    fsdpck_text_free(&pattern);
    fsdpck_text_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_lora_config c;
    char *text = fuzz_text(data, nbytes);
    size_t n = strnlen(text, nbytes);
    int rc = fsdpck_lora_config_parse(&c, "adapter_config.json", text, n, &err);
    FUZZ_CHECK(rc == err.code);
    if (rc == 0)
        check_written(&c);
    for (char *line = n < nbytes ? text + n + 1 : NULL, *end; line && *line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        check_name(rc == 0 ? &c : NULL, line);
    }
    fsdpck_lora_config_free(&c);
    free(text);
    return 0;
}
