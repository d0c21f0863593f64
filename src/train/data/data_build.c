/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the sections of the token cache from data files. Each thread takes the next free part; sections are appended
 * in the order of the parts. Other processes that build the same cache are visible only by their locks. If one of them
 * dies, or stalls for long, this process makes its part. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <train/chat.h>

#include "data/data_cache.h"
#include "data/data_parts.h"

enum { MAX_THREADS = 256, POLL_NS = 2000000, PATIENCE_SECONDS = 30 };

/* A section that waits until the parts before it have been appended. */
struct finished {
    size_t number;
    struct data_section section;
    struct finished *next;
};

struct build {
    const struct data_reader *reader;
    struct data_cache *cache; /* NULL: sections go into `into` */
    struct data *into;
    struct data_parts *parts;
    size_t seen, total;          /* parts that the reader has reached; the total, or SIZE_MAX while unknown */
    size_t appended;             /* number of parts appended, by any process */
    struct timespec appended_at; /* time of the last change of `appended` */
    size_t in_progress[MAX_THREADS], nin_progress, nthreads;
    struct finished *ready;
    size_t nready;
    size_t failed; /* the lowest part with an error, or SIZE_MAX */
    struct fsdpck_error error;
    bool broken; /* a fatal error: stop at once */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

/* State of one thread. */
struct builder {
    struct build *b;
    struct chat_coder *coder;
    struct data_part part;
};

static const char *path_of(const struct build *b, const struct data_part *part)
{
    return b->reader->config->data.files[part->file].path;
}

/* Parses a bad line again, now with its line number, for the error message. Line numbers are expensive, so they are
 * computed only here. */
static int report_bad_line(struct builder *m, struct data_section *s, uint64_t line, const char *text, size_t nbytes,
                           struct fsdpck_error *err)
{
    const char *path = path_of(m->b, &m->part);
    uint64_t before = 0;
    int rc = m->part.line ? 0 : data_count_lines(path, m->part.begin, &before, err);
    return rc ? rc
              : data_add_line(s, m->b->reader, m->coder, path, (m->part.line ? m->part.line : before + 1) + line, text,
                              nbytes, err);
}

/* A bad line fails the build, unless data.on_bad_line skips it. Out of memory always fails it. */
static int add_lines(struct builder *m, struct data_section *s, struct fsdpck_error *err)
{
    const char *at = m->part.text, *end = at + m->part.nbytes;
    bool skip = m->b->reader->config->data.on_bad_line == TRAIN_BAD_LINE_SKIP;
    s->file = m->part.file;
    for (uint64_t line = 0; at < end; line++) {
        struct fsdpck_error why = { 0 };
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        int rc = data_add_line(s, m->b->reader, m->coder, path_of(m->b, &m->part), line, at, (size_t)(stop - at), &why);
        if (rc && (!skip || rc == FSDPCK_ERR_NOMEM))
            return report_bad_line(m, s, line, at, (size_t)(stop - at), err);
        s->nskipped += rc != 0;
        at = stop + 1;
    }
    return 0;
}

/* Records the error of a part. If several parts fail, the first in the order of the files is reported, independent of
 * timing. */
static void part_failed(struct build *b, size_t number, const struct fsdpck_error *err)
{
    if (b->broken || number >= b->failed)
        return;
    b->failed = number;
    b->error = *err;
}

static void fail_build(struct build *b, const struct fsdpck_error *err)
{
    if (!b->broken)
        b->error = *err;
    b->broken = true;
}

static bool is_finished(const struct build *b)
{
    return b->broken || b->appended >= b->failed || b->appended >= b->total;
}

static void set_appended(struct build *b, size_t appended)
{
    if (appended <= b->appended)
        return;
    b->appended = appended;
    clock_gettime(CLOCK_MONOTONIC, &b->appended_at);
    pthread_cond_broadcast(&b->changed);
}

static int append(struct build *b, struct data_section *s, struct fsdpck_error *err)
{
    struct data *d = b->into;
    if (b->cache)
        return data_cache_append(b->cache, s, err);
    if (!grow((void **)&d->sections, &d->sections_capacity, d->nsections + 1, sizeof *d->sections))
        return fsdpck_error_nomem(err, sizeof *s);
    d->sections[d->nsections++] = *s;
    *s = (struct data_section){ 0 };
    return 0;
}

/* Appends the finished sections whose turn it is; drops those that another process has appended. */
static void append_ready(struct build *b)
{
    struct fsdpck_error err = { 0 };
    if (b->cache)
        set_appended(b, data_cache_nparts(b->cache));
    for (struct finished **at = &b->ready; *at;) {
        struct finished *f = *at;
        if (f->number > b->appended) {
            at = &f->next;
            continue;
        }
        if (f->number == b->appended && !b->broken) {
            if (append(b, &f->section, &err))
                fail_build(b, &err);
            else
                set_appended(b, f->number + 1);
        }
        if (b->cache)
            data_cache_release(b->cache, f->number);
        *at = f->next;
        b->nready--;
        data_section_free(&f->section);
        free(f);
        at = &b->ready; /* a section that was skipped may be next now */
    }
}

static void remove_in_progress(struct build *b, size_t number)
{
    for (size_t i = 0; i < b->nin_progress; i++) {
        if (b->in_progress[i] == number)
            b->in_progress[i--] = b->in_progress[--b->nin_progress];
    }
}

/* Makes the part that m has taken. Called with the mutex held; releases it while working. */
static void build_part(struct builder *m, size_t number)
{
    struct build *b = m->b;
    struct fsdpck_error err = { 0 };
    struct finished *f = calloc(1, sizeof *f);
    pthread_mutex_unlock(&b->mutex);
    int rc = f ? add_lines(m, &f->section, &err) : fsdpck_error_nomem(&err, sizeof *f);
    pthread_mutex_lock(&b->mutex);
    remove_in_progress(b, number);
    if (rc) {
        part_failed(b, number, &err);
        if (b->cache)
            data_cache_release(b->cache, number);
        if (f)
            data_section_free(&f->section);
        free(f);
    } else {
        f->number = number;
        f->next = b->ready;
        b->ready = f;
        b->nready++;
    }
    append_ready(b);
}

/* Claims a part for this process. Returns false if another process holds the claim, or if the part has been appended
 * meanwhile. */
static bool claim(struct build *b, size_t number)
{
    if (!b->cache)
        return true;
    if (!data_cache_claim(b->cache, number))
        return false;
    set_appended(b, data_cache_nparts(b->cache));
    if (number < b->appended)
        data_cache_release(b->cache, number);
    return number >= b->appended;
}

/* Claims and reads the next part for this process. Stops if too many finished sections wait to be appended. */
static bool next_part(struct builder *m, size_t *number)
{
    struct build *b = m->b;
    struct fsdpck_error err = { 0 };
    bool end = false;
    while (b->total == SIZE_MAX && b->failed == SIZE_MAX && b->nready < 2 * b->nthreads + 2) {
        int rc = data_parts_step(b->parts, number, &end, &err);
        if (!rc && end)
            b->total = b->seen;
        if (rc)
            part_failed(b, b->seen, &err);
        if (rc || end)
            return false;
        b->seen++;
        if (*number < b->appended || !claim(b, *number))
            continue;
        rc = data_parts_take(b->parts, &m->part, &err);
        if (!rc)
            return true;
        part_failed(b, *number, &err);
        if (b->cache)
            data_cache_release(b->cache, *number);
    }
    return false;
}

/* Reads a part that the shared reader has already passed. */
static int find_part(struct builder *m, size_t number, struct fsdpck_error *err)
{
    struct data_parts *parts;
    size_t at = 0;
    bool end = false;
    int rc = data_parts_open(m->b->reader->config, &parts, err);
    while (!rc && !(rc = data_parts_step(parts, &at, &end, err)) && !end && at < number)
        ;
    if (!rc)
        rc =
            end ? fsdpck_error_set(err, FSDPCK_ERR_IO, m->b->reader->config->data.train, "it changed while it was read")
                : data_parts_take(parts, &m->part, err);
    data_parts_close(parts);
    return rc;
}

static bool is_claimed_here(const struct build *b, size_t number)
{
    bool ours = number >= b->seen;
    for (size_t i = 0; i < b->nin_progress; i++)
        ours |= b->in_progress[i] == number;
    for (const struct finished *f = b->ready; f; f = f->next)
        ours |= f->number == number;
    return ours;
}

static bool is_stalled(const struct build *b)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec - b->appended_at.tv_sec > PATIENCE_SECONDS;
}

/* Another process makes the next part to append. Waits for it; if that process is gone or stuck, makes the part
 * here. */
static void wait_for_others(struct builder *m)
{
    struct build *b = m->b;
    struct fsdpck_error err = { 0 };
    struct timespec until;
    append_ready(b);
    if (is_finished(b))
        return;
    size_t number = b->appended;
    if (!is_claimed_here(b, number) && (claim(b, number) || is_stalled(b))) {
        b->in_progress[b->nin_progress++] = number;
        if (find_part(m, number, &err) == 0) {
            build_part(m, number);
        } else {
            remove_in_progress(b, number);
            part_failed(b, number, &err);
            data_cache_release(b->cache, number);
        }
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&b->changed, &b->mutex, &until);
}

static void report_progress(struct build *b)
{
    const struct fsdpck_options *opt = b->reader->opt;
    uint64_t done, total;
    if (!opt || !opt->progress)
        return;
    data_parts_progress(b->parts, &done, &total);
    opt->progress(opt->ctx, done, total);
}

static void check_stop(struct build *b)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_options *opt = b->reader->opt;
    if (!opt || !opt->stop || !*opt->stop)
        return;
    fsdpck_error_set(&err, FSDPCK_ERR_STOPPED, b->reader->config->data.train,
                     "stopped while it was tokenized; the same command goes on where this one ended");
    fail_build(b, &err);
}

static void *run_thread(void *arg)
{
    struct build *b = arg;
    struct builder m = { .b = b };
    struct fsdpck_error err = { 0 };
    size_t number;
    int rc = b->reader->chat ? chat_coder_new(b->reader->chat, &m.coder, &err) : 0;
    pthread_mutex_lock(&b->mutex);
    if (rc)
        fail_build(b, &err);
    while (check_stop(b), !is_finished(b)) {
        if (next_part(&m, &number)) {
            report_progress(b);
            b->in_progress[b->nin_progress++] = number;
            build_part(&m, number);
        } else {
            wait_for_others(&m);
        }
    }
    pthread_mutex_unlock(&b->mutex);
    chat_coder_free(m.coder);
    free(m.part.text);
    return NULL;
}

static size_t count_threads(const struct data_reader *reader)
{
    unsigned n = reader->opt && reader->opt->nthreads ? reader->opt->nthreads : fsdpck_processors();
    return n > MAX_THREADS ? MAX_THREADS : n;
}

static void run_threads(struct build *b)
{
    pthread_t threads[MAX_THREADS];
    size_t n = 0;
    while (n + 1 < b->nthreads && pthread_create(&threads[n], NULL, run_thread, b) == 0)
        n++;
    run_thread(b);
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void build_free(struct build *b)
{
    while (b->ready) {
        struct finished *f = b->ready;
        b->ready = f->next;
        data_section_free(&f->section);
        free(f);
    }
    data_parts_close(b->parts);
    pthread_mutex_destroy(&b->mutex);
    pthread_cond_destroy(&b->changed);
}

int data_build(const struct data_reader *reader, struct data_cache *cache, struct data *into, struct fsdpck_error *err)
{
    struct build b = { .reader = reader,
                       .cache = cache,
                       .into = into,
                       .total = SIZE_MAX,
                       .failed = SIZE_MAX,
                       .nthreads = count_threads(reader) };
    clock_gettime(CLOCK_MONOTONIC, &b.appended_at);
    pthread_mutex_init(&b.mutex, NULL);
    pthread_cond_init(&b.changed, NULL);
    int rc = data_parts_open(reader->config, &b.parts, err);
    if (!rc) {
        run_threads(&b);
        rc = b.error.code;
        if (rc && err && !err->code)
            *err = b.error;
    }
    if (!rc && cache)
        rc = data_cache_finish(cache, err);
    build_free(&b);
    return rc;
}
