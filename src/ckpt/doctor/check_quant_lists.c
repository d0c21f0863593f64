/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what quantization_config says of the method and of single modules with the tensors, and with the settings
 * that hf_quant_config.json repeats. */
#include <inttypes.h>
#include <string.h>

#include "doctor/checks.h"

/* The two files may differ in their words for the same method, but not in the method. */
bool fsdpck_doctor_quant_files(struct doctor *d)
{
    const json_t *config = fsdpck_doctor_key(d->model, "quantization_config"),
                 *other = json_object_get(d->model->json[DOCTOR_HF_QUANT], "quantization");
    const char *method = json_string_value(json_object_get(config, "quant_method")),
               *a = json_string_value(json_object_get(config, "quant_algo")),
               *b = json_string_value(json_object_get(other, "quant_algo"));
    const bool foreign = method && strcmp(method, "modelopt") != 0;
    struct doctor_words w;
    if (!b || (!a && !foreign))
        return false;
    if (!foreign && strcmp(a, b) == 0)
        return true;
    doctor_say(w.found, "'%.100s', but hf_quant_config.json says '%.100s'%s", foreign ? method : a, b,
               foreign ? " of modelopt" : "");
    doctor_say(w.expected, "one method in both: servers read one or the other");
    doctor_say(w.mend, "take both files from the run of the quantizer that wrote the weights");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "config.json",
                         foreign ? "quantization_config.quant_method" : "quantization_config.quant_algo", &w);
    return true;
}

/* ---- modules that stay as they are ---- */

static const char *const scales[] = { ".weight_scale", ".weight_scale_inv", ".weight_packed" };

static const struct doctor_tensor *find_scale(const struct doctor_model *m, const char *module, size_t nbytes)
{
    char name[1024];
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        int used = snprintf(name, sizeof name, "%.*s%s", (int)nbytes, module, scales[i]);
        const struct doctor_tensor *t = used > 0 && (size_t)used < sizeof name ? fsdpck_doctor_find(m, name) : NULL;
        if (t)
            return t;
    }
    return NULL;
}

/* Patterns and class names are not evaluated: only a whole name says which module is meant. */
static bool is_pattern(const char *name)
{
    return strncmp(name, "re:", 3) == 0 || strpbrk(name, "*?[");
}

static bool check_listed(struct doctor *d, const json_t *list, const char *key)
{
    bool any = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const struct doctor_tensor *t = name && !is_pattern(name) ? find_scale(d->model, name, strlen(name)) : NULL;
        struct doctor_words w;
        any = any || name;
        if (!t)
            continue;
        doctor_say(w.found, "scales of a module that quantization_config's %s leaves unquantized", key);
        doctor_say(w.expected, "no scales, or no such entry: a loader takes the codes for weights");
        doctor_say(w.mend, "remove '%.300s' from the list in config.json, if the weight is quantized", name);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
    }
    return any;
}

bool fsdpck_doctor_quant_ignored(struct doctor *d)
{
    static const char *const keys[] = { "ignore", "ignored_layers", "modules_to_not_convert" };
    const json_t *config = fsdpck_doctor_key(d->model, "quantization_config");
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        any = check_listed(d, json_object_get(config, keys[i]), keys[i]) || any;
    return any;
}
