/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of config.json that two releases of a library write differently, and a model's kind against its folder. */
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"

static void warn(struct doctor *d, const char *key, const struct doctor_words *w)
{
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "config.json", key, w);
}

/* Returns the first key that both have with other values, or NULL. */
static const char *find_difference(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)a, key, v) {
        const json_t *other = json_object_get(b, key);
        if (other && !doctor_same_json(v, other))
            return key;
    }
    return NULL;
}

bool fsdpck_doctor_rope_keys(struct doctor *d)
{
    const json_t *old = fsdpck_doctor_key(d->model, "rope_scaling"),
                 *new = fsdpck_doctor_key(d->model, "rope_parameters"), *either = json_is_object(old) ? old : new;
    const char *type = json_string_value(json_object_get(either, "type")),
               *rope_type = json_string_value(json_object_get(either, "rope_type")), *key;
    struct doctor_words w;
    if (!json_is_object(either))
        return false;
    if (type && rope_type && strcmp(type, rope_type) != 0) {
        doctor_say(w.found, "type '%.100s' and rope_type '%.100s'", type, rope_type);
        doctor_say(w.expected, "one kind: some programs read the first key, others the second");
        doctor_say(w.mend, "remove the wrong one from config.json");
        warn(d, either == old ? "rope_scaling" : "rope_parameters", &w);
    }
    const json_t *top = fsdpck_doctor_key(d->model, "rope_theta"), *inner = json_object_get(new, "rope_theta");
    if (top && inner && !doctor_same_json(top, inner)) {
        doctor_say(w.found, "another value than in rope_parameters");
        doctor_say(w.expected, "both keys alike: transformers 5 reads rope_parameters, older programs rope_theta");
        doctor_say(w.mend, "remove the wrong one from config.json");
        warn(d, "rope_theta", &w);
    }
    if (json_is_object(old) && json_is_object(new) && (key = find_difference(old, new))) {
        doctor_say(w.found, "'%.100s' other than in rope_parameters", key);
        doctor_say(w.expected, "both keys alike: transformers 5 reads rope_parameters, older programs rope_scaling");
        doctor_say(w.mend, "remove the wrong one from config.json");
        warn(d, "rope_scaling", &w);
    }
    return true;
}

/* A model without a head, whose key only some programs find. */
static void warn_one_place(struct doctor *d, bool top)
{
    struct doctor_words w;
    doctor_say(w.found, "true %s, and no such key %s", top ? "at the top" : "in text_config",
               top ? "in text_config" : "at the top");
    doctor_say(w.expected, "true in both: a program that reads the other place makes a random head");
    doctor_say(w.mend, "put \"tie_word_embeddings\": true into both places of config.json");
    warn(d, "tie_word_embeddings", &w);
}

/* Programs read tie_word_embeddings at the top, or in text_config. */
bool fsdpck_doctor_tied_keys(struct doctor *d)
{
    const json_t *config = d->model->json[DOCTOR_CONFIG], *text = json_object_get(config, "text_config"),
                 *top = json_object_get(config, "tie_word_embeddings"),
                 *inner = json_object_get(text, "tie_word_embeddings");
    struct doctor_words w;
    if (json_is_object(text) && d->model->whole && !fsdpck_doctor_find_part(d->model, "lm_head") &&
        ((!top && json_is_true(inner)) || (!inner && json_is_true(top)))) {
        warn_one_place(d, top != NULL);
        return true;
    }
    if (!json_is_boolean(top) || !json_is_boolean(inner))
        return false;
    if (json_is_true(top) == json_is_true(inner))
        return true;
    doctor_say(w.found, "%s, but text_config has %s", json_is_true(top) ? "true" : "false",
               json_is_true(inner) ? "true" : "false");
    doctor_say(w.expected, "both equal: programs read one or the other");
    doctor_say(w.mend, "set both to what the weights are: false with a head of its own, true without");
    warn(d, "tie_word_embeddings", &w);
    return true;
}

/* ---- parts of other kinds ---- */

/* nbytes: of its name up to the tower's own names, if that is not NULL. */
static const struct doctor_tensor *find_tower(const struct doctor_model *m, size_t *nbytes)
{
    static const char *const prefixes[] = { "visual.", "vision_tower.", "vision_model.", "audio_tower." };
    for (size_t i = 0; i < m->tensors.count; i++) {
        const char *name = doctor_tensors(m)[i].name;
        name += strncmp(name, "model.", 6) == 0 ? 6 : 0;
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++)
            if (strncmp(name, prefixes[k], strlen(prefixes[k])) == 0) {
                if (nbytes)
                    *nbytes = (size_t)(name - doctor_tensors(m)[i].name) + strlen(prefixes[k]);
                return &doctor_tensors(m)[i];
            }
    }
    return NULL;
}

static bool has_processor(const struct doctor_model *m)
{
    static const char *const files[] = { "preprocessor_config.json", "processor_config.json",
                                         "video_preprocessor_config.json" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (fsdpck_doctor_has_file(m, files[i]))
            return true;
    return false;
}

/* Not checked: a folder without a tokenizer, which holds only weights, and a tower without weights, which has a check
 * of its own. */
bool fsdpck_doctor_processor(struct doctor *d)
{
    const struct doctor_model *m = d->model;
    struct doctor_words w;
    if (!json_is_object(json_object_get(m->json[DOCTOR_CONFIG], "vision_config")) || !m->json[DOCTOR_TOKENIZER] ||
        !find_tower(m, NULL))
        return false;
    if (has_processor(m))
        return true;
    doctor_say(w.found, "a vision tower, but no preprocessor_config.json and no processor_config.json");
    doctor_say(w.expected, "one of them: AutoProcessor fails without, and servers take no images");
    doctor_say(w.mend, "copy the processor's files from the base");
    warn(d, "vision_config", &w);
    return true;
}

/* A tower's weights beside the configuration of a text model. Code of its own may know what to do with them. */
bool fsdpck_doctor_tower(struct doctor *d)
{
    const json_t *config = d->model->json[DOCTOR_CONFIG];
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    size_t nbytes = 0;
    const struct doctor_tensor *t = find_tower(d->model, &nbytes);
    struct doctor_words w;
    if (!name || !t || json_object_get(config, "auto_map"))
        return false;
    if (!ends_with(name, "ForCausalLM") || json_object_get(config, "vision_config") ||
        json_object_get(config, "audio_config"))
        return true;
    doctor_say(w.found, "a tower for images or sound, but the architecture is '%.200s'", name);
    doctor_say(w.expected, "the architecture and config.json of the whole model: the tower is not loaded");
    doctor_say(w.mend,
               "copy config.json from the base, or leave the tower out: fsdpck export '%s' OUT --exclude '%.*s*'",
               d->model->in_quotes, (int)nbytes, t->name);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, doctor_files(d->model)[t->file].name, t->name, &w);
    return true;
}
