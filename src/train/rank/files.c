/* SPDX-License-Identifier: Apache-2.0 */
/* The small files of a run, with plain POSIX calls. Checkpoints, written by libfsdpck, hold the state that a resumed
 * run needs. */
#include "rank/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fsdpck/check.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arrays/grow.h"
#include "text/new_file.h"

int files_join(char path[FILES_PATH], const char *folder, const char *name, struct fsdpck_error *err)
{
    int n = snprintf(path, FILES_PATH, "%s/%s", folder, name);
    return n > 0 && n < FILES_PATH
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "a path longer than %d bytes", FILES_PATH);
}

/* Creates the parent folders too. */
static int make_folder(const char *path, struct fsdpck_error *err)
{
    char part[FILES_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(part, 0777) && errno != EEXIST)
            return fsdpck_error_sys(err, errno, part, "mkdir");
        *slash = '/';
    }
    return mkdir(part, 0777) && errno != EEXIST ? fsdpck_error_sys(err, errno, part, "mkdir") : 0;
}

int files_make_folders(const struct train_config *config, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    int rc = files_join(path, config->output_dir, "checkpoints", err);
    return rc ? rc : make_folder(path, err);
}

/* True if the file begins like ours of this name, or is missing. */
static bool begins_with(const char *path, const char *head)
{
    char found[32] = "";
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t n = read(fd, found, strlen(head));
    close(fd);
    return n >= 0 && memcmp(found, head, (size_t)n) == 0;
}

int files_check_own(const struct train_config *config, struct fsdpck_error *err)
{
    const struct {
        const char *name, *head;
    } written[] = { { config->log.jsonl, "{\"step\": " },
                    { "summary.json", "{\n  \"finished\": " },
                    { "events.jsonl", "{\"event\": " } };
    char path[FILES_PATH];
    int rc = 0;
    for (size_t i = 0; i < sizeof written / sizeof written[0] && !rc; i++) {
        rc = files_join(path, config->output_dir, written[i].name, err);
        if (!rc && !begins_with(path, written[i].head)) {
            rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path,
                                  "this file is of no run of fsdptrain, and one would replace it");
            fsdpck_error_hint(err, "move it away, or choose another output_dir");
        }
    }
    return rc;
}

int files_checkpoint_path(const struct train_config *config, uint64_t step, char path[FILES_PATH],
                          struct fsdpck_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%06" PRIu64, step);
    return files_join(path, config->output_dir, name, err);
}

uint64_t files_checkpoint_step(const char *path)
{
    const char *name = strrchr(path, '/');
    return name && strlen(name) > strlen("/step-") ? strtoull(name + strlen("/step-"), NULL, 10) : 0;
}

static bool step_of(const char *name, uint64_t *step)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *step = strtoull(name + 5, &end, 10);
    return *end == '\0';
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

int files_list_checkpoints(const struct train_config *config, uint64_t **steps, size_t *count, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    size_t capacity = 0;
    *steps = NULL;
    *count = 0;
    int rc = files_join(path, config->output_dir, "checkpoints", err);
    DIR *dir = rc ? NULL : opendir(path);
    if (!dir)
        return rc || errno == ENOENT ? rc : fsdpck_error_sys(err, errno, path, "opendir");
    for (struct dirent *e; !rc && (e = readdir(dir)) != NULL;) {
        uint64_t step;
        if (!step_of(e->d_name, &step))
            continue;
        if (grow((void **)steps, &capacity, *count + 1, sizeof **steps))
            (*steps)[(*count)++] = step;
        else
            rc = fsdpck_error_nomem(err, (*count + 1) * sizeof **steps);
    }
    closedir(dir);
    if (*count)
        qsort(*steps, *count, sizeof **steps, newest_first);
    return rc;
}

static void count_removed(void *ctx, const struct fsdpck_leftover *leftover)
{
    *(size_t *)ctx += leftover->removed;
}

/* Pictures and their latents. Processes that a launcher started may be writing some. */
static void clean_up_pictures(const struct job *job)
{
    char folder[FILES_PATH];
    if (job->opt->launched_nranks)
        return;
    if (!files_join(folder, job->config->output_dir, "cache", NULL))
        new_file_sweep(folder, "picture-");
    if (!files_join(folder, job->config->output_dir, "samples", NULL))
        new_file_sweep(folder, "step-");
}

void files_clean_up(const struct job *job)
{
    struct fsdpck_error err = { 0 };
    size_t n = 0;
    char folder[FILES_PATH], line[2400] = "", text[2048];
    if (job->first != 0)
        return;
    clean_up_pictures(job);
    int rc = files_join(folder, job->config->output_dir, "checkpoints", &err);
    if (!rc)
        rc = fsdpck_leftovers(folder, FSDPCK_CLEAN_DEAD, &job->fs, count_removed, &n, &err);
    if (rc)
        snprintf(line, sizeof line, "left-over checkpoints could not be removed: %s",
                 fsdpck_error_format(&err, text, sizeof text));
    else if (n)
        snprintf(line, sizeof line, "removed what interrupted saves had left in output_dir: %zu folder%s", n,
                 fsdpck_plural(n));
    if (line[0] && job->opt->note)
        job->opt->note(job->opt->ctx, line);
}

int files_prune(const struct train_config *config, uint64_t keep, const struct fsdpck_options *opt,
                struct fsdpck_error *err)
{
    uint64_t *steps;
    size_t count;
    char path[FILES_PATH];
    int rc = files_list_checkpoints(config, &steps, &count, err), first = rc;
    for (size_t i = keep; i < count && !rc; i++) {
        rc = files_checkpoint_path(config, steps[i], path, err);
        int removed = rc ? 0 : fsdpck_remove(path, opt, err); /* continues after a failure */
        first = first ? first : removed;
    }
    free(steps);
    return rc ? rc : first;
}

int files_check_folder(const struct job *job, struct fsdpck_error *err)
{
    if (!job->lock || fsdpck_folder_is_locked(job->lock))
        return 0;
    fsdpck_error_set(
        err, FSDPCK_ERR_IO, job->config->output_dir,
        "output_dir, or the file '.fsdpck-lock' in it, was removed or replaced while the run was under way");
    fsdpck_error_hint(err, "what this run saved there may be gone; nothing more is written");
    return FSDPCK_ERR_IO;
}

/* The offset of the first line with a step beyond `step`, or that is not a line of ours (a killed run's last one).
 * *last: the step of the last line of ours. */
static long keep_lines(FILE *f, uint64_t step, uint64_t *last)
{
    char *line = NULL;
    size_t capacity = 0;
    long keep = 0;
    ssize_t n;
    *last = 0;
    while ((n = getline(&line, &capacity, f)) > 0 && line[n - 1] == '\n') {
        json_t *o = json_loads(line, 0, NULL);
        const json_int_t at = json_integer_value(json_object_get(o, "step"));
        json_decref(o);
        if (at < 1)
            break;
        *last = (uint64_t)at;
        if (*last <= step)
            keep = ftell(f);
    }
    free(line);
    return keep;
}

int files_open_metrics(const struct train_config *config, uint64_t step, FILE **out, uint64_t *nremoved,
                       struct fsdpck_error *err)
{
    uint64_t last = 0;
    char path[FILES_PATH];
    int rc = files_join(path, config->output_dir, config->log.jsonl, err);
    if (rc)
        return rc;
    FILE *f = fopen(path, "r+e");
    if (!f && errno == ENOENT)
        f = fopen(path, "w+e");
    long keep = f ? keep_lines(f, step, &last) : 0;
    if (!f || fflush(f) || ftruncate(fileno(f), keep) || fseek(f, keep, SEEK_SET)) {
        rc = fsdpck_error_sys(err, errno, path, "open");
        if (f)
            fclose(f);
        return rc;
    }
    *out = f;
    *nremoved = last > step ? last - step : 0;
    return 0;
}

/* JSON has no NaN. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *metrics_of(const struct train_metrics *m)
{
    json_t *o = json_pack("{s:I, s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "step",
                          (json_int_t)m->step, "loss", number(m->loss), "grad_norm", number(m->grad_norm), "lr",
                          number(m->lr), "tokens", (json_int_t)m->ntok, "supervised_tokens", (json_int_t)m->nsupervised,
                          "tokens_per_second", number(m->tokens_per_second), "step_seconds", number(m->step_seconds),
                          "data_wait_seconds", number(m->data_wait_seconds), "comm_seconds", number(m->comm_seconds),
                          "comm_hidden_seconds", number(m->comm_hidden_seconds), "save_stall_seconds",
                          number(m->save_stall_seconds), "gathered_bytes", (json_int_t)m->gathered_nbytes, "rss_bytes",
                          (json_int_t)m->rss_nbytes, "pss_bytes", (json_int_t)m->pss_nbytes);
    if (o) {
        json_t *busy = json_array();
        for (uint32_t q = 0; q < m->nranks; q++)
            json_array_append_new(busy, number(m->busy_seconds[q]));
        json_object_set_new(o, "comm_gather_seconds", number(m->comm_gather_seconds));
        json_object_set_new(o, "comm_exchange_seconds", number(m->comm_exchange_seconds));
        json_object_set_new(o, "rank_busy_seconds", busy);
        json_object_set_new(o, "slowest_rank", json_integer((json_int_t)m->slowest_rank));
        json_object_set_new(o, "from_hosts_bytes", json_integer((json_int_t)m->from_hosts_nbytes));
    }
    if (o && m->offloads) {
        json_object_set_new(o, "offload_wait_seconds", number(m->offload_wait_seconds));
        json_object_set_new(o, "offload_hidden_seconds", number(m->offload_hidden_seconds));
        json_object_set_new(o, "offload_bytes", json_integer((json_int_t)m->offload_nbytes));
    }
    if (o && m->evaluated) {
        json_object_set_new(o, "eval_loss", number(m->eval_loss));
        json_object_set_new(o, "eval_tokens", json_integer((json_int_t)m->eval_nsupervised));
        json_object_set_new(o, "eval_seconds", number(m->eval_seconds));
    }
    return o;
}

static bool is_named(FILE *f, const char *path)
{
    struct stat opened, named;
    return fstat(fileno(f), &opened) == 0 && stat(path, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

/* Reopens the file if it was renamed, as log rotation does. */
static int follow_name(const struct job *job, FILE *f, struct fsdpck_error *err)
{
    char path[FILES_PATH], line[FILES_PATH + 100];
    int rc = files_join(path, job->config->output_dir, job->config->log.jsonl, err);
    if (rc || is_named(f, path))
        return rc;
    /* not freopen(): on failure it closes the stream, and its owner would close it again */
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || dup3(fd, fileno(f), O_CLOEXEC) < 0)
        rc = fsdpck_error_sys(err, errno, path, "open");
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    snprintf(line, sizeof line, "%s was moved or removed: it goes on in a new file of that name", path);
    if (job->opt->note)
        job->opt->note(job->opt->ctx, line);
    return 0;
}

int files_write_metrics(const struct job *job, FILE *f, const struct train_metrics *m, json_t **line,
                        struct fsdpck_error *err)
{
    *line = NULL;
    int rc = follow_name(job, f, err);
    json_t *o = rc ? NULL : metrics_of(m);
    if (!o)
        return rc ? rc : fsdpck_error_nomem(err, sizeof *m);
    rc = json_dumpf(o, f, 0) || fputc('\n', f) == EOF || fflush(f)
             ? fsdpck_error_sys(err, errno ? errno : EIO, job->config->log.jsonl, "write")
             : 0;
    if (rc)
        json_decref(o);
    else
        *line = o;
    return rc;
}

int files_write_summary(const struct job *job, const struct train_result *result, bool well, struct fsdpck_error *err)
{
    char path[FILES_PATH], temporary[FILES_PATH];
    int rc = files_join(path, job->config->output_dir, "summary.json", err);
    if (!rc)
        rc = files_join(temporary, job->config->output_dir, "summary.json.tmp", err);
    json_t *o = json_object();
    json_object_set_new(
        o, "finished",
        json_boolean(well && result->ndone >= result->nsteps && !result->save_failed && !result->diverged));
    json_object_set_new(o, "step", json_integer((json_int_t)result->ndone));
    json_object_set_new(o, "steps", json_integer((json_int_t)result->nsteps));
    json_object_set_new(o, "skipped", json_integer((json_int_t)result->nskipped));
    json_object_set_new(o, "checkpoint", result->checkpoint[0] ? json_string(result->checkpoint) : json_null());
    json_object_set_new(o, "gather", json_string(job_copies(job) ? "copy" : "map"));
    json_object_set_new(o, "parameters_trained", json_integer(job->layout.ntrained));
    json_object_set_new(o, "parameters_frozen", json_integer(job->layout.nfrozen));
    if (!rc && (json_dump_file(o, temporary, JSON_INDENT(2)) || rename(temporary, path)))
        rc = fsdpck_error_sys(err, errno ? errno : EIO, path, "write");
    json_decref(o);
    return rc;
}

uint64_t files_rss_nbytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %llu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t files_pss_nbytes(void)
{
    char line[160];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "Pss: %llu kB", &kib) != 1)
        continue;
    if (f)
        fclose(f);
    return kib * 1024;
}
