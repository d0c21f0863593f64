/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of DeepSpeed's of two ranks, in which the input takes the place of a file. The first byte says which: of
 * ZeRO-1 or 3 the model states or the partitions of a rank; of a universal checkpoint of two tensor-parallel ranks the
 * model states, a parameter or a state of it. */
#include <stdio.h>

#include "fuzz.h"
#include "fuzz_source.h"

enum { NFOLDERS = 3, NFILES = 3 };

static const char *const folders[NFOLDERS] = { "fixtures/deepspeed/zero1/global_step2",
                                               "fixtures/deepspeed/zero3/global_step2",
                                               "fixtures/deepspeed/universal-tp/global_step1_universal" };
static const char *const files[NFOLDERS][NFILES] = {
    { "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
      "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" },
    { "zero_pp_rank_0_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
      "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" },
    { "mp_rank_00_model_states.pt", "zero/row.weight/fp32.pt", "zero/column.bias/step.pt" },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fuzz_bytes in = { data, nbytes };
    struct memory_io m;
    char path[128];
    const unsigned which = (unsigned)fuzz_below(&in, NFOLDERS * NFILES);
    memory_io_init(&m);
    fuzz_add_folder(&m, folders[which / NFILES]);
    snprintf(path, sizeof path, MEMORY_ROOT "/%s", files[which / NFILES][which % NFILES]);
    memory_io_add(&m, path, in.at, in.nbytes);
    fuzz_source(&m, MEMORY_ROOT, "deepspeed");
    return 0;
}
