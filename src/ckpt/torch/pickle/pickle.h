/* SPDX-License-Identifier: Apache-2.0 */
/* A closed reader of Python pickles (protocols 2 to 5): builds a tree of plain nodes and runs no code.
 *
 * GLOBAL and STACK_GLOBAL give a node with a name. A name outside the caller's list is refused at once; the error
 * quotes it. REDUCE, NEWOBJ and BUILD give nodes that record the operation; the caller interprets them. Unknown opcodes
 * are refused by number. Limits: depth, memo, nodes, and strings not longer than the rest of the input. A container
 * that contains itself is refused. The tree shares values as the pickle does: a small file can describe a huge tree, so
 * a walk needs a limit. An OrderedDict() that gets entries is a DICT; attributes that BUILD gives to a dict are
 * dropped. */
#ifndef CKPT_PICKLE_H
#define CKPT_PICKLE_H

#include <fsdpck/error.h>

enum fsdpck_pickle_type {
    FSDPCK_PICKLE_NONE,
    FSDPCK_PICKLE_BOOL,
    FSDPCK_PICKLE_INT,
    FSDPCK_PICKLE_BIGINT /* bytes: little-endian two's complement */,
    FSDPCK_PICKLE_FLOAT,
    FSDPCK_PICKLE_STRING /* valid UTF-8 */,
    FSDPCK_PICKLE_BYTES,
    FSDPCK_PICKLE_TUPLE,
    FSDPCK_PICKLE_LIST,
    FSDPCK_PICKLE_SET,
    FSDPCK_PICKLE_DICT /* children: key, value, key, value … in order of insertion; of equal keys the last is valid */,
    FSDPCK_PICKLE_GLOBAL /* "module name", one space */,
    FSDPCK_PICKLE_CALL /* REDUCE: child 0 callable, child 1 argument tuple */,
    FSDPCK_PICKLE_OBJECT /* NEWOBJ: child 0 class, child 1 argument tuple */,
    FSDPCK_PICKLE_PERSISTENT /* child 0: the id */,
};

/* Nodes are numbers: handles into one pool, valid until fsdpck_pickle_free(). */
typedef uint32_t fsdpck_node;
#define FSDPCK_NO_NODE UINT32_MAX

struct fsdpck_pickle; /* a parsed document */

/* allowed: NULL-terminated list of "module name"; an entry "module *" allows every plain name of that module,
 * "module.* *" those of all modules below it. */
int fsdpck_pickle_parse(const char *file, uint64_t base, const void *data, size_t nbytes, const char *const *allowed,
                        struct fsdpck_pickle **out, struct fsdpck_error *err);
void fsdpck_pickle_free(struct fsdpck_pickle *p);
fsdpck_node fsdpck_pickle_root(const struct fsdpck_pickle *p);
size_t fsdpck_pickle_used(const struct fsdpck_pickle *p); /* bytes of the input up to and including STOP */

enum fsdpck_pickle_type fsdpck_pickle_type(const struct fsdpck_pickle *p, fsdpck_node n);
/* STRING, BYTES, BIGINT, GLOBAL: NUL-terminated, borrowed; NULL for other types. nbytes may be NULL. */
const char *fsdpck_pickle_text(const struct fsdpck_pickle *p, fsdpck_node n, size_t *nbytes);
bool fsdpck_pickle_int(const struct fsdpck_pickle *p, fsdpck_node n, int64_t *out); /* INT or BOOL */
bool fsdpck_pickle_float(const struct fsdpck_pickle *p, fsdpck_node n, double *out);
size_t fsdpck_pickle_count(const struct fsdpck_pickle *p, fsdpck_node n); /* children; a DICT has two per entry */
fsdpck_node fsdpck_pickle_child(const struct fsdpck_pickle *p, fsdpck_node n,
                                size_t i); /* FSDPCK_NO_NODE beyond the end */
/* Returns the value of a string key in a DICT, or FSDPCK_NO_NODE. */
fsdpck_node fsdpck_pickle_get(const struct fsdpck_pickle *p, fsdpck_node dict, const char *key);
/* Returns the state that BUILD gave an OBJECT or CALL, or FSDPCK_NO_NODE. */
fsdpck_node fsdpck_pickle_state(const struct fsdpck_pickle *p, fsdpck_node n);
/* Returns whether n is the GLOBAL `name` ("torch Size"); whether n is a CALL or an OBJECT of it. */
bool fsdpck_pickle_is(const struct fsdpck_pickle *p, fsdpck_node n, const char *name);
bool fsdpck_pickle_made_by(const struct fsdpck_pickle *p, fsdpck_node n, const char *name);

#endif
