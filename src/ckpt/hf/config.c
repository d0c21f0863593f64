/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and edits config.json as text, not as a tree, so that every byte except the dtypes is unchanged. Parsing and
 * dumping would change numbers (1e-05 becomes 1.0000000000000001e-5). Knows key names, not files. */
#include "hf/config.h"

#include <stdio.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/vec.h"

#define MAX_HEADS 65536u

const char *fsdpck_config_tied_head(const char *embedding)
{
    static const char *const pairs[][2] = {
        { "model.embed_tokens.weight", "lm_head.weight" },
        { "transformer.wte.weight", "lm_head.weight" },
        { "model.language_model.embed_tokens.weight", "lm_head.weight" },
        { "language_model.model.embed_tokens.weight", "language_model.lm_head.weight" },
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(pairs[i][0], embedding) == 0)
            return pairs[i][1];
    return NULL;
}

/* ---- tie_word_embeddings ---- */

enum tie { TIE_UNSAID, TIE_NO, TIE_YES };

static enum tie parse_tie(struct fsdpck_json *j)
{
    enum fsdpck_json_type type = fsdpck_json_peek(j);
    fsdpck_json_skip(j);
    return type == FSDPCK_JSON_TRUE ? TIE_YES : type == FSDPCK_JSON_NULL ? TIE_UNSAID : TIE_NO;
}

static enum tie parse_inner_tie(struct fsdpck_json *j)
{
    enum tie tie = TIE_UNSAID;
    const char *key;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_OBJECT) {
        fsdpck_json_skip(j);
        return tie;
    }
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key)) {
        if (strcmp(key, "tie_word_embeddings") == 0)
            tie = parse_tie(j);
        else
            fsdpck_json_skip(j);
    }
    return tie;
}

int fsdpck_config_tied(const char *file, const char *text, size_t nbytes, bool *tied, struct fsdpck_error *err)
{
    struct fsdpck_json j;
    struct fsdpck_error own = { 0 };
    enum tie outer = TIE_UNSAID, inner = TIE_UNSAID;
    const char *key;
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own));
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        if (strcmp(key, "tie_word_embeddings") == 0)
            outer = parse_tie(&j);
        else if (strcmp(key, "text_config") == 0)
            inner = parse_inner_tie(&j);
        else
            fsdpck_json_skip(&j);
    }
    fsdpck_json_end(&j);
    int rc = j.failed ? err->code : 0;
    fsdpck_json_free(&j);
    if (!rc)
        *tied = (outer == TIE_UNSAID ? inner : outer) == TIE_YES;
    return rc;
}

/* ---- heads ---- */

static void read_heads(struct fsdpck_json *j, bool outermost, uint64_t *heads, uint64_t *kv_heads)
{
    const char *key;
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &key)) {
        const bool is_heads = strcmp(key, "num_attention_heads") == 0, is_kv = strcmp(key, "num_key_value_heads") == 0;
        if ((is_heads || is_kv) && fsdpck_json_peek(j) != FSDPCK_JSON_NULL)
            *(is_heads ? heads : kv_heads) = fsdpck_json_u64(j);
        else if (outermost && strcmp(key, "text_config") == 0 && fsdpck_json_peek(j) == FSDPCK_JSON_OBJECT)
            read_heads(j, false, heads, kv_heads);
        else
            fsdpck_json_skip(j);
    }
}

int fsdpck_config_heads(const char *file, const char *text, size_t nbytes, uint64_t *heads, uint64_t *kv_heads,
                        struct fsdpck_error *err)
{
    struct fsdpck_json j;
    struct fsdpck_error own = { 0 };
    *heads = *kv_heads = 0;
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own));
    read_heads(&j, true, heads, kv_heads);
    fsdpck_json_end(&j);
    int rc = j.failed ? err->code : 0;
    fsdpck_json_free(&j);
    *kv_heads = *kv_heads ? *kv_heads : *heads;
    if (rc || (*heads && *heads <= MAX_HEADS && *kv_heads <= MAX_HEADS))
        return rc;
    return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "has no usable num_attention_heads");
}

/* ---- dtype ---- */

struct span {
    size_t at, nbytes;
};

static bool is_dtype_key(const char *key)
{
    return strcmp(key, "torch_dtype") == 0 || strcmp(key, "dtype") == 0;
}

/* text_config, vision_config, …: models within the model. Excludes quantization_config. */
static bool is_model_key(const char *key)
{
    size_t n = strlen(key), k = strlen("_config");
    return n > k && strcmp(key + n - k, "_config") == 0 && strcmp(key, "quantization_config") != 0;
}

/* Records the position of the value if it names a dtype. */
static int note_value(struct fsdpck_json *j, bool or_null, struct fsdpck_vec *spans, struct fsdpck_error *err)
{
    enum fsdpck_json_type type = fsdpck_json_peek(j);
    const char *value;
    size_t nbytes;
    fsdpck_json_raw(j, &value, &nbytes);
    if (j->failed || !(type == FSDPCK_JSON_STRING || (or_null && type == FSDPCK_JSON_NULL)))
        return 0;
    struct span *s = fsdpck_vec_push(spans, err);
    if (!s)
        return FSDPCK_ERR_NOMEM;
    *s = (struct span){ (size_t)(value - j->text), nbytes };
    return 0;
}

static int find_inner(struct fsdpck_json *j, struct fsdpck_vec *spans, struct fsdpck_error *err)
{
    const char *key;
    int rc = 0;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_OBJECT) {
        fsdpck_json_skip(j);
        return 0;
    }
    fsdpck_json_object(j);
    while (!rc && fsdpck_json_next_key(j, &key)) {
        if (is_dtype_key(key))
            rc = note_value(j, false, spans, err);
        else
            fsdpck_json_skip(j);
    }
    return rc;
}

/* *own: one of the values is the model's own, not an inner model's. */
static int find_values(struct fsdpck_json *j, struct fsdpck_vec *spans, bool *own, struct fsdpck_error *err)
{
    const char *key;
    int rc = 0;
    *own = false;
    fsdpck_json_object(j);
    while (!rc && fsdpck_json_next_key(j, &key)) {
        if (is_dtype_key(key)) {
            *own = true;
            rc = note_value(j, true, spans, err);
        } else if (is_model_key(key)) {
            rc = find_inner(j, spans, err);
        } else {
            fsdpck_json_skip(j);
        }
    }
    fsdpck_json_end(j);
    return rc;
}

static bool is_one_of(const char *key, const char *const *keys, size_t nkeys)
{
    for (size_t i = 0; i < nkeys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

int fsdpck_config_dtype(const char *file, const char *text, size_t nbytes, const char *const *keys, size_t nkeys,
                        bool *found, enum fsdpck_dtype *dtype, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct fsdpck_json j;
    const char *key;
    *found = false;
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own));
    fsdpck_json_object(&j);
    while (fsdpck_json_next_key(&j, &key)) {
        if (!is_one_of(key, keys, nkeys) || fsdpck_json_peek(&j) != FSDPCK_JSON_STRING) {
            fsdpck_json_skip(&j);
            continue;
        }
        const char *name = fsdpck_json_string(&j);
        *found = name && fsdpck_dtype_from_name(name, dtype);
    }
    fsdpck_json_end(&j);
    fsdpck_json_free(&j);
    return j.failed ? err->code : 0;
}

/* ---- quantization_config ---- */

/* depth 1: an inner model's. */
static void find_quantized(struct fsdpck_json *j, int depth, char key[64])
{
    const char *name;
    if (fsdpck_json_peek(j) != FSDPCK_JSON_OBJECT) {
        fsdpck_json_skip(j);
        return;
    }
    fsdpck_json_object(j);
    while (fsdpck_json_next_key(j, &name)) {
        const bool quantized = strcmp(name, "quantization_config") == 0 || strcmp(name, "compression_config") == 0;
        if (quantized && fsdpck_json_peek(j) != FSDPCK_JSON_NULL)
            snprintf(key, 64, "%s", name);
        if (!quantized && depth == 0 && is_model_key(name))
            find_quantized(j, 1, key);
        else
            fsdpck_json_skip(j);
    }
}

int fsdpck_config_quantized(const char *file, const char *text, size_t nbytes, char key[64], struct fsdpck_error *err)
{
    struct fsdpck_json j;
    struct fsdpck_error own = { 0 };
    *key = '\0';
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own));
    find_quantized(&j, 0, key);
    fsdpck_json_end(&j);
    int rc = j.failed ? err->code : 0;
    fsdpck_json_free(&j);
    return rc;
}

/* ---- writing the dtype ---- */

static void splice(struct fsdpck_text *t, const char *text, size_t nbytes, const struct fsdpck_vec *spans, bool add,
                   const char *dtype)
{
    const struct span *s = spans->data;
    size_t at = 0;
    if (add) {
        at = (size_t)((const char *)memchr(text, '{', nbytes) - text) + 1;
        size_t next = at + strspn(text + at, " \t\r\n");
        fsdpck_text_add(t, text, at);
        fsdpck_text_printf(t, "\n  \"torch_dtype\": \"%s\"%s", dtype, text[next] == '}' ? "\n" : ",");
    }
    for (size_t i = 0; i < spans->count; i++) {
        fsdpck_text_add(t, text + at, s[i].at - at);
        fsdpck_text_json(t, dtype);
        at = s[i].at + s[i].nbytes;
    }
    fsdpck_text_add(t, text + at, nbytes - at);
}

int fsdpck_config_set_dtype(const char *file, const char *text, size_t nbytes, const char *dtype, char **out,
                            uint64_t *out_nbytes, struct fsdpck_error *err)
{
    struct fsdpck_vec spans = FSDPCK_VEC(struct span);
    struct fsdpck_text t = { 0 };
    struct fsdpck_error own_err = { 0 };
    struct fsdpck_json j;
    bool own;
    fsdpck_json_begin(&j, file, 0, text, nbytes, err ? err : (err = &own_err));
    int rc = find_values(&j, &spans, &own, err);
    if (!rc && j.failed)
        rc = err->code;
    if (!rc) {
        splice(&t, text, nbytes, &spans, !own, dtype);
        rc = fsdpck_text_check(&t, err);
    }
    if (!rc) {
        *out = t.data;
        *out_nbytes = t.nbytes;
        t.data = NULL;
    }
    fsdpck_text_free(&t);
    fsdpck_json_free(&j);
    fsdpck_vec_free(&spans);
    return rc;
}

/* ---- families ---- */

int fsdpck_config_refuse_family(const char *file, const char *model_type, const char *none, const void *rows, size_t n,
                                size_t row_nbytes, struct fsdpck_error *err)
{
    char known[400] = "";
    size_t at = 0;
    for (size_t i = 0; i < n && at < sizeof known; i++) {
        const char *family;
        memcpy(&family, (const char *)rows + i * row_nbytes, sizeof family);
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", family);
    }
    return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, file, "model_type '%s' is %s; known are %s", model_type, none,
                            known);
}
