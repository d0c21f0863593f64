/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding and the output head: whether config.json ties them, and whether their rows are those of the vocabulary.
 */
#include <inttypes.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/checks.h"
#include "doctor/parts.h"
#include "doctor/reads.h"

/* Where models have the two. */
static const struct {
    const char *embedding, *head;
} places[] = {
    { "model.embed_tokens.weight", "lm_head.weight" },
    { "model.language_model.embed_tokens.weight", "lm_head.weight" },
    { "language_model.model.embed_tokens.weight", "language_model.lm_head.weight" },
};

/* Returns the name that the head has beside this embedding. Sets *embedding to NULL if the model has no embedding. */
static const char *find_place(const struct doctor_model *m, const struct doctor_tensor **embedding)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if ((*embedding = fsdpck_doctor_find(m, places[i].embedding)))
            return places[i].head;
    return places[0].head;
}

/* ---- tied ---- */

static bool makes_tokens(const struct doctor_model *m)
{
    const char *name = json_string_value(json_array_get(json_object_get(m->json[DOCTOR_CONFIG], "architectures"), 0));
    return name && (ends_with(name, "ForCausalLM") || ends_with(name, "ForConditionalGeneration"));
}

/* Returns whether the family leaves the key out where it is true; others of the table do where it is false. */
static bool is_tied_by_default(const struct doctor_model *m)
{
    static const char *const types[] = { "gemma", "gemma2", "gemma3_text", "cohere", "cohere2" };
    const char *type = json_string_value(json_object_get(m->json[DOCTOR_CONFIG], "model_type"));
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i], type) == 0)
            return true;
    return false;
}

/* A head beside a tied embedding. Only its values tell what the loaders' embedding in its place changes. */
static void blame_second_head(struct doctor *d, const struct doctor_tensor *head, const struct doctor_tensor *embedding,
                              const char *tied)
{
    const enum doctor_likeness like = fsdpck_doctor_compare(d, head, embedding, d->deep);
    struct doctor_words w;
    doctor_say(w.found, "a head of its own%s, though tie_word_embeddings is %s: loaders put the embedding in its place",
               like == DOCTOR_OTHER   ? " that differs from the embedding"
               : like == DOCTOR_EQUAL ? ", equal to the embedding"
                                      : "",
               tied);
    if (like == DOCTOR_EQUAL) {
        doctor_say(w.expected, "no head: this one takes space for nothing");
        doctor_say(w.mend, "fsdpck export '%s' OUT --exclude '%.200s'", d->model->in_quotes, head->name);
    } else if (like == DOCTOR_OTHER) {
        doctor_say(w.expected, "tie_word_embeddings false: the head that was trained is lost");
        doctor_say(w.mend, "put \"tie_word_embeddings\": false into config.json");
    } else {
        doctor_say(w.expected, "no head, or tie_word_embeddings false if the head differs from the embedding");
        doctor_say(w.mend, "see whether they are equal: fsdpck doctor '%s' --deep", d->model->in_quotes);
    }
    fsdpck_doctor_report(d, like == DOCTOR_OTHER ? FSDPCK_SEVERITY_ERROR : FSDPCK_SEVERITY_WARNING,
                         doctor_files(d->model)[head->file].name, head->name, &w);
}

bool fsdpck_doctor_head(struct doctor *d)
{
    const json_t *key = fsdpck_doctor_key(d->model, "tie_word_embeddings");
    const struct doctor_tensor *embedding;
    const char *name = find_place(d->model, &embedding);
    const struct doctor_tensor *head = fsdpck_doctor_find(d->model, name);
    const bool by_default = !key && is_tied_by_default(d->model), tied = json_is_true(key) || by_default;
    struct doctor_known known;
    struct doctor_words w;
    if (!makes_tokens(d->model) || (!key && !by_default && !fsdpck_doctor_known_read(d->model, &known)) || !embedding)
        return false;
    if (tied && head) {
        blame_second_head(d, head, embedding, key ? "true" : "absent (so true)");
    } else if (!tied && !head && !fsdpck_doctor_find_part(d->model, "lm_head.")) {
        doctor_say(w.found, "no such tensor, and tie_word_embeddings is %s", key ? "false" : "absent (so false)");
        doctor_say(w.expected, "a head, or tie_word_embeddings true: loaders make a random head");
        fsdpck_doctor_advise_base(d, &w, "if the head was tied in training, set tie_word_embeddings to true; else: ");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "", name, &w);
    }
    return true;
}

/* ---- rows ---- */

static void check_rows(struct doctor *d, const struct doctor_tensor *t, uint64_t rows, const char *of)
{
    struct doctor_words w;
    if (t->shape[0] == rows)
        return;
    doctor_say(w.found, "%" PRIu64 " rows", t->shape[0]);
    doctor_say(w.expected, "%" PRIu64 ", %s: loaders fail, or leave rows as they were", rows, of);
    doctor_say(w.mend, "take config.json and the weights from the same model");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
}

/* Of families that are known in full, the check of their parts looks at all shapes. */
bool fsdpck_doctor_vocabulary_rows(struct doctor *d)
{
    const struct doctor_tensor *embedding, *head = fsdpck_doctor_find(d->model, find_place(d->model, &embedding));
    struct doctor_known known;
    uint64_t rows;
    if (!embedding || embedding->ndim != 2 || !doctor_has_own_shape(embedding) ||
        fsdpck_doctor_known_read(d->model, &known))
        return false;
    if (fsdpck_doctor_count(d->model, "vocab_size", &rows))
        check_rows(d, embedding, rows, "the vocab_size of config.json");
    if (head && head->ndim == 2 && doctor_has_own_shape(head))
        check_rows(d, head, embedding->shape[0], "as the embedding has");
    return true;
}
