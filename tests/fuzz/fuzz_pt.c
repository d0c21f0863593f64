/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save files. The first byte of the input is the number of ranks: 0 for a single file, else every rank's file is
 * the rest of the input. */
#include <stdio.h>

#include "fuzz.h"
#include "fuzz_source.h"

enum { MAX_RANKS = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    struct memory_io m;
    char path[MAX_RANKS][128];
    unsigned nranks = (unsigned)fuzz_below(&in, MAX_RANKS + 1);
    memory_io_init(&m);
    if (nranks == 0) {
        memory_io_add(&m, MEMORY_ROOT "/x.pt", in.at, in.nbytes);
        fuzz_source(&m, MEMORY_ROOT "/x.pt", "pt");
        return 0;
    }
    for (unsigned i = 0; i < nranks; i++) {
        snprintf(path[i], sizeof path[i], MEMORY_ROOT "/model_world_size_%u_rank_%u.pt", nranks, i);
        memory_io_add(&m, path[i], in.at, in.nbytes);
    }
    fuzz_source(&m, MEMORY_ROOT, "ranks");
    return 0;
}
