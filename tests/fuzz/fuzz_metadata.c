/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch DCP directory: the input is its .metadata, beside .distcp files that torch 2.15 wrote. */
#include "fuzz.h"
#include "fuzz_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct memory_io m;
    memory_io_init(&m);
    fuzz_add_folder(&m, "fixtures/dcp/torch-2.15/ckpt");
    memory_io_add(&m, MEMORY_ROOT "/.metadata", data, nbytes);
    fuzz_source(&m, MEMORY_ROOT, "dcp");
    return 0;
}
