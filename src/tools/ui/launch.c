/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ui/jobs.h"

enum { MOST_WORDS = 64 };

/* A command line, with room for words that are composed here. */
struct words {
    const char *list[MOST_WORDS];
    size_t count;
    char ranks[16], threads[16], config[PATH_MAX], visible[1024];
};

static void add(struct words *w, const char *word)
{
    if (w->count < MOST_WORDS - 1)
        w->list[w->count++] = word;
}

static bool is_on_gpu(const json_t *job)
{
    const char *first = json_string_value(json_array_get(json_object_get(job, "devices"), 0));
    return first && strncmp(first, "cuda:", 5) == 0;
}

static void add_run(struct words *w, const struct ui *ui, const json_t *job)
{
    const int64_t ranks = job_int(job, "ranks");
    const int64_t threads = ui->nprocessors / ui->nslots / ranks;
    snprintf(w->ranks, sizeof w->ranks, "%lld", (long long)ranks);
    snprintf(w->threads, sizeof w->threads, "%lld", (long long)(threads ? threads : 1));
    add(w, ui->program);
    add(w, "run");
    add(w, ui_job_file(ui, job_int(job, "id"), ".json", w->config));
    add(w, "--launcher");
    add(w, "local");
    add(w, "--ranks");
    add(w, w->ranks);
    add(w, "--device");
    add(w, is_on_gpu(job) ? "cuda" : "cpu");
    if (!is_on_gpu(job) && ui->nslots > 1) {
        add(w, "--threads");
        add(w, w->threads);
    }
}

/* The config of export-lora and merge-lora jobs: { "arguments": [ … ] }, for fsdpck. */
static void add_arguments(struct words *w, const struct ui *ui, const json_t *config)
{
    size_t i;
    const json_t *word;
    add(w, ui->fsdpck);
    json_array_foreach (json_object_get(config, "arguments"), i, word)
        add(w, json_string_value(word));
}

/* The environment, with CUDA_VISIBLE_DEVICES set to the GPUs of the job; the caller frees the list. */
static const char **environment(struct words *w, const json_t *job)
{
    size_t n = 0, kept = 0, i;
    const json_t *device;
    while (environ[n])
        n++;
    const char **list = calloc(n + 2, sizeof *list);
    for (size_t k = 0; k < n && list; k++)
        if (!is_on_gpu(job) || strncmp(environ[k], "CUDA_VISIBLE_DEVICES=", 21) != 0)
            list[kept++] = environ[k];
    if (!list || !is_on_gpu(job))
        return list;
    size_t at = (size_t)snprintf(w->visible, sizeof w->visible, "CUDA_VISIBLE_DEVICES=");
    json_array_foreach (json_object_get(job, "devices"), i, device)
        at += (size_t)snprintf(w->visible + at, sizeof w->visible - at, "%s%.4s", i ? "," : "",
                               json_string_value(device) + 5);
    list[kept] = w->visible;
    return list;
}

int launch_write_config(const struct ui *ui, int64_t id, const char *text, struct fsdpck_error *err)
{
    char path[PATH_MAX], made[PATH_MAX];
    FILE *f = fopen(ui_job_file(ui, id, ".json.new", made), "we");
    const bool written = f && fputs(text, f) != EOF;
    const bool closed = f && fclose(f) == 0;
    const bool moved = written && closed && rename(made, ui_job_file(ui, id, ".json", path)) == 0;
    return moved ? 0 : fsdpck_error_sys(err, errno, made, "write");
}

static int start(struct ui *ui, const json_t *job, struct words *w, struct fsdpck_error *err)
{
    char log[PATH_MAX], began[PATH_MAX];
    const int64_t id = job_int(job, "id");
    const char **envp = environment(w, job);
    const struct process_start how = { w->list, envp, job_text(job, "cwd"), ui_job_file(ui, id, ".log", log),
                                       ui_job_file(ui, id, ".began", began) };
    struct process p;
    int go;
    if (!envp)
        return fsdpck_error_nomem(err, 1);
    unlink(began);
    int rc = process_start(&how, &p, &go, err);
    if (!rc) {
        /* The process begins only after the queue has recorded it, so a killed server leaves no unknown process. */
        rc = jobs_running(ui->sql, id, &p, err);
        process_go(go, !rc);
    }
    free(envp);
    return rc;
}

void launch_job(struct ui *ui, const json_t *job)
{
    struct words w = { .count = 0 };
    struct fsdpck_error err = { 0 };
    char text[700];
    const char *config = job_text(job, "config");
    json_t *parsed = json_loads(config, 0, NULL); /* owns the strings of the arguments */
    int rc = 0;
    if (strcmp(job_text(job, "kind"), "run") == 0) {
        add_run(&w, ui, job);
        rc = launch_write_config(ui, job_int(job, "id"), config, &err);
    } else {
        add_arguments(&w, ui, parsed);
        if (access(ui->fsdpck, X_OK))
            rc = fsdpck_error_set(&err, FSDPCK_ERR_MISSING, ui->fsdpck, "fsdpck must lie beside fsdptrain");
    }
    if (!rc)
        rc = start(ui, job, &w, &err);
    if (rc) {
        fsdpck_error_format(&err, text, sizeof text);
        jobs_ended(ui->sql, job_int(job, "id"), "failed", -1, text, &err);
    }
    json_decref(parsed);
}
