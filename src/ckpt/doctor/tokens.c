/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tokenizer.json for ids. The file may have a million lines: no DOM. */
#include "doctor/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/json_read.h"

#define MAX_NBYTES (256u << 20)

static int add_token(struct doctor_tokens *t, const char *name, uint64_t id, struct fsdpck_error *err)
{
    char *copy;
    size_t old;
    if (id >= t->count) {
        t->count = id + 1;
        t->last = "";
    }
    if (*name != '<' && *name != '[')
        return 0;
    if (!(copy = fsdpck_arena_strndup(&t->arena, name, strlen(name), err)) ||
        fsdpck_names_add(&t->names, copy, t->ids.count, &old, err) != 0)
        return FSDPCK_ERR_NOMEM;
    if (id + 1 == t->count)
        t->last = copy;
    if (old != SIZE_MAX)
        return 0;
    uint64_t *p = fsdpck_vec_push(&t->ids, err);
    if (p)
        *p = id;
    return p ? 0 : FSDPCK_ERR_NOMEM;
}

/* {"id": 5, "content": "<s>", …} */
static void read_added(struct fsdpck_json *j, struct doctor_tokens *t, struct fsdpck_error *err)
{
    const char *key;
    fsdpck_json_array(j);
    while (fsdpck_json_next_item(j)) {
        char content[256] = "";
        uint64_t id = UINT64_MAX;
        fsdpck_json_object(j);
        while (fsdpck_json_next_key(j, &key))
            if (strcmp(key, "id") == 0) {
                id = fsdpck_json_u64(j);
            } else if (strcmp(key, "content") == 0) {
                const char *s = fsdpck_json_string(j);
                snprintf(content, sizeof content, "%s", s ? s : "");
            } else {
                fsdpck_json_skip(j);
            }
        if (!j->failed && id < UINT64_MAX && add_token(t, content, id, err) != 0)
            return;
    }
}

/* An object from tokens to ids, or Unigram's array, where the position is the id. */
static void read_vocab(struct fsdpck_json *j, struct doctor_tokens *t, struct fsdpck_error *err)
{
    const char *key;
    if (fsdpck_json_peek(j) == FSDPCK_JSON_ARRAY) {
        uint64_t n = 0;
        fsdpck_json_array(j);
        for (; fsdpck_json_next_item(j); n++)
            fsdpck_json_skip(j);
        if (n > t->count)
            t->count = n, t->last = "";
        return;
    }
    fsdpck_json_object(j);
    while (!err->code && fsdpck_json_next_key(j, &key)) {
        char name[256];
        snprintf(name, sizeof name, "%s", key);
        uint64_t id = fsdpck_json_u64(j);
        if (!j->failed)
            add_token(t, name, id, err);
    }
}

static void read_top(struct fsdpck_json *j, struct doctor_tokens *t, struct fsdpck_error *err)
{
    const char *key;
    fsdpck_json_object(j);
    while (!err->code && fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "added_tokens") == 0 && fsdpck_json_peek(j) == FSDPCK_JSON_ARRAY) {
            read_added(j, t, err);
        } else if (strcmp(key, "model") == 0 && fsdpck_json_peek(j) == FSDPCK_JSON_OBJECT) {
            fsdpck_json_object(j);
            while (!err->code && fsdpck_json_next_key(j, &key))
                if (strcmp(key, "vocab") == 0)
                    read_vocab(j, t, err);
                else
                    fsdpck_json_skip(j);
        } else {
            fsdpck_json_skip(j);
        }
    }
    if (!err->code)
        fsdpck_json_end(j);
}

/* Tokens that tokenizer_config.json repeats, or adds: {"128000": {"content": "<s>"}}. */
static int add_decoder(const struct doctor_model *m, struct doctor_tokens *t, struct fsdpck_error *err)
{
    json_t *decoder = json_object_get(m->json[DOCTOR_TOKENIZER], "added_tokens_decoder"), *value;
    const char *key;
    json_object_foreach (decoder, key, value) {
        const char *content = json_string_value(json_object_get(value, "content"));
        char *end;
        const uint64_t id = strtoull(key, &end, 10);
        if (!content || *key < '0' || *key > '9' || *end || id >= UINT32_MAX)
            continue;
        if (add_token(t, content, id, err) != 0)
            return err->code;
    }
    return 0;
}

int fsdpck_doctor_tokens_read(const struct doctor_model *m, struct doctor_tokens *t, bool *found,
                              struct fsdpck_error *err)
{
    struct fsdpck_json j;
    char *path, *text = NULL;
    uint64_t nbytes = 0;
    *t = (struct doctor_tokens){ .last = "", .ids = FSDPCK_VEC(uint64_t) };
    *found = fsdpck_doctor_has_file(m, "tokenizer.json");
    if (!*found)
        return add_decoder(m, t, err);
    if (!(path = fsdpck_path_join(m->path, "tokenizer.json", err)))
        return err->code;
    int rc = fsdpck_read_file(m->io, path, MAX_NBYTES, &text, &nbytes, err);
    if (!rc) {
        fsdpck_json_begin(&j, "tokenizer.json", 0, text, nbytes, err);
        read_top(&j, t, err);
        fsdpck_json_free(&j);
    }
    free(path);
    free(text);
    return rc || err->code ? err->code : add_decoder(m, t, err);
}

void fsdpck_doctor_tokens_free(struct doctor_tokens *t)
{
    fsdpck_names_free(&t->names);
    fsdpck_vec_free(&t->ids);
    fsdpck_arena_free(&t->arena);
}

bool fsdpck_doctor_token_id(const struct doctor_tokens *t, const char *token, uint64_t *id)
{
    size_t i = fsdpck_names_find(&t->names, token);
    if (i == SIZE_MAX)
        return false;
    *id = ((const uint64_t *)t->ids.data)[i];
    return true;
}
