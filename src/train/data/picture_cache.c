/* SPDX-License-Identifier: Apache-2.0 */
#include "data/picture_cache.h"

#include <errno.h>
#include <fsdpck/dtype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

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
