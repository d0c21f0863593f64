/* SPDX-License-Identifier: Apache-2.0 */
/* config.json against the dtypes of the tensors, the towers that it declares, and the files that it names. */
#include <inttypes.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"

static bool makes_tokens(const struct doctor_model *m)
{
    const char *name = json_string_value(json_array_get(json_object_get(m->json[DOCTOR_CONFIG], "architectures"), 0));
    return name && ends_with(name, "ForCausalLM");
}

/* ---- dtypes ---- */

static const char *named_dtype(const struct doctor_model *m, const char *key)
{
    return json_string_value(fsdpck_doctor_key(m, key));
}

bool fsdpck_doctor_dtype_keys(struct doctor *d)
{
    const char *old = named_dtype(d->model, "torch_dtype"), *new = named_dtype(d->model, "dtype");
    struct doctor_words w;
    if (!old || !new)
        return false;
    if (strcmp(old, new) == 0)
        return true;
    doctor_say(w.found, "'%s', but dtype is '%s'", old, new);
    doctor_say(w.expected, "both equal: releases of transformers read one or the other");
    doctor_say(w.mend, "remove the wrong one from config.json");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "config.json", "torch_dtype", &w);
    return true;
}

/* Compares with the dtype of more than half of the bytes. */
bool fsdpck_doctor_dtype(struct doctor *d)
{
    const char *name = named_dtype(d->model, "dtype");
    uint64_t nbytes[FSDPCK_NDTYPES] = { 0 }, total = 0;
    enum fsdpck_dtype wanted;
    struct doctor_words w;
    if (!name)
        name = named_dtype(d->model, "torch_dtype");
    if (!name || !fsdpck_dtype_from_name(name, &wanted) || fsdpck_doctor_key(d->model, "quantization_config"))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        nbytes[t->dtype] += t->nbytes;
        total += t->nbytes;
    }
    for (int i = 0; i < FSDPCK_NDTYPES; i++) {
        const struct fsdpck_dtype_info *info = fsdpck_dtype_info((enum fsdpck_dtype)i);
        if (nbytes[i] <= total / 2 || i == (int)wanted || info->kind != FSDPCK_KIND_FLOAT || info->nbytes < 2)
            continue;
        doctor_say(w.found, "'%s', but most weights are %s", name, info->name);
        doctor_say(w.expected, "the dtype of the weights: loaders that follow config.json cast them");
        doctor_say(w.mend, "put \"%s\" into config.json, or cast the weights: fsdpck export '%s' OUT --dtype %s",
                   info->name, d->model->in_quotes,
                   wanted == FSDPCK_BFLOAT16  ? "bf16"
                   : wanted == FSDPCK_FLOAT16 ? "fp16"
                                              : "fp32");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "config.json", "dtype", &w);
    }
    return true;
}

/* Small, or kept in float32 on purpose. */
static bool may_differ(const char *name)
{
    static const char *const parts[] = { "norm", "router", ".gate.", "A_log", "dt_bias", "conv1d", "bias", "scale" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

static bool is_plain_matrix(const struct doctor_tensor *t)
{
    const struct fsdpck_dtype_info *info = fsdpck_dtype_info(t->dtype);
    return t->ndim >= 2 && info->kind == FSDPCK_KIND_FLOAT && info->nbytes > 1 && !may_differ(t->name);
}

/* Matrices of more than one floating-point dtype: a save of some modules that were trained in another one. */
bool fsdpck_doctor_mixed_dtypes(struct doctor *d)
{
    uint64_t counts[FSDPCK_NDTYPES] = { 0 }, n = 0;
    enum fsdpck_dtype most = FSDPCK_BFLOAT16;
    const struct doctor_tensor *odd = NULL;
    struct doctor_words w;
    if (fsdpck_doctor_key(d->model, "quantization_config") || fsdpck_doctor_key(d->model, "vision_config"))
        return false;
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        counts[t->dtype] += is_plain_matrix(t);
        most = counts[t->dtype] > counts[most] ? t->dtype : most;
    }
    for (size_t i = 0; i < d->model->tensors.count; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i];
        if (is_plain_matrix(t) && t->dtype != most && n++ == 0)
            odd = t;
    }
    if (!n)
        return true;
    doctor_say(w.found, "%s in %" PRIu64 " of the matrices", fsdpck_dtype_info(odd->dtype)->name, n);
    doctor_say(w.expected, "%s, as the other %" PRIu64 ": loaders cast all of them to one dtype",
               fsdpck_dtype_info(most)->name, counts[most]);
    doctor_say(w.mend, "if it was not on purpose: fsdpck export '%s' OUT --dtype %s", d->model->in_quotes,
               most == FSDPCK_FLOAT32   ? "fp32"
               : most == FSDPCK_FLOAT16 ? "fp16"
                                        : "bf16");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, doctor_files(d->model)[odd->file].name, odd->name, &w);
    return true;
}

/* ---- parts of other kinds ---- */

static void report_missing_tower(struct doctor *d, const char *key, const char *tower, const char *tensors)
{
    struct doctor_words w;
    doctor_say(w.found, "%s tower is declared, but no tensor belongs to one", tower);
    doctor_say(w.expected, "tensors such as %s", tensors);
    fsdpck_doctor_advise_base(d, &w,
                              "save with the text model's class and its own config.json, or take them from the base: ");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "config.json", key, &w);
}

/* Such a class makes a tower also where config.json has no vision_config: it takes the default. */
static bool is_for_images(const struct doctor_model *m)
{
    static const char *const words[] = { "VL", "Vision", "Llava", "PaliGemma", "Idefics", "Pixtral" };
    const json_t *config = m->json[DOCTOR_CONFIG];
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (json_object_get(config, "vision_config") || json_object_get(config, "audio_config"))
        return false;
    for (size_t i = 0; name && ends_with(name, "ForConditionalGeneration") && i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

bool fsdpck_doctor_vision(struct doctor *d)
{
    static const char *const names[] = { "vis", "image", "img", "patch", "vit", "multi_modal", "mm_" };
    const json_t *vision = json_object_get(d->model->json[DOCTOR_CONFIG], "vision_config");
    const bool declared = json_is_object(vision) && !makes_tokens(d->model), sees = is_for_images(d->model);
    if (!declared && !sees)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (fsdpck_doctor_find_part(d->model, names[i]))
            return true;
    report_missing_tower(d, declared ? "vision_config" : "architectures", "a vision", "'visual.…' or 'vision_tower.…'");
    return true;
}

bool fsdpck_doctor_audio(struct doctor *d)
{
    if (!json_is_object(json_object_get(d->model->json[DOCTOR_CONFIG], "audio_config")))
        return false;
    if (!fsdpck_doctor_find_part(d->model, "audio"))
        report_missing_tower(d, "audio_config", "an audio", "'audio_tower.…'");
    return true;
}

/* "modeling_x.Class" is a file of the folder; "org/repo--modeling_x.Class" is in another repository. */
static void check_code(struct doctor *d, enum doctor_json which, const char *key, const char *name)
{
    const char *dot = name ? strchr(name, '.') : NULL;
    char file[300];
    struct doctor_words w;
    if (!dot || strstr(name, "--"))
        return;
    snprintf(file, sizeof file, "%.*s.py", (int)(dot - name < 250 ? dot - name : 250), name);
    if (fsdpck_doctor_has_file(d->model, file))
        return;
    doctor_say(w.found, "'%.200s', but the folder has no %s", name, file);
    doctor_say(w.expected, "the file beside %s", fsdpck_doctor_json_name(which));
    doctor_say(w.mend, "copy %s from the base", file);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, fsdpck_doctor_json_name(which), key, &w);
}

/* A tokenizer may name two classes, of which one may be null. */
static bool check_map(struct doctor *d, enum doctor_json which)
{
    json_t *map = json_object_get(d->model->json[which], "auto_map"), *value;
    const char *key;
    if (!json_is_object(map))
        return false;
    json_object_foreach (map, key, value) {
        check_code(d, which, key, json_string_value(value));
        for (size_t i = 0; i < json_array_size(value); i++)
            check_code(d, which, key, json_string_value(json_array_get(value, i)));
    }
    return true;
}

bool fsdpck_doctor_remote_code(struct doctor *d)
{
    const bool tokenizer = check_map(d, DOCTOR_TOKENIZER);
    return check_map(d, DOCTOR_CONFIG) || tokenizer;
}
