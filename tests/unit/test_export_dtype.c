/* SPDX-License-Identifier: Apache-2.0 */
/* The dtype in which an export writes the model of a training checkpoint: from its state, or from config.json if there
 * is an optimizer. It applies to the model only, and never if the caller chooses a dtype. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/export.h>
#include <fsdpck/save.h>

#include "opened.h"
#include "tree.h"

#define NOTES_NBYTES 2048 /* of all notes of one export */

/* A checkpoint of model.w (float32), perhaps with a tensor of an optimizer, and the expected export. */
struct trained {
    const char *about, *state, *config;
    bool optimizer, cast;
    const char *tree;
    const char *tensor; /* in the export */
    enum fsdpck_dtype want;
    bool told; /* a note reports the cast */
};

static const struct trained cases[] = {
    { "its state", "{\"step\":3,\"model_dtype\":\"bfloat16\"}", "{\"dtype\":\"float16\"}", true, false, NULL, "w",
      FSDPCK_BFLOAT16, true },
    { "its state, without an optimizer", "{\"model_dtype\":\"float16\"}", NULL, false, false, NULL, "w", FSDPCK_FLOAT16,
      true },
    { "its state, and nothing to do", "{\"model_dtype\":\"float32\"}", "{\"dtype\":\"float32\"}", true, false, NULL,
      "w", FSDPCK_FLOAT32, false },
    { "another key of the state", "{\"dtype\":\"bfloat16\"}", NULL, true, false, NULL, "w", FSDPCK_FLOAT32, false },
    { "an integer's name", "{\"model_dtype\":\"int8\"}", NULL, true, false, NULL, "w", FSDPCK_FLOAT32, false },
    { "its state, and config.json calls the model quantized", "{\"model_dtype\":\"bfloat16\"}",
      "{\"quantization_config\":{\"quant_method\":\"any\"}}", true, false, NULL, "w", FSDPCK_FLOAT32, false },
    { "config.json", NULL, "{\"torch_dtype\":\"bfloat16\"}", true, false, NULL, "w", FSDPCK_BFLOAT16, true },
    { "config.json, the tree by name", NULL, "{\"dtype\":\"bfloat16\"}", true, false, "model", "w", FSDPCK_BFLOAT16,
      true },
    { "config.json of no training", NULL, "{\"dtype\":\"bfloat16\"}", false, false, NULL, "w", FSDPCK_FLOAT32, false },
    { "config.json without a dtype", NULL, "{\"text_config\":{\"dtype\":\"bfloat16\"}}", true, false, NULL, "w",
      FSDPCK_FLOAT32, false },
    { "--dtype", "{\"model_dtype\":\"bfloat16\"}", "{\"dtype\":\"bfloat16\"}", true, true, NULL, "w", FSDPCK_FLOAT64,
      false },
    { "the optimizer", "{\"model_dtype\":\"bfloat16\"}", "{\"dtype\":\"bfloat16\"}", true, false, "optim", "w.exp_avg",
      FSDPCK_FLOAT32, false },
};

static void save(const char *root, const struct trained *c)
{
    static const float values[4] = { 1, 2, 3, 4.001f };
    static const uint64_t origin[1] = { 0 }, shape[1] = { 4 };
    static const struct fsdpck_key model[] = { { "model", 0 }, { "w", 0 } },
                                   moment[] = { { "optim", 0 }, { "w.exp_avg", 0 } };
    const struct fsdpck_save_box box = { .offset = origin, .size = shape, .data = values };
    const struct fsdpck_save_tensor tensors[] = {
        { .name = "model.w",
          .path = model,
          .npath = 2,
          .dtype = FSDPCK_FLOAT32,
          .ndim = 1,
          .shape = shape,
          .boxes = &box,
          .nboxes = 1 },
        { .name = "optim.w.exp_avg",
          .path = moment,
          .npath = 2,
          .dtype = FSDPCK_FLOAT32,
          .ndim = 1,
          .shape = shape,
          .boxes = &box,
          .nboxes = 1 },
    };
    const struct fsdpck_save_asset config = { "config.json", c->config, c->config ? strlen(c->config) : 0 };
    struct fsdpck_error err = { 0 };
    char *out = tree_path(root, "ckpt");
    const struct fsdpck_save_request req = { .out = out,
                                             .nranks = 1,
                                             .tensors = tensors,
                                             .ntensors = c->optimizer ? 2 : 1,
                                             .state = c->state,
                                             .extra_assets = &config,
                                             .nextra_assets = c->config != NULL };
    if (fsdpck_save(&req, NULL, NULL, &err) != 0)
        fail_msg("%s: %s", c->about, err.message);
    free(out);
}

static void take_note(void *ctx, const char *line)
{
    char *notes = ctx;
    size_t used = strlen(notes);
    snprintf(notes + used, NOTES_NBYTES - used, "%s\n", line);
}

/* The config.json of the export states the dtype that was chosen. */
static void check_config(const struct trained *c, const char *to)
{
    char text[512] = "", *path = tree_path(to, "config.json");
    FILE *f = fopen(path, "r");
    if (!f || fread(text, 1, sizeof text - 1, f) == 0 || !strstr(text, fsdpck_dtype_info(c->want)->name))
        fail_msg("%s: config.json is '%s'", c->about, text);
    fclose(f);
    free(path);
}

static void check(const struct trained *c)
{
    char *root = tree_new(), *from = tree_path(root, "ckpt"), *to = tree_path(root, "out"), notes[NOTES_NBYTES] = "";
    struct fsdpck_error err = { 0 };
    const struct fsdpck_options opt = { .note = take_note, .ctx = notes };
    const struct fsdpck_export_request req = {
        .out = to, .select = { .tree = c->tree, .cast = c->cast, .dtype = FSDPCK_FLOAT64 }
    };
    save(root, c);
    struct fsdpck_source *src = opened(from, NULL);
    if (fsdpck_export(src, &req, &opt, NULL, &err) != 0)
        fail_msg("%s: %s", c->about, err.message);
    fsdpck_source_close(src);
    src = opened(to, NULL);
    const struct fsdpck_tensor *t = fsdpck_source_find(src, c->tensor);
    if (!t || t->dtype != c->want)
        fail_msg("%s: '%s' is %s", c->about, c->tensor, t ? fsdpck_dtype_info(t->dtype)->name : "not there");
    if ((strstr(notes, "the model's own dtype") != NULL) != c->told)
        fail_msg("%s: it says '%s'", c->about, notes);
    fsdpck_source_close(src);
    if (c->told && c->config)
        check_config(c, to);
    tree_remove(root);
    free(root);
    free(from);
    free(to);
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
