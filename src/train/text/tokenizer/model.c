/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the "model" of a tokenizer.json: vocabulary and merges of BPE. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer/impl.h"
#include "text/utf8.h"

int tok_alphabet_byte(uint32_t c)
{
    /* Printable bytes map to themselves; the 68 others map in order to U+0100 and up. */
    static const unsigned char others[68] = {
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  16,
        17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,  32,  127,
        128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144,
        145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 173,
    };
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 255 && c != 173))
        return (int)c;
    return c >= 256 && c < 256 + 68 ? others[c - 256] : -1;
}

bool tok_alphabet_bytes(const char *s, size_t nbytes, char *out, size_t *out_nbytes)
{
    size_t n = 0, step;
    for (size_t i = 0; i < nbytes; i += step) {
        int byte = tok_alphabet_byte(utf8_get(s + i, &step));
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
    }
    *out_nbytes = n;
    return true;
}

static int read_token(struct tokenizer *t, const char *key, size_t key_nbytes, json_t *value, uint32_t limit,
                      struct fsdpck_error *err)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= limit)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.vocab: '%.60s' has no id in 0 … %u", key, limit - 1);
    if (t->tokens[id].nbytes != UINT32_MAX)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.vocab: '%.60s' and '%.60s' have the same id %lld",
                        t->strings.s + t->tokens[id].at, key, (long long)id);
    if (!text_add(&t->strings, key, key_nbytes, &t->tokens[id]))
        return fsdpck_error_nomem(err, key_nbytes);
    t->nids = (uint32_t)id >= t->nids ? (uint32_t)id + 1 : t->nids;
    string_map_put(&t->ids, t->strings.s, t->tokens[id], (uint32_t)id);
    return 0;
}

static int read_vocab(struct tokenizer *t, json_t *vocab, struct fsdpck_error *err)
{
    size_t count = json_object_size(vocab);
    if (!json_is_object(vocab) || count == 0 || count > TOK_MAX_ID / 8)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.vocab: an object of 1 to %d tokens and their ids is wanted",
                        TOK_MAX_ID / 8);
    uint32_t limit = (uint32_t)(4 * count + 65536); /* bounds the memory for holes in the ids by the size of the file */
    t->tokens = malloc(limit * sizeof *t->tokens);
    if (!t->tokens || !string_map_reserve(&t->ids, count))
        return fsdpck_error_nomem(err, limit * sizeof *t->tokens);
    for (uint32_t i = 0; i < limit; i++)
        t->tokens[i] = NO_SPAN;
    const char *key;
    size_t key_nbytes;
    json_t *value;
    int rc = 0;
    json_object_keylen_foreach(vocab, key, key_nbytes, value)
    {
        if (!rc)
            rc = read_token(t, key, key_nbytes, value, limit, err);
    }
    t->nmodel = (uint32_t)count;
    return rc;
}

/* Looks up one half of a merge. An unknown half is an error that names it. */
static int half(struct tokenizer *t, size_t rank, const char *s, size_t nbytes, uint32_t *id, struct fsdpck_error *err)
{
    if (string_map_get(&t->ids, t->strings.s, s, nbytes, id))
        return 0;
    return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.merges, entry %zu: '%.*s' is not in model.vocab", rank,
                    (int)(nbytes > 60 ? 60 : nbytes), s);
}

static int read_merge(struct tokenizer *t, json_t *merge, uint32_t rank, char **joined, size_t *capacity,
                      struct fsdpck_error *err)
{
    const char *a = json_string_value(merge), *b = NULL;
    size_t na = 0, nb = 0;
    if (a) { /* the older format "a b" */
        const char *space = memchr(a, ' ', json_string_length(merge));
        na = space ? (size_t)(space - a) : 0;
        b = space ? space + 1 : NULL;
        nb = space ? json_string_length(merge) - na - 1 : 0;
        if (b && memchr(b, ' ', nb))
            b = NULL;
    } else if (json_array_size(merge) == 2) {
        json_t *x = json_array_get(merge, 0), *y = json_array_get(merge, 1);
        a = json_string_value(x);
        b = json_string_value(y);
        na = json_string_length(x);
        nb = json_string_length(y);
    }
    if (!a || !b)
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.merges, entry %u: two tokens are wanted", rank);
    if (!grow((void **)joined, capacity, na + nb, 1))
        return fsdpck_error_nomem(err, na + nb);
    memcpy(*joined, a, na);
    memcpy(*joined + na, b, nb);
    uint32_t x, y, both;
    int rc = half(t, rank, a, na, &x, err);
    if (!rc)
        rc = half(t, rank, b, nb, &y, err);
    if (!rc)
        rc = half(t, rank, *joined, na + nb, &both, err);
    if (!rc)
        pair_map_put(&t->merges, x, y, rank, both);
    return rc;
}

static int read_merges(struct tokenizer *t, json_t *merges, struct fsdpck_error *err)
{
    char *joined = NULL;
    size_t capacity = 0, i;
    json_t *merge;
    if (!json_is_array(merges))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.merges: a list is wanted");
    int rc = pair_map_reserve(&t->merges, json_array_size(merges))
                 ? 0
                 : fsdpck_error_nomem(err, json_array_size(merges) * 32);
    uint32_t rank = 0;
    json_array_foreach (merges, i, merge) {
        const char *line = json_string_value(merge);
        if (!rc && !(line && strncmp(line, "#version", 8) == 0))
            rc = read_merge(t, merge, rank++, &joined, &capacity, err);
    }
    free(joined);
    return rc;
}

static bool is_off(json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static int check_model(struct tokenizer *t, json_t *model, struct fsdpck_error *err)
{
    static const char *const unknown[] = { "dropout", "continuing_subword_prefix", "end_of_word_suffix" };
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "key 'model': an object is wanted");
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"))
        return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "model.type is %.60s; this version knows BPE",
                        type ? type : "not given");
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        if (!is_off(json_object_get(model, unknown[i])))
            return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED, "model.%s is not in this version", unknown[i]);
    }
    return 0;
}

static int read_unk(struct tokenizer *t, json_t *model, struct fsdpck_error *err)
{
    json_t *unk = json_object_get(model, "unk_token");
    t->unk = TOK_NONE;
    if (!unk || json_is_null(unk))
        return 0;
    if (!json_is_string(unk) ||
        !string_map_get(&t->ids, t->strings.s, json_string_value(unk), json_string_length(unk), &t->unk))
        return TOK_FAIL(FSDPCK_ERR_FORMAT, "model.unk_token is no token of model.vocab");
    return 0;
}

/* Stores byte-level tokens as the bytes that they encode. A token with a character outside the alphabet cannot be a
 * word. */
static int make_words(struct tokenizer *t, struct fsdpck_error *err)
{
    if (!string_map_reserve(&t->words, t->nmodel))
        return fsdpck_error_nomem(err, t->nmodel * sizeof *t->words.entries);
    for (uint32_t id = 0; id < t->nids; id++) {
        struct span token = t->tokens[id], bytes;
        if (token.nbytes == UINT32_MAX)
            continue;
        char *copy = malloc(token.nbytes + 1u);
        size_t n = 0;
        bool known = copy && tok_alphabet_bytes(t->strings.s + token.at, token.nbytes, copy, &n);
        bool added = !known || text_add(&t->strings, copy, n, &bytes);
        if (known && added)
            string_map_put(&t->words, t->strings.s, bytes, id);
        free(copy);
        if (!copy || !added)
            return fsdpck_error_nomem(err, token.nbytes);
    }
    return 0;
}

static int make_byte_ids(struct tokenizer *t, struct fsdpck_error *err)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8], byte = (char)b;
        const struct string_map *map = t->byte_level ? &t->words : &t->ids;
        t->byte_ids[b] = t->fallback[b] = TOK_NONE;
        if (t->byte_level || b < 128)
            string_map_get(map, t->strings.s, &byte, 1, &t->byte_ids[b]);
        snprintf(name, sizeof name, "<0x%02X>", b);
        string_map_get(&t->ids, t->strings.s, name, 6, &t->fallback[b]);
        if (t->byte_level && t->byte_ids[b] == TOK_NONE && (t->byte_fallback || t->unk != TOK_NONE))
            return TOK_FAIL(FSDPCK_ERR_UNSUPPORTED,
                            "byte 0x%02x is in no token, and byte-level tokens with byte_fallback or unk_token are not "
                            "in this version",
                            b);
    }
    return 0;
}

/* True if "▁" is a token and occurs only at the beginning of merged tokens (or in runs of itself): then no merge
 * crosses the boundary before it. */
static bool breaks_at_space(const struct tokenizer *t)
{
    static const char mark[] = "\xe2\x96\x81";
    uint32_t id;
    if (t->byte_level || !string_map_get(&t->ids, t->strings.s, mark, 3, &id))
        return false;
    for (size_t i = 0; i <= t->merges.mask; i++) {
        if (t->merges.entries[i].key == UINT64_MAX)
            continue;
        struct span token = t->tokens[t->merges.entries[i].id];
        bool other = false;
        for (uint32_t at = 0; at < token.nbytes;) {
            const char *s = t->strings.s + token.at + at;
            bool is_mark = token.nbytes - at >= 3 && memcmp(s, mark, 3) == 0;
            if (is_mark && other)
                return false;
            other |= !is_mark;
            at += (uint32_t)utf8_nbytes((unsigned char)*s);
        }
    }
    return true;
}

int tok_read_model(struct tokenizer *t, json_t *model, struct fsdpck_error *err)
{
    int rc = check_model(t, model, err);
    if (rc)
        return rc;
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    rc = read_vocab(t, json_object_get(model, "vocab"), err);
    if (!rc)
        rc = read_merges(t, json_object_get(model, "merges"), err);
    if (!rc)
        rc = read_unk(t, model, err);
    if (!rc && t->byte_level)
        rc = make_words(t, err);
    if (!rc)
        rc = make_byte_ids(t, err);
    t->breaks_at_space = !rc && breaks_at_space(t);
    return rc;
}
