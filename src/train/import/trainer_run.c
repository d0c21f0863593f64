/* SPDX-License-Identifier: Apache-2.0 */
/* A Trainer's arguments about the length of the run, its schedule, precision, saves and FSDP. */
#include <stdio.h>
#include <string.h>

#include "import/fsdp.h"
#include "import/trainer.h"

static void put_taken(struct importer *im, const char *key, const char *to, json_t *value)
{
    if (import_put(im, key, to, value))
        import_taken(im, key);
}

/* max_steps counts if it is above 0, and the epochs if not. */
static bool has_max_steps(const struct importer *im)
{
    return import_number(import_get(im, "max_steps"), -1) > 0;
}

void trainer_max_steps(struct importer *im, const char *key, const json_t *value)
{
    if (has_max_steps(im))
        put_taken(im, key, "train.max_steps", json_deep_copy(value));
    else
        import_unneeded(im, key);
}

void trainer_epochs(struct importer *im, const char *key, const json_t *value)
{
    if (has_max_steps(im))
        import_unneeded(im, key);
    else
        put_taken(im, key, "train.num_train_epochs", json_deep_copy(value));
}

/* The name of the schedule: transformers' key, or axolotl's. */
static const char *schedule(const struct importer *im, char word[64])
{
    const json_t *name = import_get(im, "lr_scheduler_type");
    return import_word(name ? name : import_get(im, "lr_scheduler"), word);
}

void trainer_scheduler(struct importer *im, const char *key, const json_t *value)
{
    static const char *const same[][2] = { { "LINEAR", "linear" },
                                           { "COSINE", "cosine" },
                                           { "CONSTANT", "constant" },
                                           { "CONSTANT_WITH_WARMUP", "constant_with_warmup" },
                                           { "COSINE_WITH_MIN_LR", "cosine_with_min_lr" } };
    char word[64];
    import_word(value, word);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (strcmp(word, same[i][0]) == 0) {
            put_taken(im, key, "train.lr_scheduler_type", json_string(same[i][1]));
            return;
        }
    }
    import_note(im, key, value, "no schedule of fsdptrain; set train.lr_scheduler_type to cosine, linear or constant");
}

void trainer_scheduler_kwargs(struct importer *im, const char *key, const json_t *value)
{
    const json_t *ratio = json_object_get(value, "min_lr_rate"), *min = json_object_get(value, "min_lr");
    double rate = import_number(import_get(im, "learning_rate"), 0);
    char word[64];
    bool floor = strcmp(schedule(im, word), "COSINE_WITH_MIN_LR") == 0 && json_object_size(value) == 1;
    if (json_is_object(value) && json_object_size(value) == 0)
        import_unneeded(im, key);
    else if (floor && json_is_number(ratio))
        put_taken(im, key, "train.min_lr_ratio", json_deep_copy(ratio));
    else if (floor && json_is_number(min) && rate > 0)
        put_taken(im, key, "train.min_lr_ratio", json_real(json_number_value(min) / rate));
    else
        import_note(im, key, value, "only min_lr_rate and min_lr of cosine_with_min_lr are taken over");
}

/* The schedule "constant" of transformers has no warm-up, whatever the file says of one. */
static bool has_no_warmup(const struct importer *im)
{
    char word[64];
    return strcmp(schedule(im, word), "CONSTANT") == 0;
}

/* Below 1, the number is a share of the steps. */
void trainer_warmup_steps(struct importer *im, const char *key, const json_t *value)
{
    const double n = import_number(value, -1), ratio = import_number(import_get(im, "warmup_ratio"), 0);
    if (has_no_warmup(im))
        import_put_weak(im, key, "train.warmup_steps", json_integer(0)), import_unneeded(im, key);
    else if (n == 0 && ratio > 0)
        import_unneeded(im, key);
    else if (n > 0 && n < 1)
        put_taken(im, key, "train.warmup_ratio", json_real(n));
    else
        put_taken(im, key, "train.warmup_steps", json_deep_copy(value));
}

void trainer_warmup_ratio(struct importer *im, const char *key, const json_t *value)
{
    const json_t *steps = import_get(im, "warmup_steps");
    if (has_no_warmup(im))
        import_put_weak(im, key, "train.warmup_steps", json_integer(0)), import_unneeded(im, key);
    else if (import_number(value, 0) == 0 || import_number(steps, 0) > 0 || (im->usual && steps))
        import_unneeded(im, key);
    else
        put_taken(im, key, "train.warmup_ratio", json_deep_copy(value));
}

void trainer_optim(struct importer *im, const char *key, const json_t *value)
{
    static const char *const adamw[] = { "ADAMW_TORCH", "ADAMW_TORCH_FUSED", "ADAMW_TORCH_XLA", "ADAMW_HF",
                                         "ADAMW_APEX_FUSED" };
    char word[64];
    import_word(value, word);
    for (size_t i = 0; i < sizeof adamw / sizeof adamw[0]; i++) {
        if (strcmp(word, adamw[i]) == 0) {
            import_unneeded(im, key);
            return;
        }
    }
    import_note(im, key, value,
                "the optimizer is AdamW with fp32 moments; its learning rate may have to be another one");
}

void trainer_logging_steps(struct importer *im, const char *key, const json_t *value)
{
    if (import_number(value, 0) < 1)
        import_note(im, key, value, "a share of the steps; set log.every to a number of steps");
    else
        put_taken(im, key, "log.every", json_deep_copy(value));
}

/* 0: the word asks for nothing; 1: for TensorBoard; -1: for another program. */
static int reports_to(const json_t *value)
{
    char word[64];
    import_word(value, word);
    return strcmp(word, "TENSORBOARD") == 0 ? 1 : !*word || strcmp(word, "NONE") == 0 ? 0 : -1;
}

void trainer_report_to(struct importer *im, const char *key, const json_t *value)
{
    bool board = !json_is_array(value) && reports_to(value) > 0, other = !json_is_array(value) && reports_to(value) < 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const int to = reports_to(json_array_get(value, i));
        board |= to > 0;
        other |= to < 0;
    }
    if (board)
        import_put(im, key, "log.report_to", json_pack("[s]", "tensorboard"));
    if (other)
        import_note(im, key, value, "`fsdptrain report RUN --csv` writes the metrics for other programs");
    else if (board)
        import_taken(im, key);
    else
        import_unneeded(im, key);
}

static bool is_strategy(const struct importer *im, const char *key, const char *old, const char *usual,
                        const char *wanted)
{
    const json_t *value = import_get(im, key);
    char word[64];
    value = value || !old ? value : import_get(im, old);
    return strcmp(value ? import_word(value, word) : usual, wanted) == 0 ||
           (json_is_false(value) && strcmp(wanted, "NO") == 0);
}

void trainer_eval_strategy(struct importer *im, const char *key, const json_t *value)
{
    if (is_strategy(im, "eval_strategy", "evaluation_strategy", "NO", "NO"))
        import_unneeded(im, key);
    else if (is_strategy(im, "eval_strategy", "evaluation_strategy", "NO", "STEPS"))
        import_note(im, key, value, "name the data to evaluate in data.eval%s",
                    import_get(im, "eval_steps") ? "" : ", and set train.eval_steps, which is logging_steps there");
    else
        import_note(im, key, value, "name the data in data.eval, and set train.eval_steps to the steps of an epoch");
}

void trainer_eval_steps(struct importer *im, const char *key, const json_t *value)
{
    if (!is_strategy(im, "eval_strategy", "evaluation_strategy", "NO", "STEPS"))
        import_unneeded(im, key);
    else if (import_number(value, 0) < 1)
        import_note(im, key, value, "a share of the steps; set train.eval_steps to a number of steps");
    else
        put_taken(im, key, "train.eval_steps", json_deep_copy(value));
}

void trainer_save_strategy(struct importer *im, const char *key, const json_t *value)
{
    if (is_strategy(im, "save_strategy", NULL, "STEPS", "STEPS"))
        import_taken(im, key);
    else if (is_strategy(im, "save_strategy", NULL, "STEPS", "NO"))
        put_taken(im, key, "checkpoint.save_steps", json_integer(0));
    else
        import_note(im, key, value, "set checkpoint.save_steps to the number of steps between checkpoints");
}

void trainer_save_steps(struct importer *im, const char *key, const json_t *value)
{
    if (!is_strategy(im, "save_strategy", NULL, "STEPS", "STEPS"))
        import_unneeded(im, key);
    else if (import_number(value, 0) < 1)
        import_note(im, key, value, "a share of the steps; set checkpoint.save_steps to a number of steps");
    else
        put_taken(im, key, "checkpoint.save_steps", json_deep_copy(value));
}

void trainer_save_limit(struct importer *im, const char *key, const json_t *value)
{
    put_taken(im, key, "checkpoint.keep_last", json_deep_copy(value));
}

void trainer_data_seed(struct importer *im, const char *key, const json_t *value)
{
    if (json_equal(value, import_get(im, "seed")))
        import_unneeded(im, key);
    else
        import_note(im, key, value, "one seed is for everything: seed");
}

void trainer_bf16(struct importer *im, const char *key, const json_t *value)
{
    char word[64];
    const bool on = import_is_true(value) || strcmp(import_word(value, word), "AUTO") == 0 ||
                    strcmp(import_word(value, word), "FULL") == 0;
    if (on)
        import_mixed_precision(im, key, value, "BF16");
    else if (import_is_true(import_get(im, "fp16")))
        import_unneeded(im, key);
    else
        import_mixed_precision(im, key, value, "NO");
}

void trainer_fp16(struct importer *im, const char *key, const json_t *value)
{
    if (import_is_true(value))
        import_note(im, key, value, "fsdptrain computes in bf16 or fp32; set dtype.param");
    else
        import_unneeded(im, key);
}

void trainer_checkpointing(struct importer *im, const char *key, const json_t *value)
{
    if (import_is_true(value))
        import_put(im, key, "fsdp.activation_checkpointing", json_string("block"));
    else
        import_put_weak(im, key, "fsdp.activation_checkpointing", json_string("none"));
    import_taken(im, key);
}

/* Words of the key fsdp, as in "full_shard auto_wrap offload". */
static void take_words(struct importer *im, const char *key, const json_t *value, const char *words)
{
    static const char *const strategies[][2] = { { "full_shard", "FULL_SHARD" },
                                                 { "shard_grad_op", "SHARD_GRAD_OP" },
                                                 { "no_shard", "NO_SHARD" },
                                                 { "hybrid_shard", "HYBRID_SHARD" },
                                                 { "hybrid_shard_zero2", "HYBRID_SHARD_ZERO2" } };
    for (const char *at = words; *at;) {
        const size_t n = strcspn(at, " ,");
        bool known = n == 0 || (n == 9 && strncmp(at, "auto_wrap", n) == 0);
        for (size_t i = 0; i < sizeof strategies / sizeof strategies[0] && !known; i++) {
            if (strlen(strategies[i][0]) == n && strncmp(at, strategies[i][0], n) == 0) {
                import_put(im, key, "fsdp.sharding_strategy", json_string(strategies[i][1]));
                known = true;
            }
        }
        if (n == 7 && strncmp(at, "offload", n) == 0)
            import_put_offload(im, key, value);
        else if (!known)
            import_refuse(im, key, "'%.*s' is no option of it", n > 60 ? 60 : (int)n, at);
        at += n + (at[n] != '\0');
    }
}

static bool fsdp_is_on(const struct importer *im)
{
    const json_t *value = import_get(im, "fsdp");
    const char *text = json_string_value(value);
    return import_is_true(value) || json_array_size(value) > 0 ||
           (text && *text && strcmp(text, "false") != 0 && strcmp(text, "False") != 0);
}

void trainer_fsdp(struct importer *im, const char *key, const json_t *value)
{
    json_t *item;
    size_t i;
    if (!fsdp_is_on(im)) {
        import_unneeded(im, key);
        return;
    }
    im->sharded = true;
    json_array_foreach ((json_t *)value, i, item)
        take_words(im, key, value, json_is_string(item) ? json_string_value(item) : "?");
    if (json_is_string(value) && !import_is_true(value))
        take_words(im, key, value, json_string_value(value));
    import_put_weak(im, key, "fsdp.sharding_strategy", json_string("FULL_SHARD"));
    import_taken(im, key);
}

static bool is_axolotl(const struct importer *im)
{
    return im->file->dialect == &import_axolotl;
}

/* axolotl has the version beside fsdp_config. */
void trainer_fsdp_version(struct importer *im, const char *key, const json_t *value)
{
    if (is_axolotl(im))
        import_taken(im, key);
    else
        import_note(im, key, value, "set it under fsdp_config");
}

/* A Trainer ignores fsdp_config unless fsdp is set, and axolotl does not. Words in fsdp are those of version 1. */
void trainer_fsdp_config(struct importer *im, const char *key, const json_t *value)
{
    if (is_axolotl(im) && json_object_size(value) > 0 && (fsdp_is_on(im) || !import_get(im, "fsdp"))) {
        import_fsdp(im, key, value, import_number(import_get(im, "fsdp_version"), 1));
        import_put_weak(im, key, "fsdp.sharding_strategy", json_string("FULL_SHARD"));
    } else if (fsdp_is_on(im) && import_is_true(import_get(im, "fsdp")))
        import_fsdp2_config(im, key, value);
    else if (fsdp_is_on(im))
        import_fsdp1_config(im, key, value);
    else
        import_unneeded(im, key);
}

/* Every rank takes a packet of gradient_accumulation_steps micro-batches in a step. */
void trainer_finish(struct importer *im)
{
    const json_t *train = json_object_get(im->config, "train");
    const double micro = import_number(json_object_get(train, "micro_batch_size"), 1),
                 packet = import_number(json_object_get(train, "gradient_accumulation_steps"), 1);
    const char *key = import_get(im, "micro_batch_size") ? "micro_batch_size" : "per_device_train_batch_size";
    import_put(im, key, "train.global_batch_size", json_integer((json_int_t)(micro * packet * im->nranks)));
}

/* A row of a transformers Trainer is one example of the data set. */
void trainer_finish_plain(struct importer *im)
{
    trainer_finish(im);
    import_put_weak(im, "per_device_train_batch_size", "data.packing", json_false());
    import_note(
        im, "per_device_train_batch_size", NULL,
        "data.packing is false, as a Trainer counts examples: a row holds one document. true is faster, and puts "
        "more tokens into a step");
}
