/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: a model (fuzz_model.h) under the names of each program, also of values that are computed; and its file as
 * that of each of two ranks of vLLM. */
#include "fuzz.h"
#include "fuzz_model.h"
#include "fuzz_source.h"

struct choice {
    const char *names;
    bool dequantized;
};

static int present(struct fsdpck_source *src, const void *ctx, struct fsdpck_error *err)
{
    const struct choice *c = ctx;
    int rc = c->dequantized ? fsdpck_source_dequantize(src, FSDPCK_BFLOAT16, NULL, err) : 0;
    return rc ? rc : fsdpck_source_set_names(src, c->names, NULL, err);
}

static void check_ranks(const struct memory_io *model)
{
    const struct memory_file *config = fuzz_find_file(model, MEMORY_ROOT "/config.json"),
                             *file = fuzz_find_file(model, MEMORY_ROOT "/model.safetensors");
    struct memory_io m;
    memory_io_init(&m);
    memory_io_add(&m, config->path, config->data, config->nbytes);
    memory_io_add(&m, MEMORY_ROOT "/model-rank-0-part-0.safetensors", file->data, file->nbytes);
    memory_io_add(&m, MEMORY_ROOT "/model-rank-1-part-0.safetensors", file->data, file->nbytes);
    fuzz_source(&m, MEMORY_ROOT, "vllm-sharded");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const names[] = { "hf", "transformers", "vllm", "torchtitan", "megatron" };
    struct memory_io m;
    memory_io_init(&m);
    const bool whole = fuzz_model_add(&m, data, nbytes);
    for (size_t i = 0; whole && i < 2 * sizeof names / sizeof *names; i++)
        fuzz_model_check(&m, present, &(struct choice){ names[i / 2], i % 2 != 0 });
    if (whole)
        check_ranks(&m);
    FUZZ_CHECK(m.nopen == 0);
    return 0;
}
