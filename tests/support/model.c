/* SPDX-License-Identifier: Apache-2.0 */
/* Random models and their reference values. Written to be obviously correct rather than fast; knows no checkpoint
 * format but safetensors. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

static void *must(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

/* splitmix64 */
uint64_t model_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t model_below(uint64_t *state, uint64_t n)
{
    return model_random(state) % n;
}

struct model_tensor *model_add(struct model *m, uint64_t *state, enum fsdpck_dtype dtype, uint32_t ndim,
                               const uint64_t *shape)
{
    m->tensors = must(realloc(m->tensors, (m->ntensors + 1) * sizeof *m->tensors));
    struct model_tensor *t = &m->tensors[m->ntensors];
    *t = (struct model_tensor){ .dtype = dtype, .ndim = ndim, .item = fsdpck_dtype_info(dtype)->nbytes, .nelem = 1 };
    snprintf(t->name, sizeof t->name, "t%zu.weight", m->ntensors++);
    for (uint32_t d = 0; d < ndim; d++) {
        t->shape[d] = shape[d];
        t->nelem *= shape[d];
    }
    t->nbytes = t->nelem * t->item;
    t->data = must(malloc(t->nbytes + 8));
    for (uint64_t at = 0; at < t->nbytes; at += 8) {
        uint64_t r = model_random(state) & (dtype == FSDPCK_BOOL ? 0x0101010101010101u : UINT64_MAX);
        memcpy(t->data + at, &r, 8);
    }
    return t;
}

struct model_tensor *model_add_random(struct model *m, uint64_t *state, uint64_t max_nbytes)
{
    enum fsdpck_dtype dtype;
    uint64_t shape[MODEL_MAX_DIMS], left;
    uint32_t ndim = (uint32_t)model_below(state, MODEL_MAX_DIMS + 1);
    do
        dtype = (enum fsdpck_dtype)model_below(state, FSDPCK_NDTYPES);
    while (fsdpck_dtype_info(dtype)->safetensors == NULL || dtype == FSDPCK_FLOAT4_E2M1FN_X2);
    left = max_nbytes / fsdpck_dtype_info(dtype)->nbytes;
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t most = d + 1 == ndim ? left : left < 40 ? left : 40;
        shape[d] = 1 + model_below(state, most ? most : 1);
        left /= shape[d];
    }
    if (ndim > 1 && model_below(state, 2)) { /* the long dimension comes first as often as last */
        uint64_t last = shape[ndim - 1];
        shape[ndim - 1] = shape[0];
        shape[0] = last;
    }
    if (ndim && model_below(state, 12) == 0)
        shape[model_below(state, ndim)] = 0;
    return model_add(m, state, dtype, ndim, shape);
}

void model_free(struct model *m)
{
    for (size_t i = 0; i < m->ntensors; i++)
        free(m->tensors[i].data);
    free(m->tensors);
    *m = (struct model){ 0 };
}

static void put(FILE *f, const void *bytes, size_t nbytes)
{
    if (fwrite(bytes, 1, nbytes, f) != nbytes)
        abort();
}

static size_t describe(const struct model_tensor *t, bool first, uint64_t at, char *text, size_t nbytes)
{
    size_t n = (size_t)snprintf(text, nbytes, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", first ? "{" : ",", t->name,
                                fsdpck_dtype_info(t->dtype)->safetensors);
    for (uint32_t d = 0; d < t->ndim; d++)
        n += (size_t)snprintf(text + n, nbytes - n, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
    return n + (size_t)snprintf(text + n, nbytes - n, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                                (unsigned long long)(at + t->nbytes));
}

void model_write_safetensors(const struct model *m, const char *path)
{
    size_t room = 256 * (m->ntensors + 1), n = 0;
    char *header = must(malloc(room));
    uint64_t at = 0;
    for (size_t i = 0; i < m->ntensors; at += m->tensors[i++].nbytes)
        n += describe(&m->tensors[i], i == 0, at, header + n, room - n);
    n += (size_t)snprintf(header + n, room - n, "%s", m->ntensors ? "}" : "{}");
    while (n % 8)
        header[n++] = ' ';
    uint8_t nbytes[8];
    for (int i = 0; i < 8; i++)
        nbytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
    FILE *f = must(fopen(path, "wb"));
    put(f, nbytes, 8);
    put(f, header, n);
    for (size_t i = 0; i < m->ntensors; i++)
        put(f, m->tensors[i].data, m->tensors[i].nbytes);
    if (fclose(f) != 0)
        abort();
    free(header);
}

void model_content(const struct model_tensor *t, uint8_t out[16])
{
    uint64_t nrows = t->ndim ? t->shape[0] : 1, low = 0, high = 0;
    uint64_t row_nbytes = t->nelem ? t->nbytes / nrows : 0;
    for (uint64_t r = 0; r < nrows && t->nelem; r++) {
        XXH128_hash_t h = XXH3_128bits_withSeed(t->data + r * row_nbytes, row_nbytes, r);
        uint64_t carry = __builtin_add_overflow(low, h.low64, &low);
        high += h.high64 + carry;
    }
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(low >> 8 * i);
        out[8 + i] = (uint8_t)(high >> 8 * i);
    }
}

void model_get_box(const struct model_tensor *t, const uint64_t *offset, const uint64_t *size, uint8_t *dst,
                   const int64_t *strides)
{
    uint64_t index[MODEL_MAX_DIMS] = { 0 };
    uint32_t ndim = t->ndim;
    uint64_t at_once = t->item;
    for (uint32_t d = 0; d < t->ndim; d++)
        if (size[d] == 0)
            return;
    if (ndim && strides[ndim - 1] == (int64_t)t->item) /* a row that is dense in both */
        at_once *= size[--ndim];
    for (;;) {
        uint64_t flat = 0;
        int64_t to = 0;
        for (uint32_t d = 0; d < t->ndim; d++) {
            flat = flat * t->shape[d] + offset[d] + index[d];
            to += (int64_t)index[d] * strides[d];
        }
        memcpy(dst + to, t->data + flat * t->item, at_once);
        uint32_t d = ndim;
        while (d > 0 && ++index[d - 1] == size[d - 1]) {
            d--;
            index[d] = 0;
        }
        if (d == 0)
            return;
    }
}

const char *model_differs(const struct model *m, struct fsdpck_source *src, struct fsdpck_error *err)
{
    const char *bad = NULL;
    for (size_t i = 0; i < m->ntensors && bad == NULL; i++) {
        const struct model_tensor *t = &m->tensors[i];
        const struct fsdpck_tensor *found = fsdpck_source_find(src, t->name);
        uint8_t *data = must(calloc(1, t->nbytes + 1));
        struct fsdpck_read read = { .tensor = found, .dst = data };
        bool same = found != NULL && found->dtype == t->dtype && found->ndim == t->ndim &&
                    (t->ndim == 0 || memcmp(found->shape, t->shape, t->ndim * sizeof *t->shape) == 0) &&
                    fsdpck_source_read(src, &read, 1, err) == 0 && memcmp(data, t->data, t->nbytes) == 0;
        if (!same)
            bad = t->name;
        free(data);
    }
    return bad;
}

static int no_fsync(void *ctx, int fd)
{
    (void)ctx;
    (void)fd;
    return 0;
}

struct fsdpck_io model_fast_io(void)
{
    struct fsdpck_io io = fsdpck_io_posix;
    io.fsync = no_fsync;
    return io;
}

void model_calm(struct model *m)
{
    for (size_t i = 0; i < m->ntensors; i += 2) {
        struct model_tensor *t = &m->tensors[i];
        for (uint64_t k = t->item - 1; k < t->nbytes; k += t->item)
            t->data[k] &= 0x3b;
    }
}
