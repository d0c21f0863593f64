/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the CRC-32s of the parts of a record. */
#include "engine/crc_segments.h"

#include <string.h>

#include "base/hash.h"

#define MAX_SEGMENTS \
    4096u /* per record. Beyond it (scattered reads of a transposed tensor) the record is read again \
           */

static struct crc_segment *at_index(const struct crc_segments *s, size_t i)
{
    return (struct crc_segment *)s->list.data + i;
}

/* Returns the first segment that ends after `at`. */
static size_t find(const struct crc_segments *s, uint64_t at)
{
    size_t low = 0, high = s->list.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (at_index(s, middle)->end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void fsdpck_crc_segments_gap(const struct crc_segments *s, uint64_t *begin, uint64_t *end)
{
    size_t i = find(s, *begin);
    if (s->dropped)
        *begin = *end;
    if (i < s->list.count && at_index(s, i)->begin <= *begin)
        *begin = at_index(s, i++)->end;
    if (i < s->list.count && at_index(s, i)->begin < *end)
        *end = at_index(s, i)->begin;
}

static bool append(struct crc_segment *to, const struct crc_segment *more)
{
    if (to->end != more->begin)
        return false;
    to->crc32 = fsdpck_crc32_combine(to->crc32, more->crc32, more->end - more->begin);
    to->end = more->end;
    return true;
}

static void drop_all(struct crc_segments *s)
{
    s->list.count = 0;
    s->dropped = true;
}

static int insert_at(struct crc_segments *s, size_t i, const struct crc_segment *more, struct fsdpck_error *err)
{
    if (s->list.count == MAX_SEGMENTS)
        return drop_all(s), 0;
    if (!fsdpck_vec_push(&s->list, err))
        return FSDPCK_ERR_NOMEM;
    struct crc_segment *at = at_index(s, i);
    memmove(at + 1, at, (s->list.count - 1 - i) * sizeof *at);
    *at = *more;
    return 0;
}

int fsdpck_crc_segments_add(struct crc_segments *s, const struct crc_segment *more, struct fsdpck_error *err)
{
    size_t i = find(s, more->begin);
    if (s->dropped || (i < s->list.count && at_index(s, i)->begin < more->end))
        return 0;
    bool joined = i > 0 && append(at_index(s, i - 1), more);
    if (!joined) {
        int rc = insert_at(s, i, more, err);
        if (rc || s->dropped)
            return rc;
        i++;
    }
    if (i < s->list.count && append(at_index(s, i - 1), at_index(s, i))) {
        memmove(at_index(s, i), at_index(s, i + 1), (s->list.count - i - 1) * sizeof(struct crc_segment));
        s->list.count--;
    }
    return 0;
}

bool fsdpck_crc_segments_all(const struct crc_segments *s, uint64_t nbytes, uint32_t *crc32)
{
    const struct crc_segment *only = s->list.data;
    if (s->list.count != 1 || only->begin != 0 || only->end != nbytes)
        return false;
    *crc32 = only->crc32;
    return true;
}

void fsdpck_crc_segments_free(struct crc_segments *s)
{
    fsdpck_vec_free(&s->list);
}
