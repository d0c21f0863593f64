/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of STORED zips alone: the file is two other bytes, then the input. Properties: records lie inside it, do
 * not overlap, and have different names. */
#include <string.h>

#include "fuzz.h"
#include "../support/memory_io.h"
#include "torch/zip/zip.h"

#define PATH MEMORY_ROOT "/x"
enum { BEFORE = 2 };

static bool apart(const struct fsdpck_zip_record *a, const struct fsdpck_zip_record *b)
{
    return a->nbytes == 0 || b->nbytes == 0 || a->offset + a->nbytes <= b->offset || b->offset + b->nbytes <= a->offset;
}

static void check_records(const struct fsdpck_zip *z, uint64_t nbytes)
{
    for (size_t i = 0; i < z->nrecords; i++) {
        const struct fsdpck_zip_record *r = &z->records[i];
        FUZZ_CHECK(r->offset >= BEFORE && r->offset <= BEFORE + nbytes && r->nbytes <= BEFORE + nbytes - r->offset);
        for (size_t k = 0; k < i; k++) {
            FUZZ_CHECK(strcmp(r->name, z->records[k].name) != 0);
            FUZZ_CHECK(apart(r, &z->records[k]));
        }
    }
    const struct fsdpck_zip_record *found = fsdpck_zip_find(z, "data.pkl");
    FUZZ_CHECK(!found || (found >= z->records && found < z->records + z->nrecords));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    uint8_t *file = malloc(BEFORE + nbytes);
    struct memory_io m;
    struct fsdpck_zip z;
    struct fsdpck_error err = { 0 };
    FUZZ_CHECK(file);
    memset(file, 0, BEFORE);
    if (nbytes)
        memcpy(file + BEFORE, data, nbytes);
    memory_io_init(&m);
    memory_io_add(&m, PATH, file, BEFORE + nbytes);
    int fd = m.io.open(&m, PATH, FSDPCK_OPEN_READ, 0);
    int r = fsdpck_zip_open(&m.io, fd, PATH, BEFORE, nbytes, &z, &err);
    FUZZ_CHECK(r == err.code);
    if (r == 0) {
        check_records(&z, nbytes);
        fsdpck_zip_free(&z);
    }
    m.io.close(&m, fd);
    free(file);
    return 0;
}
