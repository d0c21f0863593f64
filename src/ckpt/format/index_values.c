/* SPDX-License-Identifier: Apache-2.0 */
/* The small values of index.json: hashes, texts, lists of integers, paths, and the keys of an object. Knows the JSON
 * reader and the arena, not the purpose of the values. */
#include "format/index_parse.h"

#include <string.h>

#include "base/json_write.h"

bool fsdpck_index_failed(struct index_parse *p, int code)
{
    if (code != 0)
        p->j.failed = true;
    return p->j.failed;
}

void fsdpck_index_bad(struct index_parse *p, const char *what)
{
    fsdpck_json_fail(&p->j, FSDPCK_ERR_FORMAT, "%s", what);
}

int fsdpck_index_next_field(struct index_parse *p, const char *const *names, uint32_t *seen)
{
    const char *key;
    while (fsdpck_json_next_key(&p->j, &key)) {
        int i = 0;
        while (names[i] && strcmp(names[i], key) != 0)
            i++;
        if (!names[i]) {
            fsdpck_json_skip(&p->j);
            continue;
        }
        if (*seen & 1u << i) {
            fsdpck_json_fail(&p->j, FSDPCK_ERR_FORMAT, "key '%s' is there twice", key);
            return -1;
        }
        *seen |= 1u << i;
        return i;
    }
    return -1;
}

void fsdpck_index_parse_hash(struct index_parse *p, uint8_t hash[16])
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && (strlen(s) != 32 || !fsdpck_hex_parse(s, hash, 16)))
        fsdpck_index_bad(p, "a hash is not 32 lower-case hex digits");
}

char *fsdpck_index_parse_text(struct index_parse *p)
{
    const char *s = fsdpck_json_string(&p->j);
    char *copy = s ? fsdpck_arena_strndup(&p->src->arena, s, strlen(s), p->err) : NULL;
    if (!copy)
        p->j.failed = true;
    return copy;
}

void *fsdpck_index_keep(struct index_parse *p, struct fsdpck_vec *v)
{
    void *copy = p->j.failed ? NULL : fsdpck_arena_array(&p->src->arena, v->count, v->item_nbytes, p->err);
    if (copy && v->count)
        memcpy(copy, v->data, v->count * v->item_nbytes);
    p->j.failed |= !copy;
    fsdpck_vec_free(v);
    return copy;
}

uint64_t *fsdpck_index_parse_u64s(struct index_parse *p, uint32_t max, uint32_t *count)
{
    uint64_t values[FSDPCK_MAX_DIMS];
    *count = 0;
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (*count == max || *count == FSDPCK_MAX_DIMS) {
            fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "more than %u numbers in a list", max);
            return NULL;
        }
        values[(*count)++] = fsdpck_json_u64(&p->j);
    }
    uint64_t *copy = p->j.failed ? NULL : fsdpck_arena_array(&p->src->arena, *count, sizeof *copy, p->err);
    if (copy && *count)
        memcpy(copy, values, *count * sizeof *copy);
    p->j.failed |= !copy;
    return copy;
}

void fsdpck_index_parse_dtype(struct index_parse *p, enum fsdpck_dtype *dtype)
{
    const char *s = fsdpck_json_string(&p->j);
    if (s && !fsdpck_dtype_from_name(s, dtype))
        fsdpck_json_fail(&p->j, FSDPCK_ERR_UNSUPPORTED, "dtype '%s' is not known", s);
}

const uint64_t *fsdpck_index_parse_shape(struct index_parse *p, uint32_t *ndim)
{
    const uint64_t *shape = fsdpck_index_parse_u64s(p, FSDPCK_MAX_DIMS, ndim);
    for (uint32_t d = 0; shape && d < *ndim; d++)
        if (shape[d] > INT64_MAX)
            fsdpck_index_bad(p, "a dimension of a shape does not fit 63 bits");
    return shape;
}

const struct fsdpck_key *fsdpck_index_parse_path(struct index_parse *p, uint32_t *npath)
{
    struct fsdpck_key keys[FSDPCK_MAX_DIMS] = { { 0 } };
    *npath = 0;
    fsdpck_json_array(&p->j);
    while (fsdpck_json_next_item(&p->j)) {
        if (*npath == FSDPCK_MAX_DIMS) {
            fsdpck_json_fail(&p->j, FSDPCK_ERR_LIMIT, "a path of more than %d keys", FSDPCK_MAX_DIMS);
            return NULL;
        }
        if (fsdpck_json_peek(&p->j) == FSDPCK_JSON_STRING)
            keys[*npath].str = fsdpck_index_parse_text(p);
        else
            keys[*npath].position = fsdpck_json_u64(&p->j);
        ++*npath;
    }
    if (!p->j.failed && *npath == 0)
        fsdpck_index_bad(p, "an empty path");
    const struct fsdpck_key *copy = p->j.failed ? NULL : fsdpck_source_copy_path(p->src, keys, *npath, p->err);
    p->j.failed |= !copy;
    return copy;
}
