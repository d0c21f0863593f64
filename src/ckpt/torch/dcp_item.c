/* Looks into one item of a .distcp file: a torch.save zip that holds one tensor. Finds out where its elements lie and checks that they are
 * what .metadata said. Knows nothing of other items. */
#include "torch/dcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "engine/files.h"
#include "base/ioutil.h"
#include "torch/zip.h"

#define MAX_PICKLE_NBYTES (1u << 20) /* of one tensor's data.pkl; real ones have 150 */

static const char *const allowed[] = {
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter", "collections OrderedDict",
    "torch.storage UntypedStorage", "torch DoubleStorage", "torch FloatStorage", "torch HalfStorage", "torch BFloat16Storage",
    "torch LongStorage", "torch IntStorage", "torch ShortStorage", "torch CharStorage", "torch ByteStorage", "torch BoolStorage",
    "torch ComplexDoubleStorage", "torch ComplexFloatStorage", "torch float64", "torch float32", "torch float16", "torch bfloat16",
    "torch int64", "torch int32", "torch int16", "torch int8", "torch uint64", "torch uint32", "torch uint16", "torch uint8", "torch bool",
    "torch complex128", "torch complex64", "torch complex32", "torch float8_e4m3fn", "torch float8_e5m2", "torch float8_e4m3fnuz",
    "torch float8_e5m2fnuz", "torch float8_e8m0fnu", "torch float4_e2m1fn_x2", NULL,
};

struct look {
    struct fsdpck_source *src;
    const struct fsdpck_tensor *t;
    const uint64_t *size; /* of the chunk */
    const char *file;
    uint64_t item;
    int fd;
    struct fsdpck_zip zip;
    struct fsdpck_pickle *p;
    struct dcp_place *out;
    struct fsdpck_error *err;
};

/* What data.pkl says of the tensor. */
struct saved {
    enum fsdpck_dtype dtype;
    const char *key; /* of the storage */
    uint64_t storage_nelem, first;
    uint32_t ndim;
    uint64_t size[FSDPCK_MAX_DIMS], strides[FSDPCK_MAX_DIMS];
};

#define FAIL(l, code, ...) fsdpck_error_at((l)->err, code, (l)->file, (l)->item, __VA_ARGS__)

bool fsdpck_dcp_dims(const struct fsdpck_pickle *p, fsdpck_node n, uint32_t *ndim, uint64_t *dims)
{
    if (fsdpck_pickle_made_by(p, n, "torch Size"))
        n = fsdpck_pickle_child(p, fsdpck_pickle_child(p, n, 1), 0);
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    size_t count = fsdpck_pickle_count(p, n);
    if ((type != FSDPCK_PICKLE_TUPLE && type != FSDPCK_PICKLE_LIST) || count > FSDPCK_MAX_DIMS)
        return false;
    for (size_t d = 0; d < count; d++) {
        int64_t v;
        fsdpck_node child = fsdpck_pickle_child(p, n, d);
        if (fsdpck_pickle_type(p, child) != FSDPCK_PICKLE_INT || !fsdpck_pickle_int(p, child, &v) || v < 0)
            return false;
        dims[d] = (uint64_t)v;
    }
    *ndim = (uint32_t)count;
    return true;
}

bool fsdpck_dcp_dtype(const struct fsdpck_pickle *p, fsdpck_node n, enum fsdpck_dtype *out)
{
    const char *name = fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, n, NULL) : "";
    return !strncmp(name, "torch ", 6) && fsdpck_dtype_from_name(name + 6, out);
}

/* The bytes of a small record, malloc'ed. */
static int read_record(struct look *l, const struct fsdpck_zip_record *record, uint64_t max_nbytes, char **out)
{
    *out = NULL;
    if (record->nbytes > max_nbytes)
        return FAIL(l, FSDPCK_ERR_LIMIT, "record '%s' has %" PRIu64 " bytes; at most %" PRIu64 " are read", record->name, record->nbytes,
                    max_nbytes);
    *out = malloc(record->nbytes + 1);
    if (!*out)
        return fsdpck_error_nomem(l->err, record->nbytes + 1);
    return fsdpck_read_full(l->src->io, l->fd, l->file, *out, record->nbytes, record->offset, l->err);
}

static int read_byteorder(struct look *l)
{
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&l->zip, "byteorder");
    char *text = NULL;
    int r = 0;
    if (record && !(r = read_record(l, record, 64, &text))) {
        l->out->swap = record->nbytes == 3 && !memcmp(text, "big", 3);
        if (!l->out->swap && (record->nbytes != 6 || memcmp(text, "little", 6) != 0))
            r = FAIL(l, FSDPCK_ERR_FORMAT, "record '%s' says neither little nor big", record->name);
    }
    free(text);
    return r;
}

static int open_item(struct look *l, uint64_t nbytes)
{
    char *pickle = NULL;
    int r = fsdpck_zip_open(l->src->io, l->fd, l->file, l->item, nbytes, &l->zip, l->err);
    if (r)
        return r;
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&l->zip, "data.pkl");
    if (!record)
        return FAIL(l, FSDPCK_ERR_FORMAT, "the item has no record data.pkl");
    r = read_record(l, record, MAX_PICKLE_NBYTES, &pickle);
    if (!r)
        r = fsdpck_pickle_parse(l->file, record->offset, pickle, record->nbytes, allowed, &l->p, l->err);
    free(pickle);
    return r ? r : read_byteorder(l);
}

/* dtype of a typed storage; false for UntypedStorage and whatever else. */
static bool storage_dtype(const struct fsdpck_pickle *p, fsdpck_node class, enum fsdpck_dtype *out)
{
    for (int i = 0; i < FSDPCK_NDTYPES; i++) {
        const char *storage = fsdpck_dtype_info((enum fsdpck_dtype)i)->torch_storage;
        const char *name = fsdpck_pickle_type(p, class) == FSDPCK_PICKLE_GLOBAL ? fsdpck_pickle_text(p, class, NULL) : "";
        if (storage && !strncmp(name, "torch ", 6) && !strcmp(name + 6, storage)) {
            *out = (enum fsdpck_dtype)i;
            return true;
        }
    }
    return false;
}

/* ('storage', class, key, location, number of elements; of bytes where untyped). dtype: given by _rebuild_tensor_v3, else NULL. */
static bool read_storage(const struct fsdpck_pickle *p, fsdpck_node n, const enum fsdpck_dtype *dtype, struct saved *s)
{
    fsdpck_node id = fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_PERSISTENT ? fsdpck_pickle_child(p, n, 0) : FSDPCK_NO_NODE;
    const char *what = fsdpck_pickle_text(p, fsdpck_pickle_child(p, id, 0), NULL);
    fsdpck_node class = fsdpck_pickle_child(p, id, 1), key = fsdpck_pickle_child(p, id, 2);
    int64_t count;
    if (fsdpck_pickle_type(p, id) != FSDPCK_PICKLE_TUPLE || fsdpck_pickle_count(p, id) != 5 || !what || strcmp(what, "storage") != 0 ||
        fsdpck_pickle_type(p, key) != FSDPCK_PICKLE_STRING || !fsdpck_pickle_int(p, fsdpck_pickle_child(p, id, 4), &count) || count < 0)
        return false;
    s->key = fsdpck_pickle_text(p, key, NULL);
    enum fsdpck_dtype stored;
    uint64_t unit = 1;
    if (storage_dtype(p, class, &stored))
        unit = fsdpck_dtype_info(stored)->nbytes;
    else if (!dtype || !fsdpck_pickle_is(p, class, "torch.storage UntypedStorage"))
        return false;
    s->dtype = dtype ? *dtype : stored;
    uint64_t nbytes;
    if (!checked_mul((uint64_t)count, unit, &nbytes))
        return false;
    s->storage_nelem = nbytes / fsdpck_dtype_info(s->dtype)->nbytes;
    return true;
}

/* _rebuild_tensor_v2(storage, first, size, stride, requires_grad, hooks[, flags]); _v3 has the dtype before the flags. */
static int read_pickle(struct look *l, struct saved *s)
{
    const struct fsdpck_pickle *p = l->p;
    fsdpck_node n = fsdpck_pickle_root(p);
    while (fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_parameter"))
        n = fsdpck_pickle_child(p, fsdpck_pickle_child(p, n, 1), 0);
    bool v3 = fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_tensor_v3");
    if (!v3 && !fsdpck_pickle_made_by(p, n, "torch._utils _rebuild_tensor_v2"))
        return FAIL(l, FSDPCK_ERR_FORMAT, "data.pkl does not describe a tensor");
    fsdpck_node args = fsdpck_pickle_child(p, n, 1), flags = fsdpck_pickle_child(p, args, v3 ? 7 : 6);
    enum fsdpck_dtype dtype = FSDPCK_NDTYPES;
    uint32_t nstrides;
    int64_t first;
    if ((v3 && !fsdpck_dcp_dtype(p, fsdpck_pickle_child(p, args, 6), &dtype)) ||
        !read_storage(p, fsdpck_pickle_child(p, args, 0), v3 ? &dtype : NULL, s) ||
        !fsdpck_pickle_int(p, fsdpck_pickle_child(p, args, 1), &first) || first < 0 ||
        !fsdpck_dcp_dims(p, fsdpck_pickle_child(p, args, 2), &s->ndim, s->size) ||
        !fsdpck_dcp_dims(p, fsdpck_pickle_child(p, args, 3), &nstrides, s->strides) || nstrides != s->ndim)
        return FAIL(l, FSDPCK_ERR_FORMAT, "data.pkl describes a tensor in a way that torch does not");
    s->first = (uint64_t)first;
    if (fsdpck_pickle_type(p, flags) != FSDPCK_PICKLE_NONE && fsdpck_pickle_count(p, flags))
        return FAIL(l, FSDPCK_ERR_UNSUPPORTED, "the tensor was saved with pending operations (conjugate or negative bit)");
    return 0;
}

const char *fsdpck_dcp_format_dims(char *buf, size_t nbytes, const uint64_t *dims, uint32_t ndim)
{
    size_t at = (size_t)snprintf(buf, nbytes, "[");
    for (uint32_t d = 0; d < ndim && at < nbytes; d++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%" PRIu64, d ? ", " : "", dims[d]);
    if (at < nbytes)
        snprintf(buf + at, nbytes - at, "]");
    return buf;
}

static int check_kind(struct look *l, const struct saved *s)
{
    char have[128], want[128];
    if (s->dtype != l->t->dtype)
        return FAIL(l, FSDPCK_ERR_FORMAT, "the item holds %s, .metadata says %s", fsdpck_dtype_info(s->dtype)->name,
                    fsdpck_dtype_info(l->t->dtype)->name);
    if (s->ndim != l->t->ndim || (s->ndim && memcmp(s->size, l->size, s->ndim * sizeof *s->size) != 0))
        return FAIL(l, FSDPCK_ERR_FORMAT, "the item holds a tensor of shape %s, .metadata says %s",
                    fsdpck_dcp_format_dims(have, sizeof have, s->size, s->ndim),
                    fsdpck_dcp_format_dims(want, sizeof want, l->size, l->t->ndim));
    return 0;
}

/* One past the last element of the storage that the tensor uses; false where that overflows. */
static bool count_used(const struct saved *s, uint64_t *end)
{
    *end = s->first;
    for (uint32_t d = 0; d < s->ndim; d++) {
        uint64_t span;
        if (!checked_mul(s->size[d] - 1, s->strides[d], &span) || !checked_add(*end, span, end))
            return false;
    }
    return checked_add(*end, 1, end);
}

static bool is_dense(const struct saved *s)
{
    uint64_t step = 1;
    for (uint32_t d = s->ndim; d-- > 0; step *= s->size[d])
        if (s->size[d] != 1 && s->strides[d] != step)
            return false;
    return true;
}

static int place(struct look *l, const struct saved *s)
{
    char name[300];
    uint64_t item_nbytes = fsdpck_dtype_info(s->dtype)->nbytes, end, nbytes;
    snprintf(name, sizeof name, "data/%s", s->key);
    const struct fsdpck_zip_record *record = fsdpck_zip_find(&l->zip, name);
    if (!record)
        return FAIL(l, FSDPCK_ERR_MISSING, "the item has no record '%s'", name);
    if (!checked_mul(s->storage_nelem, item_nbytes, &nbytes) || nbytes > record->nbytes)
        return FAIL(l, FSDPCK_ERR_FORMAT, "a storage of %" PRIu64 " elements of %" PRIu64 " bytes, its record '%s' has %" PRIu64 " bytes",
                    s->storage_nelem, item_nbytes, name, record->nbytes);
    if (!count_used(s, &end) || end > s->storage_nelem)
        return FAIL(l, FSDPCK_ERR_FORMAT, "the tensor reaches beyond its storage of %" PRIu64 " elements", s->storage_nelem);
    l->out->payload = record->offset + s->first * item_nbytes;
    l->out->dense = is_dense(s);
    memcpy(l->out->strides, s->strides, s->ndim * sizeof *s->strides);
    return 0;
}

int fsdpck_dcp_find_place(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct dcp_chunk *chunk, const uint64_t *size,
                          struct dcp_place *out, struct fsdpck_error *err)
{
    struct look l = { .src = src, .t = t, .size = size, .file = source_files(src)[chunk->file].path, .item = chunk->item, .fd = -1,
                      .out = out, .err = err };
    struct saved saved;
    *out = (struct dcp_place){ 0 };
    int r = fsdpck_files_acquire(src, chunk->file, false, &l.fd, err);
    if (!r) {
        r = open_item(&l, chunk->item_nbytes);
        if (!r)
            r = read_pickle(&l, &saved);
        if (!r)
            r = check_kind(&l, &saved);
        if (!r)
            r = place(&l, &saved);
        fsdpck_files_release(src, chunk->file, false);
    }
    if (r)
        fsdpck_error_tensor(err, t->name);
    fsdpck_zip_free(&l.zip);
    fsdpck_pickle_free(l.p);
    return r;
}
