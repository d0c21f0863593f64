/* Each golden's first step through the C API: logits, loss, norm and every gradient, within the golden's own tolerances. */
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

static const char *const cases[] = { "full-llama-odd", "full-llama-tied", "full-qwen2", "full-qwen3-untied", "lora-ends-tied", "lora-ends-untied", "lora-llama", "lora-llama-rope3", "lora-mistral",
                                     "lora-qwen2-window", "lora-qwen3", "lora-yarn-bias" };

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

/* What CONFIG.json takes of case.json for the first step's gradients. */
static void write_config(const struct golden *g, const char *path)
{
    char text[3100];
    snprintf(text, sizeof text, "%s/case.json", g->folder);
    json_t *theirs = json_load_file(text, 0, NULL), *ours = json_object(), *data = json_object(), *lora = json_object_get(theirs, "lora");
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

static void open_golden(struct golden *g, const char *name, const char *set)
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
    must(train_config_read(path, &set, set != NULL, &g->config, &err), &err);
    unlink(path);
    must(train_session_open(&g->config, 2, NULL, &g->session, &err), &err);
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
    assert_true(fabs(loss - json_number_value(json_array_get(json_object_get(g->expected, "loss"), 0))) <= tolerance(g, "loss_abs"));
    assert_true(fabs(norm / all - 1) <= tolerance(g, "grad_norm_rel"));
    for (size_t i = 0; i < train_session_ntrained(g->session); i++) {
        const char *name;
        char theirs[300];
        float *values, *got;
        int64_t n;
        uint64_t nelem = 0;
        double off, size;
        train_session_param(g->session, i, &name, &values, &got, &n);
        snprintf(theirs, sizeof theirs, "grad.%s", name);
        float *want = read_tensor(g, theirs, &nelem);
        if (!want || (int64_t)nelem != n)
            fail_msg("%s: no '%s' of %lld elements", g->folder, theirs, (long long)n);
        distance(got, want, nelem, &off, &size);
        free(want);
        if (!(off <= tolerance(g, "grad_rel_l2") * (size + 1e-3 * all)))
            fail_msg("%s: %s is %g off, %g allowed", g->folder, name, off, tolerance(g, "grad_rel_l2") * (size + 1e-3 * all));
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

/* What it computes does not depend on whether blocks are computed anew, nor on how micro-batches are accumulated but for the order of one sum. */
static void test_recompute(void **state)
{
    (void)state;
    struct fsdpck_error err = { 0 };
    double loss[2], norm[2];
    for (int i = 0; i < 2; i++) {
        struct golden g = { 0 };
        open_golden(&g, "lora-qwen3", i ? "fsdp.activation_checkpointing=block" : NULL);
        must(train_session_gradients(g.session, 0, &loss[i], &norm[i], &err), &err);
        close_golden(&g);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
}

/* One packet of all micro-batches is the same step as a packet each, up to the order of sums. */
static void test_accumulation(void **state)
{
    (void)state;
    struct golden g = { 0 };
    open_golden(&g, "lora-qwen3", "train.gradient_accumulation_steps=3");
    check_gradients(&g);
    close_golden(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_first_steps), cmocka_unit_test(test_recompute), cmocka_unit_test(test_accumulation) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
