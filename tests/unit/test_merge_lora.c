/* SPDX-License-Identifier: Apache-2.0 */
/* Whole merges, element by element, against a plain sum in double that is rounded once: for every order of bands, small
 * memory, several threads, transposed factors, DoRA, several modules on one tied tensor, and factors that together
 * exceed their budget. */
#include <fsdpck/lora.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model.h"
#include "sanitized.h"
#include "tree.h"

struct kind {
    enum fsdpck_dtype dtype; /* of the base and of the output */
    uint64_t nout, nin, r;
    bool turned, dora;
    unsigned nthreads;
    bool whole; /* the adapter's file includes a base layer */
};

static struct model_tensor *add(struct model *m, uint64_t *seed, const char *name, enum fsdpck_dtype dtype,
                                uint64_t rows, uint64_t cols)
{
    const uint64_t shape[2] = { rows, cols };
    struct model_tensor *t = model_add(m, seed, dtype, cols ? 2 : 1, shape);
    snprintf(t->name, sizeof t->name, "%s", name);
    for (uint64_t i = 0; i < t->nelem; i++) {
        float v = (float)((double)model_below(seed, 1 << 16) / (1 << 15) - 1) + (cols ? 0 : 2);
        fsdpck_dtype_cast(FSDPCK_FLOAT32, &v, dtype, t->data + i * t->item, 1);
    }
    return t;
}

static double at(const struct model_tensor *t, uint64_t i)
{
    double v[2];
    fsdpck_dtype_to_double(t->dtype, t->data + i * t->item, v);
    return v[0];
}

static double *doubles(const struct model_tensor *t)
{
    double *v = malloc(t->nelem * sizeof *v);
    for (uint64_t i = 0; i < t->nelem; i++)
        v[i] = at(t, i);
    return v;
}

/* A base and an adapter in a separate folder. */
struct both {
    char *root;
    struct model base, lora;
};

static void write_both(const struct both *x)
{
    char *base = tree_path(x->root, "base.safetensors"), *lora = tree_path(x->root, "lora.safetensors");
    model_write_safetensors(&x->base, base);
    model_write_safetensors(&x->lora, lora);
    free(base);
    free(lora);
}

static void free_both(struct both *x)
{
    model_free(&x->base);
    model_free(&x->lora);
    tree_remove(x->root);
    free(x->root);
}

static const struct model_tensor *named(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->ntensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* W + 2/r' * B A in exact double arithmetic. DoRA by row, or by column if W is stored transposed. */
static void expect(const struct kind *k, const struct model *base, const struct model *lora, double *want)
{
    double *w = doubles(k->whole ? named(lora, "q.base_layer.weight") : named(base, "q.weight")),
           *a = doubles(named(lora, "q.lora_A.weight")), *b = doubles(named(lora, "q.lora_B.weight"));
    double *norms = calloc(k->nout, sizeof *norms);
    for (uint64_t o = 0; o < k->nout; o++)
        for (uint64_t i = 0; i < k->nin; i++) {
            uint64_t e = k->turned ? i * k->nout + o : o * k->nin + i;
            double sum = 0;
            for (uint64_t r = 0; r < k->r; r++)
                sum += b[o * k->r + r] * a[r * k->nin + i];
            want[e] = w[e] + 3.0 / (double)k->r * sum;
            norms[o] += want[e] * want[e];
        }
    for (uint64_t o = 0; k->dora && o < k->nout; o++)
        for (uint64_t i = 0; i < k->nin; i++)
            want[k->turned ? i * k->nout + o : o * k->nin + i] *=
                at(named(lora, "q.lora_magnitude_vector"), o) / sqrt(norms[o]);
    free(norms);
    free(w);
    free(a);
    free(b);
}

static void configure(const char *root, const struct kind *k)
{
    char text[300];
    snprintf(text, sizeof text,
             "{\"peft_type\":\"LORA\",\"r\":%llu,\"lora_alpha\":3,\"use_dora\":%s,\"fan_in_fan_out\":%s,\"target_"
             "modules\":[\"q\"]}",
             (unsigned long long)k->r, k->dora ? "true" : "false", k->turned ? "true" : "false");
    tree_file(root, "adapter_config.json", text);
}

static struct fsdpck_source *open_at(const char *root, const char *name, const struct fsdpck_options *opt)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    char *path = tree_path(root, name);
    if (fsdpck_source_open(path, NULL, opt, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    free(path);
    return src;
}

static int merge(const char *root, const char *name, const struct fsdpck_options *opt,
                 const struct fsdpck_convert_request *sharded, struct fsdpck_error *err)
{
    struct fsdpck_source *base = open_at(root, "base.safetensors", opt), *lora = open_at(root, "lora.safetensors", opt);
    char *out = tree_path(root, name);
    const struct fsdpck_merge_lora_request req = { .out = out, .sharded = sharded };
    int rc = fsdpck_merge_lora(base, lora, &req, opt, NULL, err);
    fsdpck_source_close(base);
    fsdpck_source_close(lora);
    free(out);
    return rc;
}

/* Every element is the exact value rounded once, apart from the error of float32 on the way. */
static void compare(const char *root, const char *name, const struct kind *k, const double *want,
                    const struct fsdpck_options *opt)
{
    struct fsdpck_source *src = open_at(root, name, opt);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, "q.weight");
    struct fsdpck_error err = { 0 };
    uint8_t *data = malloc(t->nbytes);
    const struct fsdpck_read read = { .tensor = t, .dst = data };
    assert_int_equal(fsdpck_source_read(src, &read, 1, &err), 0);
    double unit = k->dtype == FSDPCK_BFLOAT16 ? 0x1p-8 : k->dtype == FSDPCK_FLOAT16 ? 0x1p-11 : 0x1p-24;
    for (uint64_t i = 0; i < t->nelem; i++) {
        double v[2];
        fsdpck_dtype_to_double(k->dtype, data + i * fsdpck_dtype_info(k->dtype)->nbytes, v);
        if (fabs(v[0] - want[i]) > unit * fabs(want[i]) * 1.0001 + 4e-6)
            fail_msg("%s: element %llu is %.9g, %.9g is wanted", name, (unsigned long long)i, v[0], want[i]);
    }
    free(data);
    fsdpck_source_close(src);
}

static void run(const struct kind *k, uint64_t seed)
{
    struct both x = { .root = tree_new() };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io, .nthreads = k->nthreads, .memory_nbytes = 16 << 20 };
    struct fsdpck_convert_request sharded = { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 3 } } };
    struct fsdpck_error err = { 0 };
    double *want = malloc(k->nout * k->nin * sizeof *want);
    add(&x.base, &seed, "q.weight", k->dtype, k->turned ? k->nin : k->nout, k->turned ? k->nout : k->nin);
    add(&x.base, &seed, "norm.weight", k->dtype, 77, 0);
    add(&x.lora, &seed, "q.lora_A.weight", FSDPCK_FLOAT32, k->r, k->nin);
    add(&x.lora, &seed, "q.lora_B.weight", FSDPCK_BFLOAT16, k->nout, k->r);
    if (k->dora)
        add(&x.lora, &seed, "q.lora_magnitude_vector", FSDPCK_FLOAT32, k->nout, 0);
    if (k->whole)
        add(&x.lora, &seed, "q.base_layer.weight", FSDPCK_FLOAT32, k->turned ? k->nin : k->nout,
            k->turned ? k->nout : k->nin);
    write_both(&x);
    configure(x.root, k);
    expect(k, &x.base, &x.lora, want);
    if (merge(x.root, "whole.safetensors", &opt, NULL, &err) != 0 || merge(x.root, "ranks", &opt, &sharded, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    static const struct fsdpck_placement columns = { FSDPCK_SHARD, 1, 0 };
    struct fsdpck_placement_rule rule = {
        .glob = "q.weight", .mesh_dim = { "shard" }, .placement = { columns }, .n = 1
    };
    sharded.rules = &rule;
    sharded.nrules = 1;
    assert_int_equal(merge(x.root, "columns", &opt, &sharded, &err), 0);
    compare(x.root, "whole.safetensors", k, want, &opt);
    compare(x.root, "ranks", k, want, &opt);
    compare(x.root, "columns", k, want, &opt);
    free(want);
    free_both(&x);
}

static void merges_are_exact_sums_rounded_once(void **state)
{
    (void)state;
    static const struct kind kinds[] = {
        { FSDPCK_BFLOAT16, 30, 40, 3, false, false, 1, false },
        { FSDPCK_FLOAT32, 1, 1, 1, false, false, 1, false },
        { FSDPCK_FLOAT16, 17, 257, 5, false, false, 2, false },
        { FSDPCK_FLOAT32, 40, 30, 4, true, false, 2, false },
        { FSDPCK_BFLOAT16, 33, 31, 2, false, true, 2, false },
        { FSDPCK_FLOAT32, 31, 33, 2, true, true, 1, false },
        { FSDPCK_BFLOAT16, 700, 1100, 3, false, false, 3, false }, /* several bands that begin and end inside rows */
        { FSDPCK_FLOAT16, 300, 400, 2, true, true, 3, false },
        { FSDPCK_BFLOAT16, 410, 307, 3, false, false, 2, true }, /* several pieces of the copy */
        { FSDPCK_FLOAT32, 290, 310, 2, false, true, 2, true },
        { FSDPCK_FLOAT16, 280, 300, 2, true, true, 1, true },
        { FSDPCK_BFLOAT16, 1, 700000, 2, false, false, 2,
          false }, /* a row longer than a band, and factors beyond their budget */
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds - (UNDER_TSAN ? 5 : 0); i++) /* the last take minutes there */
        run(&kinds[i], 100 + i);
}

static float *read_floats(const char *root, const char *name, const char *tensor, const struct fsdpck_options *opt)
{
    struct fsdpck_source *src = open_at(root, name, opt);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, tensor);
    struct fsdpck_error err = { 0 };
    float *data = malloc(t->nbytes);
    const struct fsdpck_read read = { .tensor = t, .dst = data };
    assert_int_equal(fsdpck_source_read(src, &read, 1, &err), 0);
    fsdpck_source_close(src);
    return data;
}

/* Rows in any order, across bands and shards that begin and end inside them; all other rows stay unchanged. */
static void trained_rows_replace_the_bases(void **state)
{
    (void)state;
    enum { ROWS = 500, COLS = 1201, N = 4 };
    static const uint64_t rows[N] = { 499, 0, 217, 218 };
    struct both x = { .root = tree_new() };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io, .nthreads = 3, .memory_nbytes = 16 << 20 };
    static const struct fsdpck_placement columns = { FSDPCK_SHARD, 1, 0 };
    const struct fsdpck_placement_rule rule = {
        .glob = "e.weight", .mesh_dim = { "shard" }, .placement = { columns }, .n = 1
    };
    const struct fsdpck_convert_request sharded = { .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { 3 } },
                                                    .rules = &rule,
                                                    .nrules = 1 };
    struct fsdpck_error err = { 0 };
    uint64_t seed = 21;
    add(&x.base, &seed, "e.weight", FSDPCK_FLOAT32, ROWS, COLS);
    add(&x.lora, &seed, "e.trainable_tokens_delta", FSDPCK_FLOAT32, N, COLS);
    float *want = malloc(ROWS * COLS * sizeof *want);
    memcpy(want, x.base.tensors[0].data, ROWS * COLS * sizeof *want);
    for (size_t i = 0; i < N; i++)
        memcpy(want + rows[i] * COLS, x.lora.tensors[0].data + i * COLS * sizeof *want, COLS * sizeof *want);
    write_both(&x);
    tree_file(x.root, "adapter_config.json", "{\"peft_type\":\"TRAINABLE_TOKENS\",\"token_indices\":[499,0,217,218]}");
    if (merge(x.root, "whole.safetensors", &opt, NULL, &err) != 0 ||
        merge(x.root, "columns", &opt, &sharded, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    for (int i = 0; i < 2; i++) {
        float *got = read_floats(x.root, i ? "columns" : "whole.safetensors", "e.weight", &opt);
        assert_memory_equal(got, want, ROWS * COLS * sizeof *want);
        free(got);
    }
    free(want);
    free_both(&x);
}

/* A caller that reads an adapter itself reports what it read. Every other tensor belongs to the frozen model or another
 * adapter, or is refused by name. */
static void an_account_names_what_was_not_used(void **state)
{
    (void)state;
    static const char *const names[] = {
        "m.0.q.lora_A.default.weight", "m.0.q.lora_B.default.weight",         "m.0.q.base_layer.weight",
        "m.0.q.lora_A.x.weight",       "head.modules_to_save.default.weight", "head.original_module.weight"
    };
    enum { N = sizeof names / sizeof *names };
    char *root = tree_new(), *path = tree_path(root, "lora.safetensors");
    struct model lora = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    uint64_t seed = 3;
    bool used[N];
    for (int i = 0; i < N; i++)
        add(&lora, &seed, names[i], FSDPCK_FLOAT32, 2, 2);
    model_write_safetensors(&lora, path);
    struct fsdpck_source *src = open_at(root, "lora.safetensors", &opt);
    for (int left_out = -1; left_out < N; left_out++) {
        struct fsdpck_error err = { 0 };
        for (size_t i = 0; i < N; i++) {
            const char *name = fsdpck_source_tensor(src, i)->name;
            used[i] = strcmp(name, names[0]) == 0 || strcmp(name, names[1]) == 0 || strcmp(name, names[4]) == 0;
            used[i] = used[i] && (left_out < 0 || strcmp(name, names[left_out]) != 0);
        }
        bool part = left_out == 0 || left_out == 1 || left_out == 4;
        assert_int_equal(fsdpck_lora_check_used(src, "default", used, &opt, &err), part ? FSDPCK_ERR_UNSUPPORTED : 0);
        if (part)
            assert_string_equal(err.tensor, names[left_out]);
    }
    fsdpck_source_close(src);
    model_free(&lora);
    tree_remove(root);
    free(root);
    free(path);
}

/* Rounds to nearest even: in bf16, 1 + 2^-8 is a tie that goes down, 1 + 3 * 2^-8 one that goes up; a little more than
 * a tie goes up. */
static void ties_go_to_even(void **state)
{
    (void)state;
    static const float a[] = { 0x1p-8f, 3 * 0x1p-8f, 0x1p-8f + 0x1p-20f, 0 },
                       want[] = { 1, 1 + 0x1p-6f, 1 + 0x1p-7f, 1 };
    struct both x = { .root = tree_new() };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    struct fsdpck_error err = { 0 };
    uint64_t seed = 1;
    float one = 1;
    struct model_tensor *w = add(&x.base, &seed, "q.weight", FSDPCK_BFLOAT16, 1, 4), *b;
    for (int i = 0; i < 4; i++)
        fsdpck_dtype_cast(FSDPCK_FLOAT32, &one, FSDPCK_BFLOAT16, w->data + 2 * i, 1);
    memcpy(add(&x.lora, &seed, "q.lora_A.weight", FSDPCK_FLOAT32, 1, 4)->data, a, sizeof a);
    b = add(&x.lora, &seed, "q.lora_B.weight", FSDPCK_FLOAT32, 1, 1);
    memcpy(b->data, &one, sizeof one);
    write_both(&x);
    tree_file(x.root, "adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1}");
    assert_int_equal(merge(x.root, "out.safetensors", &opt, NULL, &err), 0);
    struct fsdpck_source *src = open_at(x.root, "out.safetensors", &opt);
    uint16_t got[4];
    const struct fsdpck_read read = { .tensor = fsdpck_source_find(src, "q.weight"), .dst = got };
    assert_int_equal(fsdpck_source_read(src, &read, 1, &err), 0);
    for (int i = 0; i < 4; i++) {
        double v[2];
        fsdpck_dtype_to_double(FSDPCK_BFLOAT16, &got[i], v);
        assert_true(v[0] == (double)want[i]);
    }
    fsdpck_source_close(src);
    free_both(&x);
}

static void put(struct model *m, const char *name, uint64_t at, float v)
{
    const struct model_tensor *t = named(m, name);
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &v, t->dtype, t->data + at * t->item, 1);
}

static void frozen_model(enum fsdpck_dtype of_base, enum fsdpck_dtype of_copy, bool other)
{
    enum { ROWS = 300, COLS = 250 }; /* more than one comparison step */
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    struct both x = { .root = tree_new() };
    struct fsdpck_error err = { 0 };
    uint64_t seed = 5;
    add(&x.base, &seed, "m.0.q.weight", FSDPCK_FLOAT32, 2, 2);
    memcpy(add(&x.lora, &seed, "m.0.q.base_layer.weight", FSDPCK_FLOAT32, 2, 2)->data,
           named(&x.base, "m.0.q.weight")->data, 2 * 2 * sizeof(float));
    add(&x.lora, &seed, "m.0.q.lora_A.default.weight", FSDPCK_FLOAT32, 2, 2);
    add(&x.lora, &seed, "m.0.q.lora_B.default.weight", FSDPCK_FLOAT32, 2, 2);
    add(&x.base, &seed, "m.0.k.weight", of_base, ROWS, COLS);
    add(&x.lora, &seed, "m.0.k.weight", of_copy, ROWS, COLS);
    for (uint64_t e = 0; e < ROWS * COLS; e++) {
        float v = e ? (float)(e % 7) / 2 : 1.2345678f; /* every type can represent halves; the first value is rounded */
        put(&x.base, "m.0.k.weight", e, v);
        put(&x.lora, "m.0.k.weight", e, other && !e ? 1.5f : v);
    }
    write_both(&x);
    tree_file(x.root, "adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2}");
    int rc = merge(x.root, "out.safetensors", &opt, NULL, &err);
    if (rc != (other ? FSDPCK_ERR_FORMAT : 0))
        fail_msg("%s beside a base of %s: %d, %s", fsdpck_dtype_info(of_copy)->name, fsdpck_dtype_info(of_base)->name,
                 rc, err.message);
    free_both(&x);
}

/* A training checkpoint includes its base; it still counts as the same after rounding to another type. */
static void a_frozen_model_may_be_rounded(void **state)
{
    (void)state;
    for (enum fsdpck_dtype base = FSDPCK_FLOAT64; base <= FSDPCK_BFLOAT16; base += SANITIZED ? 2 : 1)
        for (enum fsdpck_dtype copy = FSDPCK_FLOAT64; copy <= FSDPCK_BFLOAT16; copy += SANITIZED ? 3 : 1) {
            frozen_model(base, copy, false);
            frozen_model(base, copy, true);
        }
}

/* Twelve modules whose factors together far exceed a quarter of the budget, and threads that compete for memory. */
static void factors_share_their_budget(void **state)
{
    (void)state;
    struct both x = { .root = tree_new() };
    char name[32];
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io, .nthreads = 4, .memory_nbytes = 16 << 20 };
    struct fsdpck_error err = { 0 };
    uint64_t seed = 9;
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "l.%d.q.weight", i);
        memset(add(&x.base, &seed, name, FSDPCK_FLOAT32, 100, 250)->data, 0, 100 * 250 * sizeof(float));
        snprintf(name, sizeof name, "l.%d.q.lora_A.weight", i);
        add(&x.lora, &seed, name, FSDPCK_FLOAT32, 400, 250);
        snprintf(name, sizeof name, "l.%d.q.lora_B.weight", i);
        struct model_tensor *b = add(&x.lora, &seed, name, FSDPCK_FLOAT32, 100, 400);
        for (uint64_t e = 0; e < b->nelem; e++) { /* each row of B selects the row of A with the same number */
            float v = e % 400 == e / 400;
            memcpy(b->data + e * sizeof v, &v, sizeof v);
        }
    }
    write_both(&x);
    tree_file(x.root, "adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":400,\"lora_alpha\":400}");
    if (merge(x.root, "out.safetensors", &opt, NULL, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    struct fsdpck_source *src = open_at(x.root, "out.safetensors", &opt);
    float *got = malloc(100 * 250 * sizeof *got);
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof name, "l.%d.q.weight", i);
        const struct fsdpck_read read = { .tensor = fsdpck_source_find(src, name), .dst = got };
        assert_int_equal(fsdpck_source_read(src, &read, 1, &err), 0);
        snprintf(name, sizeof name, "l.%d.q.lora_A.weight", i);
        const uint8_t *a = named(&x.lora, name)->data;
        assert_memory_equal(got, a, 100 * 250 * sizeof *got);
    }
    free(got);
    fsdpck_source_close(src);
    free_both(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_exact_sums_rounded_once), cmocka_unit_test(trained_rows_replace_the_bases),
        cmocka_unit_test(an_account_names_what_was_not_used), cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(a_frozen_model_may_be_rounded),      cmocka_unit_test(factors_share_their_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
