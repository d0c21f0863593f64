/* SPDX-License-Identifier: Apache-2.0 */
#include "data/picture_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fsdpck/dtype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "arrays/grow.h"
#include "text/new_file.h"

enum { VERSION = 1 };

struct head {
    char magic[8];
    uint32_t version, rounded;
    int64_t nrow, ncol;
    uint64_t id, content; /* XXH3 of what follows */
};

static const char magic[8] = "fsdppic";

int picture_cache_open(const char *output_dir, bool creates, struct picture_cache *out, struct fsdpck_error *err)
{
    return creates ? cache_folder_make(output_dir, out->folder, err) : cache_folder_path(output_dir, out->folder, err);
}

static void path_of(const struct picture_cache *c, const struct picture_matrix *m, char path[4200])
{
    snprintf(path, 4200, "%s/picture-%016llx.bin", c->folder, (unsigned long long)m->id);
}

static int by_id(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

int picture_names_read(const struct picture_cache *c, struct picture_names *out, struct fsdpck_error *err)
{
    size_t room = 0;
    unsigned long long id;
    int rc = 0, end;
    *out = (struct picture_names){ 0 };
    DIR *d = opendir(c->folder);
    if (!d)
        return errno == ENOENT ? 0 : fsdpck_error_sys(err, errno, c->folder, "open");
    for (struct dirent *e; !rc && (e = readdir(d));) {
        end = 0;
        if (sscanf(e->d_name, "picture-%16llx.bin%n", &id, &end) != 1 || !end || e->d_name[end])
            continue;
        if (grow((void **)&out->ids, &room, out->n + 1, sizeof *out->ids))
            out->ids[out->n++] = id;
        else
            rc = fsdpck_error_nomem(err, (out->n + 1) * sizeof *out->ids);
    }
    closedir(d);
    if (out->n)
        qsort(out->ids, out->n, sizeof *out->ids, by_id);
    return rc;
}

bool picture_names_have(const struct picture_names *names, uint64_t id)
{
    return names->n && bsearch(&id, names->ids, names->n, sizeof id, by_id);
}

void picture_names_free(struct picture_names *names)
{
    free(names->ids);
    *names = (struct picture_names){ 0 };
}

static size_t nbytes_of(const struct picture_matrix *m)
{
    return (size_t)(m->nrow * m->ncol) * (m->rounded ? 2 : 4);
}

bool picture_cache_may_have(const struct picture_cache *c, const struct picture_matrix *m)
{
    char path[4200];
    struct stat st;
    path_of(c, m, path);
    return stat(path, &st) == 0 && (size_t)st.st_size == sizeof(struct head) + nbytes_of(m);
}

static struct head head_of(const struct picture_matrix *m, const void *data)
{
    struct head h = { .version = VERSION, .rounded = m->rounded, .nrow = m->nrow, .ncol = m->ncol, .id = m->id };
    memcpy(h.magic, magic, sizeof magic);
    h.content = XXH3_64bits(data, nbytes_of(m));
    return h;
}

/* The content of a file. */
struct content {
    const struct head *head;
    const void *data;
    size_t nbytes;
};

static bool put(FILE *f, const void *ctx)
{
    const struct content *c = ctx;
    return fwrite(c->head, sizeof *c->head, 1, f) == 1 && fwrite(c->data, 1, c->nbytes, f) == c->nbytes;
}

int picture_cache_put(const struct picture_cache *c, const struct picture_matrix *m, const float *data,
                      struct fsdpck_error *err)
{
    char path[4200];
    void *stored = malloc(nbytes_of(m) + 1);
    if (!stored)
        return fsdpck_error_nomem(err, nbytes_of(m));
    fsdpck_dtype_cast(FSDPCK_FLOAT32, data, m->rounded ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32, stored,
                      (uint64_t)(m->nrow * m->ncol));
    const struct head h = head_of(m, stored);
    path_of(c, m, path);
    const struct content content = { &h, stored, nbytes_of(m) };
    int rc = new_file_write(path, put, &content, err);
    free(stored);
    return rc;
}

/* *stored: owned. */
static int read_file(const char *path, const struct picture_matrix *m, void **stored, struct fsdpck_error *err)
{
    const size_t nbytes = nbytes_of(m);
    struct head h;
    *stored = malloc(nbytes + 1);
    FILE *f = *stored ? fopen(path, "re") : NULL;
    if (!f)
        return *stored ? fsdpck_error_sys(err, errno, path, "open") : fsdpck_error_nomem(err, nbytes);
    const bool read = fread(&h, sizeof h, 1, f) == 1 && fread(*stored, 1, nbytes, f) == nbytes && fgetc(f) == EOF;
    fclose(f);
    if (read) {
        const struct head want = head_of(m, *stored);
        if (memcmp(&h, &want, sizeof h) == 0)
            return 0;
    }
    fsdpck_error_set(err, FSDPCK_ERR_DAMAGED, path, "it is damaged, or of another shape");
    fsdpck_error_hint(err, "remove it: it is made again");
    return err ? err->code : FSDPCK_ERR_DAMAGED;
}

bool picture_cache_has(const struct picture_cache *c, const struct picture_matrix *m)
{
    struct fsdpck_error ignored = { 0 };
    char path[4200];
    void *stored;
    path_of(c, m, path);
    int rc = read_file(path, m, &stored, &ignored);
    free(stored);
    return rc == 0;
}

int picture_cache_get(const struct picture_cache *c, const struct picture_matrix *m, float *data,
                      struct fsdpck_error *err)
{
    char path[4200];
    void *stored;
    path_of(c, m, path);
    int rc = read_file(path, m, &stored, err);
    if (!rc)
        fsdpck_dtype_cast(m->rounded ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32, stored, FSDPCK_FLOAT32, data,
                          (uint64_t)(m->nrow * m->ncol));
    free(stored);
    return rc;
}
