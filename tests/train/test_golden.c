/* SPDX-License-Identifier: Apache-2.0 */
/* The first step of each golden through the C API: logits, loss, norm and every gradient, within the golden's
 * tolerances. FSDPTRAIN_MODULE: module of a device to compute on, instead of the CPU. */
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
#include <unistd.h>

#include <train/train.h>

static const char *const cases[] = { "full-llama-odd",   "full-llama-tied", "full-qwen2",        "full-qwen3-untied",
                                     "lora-dora",        "lora-ends-tied",  "lora-ends-untied",  "lora-llama",
                                     "lora-llama-rope3", "lora-mistral",    "lora-qwen2-window", "lora-qwen3",
                                     "lora-saved-tied",  "lora-yarn-bias" };

struct golden {
    char folder[3000];
    json_t *expected;
    struct train_config config;
    struct train_session *session;
    struct fsdpck_source *first;
};

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static double tolerance(const struct golden *g, const char *key)
{
    return json_number_value(json_object_get(json_object_get(g->expected, "tolerance"), key));
}

/* Writes the parts of case.json that the first step's gradients need as CONFIG.json. */
static void write_config(const struct golden *g, const char *path)
{
    char text[3100];
    snprintf(text, sizeof text, "%s/case.json", g->folder);
    json_t *theirs = json_load_file(text, 0, NULL), *ours = json_object(), *data = json_object(),
           *lora = json_object_get(theirs, "lora");
    assert_non_null(theirs);
    json_object_set_new(data, "plan", json_string(text));
    snprintf(text, sizeof text, "%s/data.jsonl", g->folder);
    json_object_set_new(data, "train", json_string(text));
    snprintf(text, sizeof text, "%s/model", g->folder);
    json_object_set_new(ours, "model", json_string(text));
    json_object_set_new(ours, "data", data);
    json_object_set_new(ours, "train", json_pack("{s:i}", "max_steps", 1));
    json_object_set_new(ours, "dtype", json_pack("{s:s}", "param", "fp32"));
    if (lora) {
        snprintf(text, sizeof text, "%s/start_adapter", g->folder);
        json_object_del(lora, "seed");
        json_object_del(lora, "init_B");
        json_object_set_new(lora, "init_adapter", json_string(text));
        json_object_set(ours, "lora", lora);
    }
    assert_int_equal(json_dump_file(ours, path, 0), 0);
    json_decref(ours);
    json_decref(theirs);
}

/* sets: "key=value", ended by NULL; or NULL. */
static void open_golden(struct golden *g, const char *name, const char *const *sets)
{
    struct fsdpck_error err = { 0 };
    char path[] = "/tmp/fsdptrain-XXXXXX", text[3100];
    const char *root = getenv("FSDPTRAIN_GOLDENS");
    assert_non_null(root);
    snprintf(g->folder, sizeof g->folder, "%s/%s", root, name);
    snprintf(text, sizeof text, "%s/expected.json", g->folder);
    assert_non_null(g->expected = json_load_file(text, 0, NULL));
    close(mkstemp(path));
    write_config(g, path);
    size_t nsets = 0;
    while (sets && sets[nsets])
        nsets++;
    must(train_config_read(path, sets, nsets, &g->config, &err), &err);
    unlink(path);
    const char *module = getenv("FSDPTRAIN_MODULE");
    const struct train_options opt = { .nthreads = 2, .device = module ? "cuda" : "cpu", .module = module };
    must(train_session_open(&g->config, &opt, &g->session, &err), &err);
    snprintf(text, sizeof text, "%s/first_step.safetensors", g->folder);
    must(fsdpck_source_open(text, NULL, NULL, &g->first, &err), &err);
}

static void close_golden(struct golden *g)
{
    train_session_close(g->session);
    train_config_free(&g->config);
    fsdpck_source_close(g->first);
    json_decref(g->expected);
}

/* Owned. */
static float *read_tensor(const struct golden *g, const char *name, uint64_t *nelem)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_tensor *t = fsdpck_source_find(g->first, name);
    if (!t)
        return NULL;
    float *data = malloc(t->nbytes);
    assert_non_null(data);
    const struct fsdpck_read read = { .tensor = t, .dst = data };
    must(fsdpck_source_read(g->first, &read, 1, &err), &err);
    *nelem = t->nelem;
    return data;
}

static void check_logits(const struct golden *g)
{
    struct fsdpck_error err = { 0 };
    float *logits;
    int64_t ntok, nvocab;
    uint64_t at = 0, nelem;
    char name[32];
    double worst = 0;
    must(train_session_logits(g->session, 0, 0, &logits, &ntok, &nvocab, &err), &err);
    for (int row = 0;; row++) {
        snprintf(name, sizeof name, "logits.%d", row);
        float *want = read_tensor(g, name, &nelem);
        if (!want)
            break;
        for (uint64_t i = 0; i < nelem; i++)
            worst = fmax(worst, fabs((double)want[i] - (double)logits[at + i]));
        at += nelem;
        free(want);
    }
    free(logits);
    assert_int_equal(at, ntok * nvocab);
    if (!(worst <= tolerance(g, "logits_abs")))
        fail_msg("%s: logits are %g off, %g allowed", g->folder, worst, tolerance(g, "logits_abs"));
}

/* |g - g'| and |g'| of one tensor. */
static void distance(const float *got, const float *want, uint64_t nelem, double *off, double *norm)
{
    *off = *norm = 0;
    for (uint64_t i = 0; i < nelem; i++) {
        *off += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        *norm += (double)want[i] * (double)want[i];
    }
    *off = sqrt(*off);
    *norm = sqrt(*norm);
}

static void check_gradients(const struct golden *g)
{
    struct fsdpck_error err = { 0 };
    double loss, norm, all = json_number_value(json_array_get(json_object_get(g->expected, "grad_norm"), 0));
    must(train_session_gradients(g->session, 0, &loss, &norm, &err), &err);
    assert_true(fabs(loss - json_number_value(json_array_get(json_object_get(g->expected, "loss"), 0))) <=
                tolerance(g, "loss_abs"));
    assert_true(fabs(norm / all - 1) <= tolerance(g, "grad_norm_rel"));
    for (size_t i = 0; i < train_session_ntrained(g->session); i++) {
        const char *name;
        char theirs[300];
        float *values, *got;
        int64_t n;
        uint64_t nelem = 0;
        double off, size;
        must(train_session_param(g->session, i, &name, &values, &got, &n, &err), &err);
        snprintf(theirs, sizeof theirs, "grad.%s", name);
        float *want = read_tensor(g, theirs, &nelem);
        if (!want || (int64_t)nelem != n)
            fail_msg("%s: no '%s' of %lld elements", g->folder, theirs, (long long)n);
        distance(got, want, nelem, &off, &size);
        free(want);
        if (!(off <= tolerance(g, "grad_rel_l2") * (size + 1e-3 * all)))
            fail_msg("%s: %s is %g off, %g allowed", g->folder, name, off,
                     tolerance(g, "grad_rel_l2") * (size + 1e-3 * all));
    }
}

static void test_first_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct golden g = { 0 };
        open_golden(&g, cases[i], NULL);
        check_logits(&g);
        check_gradients(&g);
        close_golden(&g);
    }
}

/* All gradients of the first step, concatenated. Owned. */
static float *all_gradients(const struct golden *g, double *loss, int64_t *nelem)
{
    struct fsdpck_error err = { 0 };
    double norm;
    float *all = NULL;
    *nelem = 0;
    must(train_session_gradients(g->session, 0, loss, &norm, &err), &err);
    for (size_t i = 0; i < train_session_ntrained(g->session); i++) {
        const char *name;
        float *values, *got;
        int64_t n;
        must(train_session_param(g->session, i, &name, &values, &got, &n, &err), &err);
        all = realloc(all, (size_t)(*nelem + n) * sizeof *all);
        assert_non_null(all);
        memcpy(all + *nelem, got, (size_t)n * sizeof *all);
        *nelem += n;
    }
    return all;
}

/* Recomputed blocks give the same bits, in both dtypes, for adapters and for whole models. */
static void test_recompute(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const char *name = i & 1 ? "full-qwen3-untied" : "lora-qwen3",
                   *dtype = i & 2 ? "dtype.param=bf16" : "dtype.param=fp32";
        float *all[2];
        double loss[2];
        int64_t n[2];
        for (int j = 0; j < 2; j++) {
            const char *const sets[] = { dtype, j ? "fsdp.activation_checkpointing=block" : NULL, NULL };
            struct golden g = { 0 };
            open_golden(&g, name, sets);
            all[j] = all_gradients(&g, &loss[j], &n[j]);
            close_golden(&g);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
        assert_memory_equal(all[0], all[1], (size_t)n[0] * sizeof *all[0]);
        free(all[0]);
        free(all[1]);
    }
}

/* bf16 keeps eight bits of every stored number, so results differ from fp32 by some hundredths. */
static void test_bf16(void **state)
{
    (void)state;
    const char *const sets[] = { "dtype.param=bf16", NULL };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct golden fp32 = { 0 }, bf16 = { 0 };
        double loss[2], off, size;
        int64_t n[2];
        open_golden(&fp32, cases[i], NULL);
        open_golden(&bf16, cases[i], sets);
        float *want = all_gradients(&fp32, &loss[0], &n[0]), *got = all_gradients(&bf16, &loss[1], &n[1]);
        assert_int_equal(n[0], n[1]);
        distance(got, want, (uint64_t)n[0], &off, &size);
        if (!(fabs(loss[0] - loss[1]) < 0.02) || !(off < 0.05 * size) || off == 0)
            fail_msg("%s: loss %g for %g, gradients off by %g of %g", cases[i], loss[1], loss[0], off, size);
        free(want);
        free(got);
        close_golden(&fp32);
        close_golden(&bf16);
    }
}

/* The gradient of one parameter, or NULL. */
static const float *gradient_of(const struct golden *g, const char *wanted, int64_t *nelem)
{
    struct fsdpck_error err = { 0 };
    for (size_t i = 0; i < train_session_ntrained(g->session); i++) {
        const char *name;
        float *values, *got;
        must(train_session_param(g->session, i, &name, &values, &got, nelem, &err), &err);
        if (strcmp(name, wanted) == 0)
            return got;
    }
    return NULL;
}

/* While every B is zero, the gradient of an adapter does not depend on other adapters, even if the backward pass ends
 * above parts that no gradient needs. */
static void test_subsets(void **state)
{
    (void)state;
    static const char *const subsets[] = { "[\"down_proj\"]",
                                           "[\"up_proj\"]",
                                           "[\"o_proj\"]",
                                           "[\"q_proj\"]",
                                           "[\"v_proj\",\"gate_proj\"]",
                                           "[\"lm_head\"]",
                                           "model\\.layers\\.1\\..*_proj",
                                           "[\"embed_tokens\"]" };
    const char *const all_sets[] = {
        "lora.init_adapter=null", "lora.r=3",
        "lora.target_modules=[\"embed_tokens\",\"lm_head\",\"q_proj\",\"k_proj\",\"v_proj\","
        "\"o_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"]",
        NULL
    };
    struct fsdpck_error err = { 0 };
    struct golden all = { 0 };
    double loss, norm, loss_all;
    open_golden(&all, "lora-qwen3", all_sets);
    must(train_session_gradients(all.session, 0, &loss_all, &norm, &err), &err);
    for (size_t s = 0; s < sizeof subsets / sizeof subsets[0]; s++) {
        char target[200];
        snprintf(target, sizeof target, "lora.target_modules=%s", subsets[s]);
        const char *const sets[] = { "lora.init_adapter=null", "lora.r=3", target, NULL };
        struct golden one = { 0 };
        open_golden(&one, "lora-qwen3", sets);
        must(train_session_gradients(one.session, 0, &loss, &norm, &err), &err);
        assert_true(fabs(loss - loss_all) < 1e-6 && norm > 0);
        for (size_t i = 0; i < train_session_ntrained(one.session); i++) {
            const char *name;
            float *values, *got;
            int64_t n, m;
            double off, size;
            must(train_session_param(one.session, i, &name, &values, &got, &n, &err), &err);
            const float *want = gradient_of(&all, name, &m);
            assert_true(want && n == m);
            distance(got, want, (uint64_t)n, &off, &size);
            if (!(off <= 2e-6 * size))
                fail_msg("%s alone: %s is %g off of %g", subsets[s], name, off, size);
        }
        close_golden(&one);
    }
    close_golden(&all);
}

/* One packet with all micro-batches is the same step as one packet each, up to the order of sums. */
static void test_accumulation(void **state)
{
    (void)state;
    struct golden g = { 0 };
    const char *const sets[] = { "train.gradient_accumulation_steps=3", NULL };
    open_golden(&g, "lora-qwen3", sets);
    check_gradients(&g);
    close_golden(&g);
}

/* A packet's gradients are rounded once on the way to their owners. With a single packet, that is the only effect of
 * dtype.reduce. */
static void test_reduce(void **state)
{
    (void)state;
    if (getenv("FSDPTRAIN_MODULE"))
        skip(); /* only the CPU exchanges bf16 */
    for (int i = 0; i < 2; i++) {
        const char *const sets[] = { i ? "train.gradient_accumulation_steps=1" : "train.gradient_accumulation_steps=3",
                                     NULL };
        const char *const rounded[] = { sets[0], "dtype.reduce=bf16", NULL };
        struct golden fp32 = { 0 }, bf16 = { 0 };
        double loss[2], off, size;
        int64_t n[2], nequal = 0;
        open_golden(&fp32, i ? "full-qwen2" : "lora-qwen3", sets);
        open_golden(&bf16, i ? "full-qwen2" : "lora-qwen3", rounded);
        float *want = all_gradients(&fp32, &loss[0], &n[0]), *got = all_gradients(&bf16, &loss[1], &n[1]);
        assert_true(n[0] == n[1] && loss[0] == loss[1]);
        distance(got, want, (uint64_t)n[0], &off, &size);
        assert_true(off > 1e-4 * size && off < 4e-3 * size);
        for (int64_t j = 0; j < n[0]; j++) {
            uint16_t bits;
            float once;
            fsdpck_dtype_cast(FSDPCK_FLOAT32, &want[j], FSDPCK_BFLOAT16, &bits, 1);
            fsdpck_dtype_cast(FSDPCK_BFLOAT16, &bits, FSDPCK_FLOAT32, &once, 1);
            nequal += once == got[j];
        }
        assert_true(i ? nequal < n[0] : nequal == n[0]);
        free(want);
        free(got);
        close_golden(&fp32);
        close_golden(&bf16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_first_steps),  cmocka_unit_test(test_recompute),
                                        cmocka_unit_test(test_accumulation), cmocka_unit_test(test_bf16),
                                        cmocka_unit_test(test_subsets),      cmocka_unit_test(test_reduce) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
