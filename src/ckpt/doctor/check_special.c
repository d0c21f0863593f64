/* SPDX-License-Identifier: Apache-2.0 */
/* The special tokens that tokenizer_config.json names against the ids of the other files. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "doctor/chat.h"
#include "doctor/checks.h"
#include "doctor/tokens.h"

/* A token is a string, or an object with its content. */
static const char *named_token(const struct doctor_model *m, const char *key)
{
    const json_t *v = json_object_get(m->json[DOCTOR_TOKENIZER], key), *content = json_object_get(v, "content");
    return json_string_value(content ? content : v);
}

bool fsdpck_doctor_has_id(const json_t *ids, uint64_t id)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        if ((uint64_t)json_integer_value(json_array_get(ids, i)) == id)
            return true;
    return json_is_integer(ids) && (uint64_t)json_integer_value(ids) == id;
}

static bool is_id(const json_t *v)
{
    return json_is_integer(v) || json_is_array(v);
}

static void blame_unknown(struct doctor *d, const char *key, const char *token)
{
    struct doctor_words w;
    doctor_say(w.found, "'%.200s', which is no token of tokenizer.json", token);
    doctor_say(w.expected, "a token that it has: loaders add this one with a new id, for which there is no row");
    doctor_say(w.mend, "name the token that the model was trained with, or copy the tokenizer's files from the base");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "tokenizer_config.json", key, &w);
}

/* Only tokens that look special are known by name. */
static bool looks_special(const char *token)
{
    return *token == '<' || *token == '[';
}

/* The token that tokenizer_config.json names against the ids. Returns whether both sides name one. */
static bool check_token(struct doctor *d, const struct doctor_tokens *tokens, const char *token_key, const char *id_key)
{
    const json_t *config = fsdpck_doctor_key(d->model, id_key),
                 *generation = json_object_get(d->model->json[DOCTOR_GENERATION], id_key);
    const char *token = named_token(d->model, token_key);
    struct doctor_words w;
    uint64_t id;
    if (!token)
        return false;
    if (!fsdpck_doctor_token_id(tokens, token, &id)) {
        if (looks_special(token))
            blame_unknown(d, token_key, token);
        return looks_special(token);
    }
    if (!is_id(config) && !is_id(generation))
        return false;
    if (fsdpck_doctor_has_id(config, id) || fsdpck_doctor_has_id(generation, id))
        return true;
    doctor_say(w.found,
               "'%.200s', whose id is %" PRIu64 ", but %s in config.json and generation_config.json is another", token,
               id, id_key);
    doctor_say(w.expected, "one token: %s",
               strcmp(token_key, "eos_token") == 0
                   ? "what a trainer ends its examples with must be what ends generation"
                   : "trainers take the token, and servers the id");
    doctor_say(w.mend, "put %" PRIu64 " into %s, or the right token into tokenizer_config.json", id, id_key);
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "tokenizer_config.json", token_key, &w);
    return true;
}

static const struct {
    const char *token, *id;
} kinds[] = {
    { "eos_token", "eos_token_id" },
    { "bos_token", "bos_token_id" },
    { "pad_token", "pad_token_id" },
    { "unk_token", "unk_token_id" },
};
enum { NKINDS = sizeof kinds / sizeof *kinds };

bool fsdpck_doctor_special_tokens(struct doctor *d)
{
    struct doctor_tokens tokens = { 0 };
    struct fsdpck_error ignored = { 0 };
    bool found = false, decided = false;
    if (fsdpck_doctor_tokens_read(d->model, &tokens, &found, &ignored) == 0 && found)
        for (size_t i = 0; i < NKINDS; i++)
            decided = check_token(d, &tokens, kinds[i].token, kinds[i].id) || decided;
    fsdpck_doctor_tokens_free(&tokens);
    return decided;
}

static bool share_id(const json_t *a, const json_t *b)
{
    for (size_t i = 0; i < json_array_size(a); i++)
        if (fsdpck_doctor_has_id(b, (uint64_t)json_integer_value(json_array_get(a, i))))
            return true;
    return json_is_integer(a) && fsdpck_doctor_has_id(b, (uint64_t)json_integer_value(a));
}

/* config.json and generation_config.json. A chat's end tokens have a check of their own. */
bool fsdpck_doctor_special_files(struct doctor *d)
{
    char *template = fsdpck_doctor_template(d);
    const bool has_template = template != NULL;
    bool any = false;
    free(template);
    for (size_t i = 0; i < NKINDS; i++) {
        const json_t *a = fsdpck_doctor_key(d->model, kinds[i].id),
                     *b = json_object_get(d->model->json[DOCTOR_GENERATION], kinds[i].id);
        struct doctor_words w;
        if (!is_id(a) || !is_id(b))
            continue;
        any = true;
        if (share_id(a, b) || (i == 0 && has_template))
            continue;
        doctor_say(w.found, "another id than config.json has");
        doctor_say(w.expected, "one token: trainers read config.json, and generation reads this file");
        doctor_say(w.mend, "put the id of the tokenizer's %s into both", kinds[i].token);
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "generation_config.json", kinds[i].id, &w);
    }
    return any;
}

/* ---- padding ---- */

static void blame_padding(struct doctor *d, const char *file, const char *key, const char *what)
{
    struct doctor_words w;
    doctor_say(w.found, "%s", what);
    doctor_say(w.expected, "a token of its own: trainers that mask padding mask the end of every answer with it");
    doctor_say(w.mend, "before training, choose an unused token of the vocabulary");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, file, key, &w);
}

bool fsdpck_doctor_padding(struct doctor *d)
{
    const char *pad = named_token(d->model, "pad_token"), *eos = named_token(d->model, "eos_token");
    const json_t *pad_id = fsdpck_doctor_key(d->model, "pad_token_id"),
                 *eos_id = fsdpck_doctor_key(d->model, "eos_token_id");
    struct doctor_words w;
    if (pad && eos && strcmp(pad, eos) == 0) {
        snprintf(w.found, sizeof w.found, "'%.200s', which is eos_token too", pad);
        blame_padding(d, "tokenizer_config.json", "pad_token", w.found);
    } else if (!(pad && eos) && json_is_integer(pad_id) && json_is_integer(eos_id) && json_equal(pad_id, eos_id)) {
        blame_padding(d, "config.json", "pad_token_id", "the id of eos_token_id");
    } else if (!pad && d->base && d->model->json[DOCTOR_TOKENIZER] && named_token(d->base, "pad_token")) {
        doctor_say(w.found, "no padding token");
        doctor_say(w.expected, "'%.200s', as the base has: trainers fail without one, or pad with the end token",
                   named_token(d->base, "pad_token"));
        doctor_say(w.mend, "copy the tokenizer's files from the base");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "tokenizer_config.json", "pad_token", &w);
    }
    return pad || json_is_integer(pad_id) || (d->base && named_token(d->base, "pad_token"));
}
