/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a run has left in output_dir besides its metrics: checkpoints, samples, summary and lock. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fsdpck/io.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/history.h>
#include <unistd.h>

#include "arrays/grow.h"
#include "text/file.h"

enum {
    PATH_NBYTES = 4096,
    SAMPLE_NBYTES = 1 << 20,
    DEEPEST = 8,
    EVENTS_NBYTES = 64 << 20,
    PICTURES_NBYTES = 24 << 20,
    MOST_NOTES = 200
};

static int join(char out[PATH_NBYTES], const char *folder, const char *name, struct fsdpck_error *err)
{
    int n = snprintf(out, PATH_NBYTES, "%s/%s", folder, name);
    return n > 0 && n < PATH_NBYTES
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_USAGE, folder, "a path longer than %d bytes", PATH_NBYTES);
}

/* "step-000010" and the suffix. */
static bool step_of(const char *name, const char *suffix, uint64_t *step)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *step = strtoull(name + 5, &end, 10);
    return strcmp(end, suffix) == 0;
}

/* Calls visit for each entry of a folder. A folder that is missing has none: a run may remove it meanwhile. */
static int each_entry(const char *path, int (*visit)(void *ctx, const char *name, struct fsdpck_error *err), void *ctx,
                      struct fsdpck_error *err)
{
    int rc = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT || errno == ENOTDIR ? 0 : fsdpck_error_sys(err, errno, path, "opendir");
    for (struct dirent *e; !rc && (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            rc = visit(ctx, e->d_name, err);
    closedir(dir);
    return rc;
}

struct place {
    struct train_folder *f;
    struct train_saved *saved;
    const char *path;
    unsigned depth;
};

/* Counts a file of a checkpoint, or those of a folder in it. */
static int count_file(void *ctx, const char *name, struct fsdpck_error *err)
{
    const struct place *at = ctx;
    char path[PATH_NBYTES];
    struct stat st;
    int rc = join(path, at->path, name, err);
    if (rc || lstat(path, &st))
        return rc;
    if (S_ISDIR(st.st_mode) && at->depth < DEEPEST) {
        struct place inside = { .saved = at->saved, .path = path, .depth = at->depth + 1 };
        return each_entry(path, count_file, &inside, err);
    }
    at->saved->nfiles += S_ISREG(st.st_mode);
    at->saved->nbytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    return 0;
}

static int add_checkpoint(void *ctx, const char *name, struct fsdpck_error *err)
{
    const struct place *at = ctx;
    struct train_folder *f = at->f;
    struct train_saved saved = { 0 };
    char path[PATH_NBYTES];
    if (!step_of(name, "", &saved.step))
        return 0;
    struct place inside = { .saved = &saved, .path = path };
    int rc = join(path, at->path, name, err);
    if (!rc)
        rc = each_entry(path, count_file, &inside, err);
    if (!rc && saved.nfiles) {
        if (!grow((void **)&f->saved, &f->saved_capacity, f->nsaved + 1, sizeof saved))
            return fsdpck_error_nomem(err, sizeof saved);
        f->saved[f->nsaved++] = saved;
    }
    return rc;
}

static void sample_name(char out[64], uint64_t step)
{
    snprintf(out, 64, "step-%06" PRIu64 ".txt", step);
}

static int add_sample(void *ctx, const char *name, struct fsdpck_error *err)
{
    const struct place *at = ctx;
    struct train_folder *f = at->f;
    struct train_sampled sampled = { 0 };
    char wanted[64];
    if (!step_of(name, ".txt", &sampled.step))
        return 0;
    sample_name(wanted, sampled.step);
    if (strcmp(name, wanted) != 0) /* another file of the user's */
        return 0;
    if (!grow((void **)&f->sampled, &f->sampled_capacity, f->nsampled + 1, sizeof sampled))
        return fsdpck_error_nomem(err, sizeof sampled);
    f->sampled[f->nsampled++] = sampled;
    return 0;
}

void train_drawn_name(const struct train_drawn *d, char name[TRAIN_DRAWN_NAME])
{
    snprintf(name, TRAIN_DRAWN_NAME, "step-%06" PRIu64 "-%" PRIu64 ".png", d->step, d->prompt);
}

static int add_picture(void *ctx, const char *name, struct fsdpck_error *err)
{
    const struct place *at = ctx;
    struct train_folder *f = at->f;
    struct train_drawn d = { 0 };
    char wanted[TRAIN_DRAWN_NAME], path[PATH_NBYTES];
    struct stat st;
    if (sscanf(name, "step-%" SCNu64 "-%" SCNu64, &d.step, &d.prompt) != 2)
        return 0;
    train_drawn_name(&d, wanted);
    int rc = join(path, at->path, name, err);
    if (rc || strcmp(name, wanted) != 0 || lstat(path, &st) || !S_ISREG(st.st_mode))
        return rc;
    d.nbytes = (uint64_t)st.st_size;
    if (!grow((void **)&f->drawn, &f->drawn_capacity, f->ndrawn + 1, sizeof d))
        return fsdpck_error_nomem(err, sizeof d);
    f->drawn[f->ndrawn++] = d;
    return 0;
}

static int add_sampled(void *ctx, const char *name, struct fsdpck_error *err)
{
    int rc = add_sample(ctx, name, err);
    return rc ? rc : add_picture(ctx, name, err);
}

static int by_step_and_prompt(const void *a, const void *b)
{
    const struct train_drawn *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step ? -1 : 1) : (x->prompt > y->prompt) - (x->prompt < y->prompt);
}

/* True if number k of n is one of `most` that are spread over them, the first and the last among them. */
static bool is_chosen(size_t k, size_t n, size_t most)
{
    if (most >= n)
        return true;
    if (most < 2)
        return most && k + 1 == n;
    const size_t i = (k * (most - 1) + n - 2) / (n - 1);
    return i * (n - 1) / (most - 1) == k;
}

/* The pictures of `most` of all steps; keeps: moves them to the front. */
static uint64_t choose_pictures(struct train_folder *f, size_t nsteps, size_t most, bool keeps)
{
    uint64_t nbytes = 0;
    size_t step = 0, n = 0;
    for (size_t i = 0; i < f->ndrawn; i++) {
        const struct train_drawn d = f->drawn[i];
        if (is_chosen(step, nsteps, most)) {
            nbytes += d.nbytes;
            if (keeps)
                f->drawn[n++] = d;
        }
        step += i + 1 < f->ndrawn && f->drawn[i + 1].step != d.step;
    }
    f->ndrawn = keeps ? n : f->ndrawn;
    return nbytes;
}

/* Keeps those of at most `max` steps, of fewer if they are large. */
static void thin_pictures(struct train_folder *f, size_t max)
{
    size_t nsteps = 0;
    f->ndrawn_all = f->ndrawn;
    if (f->ndrawn)
        qsort(f->drawn, f->ndrawn, sizeof *f->drawn, by_step_and_prompt);
    for (size_t i = 0; i < f->ndrawn; i++)
        nsteps += i == 0 || f->drawn[i].step != f->drawn[i - 1].step;
    max = max < nsteps ? max : nsteps;
    while (max > 2 && choose_pictures(f, nsteps, max, false) > PICTURES_NBYTES)
        max--;
    choose_pictures(f, nsteps, max, true);
}

/* Both structs begin with the step. */
static int by_step(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Keeps `max` samples, the first and the last among them, and reads them. */
static int read_samples(struct train_folder *f, const char *samples, size_t max, struct fsdpck_error *err)
{
    const size_t all = f->nsampled;
    int rc = 0;
    f->nsampled_all = all;
    for (size_t i = 0; all > max && i < max; i++)
        f->sampled[i] = f->sampled[max > 1 ? i * (all - 1) / (max - 1) : all - 1];
    f->nsampled = all > max ? max : all;
    for (size_t i = 0; i < f->nsampled && !rc; i++) {
        struct train_sampled *s = &f->sampled[i];
        char name[64], path[PATH_NBYTES];
        sample_name(name, s->step);
        rc = join(path, samples, name, err);
        if (!rc)
            rc = text_file_read(path, SAMPLE_NBYTES, &s->text, &s->nbytes, err);
    }
    return rc;
}

static int read_summary(struct train_folder *f, const char *path, struct fsdpck_error *err)
{
    json_t *o = NULL;
    if (access(path, F_OK))
        return 0;
    int rc = text_file_json(path, &o, err);
    if (!rc) {
        const json_int_t nsteps = json_integer_value(json_object_get(o, "steps")),
                         ntrained = json_integer_value(json_object_get(o, "parameters_trained")),
                         nfrozen = json_integer_value(json_object_get(o, "parameters_frozen"));
        f->ended = true;
        f->finished = json_is_true(json_object_get(o, "finished"));
        f->nsteps = nsteps > 0 ? (uint64_t)nsteps : 0;
        f->ntrained = ntrained > 0 ? (uint64_t)ntrained : 0;
        f->nfrozen = nfrozen > 0 ? (uint64_t)nfrozen : 0;
    }
    json_decref(o);
    return rc;
}

static bool is_event(const json_t *o, const char *kind)
{
    const char *found = json_string_value(json_object_get(o, "event"));
    return found && strcmp(found, kind) == 0;
}

/* Removes the config of earlier starts, and all but the last notes: a list for people stays short. */
static int shorten_events(json_t **events, struct fsdpck_error *err)
{
    json_t *kept = json_array(), *o;
    bool last = true;
    size_t i, nnotes = 0, first = 0; /* the first note that stays */
    int rc = 0;
    for (i = json_array_size(*events); i-- > 0;) {
        o = json_array_get(*events, i);
        if (is_event(o, "start")) {
            if (!last)
                json_object_del(o, "config");
            last = false;
        }
        if (is_event(o, "note") && ++nnotes == MOST_NOTES)
            first = i;
    }
    json_array_foreach (*events, i, o)
        if (!rc && (i >= first || !is_event(o, "note")) && json_array_append(kept, o))
            rc = fsdpck_error_nomem(err, json_array_size(*events) * sizeof o);
    json_decref(*events);
    *events = kept;
    return rc;
}

/* What the last start and its end say counts more than summary.json, which may be of the start before. */
static void judge_events(struct train_folder *f)
{
    const json_t *start = NULL, *end = NULL;
    json_t *o;
    size_t i;
    json_array_foreach (f->events, i, o) {
        start = is_event(o, "start") ? o : start;
        end = is_event(o, "end") ? o : is_event(o, "start") ? NULL : end;
    }
    if (!start)
        return;
    const char *how = json_string_value(json_object_get(end, "how"));
    const json_int_t nsteps = json_integer_value(json_object_get(start, "steps")),
                     ntrained = json_integer_value(json_object_get(start, "parameters_trained")),
                     nfrozen = json_integer_value(json_object_get(start, "parameters_frozen"));
    f->ended = end != NULL;
    f->finished = how && strcmp(how, "finished") == 0;
    f->nsteps = nsteps > 0 ? (uint64_t)nsteps : f->nsteps;
    f->ntrained = ntrained > 0 ? (uint64_t)ntrained : f->ntrained;
    f->nfrozen = nfrozen > 0 ? (uint64_t)nfrozen : f->nfrozen;
}

/* Lines that are no objects are skipped: a killed run may have left half a one. */
static int read_events(struct train_folder *f, const char *path, struct fsdpck_error *err)
{
    char *text = NULL, *rest;
    size_t nbytes;
    int rc = 0;
    f->events = json_array();
    if (!f->events)
        return fsdpck_error_nomem(err, sizeof(json_t));
    if (access(path, F_OK))
        return 0;
    rc = text_file_read(path, EVENTS_NBYTES, &text, &nbytes, err);
    for (char *line = rc ? NULL : strtok_r(text, "\n", &rest); line && !rc; line = strtok_r(NULL, "\n", &rest)) {
        json_t *o = json_loads(line, 0, NULL);
        if (json_is_object(o) && json_array_append(f->events, o))
            rc = fsdpck_error_nomem(err, nbytes);
        json_decref(o);
    }
    free(text);
    if (!rc)
        rc = shorten_events(&f->events, err);
    judge_events(f);
    return rc;
}

static bool is_locked(const char *path)
{
    const struct fsdpck_io *io = &fsdpck_io_posix;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool locked = fd >= 0 && io->lock_probe(io->ctx, fd) == 1;
    if (fd >= 0)
        close(fd);
    return locked;
}

int train_folder_read(const char *path, size_t max_samples, struct train_folder *out, struct fsdpck_error *err)
{
    char inside[PATH_NBYTES];
    struct place at = { .f = out, .path = inside };
    *out = (struct train_folder){ 0 };
    int rc = join(inside, path, ".fsdpck-lock", err);
    if (!rc) {
        out->trains = is_locked(inside);
        rc = join(inside, path, "summary.json", err);
    }
    if (!rc)
        rc = read_summary(out, inside, err);
    if (!rc)
        rc = join(inside, path, "events.jsonl", err);
    if (!rc)
        rc = read_events(out, inside, err);
    if (!rc)
        rc = join(inside, path, "checkpoints", err);
    if (!rc)
        rc = each_entry(inside, add_checkpoint, &at, err);
    if (!rc)
        rc = join(inside, path, "samples", err);
    if (!rc)
        rc = each_entry(inside, add_sampled, &at, err);
    if (!rc)
        thin_pictures(out, max_samples);
    if (!rc && out->nsaved)
        qsort(out->saved, out->nsaved, sizeof *out->saved, by_step);
    if (!rc && out->nsampled)
        qsort(out->sampled, out->nsampled, sizeof *out->sampled, by_step);
    if (!rc)
        rc = read_samples(out, inside, max_samples, err);
    if (rc)
        train_folder_free(out);
    return rc;
}

const char *train_folder_state(const struct train_folder *f)
{
    return f->trains ? "under way" : f->finished ? "finished" : f->ended ? "stopped" : "interrupted";
}

void train_folder_free(struct train_folder *f)
{
    for (size_t i = 0; i < f->nsampled; i++)
        free(f->sampled[i].text);
    json_decref(f->events);
    free(f->sampled);
    free(f->drawn);
    free(f->saved);
    *f = (struct train_folder){ 0 };
}
