/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the pickle reader: the pool of nodes (pickle_tree.c) that the opcode machine (pickle.c) fills. */
#ifndef CKPT_PICKLE_IMPL_H
#define CKPT_PICKLE_IMPL_H

#include "base/arena.h"
#include "base/names.h"
#include "torch/pickle/pickle.h"
#include "base/vec.h"

/* A .metadata has some twenty values a chunk, so a value is at most these 16 bytes: up to two children live in the node
 * itself, and integers of 31 bits live in the handle (top bit set) and have no node at all. */
struct pickle_node {
    uint8_t type;   /* enum fsdpck_pickle_type */
    uint8_t flags;  /* PICKLE_… */
    uint16_t depth; /* 0 for leaves, 1 + the deepest child */
    uint32_t count; /* children, or bytes of text; state of a CALL or OBJECT */
    union {
        int64_t number;
        double real;
        const char *text;
        fsdpck_node pair[2]; /* CALL, OBJECT, PERSISTENT, and TUPLE of one or two */
        uint64_t first;      /* in the child table: LIST, SET, DICT, longer TUPLE */
    } as;
};

/* Part of another value: may not change any more. Picklers finish a value before they put it into another one, but for
 * values that contain themselves; so with this rule no cycle can be built, and the depth of a child is final. */
#define PICKLE_SEALED 1u
#define PICKLE_GROWN  2u /* room for children is the next power of two, not exact */

#define PICKLE_MAX_DEPTH 1000u
#define PICKLE_MAX_NODES 0x7ffffff0u
#define PICKLE_IMMEDIATE 0x80000000u

enum { PICKLE_NODE_NONE, PICKLE_NODE_FALSE, PICKLE_NODE_TRUE, PICKLE_NODE_EMPTY_TUPLE }; /* shared */

struct fsdpck_pickle {
    struct fsdpck_vec nodes;    /* struct pickle_node */
    struct fsdpck_vec children; /* fsdpck_node */
    struct fsdpck_arena text;
    struct fsdpck_names strings; /* -> node: of equal strings one is kept (ranks repeat each tensor's name) */
    fsdpck_node root;
    size_t used;
    /* Only while parsing: for messages. */
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

/* All of these fail with p->err filled: FSDPCK_NO_NODE or false. */
bool fsdpck_pickle_setup(struct fsdpck_pickle *p); /* makes the shared nodes */
fsdpck_node fsdpck_pickle_new_node(struct fsdpck_pickle *p, enum fsdpck_pickle_type type);
fsdpck_node fsdpck_pickle_new_int(struct fsdpck_pickle *p, int64_t value);
fsdpck_node fsdpck_pickle_new_text(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, const void *bytes,
                                   size_t nbytes);
/* seen: ((number of allowed names)) node of each, NO_NODE where new, so that a name is one node however often it comes.
 */
fsdpck_node fsdpck_pickle_new_global(struct fsdpck_pickle *p, const char *const *allowed, fsdpck_node *seen,
                                     const char *module, size_t module_nbytes, const char *name, size_t name_nbytes);
bool fsdpck_pickle_refuse(struct fsdpck_pickle *p,
                          uint8_t op); /* false, with the sentence about an opcode that has no place here */
/* getattr is allowed for one thing only: getattr(class, "MEMBER"), as Python up to 3.11.3 writes a member of an enum.
 */
bool fsdpck_pickle_may_make(struct fsdpck_pickle *p, fsdpck_node callable, fsdpck_node arguments);
fsdpck_node fsdpck_pickle_new_tuple(struct fsdpck_pickle *p, const fsdpck_node *children, size_t count);
/* CALL or OBJECT of (callable, arguments); PERSISTENT of (id, FSDPCK_NO_NODE). */
fsdpck_node fsdpck_pickle_new_pair(struct fsdpck_pickle *p, enum fsdpck_pickle_type type, fsdpck_node a, fsdpck_node b);
bool fsdpck_pickle_append(struct fsdpck_pickle *p, fsdpck_node container, const fsdpck_node *children, size_t count);
bool fsdpck_pickle_set_state(struct fsdpck_pickle *p, fsdpck_node object, fsdpck_node state);

#endif
