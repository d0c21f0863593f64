/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of LoRA: names in every spelling, PEFT's expressions, good and bad configurations, products against a plain
 * loop, and a single rounding. */
#include "lora/config.h"
#include "lora/names.h"
#include "lora/pattern.h"
#include "lora/product.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fsdpck/dtype.h>

#include "model.h"

/* ---- names ---- */

static const struct {
    const char *name;
    enum fsdpck_lora_role role;
    const char *module, *adapter, *leaf, *between;
} known[] = {
    { "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", LORA_A,
      "model.layers.0.self_attn.q_proj", "default", "", "" },
    { "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", LORA_B, "model.layers.0.self_attn.q_proj", "",
      "", "" },
    { "_fsdp_wrapped_module.base_model.model.layers.1._fsdp_wrapped_module.q._checkpoint_wrapped_module.lora_A.x."
      "weight",
      LORA_A, "layers.1.q", "x", "", "" },
    { "module._orig_mod.base_model.model.q.lora_B.default.bias", LORA_B_BIAS, "q", "default", "", "" },
    { "module.module.q.lora_A.weight", LORA_A, "q", "", "", "" },
    { "encoder.module.q.lora_A.weight", LORA_A, "encoder.module.q", "", "", "" },
    { "model.base_model.model.q.lora_A.weight", LORA_A, "q", "", "", "" },
    { "embed.lora_embedding_A.default", LORA_EMBEDDING_A, "embed", "default", "", "" },
    { "embed.lora_embedding_B", LORA_EMBEDDING_B, "embed", "", "", "" },
    { "q.lora_magnitude_vector.default.weight", LORA_MAGNITUDE, "q", "default", "", "" },
    { "q.lora_magnitude_vector.default", LORA_MAGNITUDE, "q", "default", "", "" },
    { "q.lora_magnitude_vector.weight", LORA_MAGNITUDE, "q", "", "", "" },
    { "q.lora_magnitude_vector", LORA_MAGNITUDE, "q", "", "", "" },
    { "lm_head.modules_to_save.default.weight", LORA_SAVED, "lm_head", "default", "weight", "" },
    { "score.modules_to_save.x.dense.bias", LORA_SAVED, "score", "x", "dense.bias", "" },
    { "q.base_layer.weight", LORA_BASE, "q", "", "weight", "base_layer" },
    { "lm_head.original_module.weight", LORA_ORIGINAL, "lm_head", "", "weight", "" },
    { "model.norm.weight", LORA_PLAIN, "model.norm", "", "weight", "" },
    { "weight", LORA_PLAIN, "", "", "weight", "" },
    { "q.lora_A.default.weight.exp_avg", LORA_STATE, "q.lora_A.default.weight", "", "exp_avg", "" },
    { "e.lora_embedding_A.default.exp_avg", LORA_STATE, "e.lora_embedding_A.default", "", "exp_avg", "" },
    { "q.lora_A.default.scale", LORA_UNKNOWN, "q", "default", "", "" },
    { "q.lora_E", LORA_UNKNOWN, "q", "", "", "" },
    { "base_model.model.embed.token_adapter.trainable_tokens_delta", LORA_TOKENS, "embed", "", "trainable_tokens_delta",
      "token_adapter" },
    { "embed.token_adapter.trainable_tokens_delta.x", LORA_TOKENS, "embed", "x", "trainable_tokens_delta",
      "token_adapter" },
    { "embed.trainable_tokens_delta.default", LORA_TOKENS, "embed", "default", "trainable_tokens_delta", "" },
    { "embed.trainable_tokens_delta.default.exp_avg", LORA_STATE, "embed.trainable_tokens_delta.default", "", "exp_avg",
      "" },
    { "embed.token_adapter.base_layer.weight", LORA_BASE, "embed", "", "weight", "token_adapter.base_layer" },
    { "embed.token_adapter.trainable_tokens_original.default", LORA_ORIGINAL, "embed", "", "default", "" },
    { "embed.token_adapter.scale", LORA_UNKNOWN, "embed", "", "", "" },
    { "q.base_layer.lora_A.default.weight", LORA_UNKNOWN, "q", "", "", "" },
    { "head.base_layer.trainable_tokens_delta", LORA_UNKNOWN, "head", "", "", "" },
    { "embed.token_adapter", LORA_UNKNOWN, "embed", "", "", "" },
    { "a..b.", LORA_PLAIN, "a..b", "", "", "" },
};

static void names_are_understood_in_every_spelling(void **state)
{
    (void)state;
    struct fsdpck_arena a = { 0 };
    struct fsdpck_error err = { 0 };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct fsdpck_lora_name n;
        assert_int_equal(fsdpck_lora_name_parse(&a, known[i].name, &n, &err), 0);
        if (n.role != known[i].role || strcmp(n.module, known[i].module) != 0 || strcmp(n.leaf, known[i].leaf) != 0 ||
            strcmp(n.between, known[i].between) != 0 ||
            (n.role != LORA_UNKNOWN && strcmp(n.adapter, known[i].adapter) != 0))
            fail_msg("'%s': role %d, module '%s', adapter '%s', leaf '%s'", known[i].name, n.role, n.module, n.adapter,
                     n.leaf);
    }
    fsdpck_arena_free(&a);
}

static void names_of_too_many_parts_are_refused(void **state)
{
    (void)state;
    struct fsdpck_arena a = { 0 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_lora_name n;
    char dots[300];
    memset(dots, '.', sizeof dots);
    dots[127] = '\0';
    assert_int_equal(fsdpck_lora_name_parse(&a, dots, &n, &err), 0);
    dots[127] = '.';
    dots[128] = '\0';
    assert_int_equal(fsdpck_lora_name_parse(&a, dots, &n, &err), FSDPCK_ERR_LIMIT);
    fsdpck_arena_free(&a);
}

/* ---- expressions ---- */

static void expressions_match_as_in_peft(void **state)
{
    (void)state;
    static const struct {
        const char *expression, *module;
        enum fsdpck_pattern_result ends, whole;
    } cases[] = {
        { "q_proj", "model.layers.0.q_proj", PATTERN_YES, PATTERN_NO },
        { "q_proj", "q_proj", PATTERN_YES, PATTERN_YES },
        { "proj", "q_proj", PATTERN_NO, PATTERN_NO },
        { "layers.0.q", "x.layers.0.q", PATTERN_YES, PATTERN_NO },
        { "layers.0.q", "x.layers.10.q", PATTERN_NO, PATTERN_NO },
        { "a.b", "axb", PATTERN_YES, PATTERN_YES }, /* a dot matches any character */
        { "a\\.b", "axb", PATTERN_NO, PATTERN_NO },
        { "^layers.0.q", "x.layers.0.q", PATTERN_NO, PATTERN_NO },
        { "^layers.0.q", "layers.0.q", PATTERN_YES, PATTERN_YES },
        { ".*\\.[02]\\.(q|up)_proj", "m.2.up_proj", PATTERN_YES, PATTERN_YES },
        { ".*\\.[02]\\.(?:q|up)_proj", "m.1.up_proj", PATTERN_NO, PATTERN_NO },
        { "layers\\.\\d+\\.q", "m.layers.12.q", PATTERN_YES, PATTERN_NO },
        { "q|k", "m.k", PATTERN_YES, PATTERN_NO },
        { "(?=q)q", "m.q", PATTERN_YES, PATTERN_NO },
        { "(?!.*visual).*q", "m.q", PATTERN_YES, PATTERN_YES },
        { "(?!.*visual).*q", "visual.q", PATTERN_YES, PATTERN_NO }, /* matches its end only */
        { "q{2}", "qq", PATTERN_YES, PATTERN_YES },
        { "layers\\.(?P<n>[12]?[0-9])\\.q", "m.layers.27.q", PATTERN_YES, PATTERN_NO },
        { "(q)\\1", "qq", PATTERN_NO, PATTERN_YES }, /* PEFT puts its own group first */
        { "[]q]", "]", PATTERN_YES, PATTERN_YES },
        { "(q", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "q\\", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "q{,2}", "qq", PATTERN_UNKNOWN, PATTERN_UNKNOWN }, /* Python: up to two; PCRE2 before 10.43: literally */
        { "(?i)Q", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "(?R)?q", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "(*FAIL)|q", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "[[:alpha:]]", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "\\Qq\\E", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "q*********", "q", PATTERN_UNKNOWN, PATTERN_UNKNOWN },
        { "((((((((q+)+)+)+)+)+)+)+)+[xy]", "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", PATTERN_UNKNOWN,
          PATTERN_UNKNOWN }, /* would take years */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (fsdpck_pattern_ends(cases[i].expression, cases[i].module) != cases[i].ends ||
            fsdpck_pattern_whole(cases[i].expression, cases[i].module) != cases[i].whole)
            fail_msg("'%s' on '%s'", cases[i].expression, cases[i].module);
    }
    char *long_one = malloc(5000);
    memset(long_one, '*', 4999);
    long_one[4999] = '\0';
    assert_int_equal(fsdpck_pattern_ends(long_one, "q"), PATTERN_UNKNOWN);
    free(long_one);
}

/* ---- configurations ---- */

static int parse(struct fsdpck_lora_config *c, const char *text, struct fsdpck_error *err)
{
    *err = (struct fsdpck_error){ 0 };
    return fsdpck_lora_config_parse(c, "c.json", text, strlen(text), err);
}

static void configurations_answer_by_module(void **state)
{
    (void)state;
    struct fsdpck_lora_config c;
    struct fsdpck_error err;
    uint64_t r;
    double alpha;
    assert_int_equal(
        parse(
            &c,
            "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"use_rslora\":true,\"rank_pattern\":{\"up\":2,\"1.up\":"
            "9},"
            "\"alpha_pattern\":{\"layers.0.q\":1.5},\"target_modules\":[\"q\",\"up\"],\"modules_to_save\":[\"head\"]}",
            &err),
        0);
    assert_true(c.rslora);
    assert_int_equal(fsdpck_lora_config_rank(&c, "layers.1.up", &r, &err), 0);
    assert_int_equal(r, 2); /* the first key that matches, not the longest */
    assert_int_equal(fsdpck_lora_config_rank(&c, "layers.1.q", &r, &err), 0);
    assert_int_equal(r, 4);
    assert_int_equal(fsdpck_lora_config_alpha(&c, "m.layers.0.q", &alpha, &err), 0);
    assert_true(alpha == 1.5);
    assert_int_equal(fsdpck_lora_config_alpha(&c, "m.layers.1.q", &alpha, &err), 0);
    assert_true(alpha == 8);
    assert_true(fsdpck_lora_config_targets(&c, "m.q") && !fsdpck_lora_config_targets(&c, "m.xq"));
    assert_string_equal(fsdpck_lora_config_saves(&c, "m.head"), "head");
    assert_string_equal(fsdpck_lora_config_saves(&c, "head.m"), "head"); /* inside a saved module */
    /* a suffix is enough, even inside a word */
    assert_string_equal(fsdpck_lora_config_saves(&c, "m.lm_head"), "head");
    assert_null(fsdpck_lora_config_saves(&c, "m.headx"));
    assert_true(fsdpck_lora_saves("norm", "m.input_layernorm") && fsdpck_lora_saves("0.mlp", "m.0.mlp.up") &&
                !fsdpck_lora_saves("mlp", "m.mlpx.up"));
    assert_null(fsdpck_lora_config_leaves_out(&c, "m.q"));
    fsdpck_lora_config_free(&c);
}

static void layers_are_left_out_as_in_peft(void **state)
{
    (void)state;
    static const struct {
        const char *text, *module, *key;
    } cases[] = {
        { "\"exclude_modules\":[\"q\"]", "m.q", "exclude_modules" },
        { "\"exclude_modules\":[\"q\"]", "m.xq", NULL },
        { "\"exclude_modules\":\"m\\\\..*\"", "m.k", "exclude_modules" },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":[0,2]", "m.layers.2.q", NULL },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":[0,2]", "m.layers.1.q", "layers_to_transform" },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "m.layers.1.q", NULL },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "m.layers.11.q", "layers_to_transform" },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "layers.1.q",
          "layers_to_transform" }, /* without a pattern, two parts precede it */
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "m.layers.1.experts.0.q", NULL },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1", "m.q", "layers_to_transform" },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1,\"layers_pattern\":\"layers\"", "layers.1.q", NULL },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1,\"layers_pattern\":[\"h\",\"blocks?\"]",
          "x.0.block.1.q", NULL },
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":1,\"layers_pattern\":[\"h\"]", "m.xh.1.q",
          "layers_to_transform" },
        { "\"target_modules\":\".*q\",\"layers_to_transform\":1", "m.layers.2.q",
          NULL }, /* an expression replaces all other keys */
        { "\"target_modules\":[\"q\"],\"layers_to_transform\":[]", "m.q", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fsdpck_lora_config c;
        struct fsdpck_error err;
        char text[300];
        snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",%s}", cases[i].text);
        if (parse(&c, text, &err) != 0)
            fail_msg("%s: %s", text, err.message);
        const char *key = fsdpck_lora_config_leaves_out(&c, cases[i].module);
        if (!key != !cases[i].key || (key && strcmp(key, cases[i].key) != 0))
            fail_msg("%s: '%s' is left out by %s", text, cases[i].module, key ? key : "nothing");
        fsdpck_lora_config_free(&c);
    }
}

static void tokens_are_those_of_the_module(void **state)
{
    (void)state;
    static const struct {
        const char *text, *module;
        int code;
        size_t count;
    } cases[] = {
        { "\"trainable_token_indices\":[7,3]", "m.embed_tokens", 0, 2 },
        { "\"trainable_token_indices\":{\"embed_tokens\":[7,3],\"lm_head\":[1]}", "lm_head", 0, 1 },
        { "\"trainable_token_indices\":{\"embed_tokens\":[7,3]}", "lm_head", 0, 2 }, /* tied to it */
        { "\"trainable_token_indices\":{\"embed_tokens\":[7,3],\"x\":[1]}", "lm_head", 0, 0 },
        { "\"r\":3", "m.embed_tokens", 0, 0 },
        { "\"trainable_token_indices\":[-1]", "m.embed_tokens", FSDPCK_ERR_FORMAT, 1 },
        { "\"trainable_token_indices\":[4,5,4]", "m.embed_tokens", FSDPCK_ERR_FORMAT, 3 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fsdpck_lora_config c;
        struct fsdpck_error err;
        struct fsdpck_arena a = { 0 };
        char text[300];
        uint64_t *rows;
        size_t n;
        snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",%s}", cases[i].text);
        assert_int_equal(parse(&c, text, &err), 0);
        assert_int_equal(fsdpck_lora_config_tokens(&c, &a, cases[i].module, &rows, &n, &err), cases[i].code);
        assert_true(n == cases[i].count && !rows == (cases[i].code || !cases[i].count));
        assert_true(!rows || n < 2 || (rows[0] == 7 && rows[1] == 3));
        fsdpck_arena_free(&a);
        fsdpck_lora_config_free(&c);
    }
}

static void configurations_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
    } bad[] = {
        { "", FSDPCK_ERR_FORMAT },
        { "[]", FSDPCK_ERR_FORMAT },
        { "{", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"peft_type\":\"LORA\"}", FSDPCK_ERR_FORMAT },
        { "{}", FSDPCK_ERR_UNSUPPORTED },
        { "{\"peft_type\":7}", FSDPCK_ERR_UNSUPPORTED },
        { "{\"peft_type\":\"LORA\",\"r\":0}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"r\":-3}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"r\":2.5}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"lora_alpha\":null}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"use_dora\":1}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"bias\":\"some\"}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"bias\":{}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"rank_pattern\":[]}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"rank_pattern\":{\"q\":\"2\"}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"q\":null}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"target_modules\":[1]}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"target_modules\":{}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"modules_to_save\":\"head\"}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"exclude_modules\":7}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"layers_to_transform\":\"1\"}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"layers_to_transform\":[1.5]}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":3}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"trainable_token_indices\":{\"e\":3}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":{\"e\":[3]}}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"target_parameters\":\"x\"}", FSDPCK_ERR_FORMAT },
        { "{\"peft_type\":\"LORA\",\"init_lora_weights\":\"olora\"}", FSDPCK_ERR_UNSUPPORTED },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fsdpck_lora_config c;
        struct fsdpck_error err;
        int rc = parse(&c, bad[i].text, &err);
        if (rc != bad[i].code)
            fail_msg("%s: %d, %s", bad[i].text, rc, err.message);
        assert_string_equal(err.file, "c.json");
        fsdpck_lora_config_free(&c);
    }
}

static void configurations_keep_what_says_something(void **state)
{
    (void)state;
    struct fsdpck_lora_config c;
    struct fsdpck_error err;
    struct fsdpck_text t = { 0 };
    const struct fsdpck_lora_facts facts = { .r = 4,
                                             .alpha = 2.5,
                                             .rank_pattern = "{\"q\":2}",
                                             .alpha_pattern = "{}",
                                             .modules_to_save = "null",
                                             .target_modules = "[\"q\"]" };
    assert_int_equal(parse(&c,
                           "{\"peft_type\":\"LORA\",\"r\":9,\"use_rslora\":true,\"use_dora\":false,\"runtime_config\":{"
                           "\"x\":1},\"peft_version\":\"0.21\","
                           "\"eva_config\":null,\"exclude_modules\":[\"k\"],\"revision\":\"main\"}",
                           &err),
                     0);
    assert_int_equal(fsdpck_lora_config_write(&c, &facts, "unet.", &t, &err), 0);
    static const char *const in[] = { "\"unet.use_rslora\": true",   "\"unet.r\": 4",
                                      "\"unet.lora_alpha\": 2.5",    "\"unet.exclude_modules\"",
                                      "\"unet.revision\": \"main\"", "\"q\": 2" };
    static const char *const out[] = { "use_dora", "runtime_config", "peft_version", "eva_config" };
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        if (!strstr(t.data, in[i]))
            fail_msg("%s is not in %s", in[i], t.data);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        if (strstr(t.data, out[i]))
            fail_msg("%s is in %s", out[i], t.data);
    fsdpck_text_free(&t);
    fsdpck_lora_config_free(&c);
}

static void scalings_are_written_as_they_are(void **state)
{
    (void)state;
    static const double alphas[] = { 32,     0,           0.1,     -2.5,  1e-7, 9007199254740991.0, 9007199254740993.0,
                                     9.3e18, 2.22222e100, 1.7e308, 5e-324 };
    for (size_t i = 0; i < sizeof alphas / sizeof *alphas; i++) {
        struct fsdpck_lora_config c, again;
        struct fsdpck_error err;
        struct fsdpck_text pattern = { 0 }, t = { 0 };
        double read;
        assert_int_equal(parse(&c, "{\"peft_type\":\"LORA\",\"r\":9}", &err), 0);
        fsdpck_text_printf(&pattern, "{\"q\":");
        fsdpck_lora_config_number(&pattern, alphas[i]);
        fsdpck_text_printf(&pattern, "}");
        const struct fsdpck_lora_facts facts = {
            .r = 9, .alpha = alphas[i], .rank_pattern = "{}", .alpha_pattern = pattern.data, .modules_to_save = "null"
        };
        assert_int_equal(fsdpck_lora_config_write(&c, &facts, "", &t, &err), 0);
        assert_int_equal(parse(&again, t.data, &err), 0);
        assert_int_equal(fsdpck_lora_config_alpha(&again, "m.q", &read, &err), 0);
        assert_true(read == alphas[i] && again.alpha == alphas[i]);
        assert_true(alphas[i] != 32 || strcmp(pattern.data, "{\"q\":32}") == 0);
        fsdpck_text_free(&pattern);
        fsdpck_text_free(&t);
        fsdpck_lora_config_free(&again);
        fsdpck_lora_config_free(&c);
    }
}

/* ---- products ---- */

static float random_float(uint64_t *s)
{
    return (float)((double)model_below(s, 1 << 20) / (1 << 19) - 1);
}

static void products_are_those_of_a_plain_loop(void **state)
{
    (void)state;
    uint64_t seed = 5;
    for (int round = 0; round < 200; round++) {
        uint64_t rank = 1 + model_below(&seed, 20), ncol = 1 + model_below(&seed, 300),
                 nrows = 1 + model_below(&seed, FSDPCK_TILE_ROWS);
        uint64_t first = model_below(&seed, ncol),
                 ncols = 1 + model_below(&seed, ncol - first < FSDPCK_TILE_COLS ? ncol - first : FSDPCK_TILE_COLS);
        float *left = malloc(nrows * rank * sizeof *left), *right = malloc(rank * ncol * sizeof *right),
              *v = malloc(nrows * FSDPCK_TILE_COLS * sizeof *v);
        float *before = malloc(nrows * FSDPCK_TILE_COLS * sizeof *v), scale = random_float(&seed);
        for (uint64_t i = 0; i < nrows * rank; i++)
            left[i] = random_float(&seed);
        for (uint64_t i = 0; i < rank * ncol; i++)
            right[i] = random_float(&seed);
        for (uint64_t i = 0; i < nrows * FSDPCK_TILE_COLS; i++)
            v[i] = before[i] = random_float(&seed);
        fsdpck_product_add(v, FSDPCK_TILE_COLS, left, right + first, rank, ncol, nrows, ncols, scale);
        for (uint64_t i = 0; i < nrows; i++)
            for (uint64_t j = 0; j < FSDPCK_TILE_COLS; j++) {
                double want = before[i * FSDPCK_TILE_COLS + j];
                for (uint64_t k = 0; j < ncols && k < rank; k++)
                    want += (double)scale * left[i * rank + k] * right[k * ncol + first + j];
                double far = want - v[i * FSDPCK_TILE_COLS + j];
                if (far > 1e-5 || far < -1e-5 || (j >= ncols && far != 0))
                    fail_msg("rank %llu, %llu by %llu: element %llu, %llu is %g, not %g", (unsigned long long)rank,
                             (unsigned long long)nrows, (unsigned long long)ncols, (unsigned long long)i,
                             (unsigned long long)j, v[i * FSDPCK_TILE_COLS + j], want);
            }
        free(left);
        free(right);
        free(v);
        free(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_understood_in_every_spelling),
        cmocka_unit_test(names_of_too_many_parts_are_refused),
        cmocka_unit_test(expressions_match_as_in_peft),
        cmocka_unit_test(configurations_answer_by_module),
        cmocka_unit_test(layers_are_left_out_as_in_peft),
        cmocka_unit_test(tokens_are_those_of_the_module),
        cmocka_unit_test(configurations_that_make_no_sense_are_refused),
        cmocka_unit_test(configurations_keep_what_says_something),
        cmocka_unit_test(scalings_are_written_as_they_are),
        cmocka_unit_test(products_are_those_of_a_plain_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
