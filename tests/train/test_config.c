/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of CONFIG.json with a choice of words: the enums of the public header have the same order as the words in the
 * key table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <train/config.h>

struct choice {
    const char *key;
    size_t offset;
    unsigned value;
    const char *word;
};
#define ROW(key, field, value, word) \
    { \
        key, offsetof(struct train_config, field), value, word \
    }

static const struct choice choices[] = {
    ROW("image.timestep_type", image.timestep, TRAIN_TIMESTEP_UNIFORM, "uniform"),
    ROW("image.timestep_type", image.timestep, TRAIN_TIMESTEP_LOGIT_NORMAL, "logit_normal"),
    ROW("image.timestep_type", image.timestep, TRAIN_TIMESTEP_SHIFT, "shift"),
    ROW("image.weighting_scheme", image.weighting, TRAIN_WEIGHTING_NONE, "none"),
    ROW("image.weighting_scheme", image.weighting, TRAIN_WEIGHTING_SIGMA_SQRT, "sigma_sqrt"),
    ROW("image.weighting_scheme", image.weighting, TRAIN_WEIGHTING_COSMAP, "cosmap"),
    ROW("data.loss_on", data.loss_on, CHAT_LOSS_ASSISTANT, "assistant"),
    ROW("data.loss_on", data.loss_on, CHAT_LOSS_LAST_ASSISTANT, "last_assistant"),
    ROW("data.loss_on", data.loss_on, CHAT_LOSS_COMPLETION, "completion"),
    ROW("data.loss_on", data.loss_on, CHAT_LOSS_ALL, "all"),
    ROW("data.on_bad_line", data.on_bad_line, TRAIN_BAD_LINE_STOP, "stop"),
    ROW("data.on_bad_line", data.on_bad_line, TRAIN_BAD_LINE_SKIP, "skip"),
    ROW("data.too_long", data.too_long, TRAIN_TOO_LONG_CUT, "cut"),
    ROW("data.too_long", data.too_long, TRAIN_TOO_LONG_DROP, "drop"),
    ROW("train.lr_scheduler_type", train.scheduler, TRAIN_COSINE, "cosine"),
    ROW("train.lr_scheduler_type", train.scheduler, TRAIN_LINEAR, "linear"),
    ROW("train.lr_scheduler_type", train.scheduler, TRAIN_CONSTANT, "constant"),
    ROW("train.lr_scheduler_type", train.scheduler, TRAIN_CONSTANT_WITH_WARMUP, "constant_with_warmup"),
    ROW("train.lr_scheduler_type", train.scheduler, TRAIN_COSINE_WITH_MIN_LR, "cosine_with_min_lr"),
    ROW("train.weight_decay_on", train.weight_decay_on, TRAIN_DECAY_MATRICES, "matrices"),
    ROW("train.weight_decay_on", train.weight_decay_on, TRAIN_DECAY_ALL, "all"),
    ROW("train.on_nonfinite", train.on_nonfinite, TRAIN_NONFINITE_STOP, "stop"),
    ROW("train.on_nonfinite", train.on_nonfinite, TRAIN_NONFINITE_SKIP, "skip"),
    ROW("fsdp.sharding_strategy", fsdp.strategy, TRAIN_FULL_SHARD, "FULL_SHARD"),
    ROW("fsdp.sharding_strategy", fsdp.strategy, TRAIN_SHARD_GRAD_OP, "SHARD_GRAD_OP"),
    ROW("fsdp.sharding_strategy", fsdp.strategy, TRAIN_NO_SHARD, "NO_SHARD"),
    ROW("fsdp.sharding_strategy", fsdp.strategy, TRAIN_HYBRID_SHARD, "HYBRID_SHARD"),
    ROW("fsdp.sharding_strategy", fsdp.strategy, TRAIN_HYBRID_SHARD_ZERO2, "HYBRID_SHARD_ZERO2"),
    ROW("fsdp.auto_wrap_policy", fsdp.wrap, TRAIN_TRANSFORMER_BASED_WRAP, "TRANSFORMER_BASED_WRAP"),
    ROW("fsdp.auto_wrap_policy", fsdp.wrap, TRAIN_SIZE_BASED_WRAP, "SIZE_BASED_WRAP"),
    ROW("fsdp.auto_wrap_policy", fsdp.wrap, TRAIN_NO_WRAP, "NO_WRAP"),
    ROW("fsdp.auto_wrap_policy", fsdp.wrap, TRAIN_HALF_BLOCK_WRAP, "HALF_BLOCK_WRAP"),
    ROW("fsdp.auto_wrap_policy", fsdp.wrap, TRAIN_LINEAR_WRAP, "LINEAR_WRAP"),
    ROW("fsdp.activation_checkpointing", fsdp.checkpointing, TRAIN_RECOMPUTE_NONE, "none"),
    ROW("fsdp.activation_checkpointing", fsdp.checkpointing, TRAIN_RECOMPUTE_BLOCK, "block"),
    ROW("fsdp.activation_checkpointing", fsdp.checkpointing, TRAIN_RECOMPUTE_AUTO, "auto"),
    ROW("fsdp.reduction", fsdp.reduction, TRAIN_REDUCTION_INVARIANT, "invariant"),
    ROW("dtype.param", dtype.param, TRAIN_BF16, "bf16"),
    ROW("dtype.param", dtype.param, TRAIN_FP32, "fp32"),
    ROW("dtype.reduce", dtype.reduce, TRAIN_BF16, "bf16"),
    ROW("dtype.reduce", dtype.reduce, TRAIN_FP32, "fp32"),
    ROW("dtype.output", dtype.output, TRAIN_BF16, "bf16"),
    ROW("dtype.output", dtype.output, TRAIN_FP32, "fp32"),
    ROW("log.report_to", log.report_to, TRAIN_REPORT_NONE, "none"),
    ROW("log.report_to", log.report_to, TRAIN_REPORT_TENSORBOARD, "tensorboard"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_STORED, "as stored"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_BF16, "bf16"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_FP8, "fp8-block"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_MXFP4, "mxfp4"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_NVFP4, "nvfp4"),
    ROW("dtype.base", dtype.base, TRAIN_BASE_NF4, "nf4"),
};
enum { NCHOICES = sizeof choices / sizeof choices[0] };

static unsigned value_of(const struct train_config *c, size_t offset)
{
    unsigned value;
    memcpy(&value, (const char *)c + offset, sizeof value);
    return value;
}

static void test_parsed(void **state)
{
    (void)state;
    for (size_t i = 0; i < NCHOICES; i++) {
        const char *dot = strchr(choices[i].key, '.');
        char section[16] = "";
        memcpy(section, choices[i].key, (size_t)(dot - choices[i].key));
        json_t *root = json_pack("{s:s, s:{s:s}}", "model", "m", "data", "train", "t.jsonl");
        json_t *object = json_object_get(root, section);
        if (!object)
            json_object_set_new(root, section, object = json_object());
        json_object_set_new(object, dot + 1, json_string(choices[i].word));
        struct train_config c;
        struct fsdpck_error err = { 0 };
        if (train_config_take("c.json", root, &c, &err))
            fail_msg("%s", err.message);
        const bool is_set = strcmp(choices[i].key, "log.report_to") == 0; /* of words: a bit for each */
        assert_int_equal(value_of(&c, choices[i].offset), is_set ? 1u << choices[i].value : choices[i].value);
        train_config_free(&c);
    }
}

static void test_words(void **state)
{
    (void)state;
    char word[TRAIN_WORD_NBYTES];
    for (size_t i = 0; i < NCHOICES; i++) {
        assert_string_equal(train_config_word(choices[i].key, choices[i].value, word), choices[i].word);
        assert_int_equal(train_config_choice(choices[i].key, choices[i].word), (int)choices[i].value);
    }
    assert_int_equal(train_config_choice("dtype.param", "fp16"), -1);
    assert_int_equal(train_config_choice("dtype.param", ""), -1);
    assert_int_equal(train_config_choice("dtype.parameter", "bf16"), -1);
    assert_string_equal(train_config_word("dtype.parameter", TRAIN_BF16, word), "");
}

/* The list above contains every choice of the key table, but "auto" of fsdp.sharding_strategy, which has no value. */
static void test_complete(void **state)
{
    (void)state;
    char word[TRAIN_WORD_NBYTES];
    size_t nwords = 0;
    for (size_t i = 0; i < train_config_nkeys(); i++) {
        struct train_config_key key;
        train_config_key(i, &key);
        for (unsigned n = 0; *train_config_word(key.name, n, word); n++)
            nwords++;
    }
    assert_int_equal(nwords, NCHOICES + 1);
}

/* A section's key is refused at the top level, and the message shows where it belongs. */
static void test_place(void **state)
{
    (void)state;
    struct train_config c;
    struct fsdpck_error err = { 0 };
    json_t *root = json_pack("{s:s, s:s, s:{s:s}}", "model", "m", "data.train", "a", "data", "train", "b");
    assert_int_equal(train_config_take("c.json", root, &c, &err), FSDPCK_ERR_USAGE);
    assert_string_equal(err.message, "key 'data.train': write it as \"data\": { \"train\": … }");
}

static void test_list_of_words(void **state)
{
    (void)state;
    struct train_config c;
    struct fsdpck_error err = { 0 };
    json_t *root = json_pack("{s:s, s:{s:s}, s:{s:[s, s]}}", "model", "m", "data", "train", "b", "log", "report_to",
                             "none", "tensorboard");
    assert_int_equal(train_config_take("c.json", root, &c, &err), 0);
    assert_int_equal(c.log.report_to, 1u << TRAIN_REPORT_NONE | 1u << TRAIN_REPORT_TENSORBOARD);
    train_config_free(&c);
    root = json_pack("{s:s, s:{s:s}, s:{s:[s]}}", "model", "m", "data", "train", "b", "log", "report_to", "wandb");
    assert_int_equal(train_config_take("c.json", root, &c, &err), FSDPCK_ERR_USAGE);
    assert_string_equal(err.message, "key 'log.report_to': \"wandb\" is none of none|tensorboard");
}

static void take(json_t *fsdp, struct train_config *c)
{
    struct fsdpck_error err = { 0 };
    json_t *root = json_pack("{s:s, s:{s:s}, s:o}", "model", "m", "data", "train", "b", "fsdp", fsdp);
    assert_int_equal(train_config_take("c.json", root, c, &err), 0);
}

/* Keys that are "auto" have their defaults until the run chooses, and a strategy that the sizes of a mesh allow. */
static void test_automatic(void **state)
{
    (void)state;
    struct train_config c;
    take(json_string("auto"), &c);
    assert_int_equal(c.automatic, TRAIN_AUTO_STRATEGY | TRAIN_AUTO_FORWARD_PREFETCH | TRAIN_AUTO_BACKWARD_PREFETCH);
    assert_int_equal(c.fsdp.strategy, TRAIN_FULL_SHARD);
    assert_int_equal(c.fsdp.forward_prefetch, 1);
    assert_int_equal(c.fsdp.checkpointing, TRAIN_RECOMPUTE_AUTO);
    train_config_free(&c);
    take(json_pack("{s:s, s:i}", "sharding_strategy", "auto", "dp_shard_size", 2), &c);
    assert_int_equal(c.automatic, TRAIN_AUTO_STRATEGY);
    assert_int_equal(c.fsdp.strategy, TRAIN_HYBRID_SHARD);
    train_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_parsed),        cmocka_unit_test(test_words),
                                        cmocka_unit_test(test_complete),      cmocka_unit_test(test_place),
                                        cmocka_unit_test(test_list_of_words), cmocka_unit_test(test_automatic) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
