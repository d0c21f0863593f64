/* SPDX-License-Identifier: Apache-2.0 */
/* What `accelerate config` writes: how many processes on how many machines, mixed precision, FSDP. */
#include <math.h>
#include <string.h>

#include "import/fsdp.h"

static void take_distributed(struct importer *im, const char *key, const json_t *value)
{
    static const char *const replicated[] = { "MULTI_CPU",  "MULTI_GPU",  "MULTI_XPU", "MULTI_NPU",   "MULTI_MLU",
                                              "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON" };
    char word[64];
    import_word(value, word);
    if (strcmp(word, "FSDP") == 0 || strcmp(word, "NO") == 0 || json_is_false(value)) {
        import_taken(im, key);
        return;
    }
    for (size_t i = 0; i < sizeof replicated / sizeof replicated[0]; i++) {
        if (strcmp(word, replicated[i]) == 0) {
            import_put(im, key, "fsdp.sharding_strategy", json_string("NO_SHARD"));
            import_taken(im, key);
            return;
        }
    }
    import_refuse(
        im, key,
        "%.60s is not read; choose FSDP in `accelerate config` (ZeRO-3 is FULL_SHARD, ZeRO-2 is SHARD_GRAD_OP), "
        "or leave this file out",
        word);
}

static void take_processes(struct importer *im, const char *key, const json_t *value)
{
    const double n = import_number(value, -1);
    if (n >= 1 && n <= 1 << 20 && floor(n) == n) {
        im->nranks = (uint32_t)n;
        im->nranks_named = true;
        import_taken(im, key);
    } else if (n == -1) {
        import_unneeded(im, key);
    } else {
        import_refuse(im, key, "a number of processes is wanted");
    }
}

static void take_precision(struct importer *im, const char *key, const json_t *value)
{
    char word[64];
    import_word(value, word);
    import_mixed_precision(im, key, value, json_is_false(value) ? "NO" : word);
}

static void take_use_cpu(struct importer *im, const char *key, const json_t *value)
{
    if (import_is_true(value))
        import_unneeded(im, key);
    else
        import_note(im, key, value, "`fsdptrain run --device cuda` trains on GPUs; without it, processors do");
}

static const struct import_row rows[] = {
    { .key = "distributed_type", .take = take_distributed },
    { .key = "num_processes", .take = take_processes },
    { .key = "mixed_precision", .take = take_precision },
    { .key = "use_cpu", .take = take_use_cpu },
    { .key = "fsdp_config", .take = import_fsdp1_config },
    { .key = "parallelism_config", .take = import_parallelism_config },
    { .key = NULL },
};

static const char tpu[] = "fsdptrain has no TPU";
static const char hosts[] = "ranks on several machines are started by mpirun or srun: see docs/hosts.md";

static const struct import_idle idles[] = {
    { "compute_environment", "[\"LOCAL_MACHINE\"]", "fsdptrain starts on the machine that it is called on" },
    { "num_machines", "[1]", hosts },
    { "main_process_ip", "[]", hosts },
    { "main_process_port", "[]", hosts },
    { "mpirun_config", "[{}]", hosts },
    { "gpu_ids", "[\"all\"]", "set CUDA_VISIBLE_DEVICES to these before fsdptrain run" },
    { "enable_cpu_affinity", "[false]", "ranks are not bound to processors; `taskset` or mpirun's --bind-to does it" },
    { "deepspeed_config", "[{}]", "DeepSpeed's settings are not read; ZeRO-3 is fsdp.sharding_strategy FULL_SHARD" },
    { "megatron_lm_config", "[{}]", "Megatron's settings are not read" },
    { "fp8_config", "[{}]", "fsdptrain computes in bf16 or fp32" },
    { "ipex_config", "[{}]", "fsdptrain has kernels of its own" },
    { "dynamo_config", "[{}]", "fsdptrain has compiled kernels and no compiler to set up" },
    { "tpu_name", "[]", tpu },
    { "tpu_zone", "[]", tpu },
    { "tpu_use_cluster", "[false]", tpu },
    { "tpu_use_sudo", "[false]", tpu },
    { "tpu_vm", "[[]]", tpu },
    { "tpu_env", "[[]]", tpu },
    { "command_file", "[]", "fsdptrain starts no other command" },
    { "commands", "[[]]", "fsdptrain starts no other command" },
    { .key = NULL },
};

static const char *const unneeded[] = {
    "debug", "machine_rank", "rdzv_backend", "same_network", "downcast_bf16", "main_training_function", NULL,
};

static const struct import_default defaults[] = { { .key = NULL } };

const struct import_dialect import_accelerate = {
    .kind = "a configuration of accelerate", .rows = rows, .idles = idles, .defaults = defaults, .unneeded = unneeded
};
