/* The files of data.train to documents: every processor takes some lines at a time, and their documents are put together in the order of the files. */
#include "data/data_impl.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <train/chat.h>

#include "data/data_file.h"

enum { PART_LINES = 64, MAX_THREADS = 256 };

struct line {
    const char *text;
    size_t nbytes;
    uint32_t file;
    uint64_t number;
};

struct work {
    const struct data_reader *reader;
    char **files; /* (nfiles) what is in them */
    struct line *lines;
    size_t nlines, capacity, nparts;
    struct data *parts; /* (nparts) documents of PART_LINES lines each; file_ends not used */
    atomic_size_t next, failed; /* failed: lowest part that an error ended, or nparts */
    pthread_mutex_t mutex;
    struct fsdpck_error error; /* of that part */
};

static int add_lines(struct work *w, uint32_t file, const char *text, size_t nbytes, struct fsdpck_error *err)
{
    const char *at = text, *end = text + nbytes;
    if (nbytes >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0)
        at += 3;
    for (uint64_t number = 1; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        if (!data_grow((void **)&w->lines, &w->capacity, w->nlines + 1, sizeof *w->lines))
            return fsdpck_error_nomem(err, w->nlines * sizeof *w->lines);
        w->lines[w->nlines++] = (struct line){ at, (size_t)(stop - at), file, number };
        at = stop + 1;
    }
    return 0;
}

static int read_files(struct work *w, struct fsdpck_error *err)
{
    const struct train_config *config = w->reader->config;
    int rc = 0;
    for (uint32_t i = 0; i < config->data.nfiles && !rc; i++) {
        size_t nbytes, before = w->nlines;
        rc = data_file_read(config->data.files[i].path, &w->files[i], &nbytes, err);
        if (!rc)
            rc = add_lines(w, i, w->files[i], nbytes, err);
        if (!rc && w->nlines == before)
            rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config->data.files[i].path, "no document in it");
    }
    return rc;
}

/* Several parts may fail; the error of the first in the order of the files is the one that is told, whatever thread was quicker. */
static void part_failed(struct work *w, size_t part, const struct fsdpck_error *err)
{
    pthread_mutex_lock(&w->mutex);
    if (part < atomic_load(&w->failed)) {
        atomic_store(&w->failed, part);
        w->error = *err;
    }
    pthread_mutex_unlock(&w->mutex);
}

/* The error of one line is worth an end of everything, unless lines may be bad; no memory always is. */
static int run_part(struct work *w, size_t part, struct chat_coder *coder, struct fsdpck_error *err)
{
    const struct train_config *config = w->reader->config;
    bool skip = strcmp(config->data.on_bad_line, "skip") == 0;
    struct data *d = &w->parts[part];
    size_t end = (part + 1) * PART_LINES < w->nlines ? (part + 1) * PART_LINES : w->nlines;
    for (size_t i = part * PART_LINES; i < end; i++) {
        const struct line *l = &w->lines[i];
        struct fsdpck_error why = { 0 };
        int rc = data_add_line(d, w->reader, coder, config->data.files[l->file].path, l->number, l->text, l->nbytes, &why);
        if (rc && (!skip || rc == FSDPCK_ERR_NOMEM)) {
            *err = why;
            return rc;
        }
        d->nskipped += rc != 0;
        if (!rc) /* which file it is of, until documents are put together */
            d->docs[d->ndocs - 1].first = l->file;
    }
    return 0;
}

static void *run_thread(void *arg)
{
    struct work *w = arg;
    struct fsdpck_error err = { 0 };
    struct chat_coder *coder = NULL;
    int rc = w->reader->chat ? chat_coder_new(w->reader->chat, &coder, &err) : 0;
    if (rc)
        part_failed(w, 0, &err);
    for (size_t part; !rc && (part = atomic_fetch_add(&w->next, 1)) < atomic_load(&w->failed);) {
        rc = run_part(w, part, coder, &err);
        if (rc)
            part_failed(w, part, &err);
    }
    chat_coder_free(coder);
    return NULL;
}

static void run_threads(struct work *w)
{
    pthread_t threads[MAX_THREADS];
    cpu_set_t set;
    size_t wanted = sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1, n = 0;
    wanted = wanted > MAX_THREADS ? MAX_THREADS : wanted > w->nparts ? w->nparts : wanted;
    while (n + 1 < wanted && pthread_create(&threads[n], NULL, run_thread, w) == 0)
        n++;
    run_thread(w);
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void append(struct data *d, const struct data *part)
{
    size_t at = d->ntok;
    for (size_t i = 0; i < part->ndocs; i++) {
        struct document doc = part->docs[i];
        d->file_ends[doc.first]++;
        doc.first = at;
        at += doc.ntok;
        d->docs[d->ndocs++] = doc;
    }
    if (part->ntok) {
        memcpy(d->ids + d->ntok, part->ids, part->ntok * sizeof *d->ids);
        memcpy(d->labels + d->ntok, part->labels, part->ntok * sizeof *d->labels);
    }
    d->ntok = at;
    d->nskipped += part->nskipped;
}

static int put_together(struct data *d, struct work *w, struct fsdpck_error *err)
{
    size_t ntok = 0, ndocs = 0;
    for (size_t i = 0; i < w->nparts; i++) {
        ntok += w->parts[i].ntok;
        ndocs += w->parts[i].ndocs;
    }
    if (ndocs == 0 || ndocs > UINT32_MAX)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, w->reader->config->data.train, ndocs ? "more than 2^32 documents" : "no line of it could be used");
    d->docs = calloc(ndocs, sizeof *d->docs);
    d->ids = calloc(ntok, sizeof *d->ids);
    d->labels = calloc(ntok, sizeof *d->labels);
    if (!d->docs || !d->ids || !d->labels)
        return fsdpck_error_nomem(err, ntok * sizeof *d->ids);
    for (size_t i = 0; i < w->nparts; i++)
        append(d, &w->parts[i]);
    for (size_t i = 1; i < d->nfiles; i++)
        d->file_ends[i] += d->file_ends[i - 1];
    return 0;
}

static void work_free(struct work *w)
{
    for (size_t i = 0; w->parts && i < w->nparts; i++) {
        free(w->parts[i].docs);
        free(w->parts[i].ids);
        free(w->parts[i].labels);
    }
    for (size_t i = 0; w->files && i < w->reader->config->data.nfiles; i++)
        free(w->files[i]);
    free(w->parts);
    free(w->files);
    free(w->lines);
    pthread_mutex_destroy(&w->mutex);
}

int data_read_documents(struct data *d, const struct data_reader *reader, struct fsdpck_error *err)
{
    struct work w = { .reader = reader };
    d->nfiles = reader->config->data.nfiles;
    pthread_mutex_init(&w.mutex, NULL);
    w.files = calloc(d->nfiles, sizeof *w.files);
    d->file_ends = calloc(d->nfiles, sizeof *d->file_ends);
    int rc = w.files && d->file_ends ? read_files(&w, err) : fsdpck_error_nomem(err, d->nfiles * sizeof *w.files);
    w.nparts = (w.nlines + PART_LINES - 1) / PART_LINES;
    if (!rc && !(w.parts = calloc(w.nparts, sizeof *w.parts)))
        rc = fsdpck_error_nomem(err, w.nparts * sizeof *w.parts);
    if (!rc) {
        atomic_init(&w.next, 0);
        atomic_init(&w.failed, w.nparts);
        run_threads(&w);
        if (w.error.code && err && !err->code)
            *err = w.error;
        rc = w.error.code ? w.error.code : put_together(d, &w, err);
    }
    work_free(&w);
    return rc;
}

int data_has_text(const struct train_config *config, bool *out, struct fsdpck_error *err)
{
    *out = false;
    for (size_t i = 0; i < config->data.nfiles && !*out; i++) {
        char *line;
        size_t nbytes;
        int rc = data_file_first_line(config->data.files[i].path, &line, &nbytes, err);
        if (rc)
            return rc;
        *out = nbytes > 0 && !data_line_has_ids(line, nbytes);
        free(line);
    }
    return 0;
}
