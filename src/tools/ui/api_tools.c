/* SPDX-License-Identifier: Apache-2.0 */
/* The form's table of keys, and the planner's verdict. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/config.h>
#include <unistd.h>

#include "common/json_out.h"
#include "ui/child.h"
#include "ui/draft.h"
#include "ui/http.h"
#include "ui/jobs.h"

enum { PLAN_SECONDS = 60, PLAN_NBYTES = 4 << 20 };

/* ---- keys */

static json_t *key_json(size_t i)
{
    struct train_config_key key;
    train_config_key(i, &key);
    return json_pack("{s:s, s:s, s:s?, s:s, s:s, s:b, s:b}", "name", key.name, "doc", key.doc, "choices", key.choices,
                     "values", key.values, "default", key.default_value, "required", key.required, "nullable",
                     key.nullable);
}

static json_t *section_json(size_t i)
{
    const char *doc, *name = train_config_section(i, &doc);
    json_t *keys = json_array();
    for (size_t k = 0; k < train_config_nkeys(); k++) {
        struct train_config_key key;
        train_config_key(k, &key);
        if (train_config_is_in(key.name, name))
            json_out_append(keys, key_json(k));
    }
    return json_pack("{s:s, s:s, s:o}", "name", name, "doc", doc, "keys", keys);
}

static struct MHD_Response *list_keys(struct request *r, unsigned *status)
{
    (void)r;
    json_t *sections = json_array();
    for (size_t i = 0; i < train_config_nsections(); i++)
        json_out_append(sections, section_json(i));
    return http_json(json_pack("{s:o}", "sections", sections), status);
}

/* ---- plan */

/* Writes a file that lives as long as the request. */
static int write_temporary(const struct ui *ui, const char *text, char path[PATH_MAX], struct fsdpck_error *err)
{
    snprintf(path, PATH_MAX, "%.4000s/plan-XXXXXX", ui->state);
    const int fd = mkostemp(path, O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    const int why = errno;
    if (fd >= 0)
        close(fd);
    return written ? 0 : fsdpck_error_sys(err, why, path, "write");
}

/* "fsdptrain: /path/plan-Ab12Cd: text" becomes "text". */
static const char *without_path(const char *said, const char *path)
{
    const char *at = strstr(said, path);
    if (at && strncmp(at + strlen(path), ": ", 2) == 0)
        return at + strlen(path) + 2;
    return strncmp(said, "fsdptrain: ", 11) == 0 ? said + 11 : said;
}

/* MemAvailable of the kernel, in bytes; 0: unknown. */
static json_int_t free_memory(void)
{
    char line[200];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* A config that is being typed is often wrong. This is a result (status 200), so browsers log no error. */
static struct MHD_Response *refused(const char *why, unsigned *status)
{
    return http_json(json_pack("{s:o}", "refused", json_out_text(why)), status);
}

static struct MHD_Response *planned(const char *text, bool gpu, unsigned *status)
{
    json_t *o = json_loads(text, 0, NULL);
    json_out_put(o, "free_bytes", gpu ? json_null() : json_integer(free_memory()));
    return http_json(o, status);
}

/* { "config": { … }, "ranks": …, "devices": [ … ] }: as `fsdptrain plan --json`, and "free_bytes" of the host. */
static struct MHD_Response *plan(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    char path[PATH_MAX] = "", ranks[16], *out = NULL, *said = NULL;
    json_out_put(r->json, "name", json_string("plan"));
    int rc = draft_read(r->ui, r->json, r->ui->cwd, &draft, &err);
    if (!rc)
        rc = write_temporary(r->ui, draft.config, path, &err);
    const bool gpu = !rc && strstr(draft.devices, "cuda:");
    snprintf(ranks, sizeof ranks, "%u", draft.job.ranks);
    const char *argv[] = { r->ui->program,       "plan",   path,      "--ranks", ranks, "--device",
                           gpu ? "cuda" : "cpu", "--json", "--quiet", NULL };
    const int code = rc ? -1 : child_ask(argv, r->ui->cwd, PLAN_NBYTES, PLAN_SECONDS, &out, &said, &err);
    draft_free(&draft);
    if (*path)
        unlink(path);
    char why[1400];
    struct MHD_Response *answer = rc || code < 0 ? refused(fsdpck_error_format(&err, why, sizeof why), status)
                                  : code         ? refused(said ? without_path(said, path) : "", status)
                                                 : planned(out, gpu, status);
    free(out);
    free(said);
    return answer;
}

const struct route routes_tools[] = {
    { .method = "GET", .path = "/api/keys", .handle = list_keys },
    { .method = "POST", .path = "/api/plan", .handle = plan },
    { .path = NULL },
};
