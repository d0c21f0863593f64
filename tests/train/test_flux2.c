/* SPDX-License-Identifier: Apache-2.0 */
/* FLUX.2 against the goldens of diffusers: embeddings of texts, the transformer with and without guidance and adapter,
 * the decoder, and whole loops of sampling, each within the golden's tolerance. FSDPTRAIN_MODULE: module of a device to
 * compute on, instead of the CPU. */
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

#include <fsdpck/base.h>

#include "image/flow.h"
#include "image/schedule.h"
#include "image/text_embed.h"
#include "image/vae_work.h"
#include "sample/whole.h"

static json_t *expected, *specs;

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static const char *path_of(const char *name)
{
    static char path[4096];
    const bool model = strncmp(name, "model", 5) == 0; /* the pipeline, or one of its parts */
    snprintf(path, sizeof path, "%s/%s%s", getenv(model ? "FSDPCK_FIXTURES" : "FSDPTRAIN_GOLDENS"),
             model ? "tiny-flux2" : "flux2/", model ? name + 5 : name);
    return path;
}

static struct pipeline pipeline(void)
{
    struct fsdpck_error err = { 0 };
    struct pipeline p;
    must(pipeline_read(path_of("model"), &p, &err), &err);
    return p;
}

/* The file of one kind of golden, and its name in expected.json. */
struct golden {
    const char *name;
    struct fsdpck_source *src;
};

static struct golden golden_open(const char *name)
{
    struct fsdpck_error err = { 0 };
    struct golden g = { .name = name };
    char file[100];
    snprintf(file, sizeof file, "%s.safetensors", name);
    must(fsdpck_source_open(path_of(file), NULL, NULL, &g.src, &err), &err);
    return g;
}

/* A whole tensor; shape NULL: not wanted. */
static void *take(const struct golden *g, const char *name, uint64_t shape[4])
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_tensor *t = fsdpck_source_find(g->src, name);
    uint64_t n = 1;
    if (!t)
        fail_msg("%s has no %s", g->name, name);
    for (uint32_t d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    for (uint32_t d = 0; d < t->ndim && shape; d++)
        shape[d] = t->shape[d];
    void *data = malloc(n * 8);
    const struct fsdpck_read read = { .tensor = t, .dst = data };
    must(fsdpck_source_read(g->src, &read, 1, &err), &err);
    return data;
}

static double tolerance(const struct golden *g, const char *name)
{
    json_t *value = json_object_get(json_object_get(expected, g->name), name);
    if (!json_is_number(value))
        fail_msg("expected.json has no tolerance of %s of %s", name, g->name);
    return json_number_value(value);
}

/* Element i of ours is element at(i) of theirs. */
static void compare(const struct golden *g, const char *name, const float *ours, const float *theirs, int64_t n,
                    double most)
{
    double far = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)ours[i] - (double)theirs[i]);
        if (!(d <= far))
            far = d, where = i;
    }
    if (!(far <= most))
        fail_msg("%s of %s: element %lld is %g, and not %g: %.2f of the tolerance %g", name, g->name, (long long)where,
                 (double)ours[where], (double)theirs[where], far / most, most);
}

/* (channels, pixels) to (pixels, channels), or back. */
static float *turned(const float *x, int64_t nrow, int64_t ncol)
{
    float *out = malloc((size_t)(nrow * ncol) * sizeof *out);
    for (int64_t i = 0; i < nrow; i++)
        for (int64_t j = 0; j < ncol; j++)
            out[j * nrow + i] = x[i * ncol + j];
    return out;
}

static struct sampler_options in_fp32(const char *adapter)
{
    const char *module = getenv("FSDPTRAIN_MODULE");
    return (struct sampler_options){
        .dtype = "fp32", .adapter = adapter, .nthreads = 2, .device = module ? "cuda" : "cpu", .module = module
    };
}

static void texts_of_length(const struct golden *g, int64_t ntok, const char *const *names, size_t n)
{
    const struct sampler_options opt = in_fp32(NULL);
    struct fsdpck_error err = { 0 };
    const struct pipeline p = pipeline();
    json_t *prompts = json_object_get(json_object_get(specs, "text"), "prompts");
    struct text_embed *t;
    must(text_embed_open(&p, &opt, ntok, &t, &err), &err);
    for (size_t i = 0; i < n; i++) {
        uint64_t shape[4];
        bool cut;
        float *want = take(g, names[i], shape), *ours = malloc((size_t)(shape[0] * shape[1]) * sizeof *ours);
        assert_int_equal(shape[0], ntok);
        assert_int_equal(shape[1], text_embed_width(t));
        must(text_embed_run(t, json_string_value(json_array_get(prompts, i)), ours, &cut, &err), &err);
        compare(g, names[i], ours, want, (int64_t)(shape[0] * shape[1]), tolerance(g, names[i]));
        assert_int_equal(cut, i == 2);
        free(want);
        free(ours);
    }
    text_embed_close(t);
}

static void test_texts(void **state)
{
    static const char *const some[] = { "embeds.0", "embeds.1", "embeds.2" }, *const full[] = { "embeds.0_full" };
    struct golden g = golden_open("text");
    (void)state;
    texts_of_length(&g, 48, some, 3);
    if (!getenv("FSDPTRAIN_MODULE")) /* attention on the shim is slow */
        texts_of_length(&g, 512, full, 1);
    fsdpck_source_close(g.src);
}

static int any_model(void *ctx, struct model *m, const char *path, struct fsdpck_error *err)
{
    (void)ctx, (void)path, (void)err;
    assert_null(m->family);
    return 0;
}

static const struct whole_choice choice = { .check = any_model };

/* Sample `sample` of a batch: pred. */
static void predict_one(const struct golden *g, struct whole *w, int64_t sample, const char *name)
{
    struct fsdpck_error err = { 0 };
    struct flux2_forward *f;
    uint64_t of_x[4], of_text[4];
    float *noisy = take(g, "noisy", of_x), *embeds = take(g, "embeds", of_text), *times = take(g, "timesteps", NULL),
          *guidance = fsdpck_source_find(g->src, "guidance") ? take(g, "guidance", NULL) : NULL,
          *want = take(g, name, NULL);
    const int64_t nchannel = (int64_t)of_x[1], height = (int64_t)of_x[2], width = (int64_t)of_x[3],
                  n = nchannel * height * width, ntext = (int64_t)of_text[1];
    float *x = turned(noisy + sample * n, nchannel, height * width), *v = malloc((size_t)n * sizeof *v);
    must(flux2_forward_new(w->alone.rank->compute, ntext, height, width, NULL, &f, &err), &err);
    must(flux2_forward_text(f, embeds + sample * ntext * (int64_t)of_text[2], &err), &err);
    must(flux2_forward_run(f, NULL, x, times[sample] / 1000, guidance ? guidance[sample] : 0, v, &err), &err);
    float *ours = turned(v, height * width, nchannel);
    compare(g, name, ours, want + sample * n, n,
            json_is_number(json_object_get(json_object_get(expected, g->name), name)) ? tolerance(g, name) : 2e-5);
    flux2_forward_free(f);
    float *all[] = { noisy, embeds, times, guidance, want, x, v, ours };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void predictions(const char *name, const char *model, const char *adapter, const char *what, int64_t nsample)
{
    const struct sampler_options opt = in_fp32(adapter);
    struct fsdpck_error err = { 0 };
    struct golden g = golden_open(name);
    char folder[4096];
    struct whole w;
    snprintf(folder, sizeof folder, "%s", path_of(model));
    must(whole_open(folder, &opt, &choice, &w, &err), &err);
    for (int64_t i = 0; i < nsample; i++)
        predict_one(&g, &w, i, what);
    whole_close(&w);
    fsdpck_source_close(g.src);
}

static void test_transformer(void **state)
{
    (void)state;
    predictions("transformer", "model/transformer", NULL, "pred", 2);
    predictions("guidance", "guidance/transformer", NULL, "pred", 2);
}

/* Half of the autoencoder, on the device of the test. */
static struct vae_work open_half(bool encoder)
{
    const struct sampler_options opt = in_fp32(NULL);
    const struct pipeline p = pipeline();
    struct fsdpck_error err = { 0 };
    struct vae_work w;
    must(vae_work_open(&p, encoder, &opt, 0, 16, &w, &err), &err);
    return w;
}

/* pixels: (3, height, width) from 0 to 255, as the golden's decoder gives them. */
static void decode_and_compare(const struct golden *g, const char *name, const float *latents, int64_t height,
                               int64_t width, const float *image, bool signs)
{
    struct fsdpck_error err = { 0 };
    struct vae_work w = open_half(false);
    const int64_t n = 16 * height * 16 * width;
    uint8_t *pixels = malloc((size_t)(3 * n));
    must(vae_decode(w.vae, w.device, w.stream, latents, height, width, pixels, &err), &err);
    for (int64_t i = 0; i < 3 * n; i++) {
        const double x = (double)image[i % 3 * n + i / 3], want = 255 * fmin(fmax(signs ? x / 2 + 0.5 : x, 0), 1);
        if (fabs(pixels[i] - want) > 0.5 + 255 * tolerance(g, name))
            fail_msg("%s of %s: value %lld is %d, and not %.3f", name, g->name, (long long)i, pixels[i], want);
    }
    free(pixels);
    vae_work_close(&w);
}

static void test_decoder(void **state)
{
    struct golden g = golden_open("vae");
    uint64_t shape[4];
    float *latents = take(&g, "latents", shape), *decoded = take(&g, "decoded", NULL),
          *x = turned(latents, (int64_t)shape[1], (int64_t)(shape[2] * shape[3]));
    (void)state;
    decode_and_compare(&g, "decoded", x, (int64_t)shape[2], (int64_t)shape[3], decoded, true);
    free(latents);
    free(decoded);
    free(x);
    fsdpck_source_close(g.src);
}

static void test_encoder(void **state)
{
    struct golden g = golden_open("vae");
    struct fsdpck_error err = { 0 };
    struct vae_work w = open_half(true);
    uint64_t of_image[4], of_latents[4];
    float *image = take(&g, "image", of_image), *want = take(&g, "latents", of_latents);
    const int64_t n = (int64_t)(of_image[2] * of_image[3]), nchannel = (int64_t)of_latents[1],
                  npixel = (int64_t)(of_latents[2] * of_latents[3]);
    uint8_t *pixels = malloc((size_t)(3 * n));
    float *latents = malloc((size_t)(nchannel * npixel) * sizeof *latents);
    (void)state;
    for (int64_t i = 0; i < 3 * n; i++)
        pixels[i] = (uint8_t)lrintf((image[i % 3 * n + i / 3] + 1) * 127.5f);
    must(vae_encode(w.vae, w.device, w.stream, pixels, (int64_t)of_image[2], (int64_t)of_image[3], latents, &err),
         &err);
    float *ours = turned(latents, npixel, nchannel);
    compare(&g, "latents", ours, want, nchannel * npixel, tolerance(&g, "latents"));
    vae_work_close(&w);
    free(image), free(want), free(pixels), free(latents), free(ours);
    fsdpck_source_close(g.src);
}

struct checks {
    const struct golden *g;
    const char *name;
    const float *x;
    int64_t height, width, nchannel;
};

static int check_step(void *ctx, int64_t step, struct fsdpck_error *err)
{
    const struct checks *c = ctx;
    char name[100];
    (void)err;
    snprintf(name, sizeof name, "%s.latents.%lld", c->name, (long long)step - 1);
    float *want = take(c->g, name, NULL), *ours = turned(c->x, c->height * c->width, c->nchannel);
    compare(c->g, name, ours, want, c->nchannel * c->height * c->width, tolerance(c->g, name));
    free(want);
    free(ours);
    return 0;
}

static float *embed(const struct text_embed *t, const char *text)
{
    struct fsdpck_error err = { 0 };
    float *out = malloc((size_t)(48 * text_embed_width(t)) * sizeof *out);
    bool cut;
    must(text_embed_run((struct text_embed *)t, text, out, &cut, &err), &err);
    return out;
}

static void sample_one(const struct golden *g, json_t *spec)
{
    const char *name = json_string_value(json_object_get(spec, "name")),
               *prompt = json_string_value(json_array_get(json_object_get(spec, "prompts"), 0));
    const bool adapted = json_object_get(spec, "adapter") != NULL,
               guided = json_number_value(json_object_get(spec, "guidance")) > 1;
    char adapter[4096], transformer[4096], key[100];
    snprintf(adapter, sizeof adapter, "%s", path_of("adapter"));
    snprintf(transformer, sizeof transformer, "%s", path_of("model/transformer"));
    const struct sampler_options opt = in_fp32(adapted ? adapter : NULL);
    const struct pipeline p = pipeline();
    struct fsdpck_error err = { 0 };
    struct text_embed *t;
    struct flux2_forward *f;
    struct whole w;
    uint64_t shape[4];
    float sigmas[5];
    must(text_embed_open(&p, &opt, 48, &t, &err), &err);
    float *text = embed(t, prompt), *negative = embed(t, "");
    text_embed_close(t);
    snprintf(key, sizeof key, "%s.start", name);
    float *start = take(g, key, shape);
    const int64_t nchannel = (int64_t)shape[1], height = (int64_t)shape[2], width = (int64_t)shape[3],
                  n = nchannel * height * width;
    snprintf(key, sizeof key, "%s.sigmas", name);
    float *theirs = take(g, key, NULL), *x = turned(start, nchannel, height * width),
          *v = calloc(2 * (size_t)n, sizeof *v);
    schedule_sigmas(height * width, 4, sigmas);
    compare(g, key, sigmas, theirs, 5, 1e-7);
    must(whole_open(transformer, &opt, &choice, &w, &err), &err);
    must(flux2_forward_new(w.alone.rank->compute, 48, height, width, NULL, &f, &err), &err);
    struct checks checks = { g, name, x, height, width, nchannel };
    const struct flow flow = { .forward = f,
                               .text = text,
                               .negative = guided ? negative : NULL,
                               .guidance = (float)json_number_value(json_object_get(spec, "guidance")),
                               .sigmas = sigmas,
                               .nstep = 4,
                               .nelem = n,
                               .after = check_step,
                               .ctx = &checks };
    must(flow_run(&flow, x, v, &err), &err);
    flux2_forward_free(f);
    whole_close(&w);
    snprintf(key, sizeof key, "%s.image", name);
    float *image = take(g, key, NULL);
    decode_and_compare(g, key, x, height, width, image, false);
    float *all[] = { text, negative, start, theirs, x, v, image };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void test_samples(void **state)
{
    struct golden g = golden_open("sample");
    json_t *spec;
    size_t i;
    (void)state;
    json_array_foreach (json_object_get(specs, "sample"), i, spec)
        sample_one(&g, spec);
    fsdpck_source_close(g.src);
}

/* ---- training ---- */

struct training {
    struct golden data, first;
    struct whole w;
    struct train_config config;
    struct layout l;
    struct compute *c;
    struct kern_buffer memory, sums; /* sums: of gradients */
    float *grads;
};

static void open_training(struct training *t, const char *name, int64_t ntext, int64_t nimage,
                          const char *checkpointing)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE };
    struct fsdpck_error err = { 0 };
    char adapter[4096], transformer[4096], file[200], message[KERN_MESSAGE_BYTES];
    snprintf(file, sizeof file, "train/%s/start_adapter", name);
    snprintf(adapter, sizeof adapter, "%s", path_of(file));
    snprintf(transformer, sizeof transformer, "%s", path_of("model/transformer"));
    const struct sampler_options opt = in_fp32(adapter);
    snprintf(file, sizeof file, "train/%s/data", name);
    t->data = golden_open(file);
    snprintf(file, sizeof file, "train/%s/first_step", name);
    t->first = golden_open(file);
    must(whole_open(transformer, &opt, &choice, &t->w, &err), &err);
    t->w.job.model.flux2.ntext = ntext;
    t->config = t->w.config;
    t->config.frozen = false;
    t->config.fsdp.checkpointing = strcmp(checkpointing, "block") == 0 ? TRAIN_RECOMPUTE_BLOCK : TRAIN_RECOMPUTE_NONE;
    must(layout_make(&t->w.job.model, &t->config, &t->w.job.packed, 1, &t->l, &err), &err);
    must(compute_new_beside(t->w.alone.rank->compute, &t->w.job.model, &t->l, &t->config, ntext + nimage, 1, &t->c,
                            &err),
         &err);
    assert_int_equal(t->c->device->memory->alloc(where, t->c->nbytes, &t->memory, message), KERN_OK);
    t->grads = calloc((size_t)t->l.grad_nelem, sizeof *t->grads);
    assert_int_equal(t->c->device->memory->alloc(where, (size_t)t->l.grad_nelem * sizeof *t->grads, &t->sums, message),
                     KERN_OK);
    must(compute_bind(t->c, t->memory.data, NULL, t->sums.data, &err), &err);
}

static void close_training(struct training *t)
{
    t->c->device->memory->free(&t->memory);
    t->c->device->memory->free(&t->sums);
    compute_free(t->c);
    layout_free(&t->l);
    whole_close(&t->w);
    free(t->grads);
    fsdpck_source_close(t->data.src);
    fsdpck_source_close(t->first.src);
}

/* kind.number of the data, (channels, pixels) turned. */
static void take_turned(const struct training *t, const char *kind, json_t *number, float *to, struct picture *p)
{
    char name[40];
    uint64_t shape[4];
    snprintf(name, sizeof name, "%s.%lld", kind, (long long)json_integer_value(number));
    float *x = take(&t->data, name, shape), *y = turned(x, (int64_t)shape[0], (int64_t)(shape[1] * shape[2]));
    p->height = (int64_t)shape[1];
    p->width = (int64_t)shape[2];
    memcpy(to, y, (size_t)(shape[0] * shape[1] * shape[2]) * sizeof *y);
    free(x);
    free(y);
}

static void fill_sample(const struct training *t, json_t *sample, size_t nsample)
{
    struct picture *p = &t->c->batch.picture;
    json_t *weight = json_object_get(sample, "weight");
    char name[40];
    uint64_t shape[4];
    take_turned(t, "latents", json_object_get(sample, "item"), p->latents, p);
    take_turned(t, "noise", json_object_get(sample, "noise"), p->noise, p);
    snprintf(name, sizeof name, "embeds.%lld", (long long)json_integer_value(json_object_get(sample, "embeds")));
    float *text = take(&t->data, name, shape);
    memcpy(p->text, text, (size_t)(shape[0] * shape[1]) * sizeof *text);
    free(text);
    p->sigma = (float)(json_number_value(json_object_get(sample, "timestep")) / 1000);
    p->weight = weight ? (float)json_number_value(weight) : 1;
    p->guidance = 0;
    t->c->batch.grad_scale = (float)(1.0 / (double)nsample);
    *t->c->batch.rng_offset = (struct kern_rng_offset){ 0 };
}

/* |g - g'| / (|g'| + 0.001·|all g'|) of each adapter. */
static void compare_gradients(const struct training *t, double most)
{
    struct fsdpck_error err = { 0 };
    t->c->device->memory->copy(t->c->stream, t->grads, t->sums.data, t->sums.nbytes);
    must(compute_sync(t->c, &err), &err);
    double all = 0;
    size_t ntrained = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < t->l.nparams; i++) {
            const struct param *p = &t->l.params[i];
            char name[LAYOUT_NAME + 8];
            double far = 0, size = 0;
            if (!p->trainable)
                continue;
            snprintf(name, sizeof name, "grad.%s", p->name);
            float *want = take(&t->first, name, NULL);
            for (int64_t k = 0; k < p->nrow * p->ncol; k++) {
                far += pow((double)t->grads[p->grad_at + k] - (double)want[k], 2);
                size += pow((double)want[k], 2);
            }
            free(want);
            all += pass ? 0 : size;
            ntrained++;
            if (pass && !(sqrt(far) <= most * (sqrt(size) + 1e-3 * sqrt(all))))
                fail_msg("%s: %g, at most %g is wanted", name, sqrt(far) / (sqrt(size) + 1e-3 * sqrt(all)), most);
        }
    assert_true(ntrained > 20);
}

static void first_step(json_t *spec, const char *checkpointing)
{
    const char *name = json_string_value(json_object_get(spec, "name"));
    json_t *step = json_array_get(json_object_get(spec, "steps"), 0), *micro, *sample, *want;
    struct fsdpck_error err = { 0 };
    struct training t = { 0 };
    size_t i, k, nsample = 0, number = 0;
    double sum = 0;
    char key[100];
    snprintf(key, sizeof key, "train/%s", name);
    want = json_object_get(expected, key);
    json_t *tolerances = json_object_get(want, "tolerance");
    json_array_foreach (step, i, micro)
        nsample += json_array_size(micro);
    open_training(&t, name, json_integer_value(json_object_get(spec, "max_sequence_length")), 16, checkpointing);
    json_array_foreach (step, i, micro)
        json_array_foreach (micro, k, sample) {
            double loss;
            fill_sample(&t, sample, nsample);
            must(compute_micro(t.c, NULL, &loss, &err), &err);
            const double mse =
                json_number_value(json_array_get(json_array_get(json_object_get(want, "mse"), 0), number++));
            if (fabs(loss - mse * (double)t.c->batch.picture.weight) >
                json_number_value(json_object_get(tolerances, "mse_abs")) * 2)
                fail_msg("%s: sample %zu has a loss of %.9g, not %.9g", name, number, loss, mse);
            sum += loss / (double)nsample;
        }
    assert_true(fabs(sum - json_number_value(json_array_get(json_object_get(want, "loss"), 0))) <=
                json_number_value(json_object_get(tolerances, "loss_abs")));
    compare_gradients(&t, json_number_value(json_object_get(tolerances, "grad_rel_l2")));
    close_training(&t);
}

static void test_gradients(void **state)
{
    json_t *spec;
    size_t i;
    (void)state;
    json_array_foreach (json_object_get(specs, "train"), i, spec) {
        first_step(spec, "none");
        first_step(spec, "block");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_gradients),   cmocka_unit_test(test_texts),
                                        cmocka_unit_test(test_transformer), cmocka_unit_test(test_decoder),
                                        cmocka_unit_test(test_encoder),     cmocka_unit_test(test_samples) };
    expected = json_load_file(path_of("expected.json"), 0, NULL);
    specs = json_load_file(path_of("case.json"), 0, NULL);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(expected);
    json_decref(specs);
    return rc;
}
