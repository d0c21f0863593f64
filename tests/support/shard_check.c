/* SPDX-License-Identifier: Apache-2.0 */
/* Reads shard files as FORMAT.md describes them: the chunk table with the library, everything else by hand. */
#include "shard_check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <libdeflate.h>
#include <xxhash.h>

#include "format/table.h"

struct look { /* state of the check of one file */
    const struct model *m;
    int fd;
    struct fsdpck_table table;
};

static char complaint[300];

static const char *complain(const char *what, uint64_t number)
{
    snprintf(complaint, sizeof complaint, "%s (%llu)", what, (unsigned long long)number);
    return complaint;
}

static void *must(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

/* The chunk's bytes according to the model, as one allocation. */
static uint8_t *expected(const struct model_tensor *t, const uint64_t *offset, const uint64_t *size, uint64_t *nbytes)
{
    int64_t strides[MODEL_MAX_DIMS], at = (int64_t)t->item;
    for (uint32_t d = t->ndim; d-- > 0; at *= (int64_t)size[d])
        strides[d] = at;
    uint8_t *data = must(calloc(1, (size_t)at + 1));
    *nbytes = (uint64_t)at;
    model_get_box(t, offset, size, data, strides);
    return data;
}

static const char *check_blocks(const struct look *l, const struct fsdpck_table_entry *e, const uint8_t *data)
{
    for (uint64_t b = 0; b * FSDPCK_BLOCK_NBYTES < e->nbytes; b++) {
        uint64_t at = b * FSDPCK_BLOCK_NBYTES,
                 n = e->nbytes - at < FSDPCK_BLOCK_NBYTES ? e->nbytes - at : FSDPCK_BLOCK_NBYTES;
        XXH128_canonical_t want, have;
        XXH128_canonicalFromHash(&want, XXH3_128bits(data + at, n));
        if (pread(l->fd, &have, 16, (off_t)(l->table.hashes + 16 * (e->first_hash + b))) != 16 ||
            memcmp(&want, &have, 16) != 0)
            return complain("the hash of a block differs", b);
    }
    return NULL;
}

/* Checks a chunk's part of the content id: that of rows [offset, offset + size) of the tensor. */
static const char *check_content(const struct model_tensor *t, const struct fsdpck_table_entry *e,
                                 const uint64_t *offset, const uint64_t *size, const uint8_t *data)
{
    uint64_t first = t->ndim ? offset[0] : 0, nrows = t->ndim ? size[0] : 1, low = 0, high = 0;
    if (!e->has_content)
        return NULL;
    for (uint32_t d = 1; d < t->ndim; d++)
        if (size[d] != t->shape[d])
            return complain("a chunk without whole rows has a content", d);
    for (uint64_t r = 0; r < nrows; r++) {
        XXH128_hash_t h = XXH3_128bits_withSeed(data + r * (e->nbytes / nrows), e->nbytes / nrows, first + r);
        high += h.high64 + __builtin_add_overflow(low, h.low64, &low);
    }
    return fsdpck_le64(e->content) == low && fsdpck_le64(e->content + 8) == high
               ? NULL
               : complain("the content of a chunk differs", first);
}

/* Finds the CRC-32 in the local header, whose 30 bytes and name precede data and extra field, by its signature. */
static bool zip_has_crc(const struct look *l, const struct fsdpck_table_entry *e, uint32_t crc)
{
    uint64_t n = e->payload - e->item, i = 0;
    uint8_t *head = must(malloc(n));
    static const char name[] = "archive/data/0";
    bool found = false;
    if (pread(l->fd, head, n, (off_t)e->item) != (ssize_t)n)
        abort();
    for (; !found && i + 30 + sizeof name - 1 <= n; i++)
        found = memcmp(head + i, "PK\3\4", 4) == 0 && memcmp(head + i + 30, name, sizeof name - 1) == 0 &&
                fsdpck_le32(head + i + 14) == crc;
    free(head);
    return found;
}

static const char *check_bytes(const struct look *l, const struct fsdpck_table_entry *e, const uint8_t *want,
                               uint64_t nbytes)
{
    uint8_t *have = must(malloc(nbytes + 1));
    bool same = e->nbytes == nbytes && pread(l->fd, have, nbytes, (off_t)e->payload) == (ssize_t)nbytes &&
                memcmp(want, have, nbytes) == 0;
    uint32_t crc = libdeflate_crc32(0, want, nbytes);
    free(have);
    if (!same)
        return complain("the bytes of a chunk differ, payload at", e->payload);
    if (e->payload % (nbytes < FSDPCK_BLOCK_NBYTES ? 64 : 4096) != 0)
        return complain("a payload is not aligned", e->payload);
    if (e->crc32 != crc)
        return complain("the CRC-32 in the table differs, payload at", e->payload);
    return zip_has_crc(l, e, crc) ? NULL : complain("the CRC-32 in the zip differs, payload at", e->payload);
}

static const char *check_entry(const struct look *l, const struct fsdpck_table_entry *e)
{
    const uint64_t *offset = l->table.dims + e->dims, *size = offset + e->ndim;
    if (e->kind != FSDPCK_CHUNK_TENSOR || e->ordinal >= l->m->ntensors || e->ndim != l->m->tensors[e->ordinal].ndim)
        return complain("a chunk of no tensor", e->ordinal);
    const struct model_tensor *t = &l->m->tensors[e->ordinal];
    uint64_t nbytes;
    uint8_t *want = expected(t, offset, size, &nbytes);
    const char *wrong = check_bytes(l, e, want, nbytes);
    if (wrong == NULL)
        wrong = check_blocks(l, e, want);
    if (wrong == NULL)
        wrong = check_content(t, e, offset, size, want);
    free(want);
    return wrong;
}

static const char *check_file(const struct model *m, const char *path)
{
    struct look l = { .m = m, .fd = open(path, O_RDONLY) };
    struct fsdpck_trailer trailer;
    off_t nbytes = l.fd < 0 ? 0 : lseek(l.fd, 0, SEEK_END);
    const char *wrong = NULL;
    if (fsdpck_trailer_read(&fsdpck_io_posix, l.fd, path, (uint64_t)nbytes, &trailer, NULL) != 0 ||
        fsdpck_table_read(&fsdpck_io_posix, l.fd, path, &trailer, &l.table, NULL) != 0)
        wrong = complain("a shard file has no table; bytes", (uint64_t)nbytes);
    for (uint64_t i = 0; wrong == NULL && i < l.table.nentries; i++)
        wrong = check_entry(&l, &l.table.entries[i]);
    fsdpck_table_free(&l.table);
    if (l.fd >= 0)
        close(l.fd);
    return wrong;
}

const char *shard_check(const struct model *m, const char *dir, uint32_t nranks)
{
    const char *wrong = NULL;
    for (uint32_t r = 0; wrong == NULL && r < nranks; r++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/__%u_0.distcp", dir, r);
        wrong = check_file(m, path);
    }
    return wrong;
}
