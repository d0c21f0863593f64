/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a pickle as a pool of small nodes: storage and access. It knows no opcode, no class and no meaning of
 * names. */
#include "torch/pickle/impl.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_NBYTES 512u /* strings shorter than this are stored once */

static bool fail(struct fsdpck_pickle *p, int code, const char *what)
{
    fsdpck_error_at(p->err, code, p->file, p->at, "%s", what);
    return false;
}

fsdpck_node fsdpck_pickle_new_node(struct fsdpck_pickle *p, enum fsdpck_pickle_type type)
{
    size_t n = p->nodes.count;
    if (n >= PICKLE_MAX_NODES) {
        fsdpck_error_at(p->err, FSDPCK_ERR_LIMIT, p->file, p->at, "the pickle has more than %u values",
                        PICKLE_MAX_NODES);
        return FSDPCK_NO_NODE;
    }
    struct pickle_node *node = fsdpck_vec_push(&p->nodes, p->err);
    if (!node)
        return FSDPCK_NO_NODE;
    node->type = (uint8_t)type;
    return (fsdpck_node)n;
}

bool fsdpck_pickle_setup(struct fsdpck_pickle *p)
{
    fsdpck_pickle_new_node(p, FSDPCK_PICKLE_NONE);
    fsdpck_pickle_new_node(p, FSDPCK_PICKLE_BOOL);
    fsdpck_node yes = fsdpck_pickle_new_node(p, FSDPCK_PICKLE_BOOL);
    if (fsdpck_pickle_new_node(p, FSDPCK_PICKLE_TUPLE) != PICKLE_NODE_EMPTY_TUPLE)
        return false;
    pickle_node(p, yes)->as.number = 1;
    return true;
}

fsdpck_node fsdpck_pickle_new_int(struct fsdpck_pickle *p, int64_t value)
{
    if (value >= 0 && value < (int64_t)(FSDPCK_NO_NODE & ~PICKLE_IMMEDIATE))
        return (fsdpck_node)value | PICKLE_IMMEDIATE;
    fsdpck_node n = fsdpck_pickle_new_node(p, FSDPCK_PICKLE_INT);
    if (n != FSDPCK_NO_NODE)
        pickle_node(p, n)->as.number = value;
    return n;
}

fsdpck_node fsdpck_pickle_new_text(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, const void *bytes,
                                   size_t nbytes)
{
    /* The table compares strings up to the first NUL, so strings with a NUL are excluded. Long strings rarely
     * repeat. */
    bool shared = type == FSDPCK_PICKLE_STRING && nbytes < SHARED_NBYTES && !memchr(bytes, 0, nbytes);
    if (shared) {
        char key[SHARED_NBYTES];
        memcpy(key, bytes, nbytes);
        key[nbytes] = 0;
        size_t old = fsdpck_names_find(&p->strings, key);
        if (old != SIZE_MAX)
            return (fsdpck_node)old;
    }
    char *text = fsdpck_arena_strndup(&p->text, bytes, nbytes, p->err);
    fsdpck_node n = text ? fsdpck_pickle_new_node(p, type) : FSDPCK_NO_NODE;
    if (n == FSDPCK_NO_NODE)
        return n;
    pickle_node(p, n)->count = (uint32_t)nbytes;
    pickle_node(p, n)->as.text = text;
    size_t old;
    return shared && fsdpck_names_add(&p->strings, text, n, &old, p->err) ? FSDPCK_NO_NODE : n;
}

/* Records that `child` is now part of `parent`. */
static bool attach(struct fsdpck_pickle *p, fsdpck_node parent, fsdpck_node child)
{
    if (child == FSDPCK_NO_NODE)
        return true;
    if (child == parent)
        return fail(p, FSDPCK_ERR_FORMAT, "a value is put into itself");
    uint32_t depth = 1;
    if (!pickle_immediate(child)) {
        pickle_node(p, child)->flags |= PICKLE_SEALED;
        depth += pickle_node(p, child)->depth;
    }
    if (depth > PICKLE_MAX_DEPTH)
        return fail(p, FSDPCK_ERR_LIMIT, "values are nested more than 1000 deep");
    if (depth > pickle_node(p, parent)->depth)
        pickle_node(p, parent)->depth = (uint16_t)depth;
    return true;
}

fsdpck_node fsdpck_pickle_new_pair(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, fsdpck_node a, fsdpck_node b)
{
    fsdpck_node n = fsdpck_pickle_new_node(p, type);
    if (n == FSDPCK_NO_NODE || !attach(p, n, a) || !attach(p, n, b))
        return FSDPCK_NO_NODE;
    struct pickle_node *node = pickle_node(p, n);
    node->count = FSDPCK_NO_NODE; /* no state yet */
    node->as.pair[0] = a;
    node->as.pair[1] = b;
    return n;
}

static uint64_t room_of(const struct pickle_node *node, uint64_t count)
{
    if (!(node->flags & PICKLE_GROWN))
        return count;
    uint64_t room = 4;
    while (room < count)
        room *= 2;
    return room;
}

/* The first children of a container get exactly their space, since most dicts and tuples never grow; later ones double
 * the capacity. */
static bool make_room(struct fsdpck_pickle *p, fsdpck_node container, size_t more)
{
    struct pickle_node *node = pickle_node(p, container);
    uint64_t want = (uint64_t)node->count + more, old = room_of(node, node->count);
    if (want > UINT32_MAX)
        return fail(p, FSDPCK_ERR_LIMIT, "a container has more than 4294967295 members");
    if (want <= old)
        return true;
    if (node->count)
        node->flags |= PICKLE_GROWN;
    size_t at = p->children.count, room = (size_t)room_of(node, want);
    if (at + room > p->children.capacity && fsdpck_vec_reserve(&p->children, at + room + at / 2, p->err))
        return false;
    fsdpck_node *all = p->children.data;
    if (node->count)
        memcpy(all + at, all + node->as.first, node->count * sizeof *all);
    p->children.count += room;
    node->as.first = at;
    return true;
}

bool fsdpck_pickle_append(struct fsdpck_pickle *p, fsdpck_node container, const fsdpck_node *children, size_t count)
{
    if (!count)
        return true; /* on any value, as in Python: it may be an integer, which has no node */
    if (pickle_node(p, container)->flags & PICKLE_SEALED)
        return fail(p, FSDPCK_ERR_FORMAT, "a container is changed after it was put into another one (or into itself)");
    if (!make_room(p, container, count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!attach(p, container, children[i]))
            return false;
    struct pickle_node *node = pickle_node(p, container);
    memcpy((fsdpck_node *)p->children.data + node->as.first + node->count, children, count * sizeof *children);
    node->count += (uint32_t)count;
    return true;
}

fsdpck_node fsdpck_pickle_new_tuple(struct fsdpck_pickle *p, const fsdpck_node *children, size_t count)
{
    if (count == 0)
        return PICKLE_NODE_EMPTY_TUPLE;
    if (count <= 2) {
        fsdpck_node n =
            fsdpck_pickle_new_pair(p, FSDPCK_PICKLE_TUPLE, children[0], count == 2 ? children[1] : FSDPCK_NO_NODE);
        if (n != FSDPCK_NO_NODE)
            pickle_node(p, n)->count = (uint32_t)count;
        return n;
    }
    fsdpck_node n = fsdpck_pickle_new_node(p, FSDPCK_PICKLE_TUPLE);
    return n != FSDPCK_NO_NODE && fsdpck_pickle_append(p, n, children, count) ? n : FSDPCK_NO_NODE;
}

bool fsdpck_pickle_set_state(struct fsdpck_pickle *p, fsdpck_node object, fsdpck_node state)
{
    if (pickle_node(p, object)->flags & PICKLE_SEALED)
        return fail(p, FSDPCK_ERR_FORMAT,
                    "an object gets its state after it was put into another value (or into itself)");
    if (pickle_node(p, object)->count != FSDPCK_NO_NODE)
        return fail(p, FSDPCK_ERR_FORMAT, "an object gets its state twice");
    if (!attach(p, object, state))
        return false;
    pickle_node(p, object)->count = state;
    return true;
}

void fsdpck_pickle_free(struct fsdpck_pickle *p)
{
    if (!p)
        return;
    fsdpck_vec_free(&p->nodes);
    fsdpck_vec_free(&p->children);
    fsdpck_names_free(&p->strings);
    fsdpck_arena_free(&p->text);
    free(p);
}

fsdpck_node fsdpck_pickle_root(const struct fsdpck_pickle *p)
{
    return p->root;
}
size_t fsdpck_pickle_used(const struct fsdpck_pickle *p)
{
    return p->used;
}

static const struct pickle_node none = { .type = FSDPCK_PICKLE_NONE };

/* Returns NONE for an invalid handle, so that the result of a failed lookup may be used in another lookup. */
static const struct pickle_node *node_or_none(const struct fsdpck_pickle *p, fsdpck_node n)
{
    return n < p->nodes.count ? pickle_node(p, n) : &none;
}

enum fsdpck_pickle_type fsdpck_pickle_type(const struct fsdpck_pickle *p, fsdpck_node n)
{
    return pickle_immediate(n) ? FSDPCK_PICKLE_INT : (enum fsdpck_pickle_type)node_or_none(p, n)->type;
}

const char *fsdpck_pickle_text(const struct fsdpck_pickle *p, fsdpck_node n, size_t *nbytes)
{
    const struct pickle_node *node = node_or_none(p, n);
    switch (node->type) {
    case FSDPCK_PICKLE_STRING:
    case FSDPCK_PICKLE_BYTES:
    case FSDPCK_PICKLE_BIGINT:
    case FSDPCK_PICKLE_GLOBAL:
        if (nbytes)
            *nbytes = node->count;
        return node->as.text;
    default: return NULL;
    }
}

bool fsdpck_pickle_int(const struct fsdpck_pickle *p, fsdpck_node n, int64_t *out)
{
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    if (type != FSDPCK_PICKLE_INT && type != FSDPCK_PICKLE_BOOL)
        return false;
    *out = pickle_immediate(n) ? (int64_t)(n & ~PICKLE_IMMEDIATE) : node_or_none(p, n)->as.number;
    return true;
}

bool fsdpck_pickle_float(const struct fsdpck_pickle *p, fsdpck_node n, double *out)
{
    if (fsdpck_pickle_type(p, n) != FSDPCK_PICKLE_FLOAT)
        return false;
    *out = node_or_none(p, n)->as.real;
    return true;
}

size_t fsdpck_pickle_count(const struct fsdpck_pickle *p, fsdpck_node n)
{
    const struct pickle_node *node = node_or_none(p, n);
    switch (fsdpck_pickle_type(p, n)) {
    case FSDPCK_PICKLE_TUPLE:
    case FSDPCK_PICKLE_LIST:
    case FSDPCK_PICKLE_SET:
    case FSDPCK_PICKLE_DICT: return node->count;
    case FSDPCK_PICKLE_CALL:
    case FSDPCK_PICKLE_OBJECT: return 2;
    case FSDPCK_PICKLE_PERSISTENT: return 1;
    default: return 0;
    }
}

fsdpck_node fsdpck_pickle_child(const struct fsdpck_pickle *p, fsdpck_node n, size_t i)
{
    size_t count = fsdpck_pickle_count(p, n);
    if (i >= count)
        return FSDPCK_NO_NODE;
    const struct pickle_node *node = node_or_none(p, n);
    bool inside = node->type >= FSDPCK_PICKLE_CALL || (node->type == FSDPCK_PICKLE_TUPLE && count <= 2);
    return inside ? node->as.pair[i] : ((const fsdpck_node *)p->children.data)[node->as.first + i];
}

fsdpck_node fsdpck_pickle_get(const struct fsdpck_pickle *p, fsdpck_node dict, const char *key)
{
    if (fsdpck_pickle_type(p, dict) != FSDPCK_PICKLE_DICT)
        return FSDPCK_NO_NODE;
    /* Search from the end: Python keeps the last of equal keys. */
    for (size_t i = fsdpck_pickle_count(p, dict); i >= 2; i -= 2) {
        fsdpck_node k = fsdpck_pickle_child(p, dict, i - 2);
        if (fsdpck_pickle_type(p, k) == FSDPCK_PICKLE_STRING && !strcmp(fsdpck_pickle_text(p, k, NULL), key))
            return fsdpck_pickle_child(p, dict, i - 1);
    }
    return FSDPCK_NO_NODE;
}

fsdpck_node fsdpck_pickle_state(const struct fsdpck_pickle *p, fsdpck_node n)
{
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    return type == FSDPCK_PICKLE_CALL || type == FSDPCK_PICKLE_OBJECT ? node_or_none(p, n)->count : FSDPCK_NO_NODE;
}

bool fsdpck_pickle_is(const struct fsdpck_pickle *p, fsdpck_node n, const char *name)
{
    return fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_GLOBAL && !strcmp(fsdpck_pickle_text(p, n, NULL), name);
}

bool fsdpck_pickle_made_by(const struct fsdpck_pickle *p, fsdpck_node n, const char *name)
{
    enum fsdpck_pickle_type type = fsdpck_pickle_type(p, n);
    return (type == FSDPCK_PICKLE_CALL || type == FSDPCK_PICKLE_OBJECT) &&
           fsdpck_pickle_is(p, fsdpck_pickle_child(p, n, 0), name);
}
