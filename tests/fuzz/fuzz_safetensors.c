/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file: the input is the whole file. Properties besides those of fuzz_source(): tensors lie inside the
 * file, after the header, and do not overlap; what is read as the adapter of a FLUX.2 transformer has PEFT's names. */
#include <fsdpck/lora.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "fuzz_source.h"
#include "hf/safetensors_header.h"
#include "base/vec.h"

#define PATH MEMORY_ROOT "/model.safetensors"

struct range {
    uint64_t begin, end;
};

static int note_range(void *ctx, const struct safetensors_entry *e, struct fsdpck_error *err)
{
    struct range *r = fsdpck_vec_push(ctx, err);
    FUZZ_CHECK(r);
    uint64_t nbytes = fsdpck_dtype_info(e->dtype)->nbytes;
    for (uint32_t d = 0; d < e->ndim; d++)
        nbytes *= e->shape[d];
    *r = (struct range){ e->payload, e->payload + nbytes };
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : (x->end > y->end) - (x->end < y->end);
}

static void check_ranges(struct fsdpck_vec *ranges, uint64_t file_nbytes)
{
    struct range *r = ranges->data;
    if (ranges->count)
        qsort(r, ranges->count, sizeof *r, by_begin);
    for (size_t i = 0; i < ranges->count; i++) {
        FUZZ_CHECK(r[i].begin >= 10 && r[i].begin <= r[i].end && r[i].end <= file_nbytes);
        FUZZ_CHECK(i == 0 || r[i - 1].end == r[i].begin);
    }
    FUZZ_CHECK(ranges->count == 0 || r[ranges->count - 1].end == file_nbytes);
}

static void read_adapter(struct memory_io *m)
{
    const struct fsdpck_options opt = { .io = &m->io, .nthreads = 1 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    char *config;
    int rc = fsdpck_lora_open_file(PATH, &opt, &src, &config, &err);
    FUZZ_CHECK(rc == err.code && (rc ? err.message[0] && !src : src && config));
    for (size_t i = 0; !rc && i < fsdpck_source_ntensors(src); i++)
        FUZZ_CHECK(strncmp(fsdpck_source_tensor(src, i)->name, "base_model.model.", 17) == 0);
    fsdpck_source_close(src);
    free(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_vec ranges = FSDPCK_VEC(struct range);
    struct fsdpck_error err = { 0 };
    struct memory_io m;
    memory_io_init(&m);
    memory_io_add(&m, PATH, data, nbytes);
    int r = fsdpck_safetensors_header(&m.io, PATH, note_range, &ranges, &err);
    FUZZ_CHECK(r == err.code);
    if (r == 0)
        check_ranges(&ranges, nbytes);
    fsdpck_vec_free(&ranges);
    read_adapter(&m);
    fuzz_source(&m, PATH, NULL);
    return 0;
}
