/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/config.h>
#include <unistd.h>

#include "common/json_out.h"

enum { NAME_NBYTES = 200, MOST_RANKS = 1024, MOST_COPIES = 1000 };

static int refuse(struct fsdpck_error *err, const char *key, const char *why)
{
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, key, "%s", why);
}

/* ---- parts */

static int read_name(const json_t *body, struct draft *out, struct fsdpck_error *err)
{
    const char *name = json_string_value(json_object_get(body, "name"));
    if (!name || !*name || strlen(name) > NAME_NBYTES)
        return refuse(err, "name", "a text of 1 to 200 bytes is wanted");
    out->name = strdup(name);
    return out->name ? 0 : fsdpck_error_nomem(err, strlen(name));
}

static int read_ranks(const json_t *body, struct draft *out, struct fsdpck_error *err)
{
    const json_t *ranks = json_object_get(body, "ranks");
    if (!json_is_integer(ranks) || json_integer_value(ranks) < 1 || json_integer_value(ranks) > MOST_RANKS)
        return refuse(err, "ranks", "a whole number from 1 to 1024 is wanted");
    out->job.ranks = (uint32_t)json_integer_value(ranks);
    return 0;
}

static bool has(const json_t *list, const char *name, size_t below)
{
    for (size_t i = 0; i < below; i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return true;
    return false;
}

static int read_devices(const struct ui *ui, const json_t *body, struct draft *out, struct fsdpck_error *err)
{
    size_t i;
    const json_t *device, *list = json_object_get(body, "devices");
    if (json_array_size(list) == 0)
        return refuse(err, "devices", "a list of one device or more is wanted");
    json_array_foreach (list, i, device) {
        const char *name = json_string_value(device);
        if (!name || !has(ui->devices, name, json_array_size(ui->devices)))
            return refuse(err, "devices", "one is not a device of this machine");
        if (has(list, name, i))
            return refuse(err, "devices", "one is named twice");
        if (strncmp(name, json_string_value(json_array_get(list, 0)), 4) != 0)
            return refuse(err, "devices", "processors and GPUs cannot be mixed in a run");
    }
    out->devices = json_dumps(list, JSON_COMPACT);
    return out->devices ? 0 : fsdpck_error_nomem(err, 1);
}

static int read_config(const json_t *config, const char *cwd, struct draft *out, struct fsdpck_error *err)
{
    struct train_config parsed;
    if (!json_is_object(config))
        return refuse(err, "config", "an object is wanted");
    int rc = train_config_take("the config", json_deep_copy(config), &parsed, err);
    if (rc)
        return rc;
    if (!ui_absolute(cwd, parsed.output_dir, out->output_dir))
        rc = refuse(err, "output_dir", "the path is too long");
    train_config_free(&parsed);
    out->config = rc ? NULL : json_dumps(config, JSON_INDENT(2));
    return rc || out->config ? rc : fsdpck_error_nomem(err, 1);
}

static void point(struct draft *d, const char *kind, const char *cwd)
{
    d->job.kind = kind;
    d->job.name = d->name;
    d->job.config = d->config;
    d->job.devices = d->devices;
    d->job.output_dir = d->output_dir;
    d->job.cwd = cwd;
}

/* ---- whole drafts */

int draft_read(const struct ui *ui, const json_t *body, const char *cwd, struct draft *out, struct fsdpck_error *err)
{
    int rc = read_name(body, out, err);
    if (!rc)
        rc = read_ranks(body, out, err);
    if (!rc)
        rc = read_devices(ui, body, out, err);
    if (!rc)
        rc = read_config(json_object_get(body, "config"), cwd, out, err);
    point(out, "run", cwd);
    return rc;
}

int draft_tool(const json_t *run, const char *verb, uint64_t step, struct draft *out, struct fsdpck_error *err)
{
    char from[PATH_MAX], name[NAME_NBYTES + 100];
    const char *what = strcmp(verb, "export-lora") == 0 ? "adapter" : "merged";
    const char *folder = job_text(run, "output_dir");
    const int n = snprintf(from, sizeof from, "%s/checkpoints/step-%06llu", folder, (unsigned long long)step);
    const int k =
        snprintf(out->output_dir, PATH_MAX, "%s/exported/%s-step-%06llu", folder, what, (unsigned long long)step);
    if (n < 0 || n >= PATH_MAX || k < 0 || k >= PATH_MAX)
        return refuse(err, "output_dir", "the path is too long");
    if (access(from, F_OK))
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, from, "there is no such checkpoint");
    snprintf(name, sizeof name, "%s of %.200s, step %llu", verb, job_text(run, "name"), (unsigned long long)step);
    json_t *config = json_pack("{s:[s, s, s]}", "arguments", verb, from, out->output_dir);
    out->config = config ? json_dumps(config, JSON_INDENT(2)) : NULL;
    json_decref(config);
    out->devices = strdup("[]");
    out->name = strdup(name);
    out->job.ranks = 1;
    point(out, verb, job_text(run, "cwd"));
    return out->config && out->devices && out->name ? 0 : fsdpck_error_nomem(err, 1);
}

/* "runs/a" becomes "runs/a-2"; "runs/a-2" becomes "runs/a-3". */
static bool next_folder(const char *folder, unsigned k, char out[PATH_MAX])
{
    size_t n = strlen(folder);
    const char *dash = strrchr(folder, '-');
    if (dash && dash[1] && dash[1 + strspn(dash + 1, "0123456789")] == '\0')
        n = (size_t)(dash - folder);
    const int made = snprintf(out, PATH_MAX, "%.*s-%u", (int)n, folder, k);
    return made >= 0 && made < PATH_MAX;
}

static bool is_taken(struct ui *ui, const char *folder)
{
    return access(folder, F_OK) == 0 || jobs_have_folder(ui->sql, folder);
}

int draft_clone(struct ui *ui, const json_t *run, struct draft *out, struct fsdpck_error *err)
{
    char name[NAME_NBYTES + 16];
    unsigned k = 2;
    json_t *config = json_loads(job_text(run, "config"), 0, NULL);
    while (k < MOST_COPIES && next_folder(job_text(run, "output_dir"), k, out->output_dir) &&
           is_taken(ui, out->output_dir))
        k++;
    snprintf(name, sizeof name, "%.195s (%u)", job_text(run, "name"), k);
    out->name = strdup(name);
    out->devices = json_dumps(json_object_get(run, "devices"), JSON_COMPACT);
    out->job.ranks = (uint32_t)job_int(run, "ranks");
    if (json_out_put(config, "output_dir", json_string(out->output_dir)))
        out->config = json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    point(out, "run", job_text(run, "cwd"));
    return out->name && out->devices && out->config ? 0 : fsdpck_error_nomem(err, 1);
}

void draft_free(struct draft *d)
{
    free(d->config);
    free(d->devices);
    free(d->name);
    *d = (struct draft){ 0 };
}
