/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over a pickled tree. Sharing can turn a small pickle into a huge tree, so every step is charged to a budget
 * proportional to the pickle's size. */
#include "torch/pt/walk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torch/pickle/tensor_node.h"

#define MAX_DEPTH         1000u /* the same as the pickle reader's */
#define STEPS_A_BYTE      8u
#define NAME_BYTES_A_STEP 64u

struct walk {
    const struct fsdpck_pt_walk *w;
    uint64_t budget;
    struct fsdpck_vec path; /* struct fsdpck_key */
    struct fsdpck_vec name; /* char, without NUL while walking */
};

static bool is_tensor(const struct walk *k, fsdpck_node n)
{
    fsdpck_node args;
    return fsdpck_tensor_node_maker(k->w->p, n, &args) != NULL;
}

static bool is_dict(const struct walk *k, fsdpck_node n)
{
    return fsdpck_pickle_type(k->w->p, n) == FSDPCK_PICKLE_DICT ||
           (fsdpck_pickle_made_by(k->w->p, n, "collections OrderedDict") &&
            !fsdpck_pickle_count(k->w->p, fsdpck_pickle_child(k->w->p, n, 1)));
}

static int charge(struct walk *k, uint64_t steps)
{
    if (steps > k->budget)
        return fsdpck_error_set(k->w->err, FSDPCK_ERR_LIMIT, k->w->file,
                                "the pickle's %" PRIu64 " bytes describe a tree too large for them", k->w->nbytes);
    k->budget -= steps;
    return 0;
}

/* *out: walk into the list or tuple, because it contains a tensor at any depth, or (a list, through lists) a dict. */
static int has_tensor_inside(struct walk *k, fsdpck_node n, bool dicts, bool *out)
{
    const struct fsdpck_pickle *p = k->w->p;
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    int rc = charge(k, 1);
    *out = false;
    if (rc || is_tensor(k, n)) {
        *out = !rc;
        return rc;
    }
    if (is_dict(k, n) && dicts) {
        *out = true;
        return 0;
    }
    if (type != FSDPCK_PICKLE_LIST && type != FSDPCK_PICKLE_TUPLE && type != FSDPCK_PICKLE_DICT)
        return 0;
    for (size_t i = 0; !rc && !*out && i < fsdpck_pickle_count(p, n); i++)
        rc = has_tensor_inside(k, fsdpck_pickle_child(p, n, i), dicts && type == FSDPCK_PICKLE_LIST, out);
    return rc;
}

static int put_name(struct walk *k, const char *text, size_t nbytes)
{
    size_t old = k->name.count;
    if (fsdpck_vec_reserve(&k->name, old + nbytes + 2, k->w->err))
        return FSDPCK_ERR_NOMEM;
    char *at = (char *)k->name.data + old;
    if (k->path.count > 1)
        *at++ = '.';
    memcpy(at, text, nbytes);
    k->name.count = (size_t)(at - (char *)k->name.data) + nbytes;
    return 0;
}

static int walk(struct walk *k, fsdpck_node n, unsigned depth);

/* Goes one level down. text: the key; NULL for a position. */
static int descend(struct walk *k, const char *text, uint64_t position, fsdpck_node n, unsigned depth)
{
    char digits[24];
    size_t before = k->name.count;
    struct fsdpck_key *key = fsdpck_vec_push(&k->path, k->w->err);
    if (!key)
        return FSDPCK_ERR_NOMEM;
    *key = (struct fsdpck_key){ text, position };
    snprintf(digits, sizeof digits, "%" PRIu64, position);
    int rc = text ? put_name(k, text, strlen(text)) : put_name(k, digits, strlen(digits));
    if (!rc)
        rc = charge(k, 1 + k->name.count / NAME_BYTES_A_STEP);
    if (!rc)
        rc = walk(k, n, depth + 1);
    k->name.count = before;
    k->path.count--;
    return rc;
}

/* Returns a key as torch's str() prints it; NULL if its type is not supported. */
static const char *key_text(const struct walk *k, fsdpck_node n, char digits[24])
{
    const struct fsdpck_pickle *p = k->w->p;
    size_t nbytes;
    int64_t v = 0;
    const char *s;
    switch (fsdpck_pickle_type(p, n)) {
    case FSDPCK_PICKLE_STRING: s = fsdpck_pickle_text(p, n, &nbytes); return strlen(s) == nbytes ? s : NULL;
    case FSDPCK_PICKLE_INT:
        fsdpck_pickle_int(p, n, &v);
        snprintf(digits, 24, "%" PRId64, v);
        return digits;
    case FSDPCK_PICKLE_BOOL: fsdpck_pickle_int(p, n, &v); return v ? "True" : "False";
    case FSDPCK_PICKLE_NONE: return n == FSDPCK_NO_NODE ? NULL : "None";
    default: return NULL;
    }
}

static int walk_dict(struct walk *k, fsdpck_node n, unsigned depth)
{
    const struct fsdpck_pickle *p = k->w->p;
    size_t count = fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_DICT ? fsdpck_pickle_count(p, n) : 0;
    int rc = 0;
    for (size_t i = 0; !rc && i + 1 < count; i += 2) {
        char digits[24];
        const char *text = key_text(k, fsdpck_pickle_child(p, n, i), digits);
        if (!text)
            return fsdpck_error_set(k->w->err, FSDPCK_ERR_UNSUPPORTED, k->w->file,
                                    "key %zu of dict '%.*s' is neither a plain string nor an integer", i / 2,
                                    (int)(k->name.count < 200 ? k->name.count : 200),
                                    k->name.count ? (char *)k->name.data : "");
        rc = descend(k, text, 0, fsdpck_pickle_child(p, n, i + 1), depth);
    }
    return rc;
}

static int visit(struct walk *k, fsdpck_leaf_fn leaf, fsdpck_node n)
{
    static const struct fsdpck_key root = { "tensor", 0 };
    if (!k->path.count)
        return leaf(k->w->ctx, root.str, &root, 1, n);
    ((char *)k->name.data)[k->name.count] = 0; /* put_name() has reserved the space */
    return leaf(k->w->ctx, k->name.data, k->path.data, (uint32_t)k->path.count, n);
}

static int walk(struct walk *k, fsdpck_node n, unsigned depth)
{
    const struct fsdpck_pickle *p = k->w->p;
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    bool inside = false;
    int rc = 0;
    if (depth > MAX_DEPTH)
        return fsdpck_error_set(k->w->err, FSDPCK_ERR_LIMIT, k->w->file, "values are nested more than %u deep",
                                MAX_DEPTH);
    if (is_tensor(k, n))
        return visit(k, k->w->tensor, n);
    if (is_dict(k, n))
        return walk_dict(k, n, depth);
    if (type == FSDPCK_PICKLE_LIST || type == FSDPCK_PICKLE_TUPLE)
        rc = has_tensor_inside(k, n, type == FSDPCK_PICKLE_LIST, &inside);
    if (!rc && !inside && !k->path.count)
        return fsdpck_error_set(k->w->err, FSDPCK_ERR_FORMAT, k->w->file, "holds neither a tensor nor a dict of them");
    if (!rc && !inside)
        return visit(k, k->w->value, n);
    for (size_t i = 0; !rc && i < fsdpck_pickle_count(p, n); i++)
        rc = descend(k, NULL, i, fsdpck_pickle_child(p, n, i), depth);
    return rc;
}

int fsdpck_pt_walk(const struct fsdpck_pt_walk *w)
{
    struct walk k = { .w = w,
                      .budget = STEPS_A_BYTE * w->nbytes + 65536,
                      .path = FSDPCK_VEC(struct fsdpck_key),
                      .name = FSDPCK_VEC(char) };
    int rc = w->tree ? descend(&k, w->tree, 0, w->root, 0) : walk(&k, w->root, 0);
    fsdpck_vec_free(&k.path);
    fsdpck_vec_free(&k.name);
    return rc;
}
