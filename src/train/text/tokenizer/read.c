/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a tokenizer.json. The file is untrusted: jansson parses the JSON, then each part has its own reader. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/file.h"
#include "text/tokenizer/split.h"
#include "text/tokenizer/work.h"

static bool is_same(const struct tokenizer *t, const struct added *a, const char *s, size_t nbytes)
{
    struct span token = t->tokens[a->id];
    return token.nbytes == nbytes && memcmp(t->strings.s + token.at, s, nbytes) == 0;
}

/* The id of an added token. If the model has the token, uses the model's id; otherwise the file's id, which must equal
 * the id that the library would assign. */
static int added_id(struct tokenizer *t, json_t *o, const char *s, size_t nbytes, uint32_t *id,
                    struct fsdpck_error *err)
{
    json_int_t given_id = json_integer_value(json_object_get(o, "id"));
    uint32_t known;
    bool in_model = string_map_get(&t->ids, t->strings.s, s, nbytes, &known);
    if (!json_is_integer(json_object_get(o, "id")) || given_id < 0 || given_id >= TOK_MAX_ID)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "added_tokens: '%.60s' has no id in 0 … %d", s, TOK_MAX_ID - 1);
    if (in_model && known != (uint32_t)given_id)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "added_tokens: '%.60s' has id %lld, in model.vocab %u", s,
                        (long long)given_id, known);
    if (!in_model && (uint32_t)given_id < t->nids && t->tokens[given_id].nbytes != UINT32_MAX)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "added_tokens: '%.60s' has the id %lld of '%.60s'", s, (long long)given_id,
                        t->strings.s + t->tokens[given_id].at);
    *id = (uint32_t)given_id;
    return 0;
}

/* Grows the tables indexed by id to include `id`. An id far beyond the number of tokens in the file is an error. */
static int reach(struct tokenizer *t, uint32_t id, size_t nadded, struct fsdpck_error *err)
{
    if (id < t->nids)
        return 0;
    if (id >= 4 * (size_t)t->nmodel + 65536 + 16 * nadded)
        return TOK_FAIL(FSDPCK_ERR_LIMIT, "added_tokens: id %u is far beyond the %u tokens of the vocabulary", id,
                        t->nmodel);
    struct span *tokens = reallocarray(t->tokens, id + 1u, sizeof *tokens);
    if (!tokens)
        return fsdpck_error_nomem(err, (id + 1u) * sizeof *tokens);
    t->tokens = tokens;
    while (t->nids <= id)
        t->tokens[t->nids++] = NO_SPAN;
    return 0;
}

/* Sets the pattern to search for: the content, or its normalised form if the token asks for that. */
static int make_pattern(struct tokenizer *t, struct added *a, struct fsdpck_error *err)
{
    struct piece_buffer buffers[2] = { 0 };
    struct span token = t->tokens[a->id];
    char *copy = malloc(token.nbytes + 1u);
    if (!copy)
        return fsdpck_error_nomem(err, token.nbytes);
    memcpy(copy, t->strings.s + token.at, token.nbytes);
    struct piece p = { .s = copy, .n = token.nbytes };
    int rc = a->normalized ? tok_normalize(t, &p, buffers, false, err) : 0;
    if (!rc && !text_add(&t->strings, p.s, p.n, &a->pattern))
        rc = fsdpck_error_nomem(err, p.n);
    if (!rc && !trie_add(a->normalized ? &t->normalized : &t->raw, t->strings.s + a->pattern.at, a->pattern.nbytes,
                         (uint32_t)(a - t->added)))
        rc = fsdpck_error_nomem(err, p.n);
    free(copy);
    piece_buffer_free(&buffers[0]);
    piece_buffer_free(&buffers[1]);
    return rc;
}

static int read_added(struct tokenizer *t, json_t *o, size_t nadded, struct fsdpck_error *err)
{
    json_t *content = json_object_get(o, "content");
    const char *s = json_string_value(content);
    size_t n = json_string_length(content);
    uint32_t id = 0;
    if (!s)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "added_tokens: an entry has no content");
    if (n == 0) /* the library skips these too */
        return 0;
    int rc = added_id(t, o, s, n, &id, err);
    if (!rc)
        rc = reach(t, id, nadded, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < t->nadded; i++) {
        if (is_same(t, &t->added[i], s, n))
            return TOK_FAIL(FSDPCK_ERR_FORMAT, "added_tokens: '%.60s' twice", s);
    }
    if (t->tokens[id].nbytes == UINT32_MAX) {
        if (!text_add(&t->strings, s, n, &t->tokens[id]))
            return fsdpck_error_nomem(err, n);
        string_map_put(&t->ids, t->strings.s, t->tokens[id], id);
    }
    struct added *a = &t->added[t->nadded++];
    *a = (struct added){
        .id = id,
        .single_word = json_is_true(json_object_get(o, "single_word")),
        .lstrip = json_is_true(json_object_get(o, "lstrip")),
        .rstrip = json_is_true(json_object_get(o, "rstrip")),
        .special = json_is_true(json_object_get(o, "special")),
        .normalized = json_is_true(json_object_get(o, "normalized")),
    };
    return make_pattern(t, a, err);
}

int tok_read_added(struct tokenizer *t, struct json_t *list, struct fsdpck_error *err)
{
    size_t i, n = json_array_size(list);
    json_t *o;
    if (list && !json_is_null(list) && !json_is_array(list))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "key 'added_tokens': a list is wanted");
    if (n > 1 << 16)
        return TOK_FAIL(FSDPCK_ERR_LIMIT, "added_tokens: %zu of them; at most %d are read", n, 1 << 16);
    t->added = calloc(n + 1, sizeof *t->added);
    if (!t->added || !string_map_reserve(&t->ids, t->ids.count + n))
        return fsdpck_error_nomem(err, n * sizeof *t->added);
    json_array_foreach (list, i, o) {
        int rc = read_added(t, o, n, err);
        if (rc)
            return rc;
    }
    t->special = calloc(t->nids, 1);
    for (i = 0; t->special && i < t->nadded; i++)
        t->special[t->added[i].id] = t->added[i].special;
    return t->special ? 0 : fsdpck_error_nomem(err, t->nids);
}

static int check_ids(struct tokenizer *t, const struct id_list *list, struct fsdpck_error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        if (!tokenizer_token(t, list->ids[i]))
            return TOK_FAIL(FSDPCK_ERR_FORMAT, "post_processor: id %u is no token", list->ids[i]);
    }
    return 0;
}

static int read_parts(struct tokenizer *t, json_t *root, struct fsdpck_error *err)
{
    if (!json_is_object(root))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "an object is wanted");
    int rc = tok_read_steps(t, root, err);
    if (!rc)
        rc = tok_read_model(t, json_object_get(root, "model"), err);
    if (!rc)
        rc = tok_read_added(t, json_object_get(root, "added_tokens"), err);
    if (!rc)
        rc = tok_read_post(t, json_object_get(root, "post_processor"), err);
    if (!rc)
        rc = tok_read_decoder(t, json_object_get(root, "decoder"), err);
    if (!rc)
        rc = check_ids(t, &t->prefix, err);
    return rc ? rc : check_ids(t, &t->suffix, err);
}

int tokenizer_parse(const char *name, const char *json, size_t nbytes, struct tokenizer **out, struct fsdpck_error *err)
{
    json_error_t why;
    struct tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t)
        t->bits = malloc(UNICODE_NPOINTS);
    if (!t || !t->bits || !(t->name = strdup(name))) {
        tokenizer_close(t);
        return fsdpck_error_nomem(err, UNICODE_NPOINTS);
    }
    unicode_fill(t->bits);
    t->fingerprint = XXH3_64bits(json, nbytes);
    json_t *root = json_loadb(json, nbytes, JSON_ALLOW_NUL, &why);
    int rc = root ? read_parts(t, root, err)
                  : fsdpck_error_at(err, FSDPCK_ERR_FORMAT, name, (uint64_t)(why.position > 0 ? why.position : 0), "%s",
                                    why.text);
    json_decref(root);
    if (rc)
        tokenizer_close(t);
    else
        *out = t;
    return rc;
}

int tokenizer_open(const char *file, struct tokenizer **out, struct fsdpck_error *err)
{
    char *json;
    size_t nbytes;
    *out = NULL;
    int rc = text_file_read(file, TOK_MAX_FILE, &json, &nbytes, err);
    if (!rc)
        rc = tokenizer_parse(file, json, nbytes, out, err);
    free(json);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->nsplit; i++)
        split_regex_free(t->split[i].regex);
    free(t->name);
    free(t->bits);
    free(t->strings.s);
    free(t->tokens);
    free(t->special);
    free(t->ids.entries);
    free(t->words.entries);
    free(t->merges.entries);
    free(t->added);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    free(t->prefix.ids);
    free(t->suffix.ids);
    free(t);
}

uint32_t tokenizer_nvocab(const struct tokenizer *t)
{
    return t->nids;
}

uint64_t tokenizer_fingerprint(const struct tokenizer *t)
{
    return t->fingerprint;
}

const char *tokenizer_token(const struct tokenizer *t, uint32_t id)
{
    return id < t->nids && t->tokens[id].nbytes != UINT32_MAX ? t->strings.s + t->tokens[id].at : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id)
{
    return id < t->nids && t->special[id];
}

int64_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    uint32_t id;
    return string_map_get(&t->ids, t->strings.s, token, strlen(token), &id) ? (int64_t)id : -1;
}
