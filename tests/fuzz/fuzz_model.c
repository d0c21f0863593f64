/* SPDX-License-Identifier: Apache-2.0 */
/* See fuzz_model.h. */
#include "fuzz_model.h"

#include <string.h>

#include "fuzz.h"

#define MAX_READ_NBYTES (16u << 10)
#define MAX_TENSORS     8u

static void check_part(struct fsdpck_source *src, const struct fsdpck_tensor *t, const uint8_t *whole)
{
    uint64_t offset[FSDPCK_MAX_DIMS] = { 0 }, size[FSDPCK_MAX_DIMS], row = t->nbytes / t->shape[0];
    uint8_t *part = malloc(t->nbytes);
    FUZZ_CHECK(part);
    memcpy(size, t->shape, t->ndim * sizeof *size);
    offset[0] = t->shape[0] / 3;
    size[0] = t->shape[0] - offset[0];
    struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = part };
    FUZZ_CHECK(fsdpck_source_read(src, &read, 1, NULL) == 0);
    FUZZ_CHECK(memcmp(part, whole + offset[0] * row, size[0] * row) == 0);
    free(part);
}

static void check_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_plan plan;
    uint8_t *whole = malloc(t->nbytes ? t->nbytes : 1);
    struct fsdpck_read read = { .tensor = t, .dst = whole };
    FUZZ_CHECK(whole);
    int rc = fsdpck_source_read(src, &read, 1, &err);
    FUZZ_CHECK(rc == 0 ? err.code == 0 : err.code == rc && *err.message);
    FUZZ_CHECK(rc || fsdpck_source_plan(src, &read, 1, &plan, NULL) == 0);
    if (!rc && t->ndim && t->nelem)
        check_part(src, t, whole);
    free(whole);
}

bool fuzz_model_add(struct memory_io *m, const uint8_t *data, size_t nbytes)
{
    const uint8_t *line = nbytes ? memchr(data, '\n', nbytes) : NULL;
    if (!line)
        return false;
    memory_io_add(m, MEMORY_ROOT "/config.json", data, (size_t)(line - data));
    memory_io_add(m, MEMORY_ROOT "/model.safetensors", line + 1, nbytes - (size_t)(line + 1 - data));
    return true;
}

void fuzz_model_check(const struct memory_io *m,
                      int (*present)(struct fsdpck_source *src, const void *ctx, struct fsdpck_error *err),
                      const void *ctx)
{
    const struct fsdpck_options opt = { .io = &m->io, .nthreads = 1, .memory_nbytes = 32u << 20 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(MEMORY_ROOT, "hf", &opt, &src, &err);
    if (!rc)
        rc = present(src, ctx, &err);
    FUZZ_CHECK(rc == 0 ? err.code == 0 : err.code == rc && *err.message);
    for (size_t i = 0, n = 0; !rc && i < fsdpck_source_ntensors(src) && n < MAX_TENSORS; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        FUZZ_CHECK(fsdpck_source_find(src, t->name) == t);
        if (t->nbytes > MAX_READ_NBYTES)
            continue;
        check_tensor(src, t);
        n++;
    }
    fsdpck_source_close(src);
}
