/* SPDX-License-Identifier: Apache-2.0 */
/* One item of a .distcp file: a torch.save zip with its data.pkl, or a zstd stream of one. The input begins with dtype,
 * number of dimensions and sizes (one byte each), from which the target writes a .metadata; the zip is the rest. */
#include <string.h>

#include "torch/dcp/metadata.h"
#include "fuzz.h"
#include "fuzz_source.h"

enum { MAX_DIMS = 4 };

static bool is_stream(const struct fuzz_bytes *item)
{
    return item->nbytes >= 4 && memcmp(item->at, "\x28\xb5\x2f\xfd", 4) == 0;
}

static void write_metadata(struct fsdpck_dcp_writer *w, enum fsdpck_dtype dtype, uint32_t ndim, const uint64_t *size,
                           const struct fuzz_bytes *item)
{
    static const uint64_t zeros[MAX_DIMS];
    static const char transforms[] = "X\x15\0\0\0transform_descriptors](X\x0d\0\0\0stream.zstd/1eub";
    struct fsdpck_error err = { 0 };
    fsdpck_dcp_begin(w);
    fsdpck_dcp_tensor(w, "t", dtype, ndim, size);
    fsdpck_dcp_chunk(w, ndim, zeros, size);
    fsdpck_dcp_tensor_end(w);
    fsdpck_dcp_paths_begin(w);
    fsdpck_dcp_path(w, "t", NULL, 0);
    fsdpck_dcp_storage_begin(w);
    fsdpck_dcp_storage(w, "t", ndim, zeros, 0, "__0_0.distcp", 0, item->nbytes);
    if (is_stream(item)) {
        w->text.nbytes -= 2; /* reopens the state of _StorageInfo */
        fsdpck_text_add(&w->text, transforms, sizeof transforms - 1);
    }
    fsdpck_dcp_end(w);
    FUZZ_CHECK(fsdpck_text_check(&w->text, &err) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    struct fsdpck_dcp_writer w = { 0 };
    struct memory_io m;
    uint64_t size[MAX_DIMS];
    enum fsdpck_dtype dtype = (enum fsdpck_dtype)fuzz_below(&in, FSDPCK_NDTYPES);
    uint32_t ndim = (uint32_t)fuzz_below(&in, MAX_DIMS + 1);
    for (uint32_t d = 0; d < ndim; d++)
        size[d] = fuzz_byte(&in);
    write_metadata(&w, dtype, ndim, size, &in);
    memory_io_init(&m);
    memory_io_add(&m, MEMORY_ROOT "/.metadata", w.text.data, w.text.nbytes);
    memory_io_add(&m, MEMORY_ROOT "/__0_0.distcp", in.at, in.nbytes);
    fuzz_source(&m, MEMORY_ROOT, "dcp");
    fsdpck_dcp_free(&w);
    return 0;
}
