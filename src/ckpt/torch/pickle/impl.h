/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the pickle reader: the pool of nodes (tree.c) that the opcode machine (pickle.c) fills. */
#ifndef CKPT_PICKLE_IMPL_H
#define CKPT_PICKLE_IMPL_H

#include "base/arena.h"
#include "base/names.h"
#include "torch/pickle/pickle.h"
#include "base/vec.h"

/* A .metadata has about twenty values per chunk, so a value takes at most these 16 bytes: up to two children are stored
 * in the node, and integers of 31 bits are stored in the handle (top bit set) without a node. */
struct pickle_node {
    uint8_t type;   /* enum fsdpck_pickle_type */
    uint8_t flags;  /* PICKLE_… */
    uint16_t depth; /* 0 for leaves, 1 + the deepest child */
    uint32_t count; /* number of children, or bytes of text; the state of a CALL or OBJECT */
    union {
        int64_t number;
        double real;
        const char *text;
        fsdpck_node pair[2]; /* CALL, OBJECT, PERSISTENT, and TUPLE of one or two */
        uint64_t first;      /* index in the child table: LIST, SET, DICT, longer TUPLE */
    } as;
};

/* Part of another value: must not change any more. Picklers finish a value before they put it into another one, except
 * for values that contain themselves. So this rule prevents cycles, and the depth of a child is final. */
#define PICKLE_SEALED 1u
#define PICKLE_GROWN  2u /* capacity for children is the next power of two, not exact */

#define PICKLE_MAX_DEPTH 1000u
#define PICKLE_MAX_NODES 0x7ffffff0u
#define PICKLE_IMMEDIATE 0x80000000u

enum { PICKLE_NODE_NONE, PICKLE_NODE_FALSE, PICKLE_NODE_TRUE, PICKLE_NODE_EMPTY_TUPLE }; /* shared nodes */

struct fsdpck_pickle {
    struct fsdpck_vec nodes;    /* struct pickle_node */
    struct fsdpck_vec children; /* fsdpck_node */
    struct fsdpck_arena text;
    struct fsdpck_names strings; /* -> node: equal strings are stored once (ranks repeat each tensor's name) */
    fsdpck_node root;
    size_t used;
    /* Only for messages while parsing. */
    const char *file;
    uint64_t at;
    struct fsdpck_error *err;
};

static inline struct pickle_node *pickle_node(const struct fsdpck_pickle *p, fsdpck_node n)
{
    return &((struct pickle_node *)p->nodes.data)[n];
}
static inline bool pickle_immediate(fsdpck_node n)
{
    return n & PICKLE_IMMEDIATE && n != FSDPCK_NO_NODE;
}

/* On failure these fill p->err and return FSDPCK_NO_NODE or false. */
bool fsdpck_pickle_setup(struct fsdpck_pickle *p); /* makes the shared nodes */
fsdpck_node fsdpck_pickle_new_node(struct fsdpck_pickle *p, enum fsdpck_pickle_type type);
fsdpck_node fsdpck_pickle_new_int(struct fsdpck_pickle *p, int64_t value);
fsdpck_node fsdpck_pickle_new_text(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, const void *bytes,
                                   size_t nbytes);
/* seen: ((number of allowed names)) the node of each name, NO_NODE if new, so that each name has one node. */
fsdpck_node fsdpck_pickle_new_global(struct fsdpck_pickle *p, const char *const *allowed, fsdpck_node *seen,
                                     const char *module, size_t module_nbytes, const char *name, size_t name_nbytes);
bool fsdpck_pickle_refuse(struct fsdpck_pickle *p,
                          uint8_t op); /* returns false and sets the error for an opcode that is not accepted */
/* getattr is allowed for one purpose only: getattr(class, "MEMBER"), which Python up to 3.11.3 writes for a member of
 * an enum. */
bool fsdpck_pickle_may_make(struct fsdpck_pickle *p, fsdpck_node callable, fsdpck_node arguments);
fsdpck_node fsdpck_pickle_new_tuple(struct fsdpck_pickle *p, const fsdpck_node *children, size_t count);
/* CALL or OBJECT of (callable, arguments); PERSISTENT of (id, FSDPCK_NO_NODE). */
fsdpck_node fsdpck_pickle_new_pair(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, fsdpck_node a, fsdpck_node b);
bool fsdpck_pickle_append(struct fsdpck_pickle *p, fsdpck_node container, const fsdpck_node *children, size_t count);
bool fsdpck_pickle_set_state(struct fsdpck_pickle *p, fsdpck_node object, fsdpck_node state);

#endif
