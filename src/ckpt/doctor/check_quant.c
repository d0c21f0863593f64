/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized weights against quantization_config, and against the scales that belong to them. */
#include <string.h>

#include "base/arena.h"
#include "base/ioutil.h"
#include "base/suffix.h"
#include "doctor/checks.h"
#include "engine/source_impl.h"
#include "hf/config.h"
#include "quant/weights.h"

#include <stdlib.h>

/* Returns the first tensor that only a quantizer makes. */
static const struct doctor_tensor *find_quantized(const struct doctor_model *m)
{
    static const char *const suffixes[] = { ".qweight",          ".weight_packed", "_proj_blocks", ".weight_scale",
                                            ".weight_scale_inv", ".absmax",        ".SCB" };
    for (size_t i = 0; i < m->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(m)[i];
        if (t->dtype == FSDPCK_FLOAT8_E4M3FN || t->dtype == FSDPCK_FLOAT8_E5M2)
            return t;
        for (size_t k = 0; k < sizeof suffixes / sizeof *suffixes; k++)
            if (ends_with(t->name, suffixes[k]))
                return t;
    }
    return NULL;
}

static bool has_config(const struct doctor_model *m)
{
    const json_t *config = m->json[DOCTOR_CONFIG];
    return json_is_object(fsdpck_doctor_key(m, "quantization_config")) ||
           json_is_object(json_object_get(config, "compression_config")) ||
           fsdpck_doctor_has_file(m, "hf_quant_config.json") || fsdpck_doctor_has_file(m, "quantize_config.json") ||
           fsdpck_doctor_has_file(m, "quant_config.json");
}

#define COMPRESSED "compressed-tensors"

/* Returns the method that the folder states, or NULL. compressed-tensors also describes weights that are only pruned,
 * or that it has not packed yet. */
static const char *stated_method(const struct doctor_model *m, const char **file)
{
    const json_t *config = fsdpck_doctor_key(m, "quantization_config");
    const char *method = json_string_value(json_object_get(config, "quant_method")),
               *status = json_string_value(json_object_get(config, "quantization_status"));
    const json_t *other = json_object_get(m->json[DOCTOR_HF_QUANT], "quantization");
    *file = "config.json";
    if (method && strcmp(method, COMPRESSED) == 0)
        return status && strcmp(status, "compressed") == 0 && json_object_get(config, "config_groups") ? method : NULL;
    if (!method && json_is_string(json_object_get(other, "quant_algo"))) {
        *file = "hf_quant_config.json";
        return "modelopt";
    }
    return method;
}

/* Returns whether the method stores codes of 8 bits or integers, and no tensor holds such. Other methods have names and
 * dtypes of their own. */
static bool is_dequantized(const struct doctor_model *m, const char *method)
{
    static const char *const methods[] = { "fp8",          "fbgemm_fp8", "gptq",     "awq",
                                           "bitsandbytes", "mxfp4",      COMPRESSED, "modelopt" };
    bool known = false;
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++)
        known = known || strcmp(method, methods[i]) == 0;
    for (size_t i = 0; i < m->tensors.count && known; i++) {
        const struct fsdpck_dtype_info *info = fsdpck_dtype_info(doctor_tensors(m)[i].dtype);
        known = info->kind == FSDPCK_KIND_FLOAT && info->nbytes > 1;
    }
    return known;
}

bool fsdpck_doctor_quant_config(struct doctor *d)
{
    const struct doctor_tensor *t = find_quantized(d->model);
    const char *file, *method = stated_method(d->model, &file);
    struct doctor_words w;
    if (!d->model->json[DOCTOR_CONFIG])
        return false;
    if (t && !has_config(d->model)) {
        doctor_say(w.found, "a quantized weight (%s), and config.json has no quantization_config",
                   fsdpck_dtype_info(t->dtype)->name);
        doctor_say(w.expected, "the quantization_config that the quantizer wrote: loaders take the codes for weights");
        doctor_say(w.mend,
                   "copy the key from the quantized model's own config.json, or: fsdpck export '%s' OUT "
                   "--dequantize bf16",
                   d->model->in_quotes);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
    } else if (!t && is_dequantized(d->model, method)) {
        doctor_say(w.found, "method '%.100s', but no tensor is quantized", method);
        doctor_say(w.expected, "quantized weights, or no such key");
        doctor_say(w.mend, "if the weights were dequantized, remove %s",
                   *file == 'c' ? "the key from config.json" : "hf_quant_config.json");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, file, *file == 'c' ? "quantization_config" : "quantization", &w);
    }
    return true;
}

static int find_weights(struct doctor *d, struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct fsdpck_quant_config config = { 0 };
    struct fsdpck_quant_weights found = { 0 };
    struct fsdpck_arena arena = { 0 };
    char *path = fsdpck_path_join(d->model->path, "config.json", err), *text = NULL;
    uint64_t nbytes = 0;
    int rc = path ? fsdpck_read_file(d->model->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, err) : err->code;
    if (!rc)
        rc = fsdpck_quant_config_read(path, text, nbytes, &config, err);
    if (!rc)
        rc = fsdpck_quant_find(src, &config, &arena, &found, err);
    free(path);
    free(text);
    fsdpck_arena_free(&arena);
    return rc;
}

/* A method that fsdpck does not know is no defect of the model. */
bool fsdpck_doctor_quant_parts(struct doctor *d)
{
    struct fsdpck_options opt = { .io = d->model->io };
    struct fsdpck_source *src = NULL;
    struct fsdpck_error why = { 0 };
    struct doctor_words w;
    if (!find_quantized(d->model) || !json_is_object(fsdpck_doctor_key(d->model, "quantization_config")) ||
        fsdpck_source_open(d->model->path, "hf", &opt, &src, &why) != 0)
        return false;
    int rc = find_weights(d, src, &why);
    fsdpck_source_close(src);
    if (rc == FSDPCK_ERR_UNSUPPORTED)
        return false;
    if (rc == FSDPCK_ERR_NOMEM)
        *d->err = why;
    if (!rc || d->err->code)
        return true;
    doctor_say(w.found, "%.590s", why.message);
    doctor_say(w.expected, "codes and scales that belong together");
    doctor_say(w.mend, "take the missing or wrong part from the quantized model that this one was made from");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", why.tensor, &w);
    return true;
}
