/* SPDX-License-Identifier: Apache-2.0 */
/* Generation: greedy tokens equal those of transformers, cached keys give the same as a fresh forward, and sampling
 * follows its rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <train/sample.h>

#include "sample/choose.h"

enum { NEW = 24, MOST = 64 };

struct golden {
    char model[3000], adapter[3000];
    uint32_t prompt[MOST], ids[MOST];
    size_t nprompt, nids;
};

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static size_t take_ids(const json_t *list, uint32_t *ids)
{
    assert_in_range(json_array_size(list), 1, MOST);
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return json_array_size(list);
}

static struct golden golden_of(const char *name, const json_t *expected)
{
    struct golden g;
    const char *root = getenv("FSDPTRAIN_GOLDENS");
    assert_non_null(root);
    snprintf(g.model, sizeof g.model, "%s/%s/model", root, name);
    snprintf(g.adapter, sizeof g.adapter, "%s/%s/end_adapter", root, name);
    g.nprompt = take_ids(json_object_get(expected, "prompt"), g.prompt);
    g.nids = take_ids(json_object_get(expected, "ids"), g.ids);
    return g;
}

static struct sampler *open_golden(const struct golden *g, const char *dtype, unsigned nthreads)
{
    struct fsdpck_error err = { 0 };
    struct sampler *s;
    struct sampler_options opt = { .adapter = access(g->adapter, F_OK) == 0 ? g->adapter : NULL,
                                   .dtype = dtype,
                                   .nthreads = nthreads };
    must(sampler_open(g->model, &opt, &s, &err), &err);
    return s;
}

static json_t *load_goldens(void)
{
    char path[3000];
    snprintf(path, sizeof path, "%s/generate.json", getenv("FSDPTRAIN_GOLDENS"));
    json_t *all = json_load_file(path, 0, NULL);
    assert_non_null(all);
    return all;
}

static const struct sample_rule greedy = { .max_new_tokens = NEW, .top_p = 1, .repetition_penalty = 1 };

static void check_greedy(const char *name, const json_t *expected)
{
    const struct golden g = golden_of(name, expected);
    for (unsigned nthreads = 1; nthreads <= 3; nthreads++) {
        struct fsdpck_error err = { 0 };
        struct sampler *s = open_golden(&g, "fp32", nthreads);
        struct sampled done;
        must(sampler_prompt(s, g.prompt, g.nprompt, NEW, &err), &err);
        must(sampler_run(s, &greedy, 0, NULL, NULL, &done, &err), &err);
        assert_int_equal(done.count, g.nids);
        assert_false(done.stopped);
        for (size_t i = 0; i < g.nids; i++) {
            if (done.ids[i] != g.ids[i])
                fail_msg("%s: token %zu is %u, transformers' %u", name, i, done.ids[i], g.ids[i]);
        }
        sampler_close(s);
    }
}

static void test_greedy(void **state)
{
    (void)state;
    const char *name;
    json_t *all = load_goldens(), *expected;
    assert_int_equal(json_object_size(all), 14);
    json_object_foreach (all, name, expected)
        check_greedy(name, expected);
    json_decref(all);
}

/* Computes a prompt's logits with fewer and fewer tokens at first, the rest one by one; returns the largest difference,
 * relative to the largest logit. */
static double grown_off(struct sampler *s, const uint32_t *ids, size_t count)
{
    struct fsdpck_error err = { 0 };
    const size_t nvocab = (size_t)sampler_nvocab(s), together[] = { count - 1, count / 2, 1 };
    float *want = malloc(nvocab * sizeof *want), top = 0, off = 0;
    const float *got;
    assert_non_null(want);
    must(sampler_logits(s, ids, count, count, &got, &err), &err);
    memcpy(want, got, nvocab * sizeof *want);
    for (size_t k = 0; k < 3; k++) {
        must(sampler_logits(s, ids, count, together[k], &got, &err), &err);
        for (size_t i = 0; i < nvocab; i++) {
            top = fmaxf(top, fabsf(want[i]));
            off = fmaxf(off, fabsf(want[i] - got[i]));
        }
    }
    free(want);
    return (double)off / (double)top;
}

static void check_cache(const char *name, const json_t *expected, const char *dtype, double tolerance)
{
    const struct golden g = golden_of(name, expected);
    uint32_t ids[2 * MOST];
    memcpy(ids, g.prompt, g.nprompt * sizeof *ids);
    memcpy(ids + g.nprompt, g.ids, g.nids * sizeof *ids);
    for (unsigned nthreads = 1; nthreads <= 3; nthreads++) {
        struct sampler *s = open_golden(&g, dtype, nthreads);
        for (size_t n = 2; n <= g.nprompt + g.nids; n += 8) {
            double off = grown_off(s, ids, n);
            if (!(off <= tolerance))
                fail_msg("%s in %s, %zu tokens, %u threads: kept keys are %g off", name, dtype, n, nthreads, off);
        }
        sampler_close(s);
    }
}

static void test_cache(void **state)
{
    (void)state;
    const char *name;
    json_t *all = load_goldens(), *expected;
    json_object_foreach (all, name, expected) {
        check_cache(name, expected, "fp32", 1e-5);
        check_cache(name, expected, "bf16", 4e-2);
    }
    json_decref(all);
}

/* Any number of threads gives the same bits. */
static void test_threads(void **state)
{
    (void)state;
    json_t *all = load_goldens();
    const struct golden g = golden_of("lora-qwen3", json_object_get(all, "lora-qwen3"));
    struct sampler *one = open_golden(&g, "bf16", 1);
    for (unsigned nthreads = 2; nthreads <= 3; nthreads++) {
        struct fsdpck_error err = { 0 };
        struct sampler *more = open_golden(&g, "bf16", nthreads);
        for (size_t together = 1; together <= g.nprompt; together += 5) {
            const float *a, *b;
            must(sampler_logits(one, g.prompt, g.nprompt, together, &a, &err), &err);
            must(sampler_logits(more, g.prompt, g.nprompt, together, &b, &err), &err);
            assert_memory_equal(a, b, (size_t)sampler_nvocab(one) * sizeof *a);
        }
        sampler_close(more);
    }
    sampler_close(one);
    json_decref(all);
}

/* Samples of one prompt, in any order; the seed; a stop token; a callback that stops. */
static int enough(void *ctx, uint32_t id)
{
    (void)id;
    return --*(int *)ctx == 0;
}

static void test_samples(void **state)
{
    (void)state;
    json_t *all = load_goldens();
    const struct golden g = golden_of("lora-llama", json_object_get(all, "lora-llama"));
    struct sampler *s = open_golden(&g, "fp32", 2);
    struct sample_rule rule = {
        .max_new_tokens = NEW, .top_p = 0.95, .top_k = 50, .temperature = 1.5, .repetition_penalty = 1, .seed = 7
    };
    struct fsdpck_error err = { 0 };
    struct sampled done;
    uint32_t first[NEW];
    must(sampler_prompt(s, g.prompt, g.nprompt, NEW, &err), &err);
    must(sampler_run(s, &rule, 0, NULL, NULL, &done, &err), &err);
    assert_int_equal(done.count, NEW);
    memcpy(first, done.ids, sizeof first);
    must(sampler_run(s, &rule, 1, NULL, NULL, &done, &err), &err);
    assert_memory_not_equal(first, done.ids, sizeof first);
    must(sampler_run(s, &rule, 0, NULL, NULL, &done, &err), &err);
    assert_memory_equal(first, done.ids, sizeof first);
    rule.seed = 8;
    must(sampler_run(s, &rule, 0, NULL, NULL, &done, &err), &err);
    assert_memory_not_equal(first, done.ids, sizeof first);

    rule = greedy;
    rule.stops[0] = g.ids[3];
    rule.nstops = 1;
    must(sampler_run(s, &rule, 0, NULL, NULL, &done, &err), &err);
    assert_true(done.stopped && done.count == 4);
    int wanted = 6;
    must(sampler_run(s, &greedy, 0, enough, &wanted, &done, &err), &err);
    assert_true(!done.stopped && done.count == 6);

    const uint32_t unknown = (uint32_t)sampler_nvocab(s);
    assert_int_equal(sampler_prompt(s, &unknown, 1, NEW, &err), FSDPCK_ERR_FORMAT);
    err = (struct fsdpck_error){ 0 };
    assert_int_equal(sampler_prompt(s, &unknown, 0, NEW, &err), FSDPCK_ERR_USAGE);
    err = (struct fsdpck_error){ 0 };
    assert_int_equal(sampler_run(s, &greedy, 0, NULL, NULL, &done, &err), FSDPCK_ERR_USAGE);
    sampler_close(s);
    json_decref(all);
}

enum { NVOCAB = 40 };

/* Counts each token over many draws. */
static void count_draws(const struct sample_rule *rule, const float *logits, int ndraws, int *counts)
{
    struct fsdpck_error err = { 0 };
    struct choose *c;
    uint32_t id;
    must(choose_new(NVOCAB, &c, &err), &err);
    memset(counts, 0, NVOCAB * sizeof *counts);
    for (int i = 0; i < ndraws; i++) {
        must(choose_token(c, rule, logits, (uint64_t)i, (uint64_t)(i % 7), &id, &err), &err);
        assert_in_range(id, 0, NVOCAB - 1);
        counts[id]++;
    }
    choose_free(c);
}

static void test_choose(void **state)
{
    (void)state;
    enum { NDRAWS = 20000 };
    struct sample_rule rule = { .temperature = 2, .top_p = 1, .repetition_penalty = 1, .seed = 3 };
    float logits[NVOCAB];
    int counts[NVOCAB];
    double p[NVOCAB], sum = 0;
    for (int i = 0; i < NVOCAB; i++)
        sum += p[i] = exp((double)(logits[i] = (float)((i * 17) % NVOCAB) / 8) / rule.temperature);
    count_draws(&rule, logits, NDRAWS, counts);
    for (int i = 0; i < NVOCAB; i++) /* five standard deviations; the draws are reproducible */
        assert_true(fabs(counts[i] - NDRAWS * p[i] / sum) < 5 * sqrt(NDRAWS * p[i] / sum));

    rule.top_k = 3;
    count_draws(&rule, logits, NDRAWS, counts);
    for (int i = 0; i < NVOCAB; i++)
        assert_int_equal(counts[i] > 0, (i * 17) % NVOCAB >= NVOCAB - 3);

    rule.top_k = 0; /* the nucleus: as many of the likeliest as needed */
    rule.top_p = 0.3;
    count_draws(&rule, logits, NDRAWS, counts);
    double taken = 0;
    for (int rank = NVOCAB - 1; rank >= 0; rank--) {
        int id = 0;
        while ((id * 17) % NVOCAB != rank)
            id++;
        assert_int_equal(counts[id] > 0, taken < rule.top_p);
        taken += p[id] / sum;
    }
}

static void test_choose_greedy(void **state)
{
    (void)state;
    struct sample_rule rule = greedy;
    struct fsdpck_error err = { 0 };
    struct choose *c;
    uint32_t id;
    float logits[NVOCAB] = { 0 };
    must(choose_new(NVOCAB, &c, &err), &err);
    logits[4] = logits[9] = 2; /* the first of equals, like torch's argmax */
    logits[5] = NAN;
    must(choose_token(c, &rule, logits, 0, 0, &id, &err), &err);
    assert_int_equal(id, 4);
    rule.repetition_penalty = 2; /* repeated tokens: a positive logit is divided, a negative one multiplied */
    must(choose_token(c, &rule, logits, 0, 1, &id, &err), &err);
    assert_int_equal(id, 9);
    for (int i = 0; i < NVOCAB; i++)
        logits[i] = i == 7 ? -2 : i == 8 ? -3 : -10;
    choose_begin(c, &(uint32_t){ 7 }, 1);
    must(choose_token(c, &rule, logits, 0, 0, &id, &err), &err);
    assert_int_equal(id, 8);
    for (int i = 0; i < NVOCAB; i++)
        logits[i] = NAN;
    assert_int_equal(choose_token(c, &rule, logits, 0, 0, &id, &err), FSDPCK_ERR_FORMAT);
    choose_free(c);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void count_note(void *ctx, const char *line)
{
    assert_non_null(strstr(line, "num_beams"));
    ++*(int *)ctx;
}

static void test_rule(void **state)
{
    (void)state;
    char folder[] = "/tmp/fsdptrain-rule-XXXXXX", path[300];
    struct fsdpck_error err = { 0 };
    struct sample_rule rule;
    int nnotes = 0;
    const struct fsdpck_options opt = { .note = count_note, .ctx = &nnotes };
    assert_non_null(mkdtemp(folder));
    write_file(folder, "config.json", "{\"eos_token_id\": 5}");
    must(sample_rule_read(folder, &opt, &rule, &err), &err);
    assert_true(rule.nstops == 1 && rule.stops[0] == 5 && rule.temperature == 0 && rule.max_new_tokens == 256);
    write_file(
        folder, "generation_config.json",
        "{\"eos_token_id\": [7, 8], \"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"num_beams\": 4}");
    must(sample_rule_read(folder, &opt, &rule, &err), &err);
    assert_true(rule.nstops == 2 && rule.stops[0] == 7 && rule.stops[1] == 8 && rule.temperature == 0.6 &&
                rule.top_p == 0.9 && rule.top_k == 50);
    assert_int_equal(nnotes, 1);
    static const char *const wrong[] = { "{\"eos_token_id\": \"x\"}", "{\"top_p\": 2}", "{\"temperature\": \"hot\"}",
                                         "[]", "{" };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        err = (struct fsdpck_error){ 0 };
        write_file(folder, "generation_config.json", wrong[i]);
        assert_int_not_equal(sample_rule_read(folder, NULL, &rule, &err), 0);
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_greedy),  cmocka_unit_test(test_cache),
                                        cmocka_unit_test(test_threads), cmocka_unit_test(test_samples),
                                        cmocka_unit_test(test_choose),  cmocka_unit_test(test_choose_greedy),
                                        cmocka_unit_test(test_rule) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
