/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer against the embedding, the special ids against both, and the settings for generation. */
#include <inttypes.h>
#include <string.h>

#include "doctor/chat.h"
#include "doctor/checks.h"
#include "doctor/tokens.h"

#include <stdlib.h>

static const char *const embeddings[] = { "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                          "language_model.model.embed_tokens.weight", "transformer.wte.weight" };

static const struct doctor_tensor *find_embedding(const struct doctor_model *m)
{
    for (size_t i = 0; i < sizeof embeddings / sizeof *embeddings; i++) {
        const struct doctor_tensor *t = fsdpck_doctor_find(m, embeddings[i]);
        if (t && t->ndim == 2)
            return t;
    }
    return NULL;
}

/* Reports a tokenizer.json that cannot be read, once: only fsdpck_doctor_tokenizer_files() asks for that. */
static bool read_tokens(struct doctor *d, struct doctor_tokens *t, bool blame)
{
    struct fsdpck_error why = { 0 };
    struct doctor_words w;
    bool found;
    int rc = fsdpck_doctor_tokens_read(d->model, t, &found, &why);
    if (rc == FSDPCK_ERR_NOMEM)
        *d->err = why;
    if (rc && rc != FSDPCK_ERR_NOMEM && blame && fsdpck_doctor_has_content(d, "tokenizer.json")) {
        doctor_say(w.found, "%.590s", why.message);
        doctor_say(w.expected, "a tokenizer of Hugging Face");
        doctor_say(w.mend, "copy tokenizer.json again from where the model came from");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "tokenizer.json", "", &w);
    }
    return !rc && (found || t->count > 0);
}

/* Byte-level BPE in two files. */
static bool lacks_merges(const struct doctor_model *m)
{
    return fsdpck_doctor_has_file(m, "vocab.json") && !fsdpck_doctor_has_file(m, "merges.txt") &&
           !fsdpck_doctor_has_file(m, "tokenizer.json");
}

bool fsdpck_doctor_tokenizer_files(struct doctor *d)
{
    static const char *const files[] = {
        "tokenizer.json", "tokenizer.model",         "vocab.json",   "vocab.txt", "spiece.model", "tekken.json",
        "tiktoken.model", "sentencepiece.bpe.model", "qwen.tiktoken"
    };
    const json_t *config = d->model->json[DOCTOR_TOKENIZER];
    struct doctor_tokens t;
    struct doctor_words w;
    if (!config && !fsdpck_doctor_has_file(d->model, "tokenizer.json"))
        return false;
    read_tokens(d, &t, true);
    fsdpck_doctor_tokens_free(&t);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (fsdpck_doctor_has_file(d->model, files[i]) && !lacks_merges(d->model))
            return true;
    if (lacks_merges(d->model)) {
        doctor_say(w.found, "a vocabulary, but no merges.txt and no tokenizer.json");
        doctor_say(w.expected, "the merges of byte-pair encoding beside it: without them no text is cut into tokens");
        doctor_say(w.mend, "copy the tokenizer's files from the base");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "vocab.json", "", &w);
        return true;
    }
    if (json_is_object(json_object_get(config, "auto_map")))
        return false; /* a class of its own, with files of its own */
    doctor_say(w.found, "a tokenizer's settings, but no vocabulary");
    doctor_say(w.expected, "tokenizer.json or tokenizer.model beside it");
    doctor_say(w.mend, "copy the tokenizer's files from the base");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, "tokenizer_config.json", "", &w);
    return true;
}

/* Gemma 3's text models share the tokenizer of those with images, whose one id more they never see. */
static bool may_exceed(const struct doctor_model *m)
{
    const char *type = json_string_value(json_object_get(m->json[DOCTOR_CONFIG], "model_type"));
    return type && strcmp(type, "gemma3_text") == 0;
}

bool fsdpck_doctor_vocabulary(struct doctor *d)
{
    const struct doctor_tensor *t = find_embedding(d->model);
    struct doctor_tokens tokens = { 0 };
    struct doctor_words w;
    bool decided = t && read_tokens(d, &tokens, false) && tokens.count > 0 && !may_exceed(d->model);
    if (decided && tokens.count > t->shape[0]) {
        doctor_say(w.found, "%" PRIu64 " rows, but the highest id of the tokenizer is %" PRIu64 "%s%.100s", t->shape[0],
                   tokens.count - 1, *tokens.last ? ": " : "", tokens.last);
        doctor_say(w.expected, "at least %" PRIu64 " rows: an id without a row fails, or reads another one's",
                   tokens.count);
        doctor_say(w.mend,
                   "call resize_token_embeddings(%" PRIu64 ") and train the new rows, or copy the base's "
                   "tokenizer",
                   tokens.count);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, doctor_files(d->model)[t->file].name, t->name, &w);
    }
    fsdpck_doctor_tokens_free(&tokens);
    return decided;
}

/* ---- special ids ---- */

static void check_id(struct doctor *d, enum doctor_json which, const char *key, const json_t *value, uint64_t rows)
{
    struct doctor_words w;
    if (!json_is_integer(value) || (json_integer_value(value) >= 0 && (uint64_t)json_integer_value(value) < rows) ||
        json_integer_value(value) == -1) /* a way to say "none" */
        return;
    doctor_say(w.found, "id %" JSON_INTEGER_FORMAT, json_integer_value(value));
    doctor_say(w.expected, "an id below %" PRIu64 ", the vocab_size of config.json", rows);
    doctor_say(w.mend, "put the id of the tokenizer's token there, or remove the key");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, fsdpck_doctor_json_name(which), key, &w);
}

bool fsdpck_doctor_special_ids(struct doctor *d)
{
    static const char *const keys[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    uint64_t rows;
    if (!fsdpck_doctor_count(d->model, "vocab_size", &rows))
        return false;
    for (int which = DOCTOR_CONFIG; which <= DOCTOR_GENERATION; which++)
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            const json_t *v = json_object_get(d->model->json[which], keys[i]);
            check_id(d, (enum doctor_json)which, keys[i], v, rows);
            for (size_t k = 0; k < json_array_size(v); k++)
                check_id(d, (enum doctor_json)which, keys[i], json_array_get(v, k), rows);
        }
    return true;
}

/* ---- generation ---- */

/* A program of gpt-oss ends a turn with another token than it ends an answer with. */
static bool ends_turn(const char *template, const char *end)
{
    return strstr(template, end) && !(strcmp(end, "<|end|>") == 0 && strstr(template, "<|return|>"));
}

bool fsdpck_doctor_chat_end(struct doctor *d)
{
    static const char *const ends[] = { "<|im_end|>", "<|eot_id|>", "<end_of_turn>",         "<turn|>",
                                        "<|eot|>",    "<|end|>",    "<|END_OF_TURN_TOKEN|>", "<|end_of_turn|>" };
    const json_t *ids = json_object_get(d->model->json[DOCTOR_GENERATION], "eos_token_id");
    enum doctor_json which = ids ? DOCTOR_GENERATION : DOCTOR_CONFIG;
    struct doctor_tokens tokens = { 0 };
    char *template = fsdpck_doctor_template(d);
    uint64_t id;
    if (!ids)
        ids = fsdpck_doctor_key(d->model, "eos_token_id");
    bool decided = template && ids && read_tokens(d, &tokens, false);
    for (size_t i = 0; decided && i < sizeof ends / sizeof *ends; i++) {
        struct doctor_words w;
        if (!ends_turn(template, ends[i]) || !fsdpck_doctor_token_id(&tokens, ends[i], &id) ||
            fsdpck_doctor_has_id(ids, id))
            continue;
        doctor_say(w.found, "no id of '%s', which ends a turn in the chat template", ends[i]);
        doctor_say(w.expected, "%" PRIu64 " among the ids: without it a chat does not stop", id);
        doctor_say(w.mend, "add %" PRIu64 " to eos_token_id in generation_config.json, if the model is for chats", id);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, fsdpck_doctor_json_name(which), "eos_token_id", &w);
    }
    free(template);
    fsdpck_doctor_tokens_free(&tokens);
    return decided;
}

/* Returns the first key that only sampling reads, and whose value is not the default. */
static const char *find_sampling(const json_t *g)
{
    static const struct {
        const char *key;
        double none;
    } keys[] = { { "temperature", 1.0 }, { "top_p", 1.0 }, { "top_k", 50.0 }, { "typical_p", 1.0 }, { "min_p", 0.0 } };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(g, keys[i].key);
        if (json_is_number(v) && json_number_value(v) != keys[i].none)
            return keys[i].key;
    }
    return NULL;
}

/* Old releases of transformers wrote their defaults out. */
static void check_length(struct doctor *d, const json_t *g)
{
    const json_t *length = json_object_get(g, "max_length");
    struct doctor_words w;
    if (!json_is_integer(length) || json_integer_value(length) != 20 || json_object_get(g, "max_new_tokens"))
        return;
    doctor_say(w.found, "20, which counts the prompt's tokens too");
    doctor_say(w.expected, "no such key, or the model's own length: answers end after a few words, or at once");
    doctor_say(w.mend, "remove max_length from generation_config.json");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "generation_config.json", "max_length", &w);
}

bool fsdpck_doctor_sampling(struct doctor *d)
{
    const json_t *g = d->model->json[DOCTOR_GENERATION], *sample = json_object_get(g, "do_sample");
    const char *key = find_sampling(g);
    struct doctor_words w;
    if (!g)
        return false;
    check_length(d, g);
    if (!key || json_is_true(sample))
        return true;
    doctor_say(w.found, "a value for sampling, but do_sample is %s", sample ? "false" : "absent (so false)");
    doctor_say(w.expected, "do_sample true, or no such key: releases of transformers ignore it or refuse to save it");
    doctor_say(w.mend, "change one of the two keys in generation_config.json");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "generation_config.json", key, &w);
    return true;
}
