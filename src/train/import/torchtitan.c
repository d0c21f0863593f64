/* SPDX-License-Identifier: Apache-2.0 */
/* torchtitan's TOML: tables job, model, optimizer, training, parallelism, checkpoint and others, of its versions that
 * had one. */
#include <math.h>
#include <string.h>

#include "import/fsdp.h"

static void put_taken(struct importer *im, const char *key, const char *to, json_t *value)
{
    if (import_put(im, key, to, value))
        import_taken(im, key);
}

static const char *text_of(const struct importer *im, const char *key, const char *usual)
{
    const json_t *value = import_get(im, key);
    return json_is_string(value) ? json_string_value(value) : usual;
}

static void take_optimizer(struct importer *im, const char *key, const json_t *value)
{
    char word[64];
    if (strcmp(import_word(value, word), "ADAMW") == 0)
        import_unneeded(im, key);
    else
        import_note(im, key, value, "the optimizer is AdamW with fp32 moments");
}

static void take_warmup(struct importer *im, const char *key, const json_t *value)
{
    put_taken(im, key, "train.warmup_steps", json_deep_copy(value));
    if (!im->usual && import_number(value, 0) > 0)
        import_note(
            im, key, value,
            "torchtitan's first step has 1 / warmup_steps of the rate, and fsdptrain's has 0: the warm-up is one "
            "step later");
}

static void take_decay(struct importer *im, const char *key, const json_t *value)
{
    const char *name = json_string_value(value);
    if (name && (strcmp(name, "linear") == 0 || strcmp(name, "cosine") == 0))
        put_taken(im, key, "train.lr_scheduler_type", json_string(name));
    else
        import_note(im, key, value,
                    "no schedule of fsdptrain; set train.lr_scheduler_type to cosine, linear or constant");
}

static void take_type(struct importer *im, const char *key, const json_t *value)
{
    const char *to = strstr(key, "reduce") ? "dtype.reduce" : "dtype.param", *name = json_string_value(value);
    const bool bf16 = name && strcmp(name, "bfloat16") == 0, fp32 = name && strcmp(name, "float32") == 0;
    if (bf16 || fp32)
        put_taken(im, key, to, json_string(bf16 ? "bf16" : "fp32"));
    if (bf16 && !strstr(key, "reduce"))
        import_put_weak(im, key, "dtype.output", json_string("bf16")); /* the head's product is in it too */
    if (!bf16 && !fp32)
        import_note(im, key, value, "fsdptrain computes in bf16 or fp32; set %s", to);
}

static void take_global_batch(struct importer *im, const char *key, const json_t *value)
{
    if (import_number(value, -1) > 0)
        put_taken(im, key, "train.global_batch_size", json_deep_copy(value));
    else
        import_unneeded(im, key);
}

/* -1: the ranks that are left. */
static void take_shard_degree(struct importer *im, const char *key, const json_t *value)
{
    const double shard = import_number(value, -1),
                 replicas = import_number(import_get(im, "parallelism.data_parallel_replicate_degree"), 1);
    if (floor(shard) != shard) {
        import_refuse(im, key, "a whole number of ranks is wanted, or -1");
    } else if (shard > 0 && shard * replicas > 1 && shard * replicas < 1 << 20) {
        im->nranks = (uint32_t)(shard * replicas);
        im->nranks_named = true;
        import_taken(im, key);
    } else {
        import_unneeded(im, key);
    }
}

static double replicas(const struct importer *im)
{
    return import_number(import_get(im, "parallelism.data_parallel_replicate_degree"), 1);
}

static void take_replicas(struct importer *im, const char *key, const json_t *value)
{
    const json_t *degree = import_get(im, "parallelism.data_parallel_shard_degree");
    const double shard = import_number(degree, -1);
    if (replicas(im) == 1) {
        import_unneeded(im, key);
    } else if (shard == 1) {
        put_taken(im, key, "fsdp.sharding_strategy", json_string("NO_SHARD"));
    } else {
        import_put_weak(im, key, "fsdp.sharding_strategy", json_string("HYBRID_SHARD"));
        if (shard > 1)
            import_put(im, key, "fsdp.dp_shard_size", json_deep_copy(degree));
        put_taken(im, key, "fsdp.dp_replicate_size", json_deep_copy(value));
    }
}

static void take_reshard(struct importer *im, const char *key, const json_t *value)
{
    const char *when = json_string_value(value);
    const bool never = when && strcmp(when, "never") == 0, hybrid = replicas(im) > 1;
    const bool whole = import_number(import_get(im, "parallelism.data_parallel_shard_degree"), -1) == 1;
    if (!when || (!never && strcmp(when, "always") != 0 && strcmp(when, "default") != 0))
        import_note(im, key, value, "always or never is wanted; set fsdp.sharding_strategy");
    else if (whole)
        import_unneeded(im, key);
    else
        put_taken(im, key, "fsdp.sharding_strategy",
                  json_string(hybrid ? (never ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD")
                                     : (never ? "SHARD_GRAD_OP" : "FULL_SHARD")));
}

static void take_recompute(struct importer *im, const char *key, const json_t *value)
{
    const char *mode = json_string_value(value);
    if (mode && strcmp(mode, "full") == 0)
        put_taken(im, key, "fsdp.activation_checkpointing", json_string("block"));
    else if (mode && strcmp(mode, "none") == 0)
        put_taken(im, key, "fsdp.activation_checkpointing", json_string("none"));
    else
        import_note(im, key, value,
                    "blocks are recomputed whole or not at all; fsdp.activation_checkpointing \"auto\" recomputes the "
                    "fewest that fit");
}

static bool saves(const struct importer *im)
{
    return import_is_true(import_get(im, "checkpoint.enable_checkpoint")) ||
           import_is_true(import_get(im, "checkpoint.enable"));
}

static void take_saving(struct importer *im, const char *key, const json_t *value)
{
    (void)value;
    import_taken(im, key);
}

/* torchtitan saves nothing unless it is told to. */
static void settle_saving(struct importer *im)
{
    if (saves(im))
        return;
    import_put_weak(im, "checkpoint.enable", "checkpoint.save_steps", json_integer(0));
    if (!import_get(im, "checkpoint.enable") && !import_get(im, "checkpoint.enable_checkpoint"))
        import_note(im, "checkpoint.enable", NULL, "left out, which is off: only the last step is saved");
}

static void take_interval(struct importer *im, const char *key, const json_t *value)
{
    if (saves(im))
        put_taken(im, key, "checkpoint.save_steps", json_deep_copy(value));
    else
        import_unneeded(im, key);
}

static void take_validation(struct importer *im, const char *key, const json_t *value)
{
    if (!import_is_true(import_get(im, "validation.enable")) && !import_is_true(import_get(im, "validation.enabled")))
        import_unneeded(im, key);
    else if (strcmp(key, "validation.freq") == 0)
        put_taken(im, key, "train.eval_steps", json_deep_copy(value));
    else
        import_note(im, key, value, "name the data to evaluate, as JSONL, in data.eval");
}

static void take_data(struct importer *im, const char *key, const json_t *value)
{
    import_note(im, key, value, "save the data set as JSONL and give it as DATA: {\"text\": …} is trained on whole");
}

/* A folder of the Hub's form has the weights too. */
static void take_assets(struct importer *im, const char *key, const json_t *value)
{
    put_taken(im, key, "model", json_deep_copy(value));
}

static void take_flavor(struct importer *im, const char *key, const json_t *value)
{
    import_note(im, key, value, "%s is a folder in Hugging Face's form: its config.json says the shape",
                text_of(im, "model.hf_assets_path", "MODEL"));
}

static const struct import_row rows[] = {
    { .key = "job.dump_folder", .to = "output_dir" },
    { .key = "model.name", .take = take_flavor },
    { .key = "model.flavor", .take = take_flavor },
    { .key = "model.hf_assets_path", .take = take_assets },
    { .key = "optimizer.name", .take = take_optimizer },
    { .key = "optimizer.lr", .to = "train.learning_rate" },
    { .key = "optimizer.beta1", .to = "train.adam_beta1" },
    { .key = "optimizer.beta2", .to = "train.adam_beta2" },
    { .key = "optimizer.eps", .to = "train.adam_epsilon" },
    { .key = "optimizer.weight_decay", .to = "train.weight_decay" },
    { .key = "lr_scheduler.warmup_steps", .take = take_warmup },
    { .key = "training.warmup_steps", .take = take_warmup },
    { .key = "lr_scheduler.decay_type", .take = take_decay },
    { .key = "lr_scheduler.min_lr_factor", .to = "train.min_lr_ratio" },
    { .key = "lr_scheduler.lr_min", .to = "train.min_lr_ratio" },
    { .key = "training.local_batch_size", .to = "train.micro_batch_size" },
    { .key = "training.batch_size", .to = "train.micro_batch_size" },
    { .key = "training.global_batch_size", .take = take_global_batch },
    { .key = "training.seq_len", .to = "data.seq_len" },
    { .key = "training.max_norm", .to = "train.max_grad_norm" },
    { .key = "training.steps", .to = "train.max_steps" },
    { .key = "training.enable_cpu_offload", .take = import_offload },
    { .key = "training.seed", .to = "seed" },
    { .key = "debug.seed", .to = "seed" },
    { .key = "training.dataset", .take = take_data },
    { .key = "training.dataset_path", .take = take_data },
    { .key = "training.mixed_precision_param", .take = take_type },
    { .key = "training.mixed_precision_reduce", .take = take_type },
    { .key = "parallelism.data_parallel_shard_degree", .take = take_shard_degree },
    { .key = "parallelism.data_parallel_replicate_degree", .take = take_replicas },
    { .key = "parallelism.fsdp_reshard_after_forward", .take = take_reshard },
    { .key = "activation_checkpoint.mode", .take = take_recompute },
    { .key = "checkpoint.enable_checkpoint", .take = take_saving },
    { .key = "checkpoint.enable", .take = take_saving },
    { .key = "checkpoint.interval", .take = take_interval },
    { .key = "checkpoint.keep_latest_k", .to = "checkpoint.keep_last" },
    { .key = "metrics.log_freq", .to = "log.every" },
    { .key = "validation.freq", .take = take_validation },
    { .key = "validation.enable", .take = take_validation },
    { .key = "validation.enabled", .take = take_validation },
    { .key = "validation.dataset", .take = take_validation },
    { .key = "validation.dataset_path", .take = take_validation },
    { .key = NULL },
};

static const char mesh[] = "ranks share parameters and rows, and split no tensor, sequence or stage; set it to 1";
static const char fp8[] = "products are in bf16 or fp32";

static const struct import_idle idles[] = {
    { "model.converters", "[[], \"\"]", fp8 },
    { "model.tokenizer_path", "[]", "the tokenizer of MODEL is used" },
    { "optimizer.early_step_in_backward", "[false]", "the step follows the whole backward pass, so that it can clip" },
    { "lr_scheduler.decay_ratio", "[1]", "the rate falls from the end of the warm-up on" },
    { "parallelism.tensor_parallel_degree", "[1]", mesh },
    { "parallelism.pipeline_parallel_degree", "[1]", mesh },
    { "parallelism.context_parallel_degree", "[1]", mesh },
    { "parallelism.expert_parallel_degree", "[1]", "on processors, fsdp.expert_parallel does it; set it to 1" },
    { "parallelism.expert_tensor_parallel_degree", "[1]", mesh },
    { "checkpoint.initial_load_path", "[\"\"]", "give it as MODEL, or as lora.init_adapter, or to --resume" },
    { "checkpoint.load_step", "[-1]", "`fsdptrain run --resume CHECKPOINT` names one" },
    { "checkpoint.exclude_from_loading", "[[], \"\"]", "a resume takes all of a checkpoint" },
    { "checkpoint.enable_first_step_checkpoint", "[false]", "`echo save > output_dir/control` saves at once" },
    { "checkpoint.create_seed_checkpoint", "[false]", "a run starts from MODEL" },
    { "checkpoint.export_dtype", "[\"float32\"]",
      "the model is exported in its own dtype; `fsdpck export --dtype` has others" },
    { "float8.recipe_name", "[]", fp8 },
    { "float8.enable_fsdp_float8_all_gather", "[false]", fp8 },
    { "fault_tolerance.enable", "[false]", "a run that lost a rank ends; started again, it resumes" },
    { "memory_estimation.enabled", "[false]", "`fsdptrain plan` counts the memory" },
    { "profiling.enable_profiling", "[false]", "`fsdptrain run --profile` times the kernels" },
    { "profiling.enable_memory_snapshot", "[false]", "`fsdptrain plan` counts the memory" },
    { "metrics.enable_tensorboard", "[false]", "a run writes output_dir/metrics.jsonl" },
    { "metrics.enable_wandb", "[false]", "a run writes output_dir/metrics.jsonl" },
    { "experimental.custom_import", "[\"\"]", "no code of the user is run" },
    { "experimental.custom_args_module", "[\"\"]", "no code of the user is run" },
    { .key = NULL },
};

static const char *const unneeded[] = {
    "job.config_file",
    "job.description",
    "job.use_for_integration_test",
    "job.print_args",
    "job.print_config",
    "job.save_config_file",
    "job.custom_config_module",
    "profiling.save_traces_folder",
    "profiling.profile_freq",
    "profiling.save_memory_snapshot_folder",
    "metrics.disable_color_printing",
    "metrics.save_tb_folder",
    "metrics.save_for_all_ranks",
    "model.print_after_conversion",
    "model.norm_type",
    "optimizer.implementation",
    "training.compile",
    "training.gc_freq",
    "training.gc_debug",
    "training.deterministic",
    "debug.deterministic",
    "parallelism.enable_compiled_autograd",
    "parallelism.disable_loss_parallel",
    "parallelism.enable_async_tensor_parallel",
    "parallelism.context_parallel_rotate_method",
    "parallelism.pipeline_parallel_split_points",
    "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_schedule",
    "parallelism.pipeline_parallel_schedule_csv",
    "parallelism.pipeline_parallel_microbatch_size",
    "parallelism.module_fqns_per_model_part",
    "checkpoint.folder",
    "checkpoint.initial_load_model_only",
    "checkpoint.initial_load_in_hf",
    "checkpoint.last_save_model_only",
    "checkpoint.last_save_in_hf",
    "checkpoint.model_weights_only",
    "checkpoint.async_mode",
    "activation_checkpoint.selective_ac_option",
    "activation_checkpoint.early_stop",
    "compile.enable",
    "compile.components",
    "compile.backend",
    "float8.precompute_float8_dynamic_scale_for_fsdp",
    "float8.force_recompute_fp8_weight_in_bwd",
    "float8.filter_fqns",
    "float8.emulate",
    "comm.init_timeout_seconds",
    "comm.train_timeout_seconds",
    "comm.trace_buf_size",
    "comm.save_traces_folder",
    "memory_estimation.disable_fake_mode",
    "validation.local_batch_size",
    "validation.seq_len",
    "validation.steps",
    NULL,
};

static const struct import_default defaults[] = {
    { "optimizer.lr", "0.0008" },
    { "optimizer.beta2", "0.95" },
    { "optimizer.weight_decay", "0.1" },
    { "lr_scheduler.warmup_steps", "200" },
    { "lr_scheduler.decay_type", "\"linear\"" },
    { "training.local_batch_size", "8" },
    { "training.seq_len", "2048" },
    { "training.steps", "10000" },
    { "training.mixed_precision_param", "\"bfloat16\"" },
    { "metrics.log_freq", "10" },
    { "checkpoint.interval", "500" },
    { "checkpoint.keep_latest_k", "10" },
    { .key = NULL },
};

/* Every parameter is trained, on every token, and decays. */
static void finish(struct importer *im)
{
    const json_t *train = json_object_get(im->config, "train");
    const double micro = import_number(json_object_get(train, "micro_batch_size"), 1),
                 batch = import_number(json_object_get(train, "global_batch_size"), micro * im->nranks);
    json_int_t packet = (json_int_t)(batch / (micro * im->nranks));
    if (!json_object_get(im->config, "lora"))
        json_object_set_new(im->config, "lora", json_null());
    settle_saving(im);
    import_put_weak(im, "training.dataset", "data.loss_on", json_string("all"));
    import_put_weak(im, "optimizer.weight_decay", "train.weight_decay_on", json_string("all"));
    import_put_weak(im, "training.local_batch_size", "train.global_batch_size", json_integer((json_int_t)batch));
    import_put_weak(im, "training.global_batch_size", "train.gradient_accumulation_steps",
                    json_integer(packet > 1 ? packet : 1));
}

const struct import_dialect import_torchtitan = { .kind = "a configuration of torchtitan",
                                                  .rows = rows,
                                                  .idles = idles,
                                                  .defaults = defaults,
                                                  .unneeded = unneeded,
                                                  .finish = finish };
