/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the opcode machine, and the operations that opcodes share: read input bytes, pop values off the stack.
 * On failure they fill m->p->err and return NULL or false. */
#ifndef CKPT_PICKLE_MACHINE_H
#define CKPT_PICKLE_MACHINE_H

#include "base/hash.h"
#include "torch/pickle/impl.h"

struct machine {
    const uint8_t *data;
    size_t nbytes, at;
    struct fsdpck_pickle *p;
    struct fsdpck_vec stack; /* fsdpck_node */
    struct fsdpck_vec marks; /* size_t: height of the stack at each MARK */
    struct fsdpck_vec memo;  /* fsdpck_node, NO_NODE if empty */
    size_t nmemo;            /* number of puts: MEMOIZE uses it as index */
    const char *const *allowed;
    fsdpck_node *globals; /* one for each allowed name, NO_NODE until seen */
    const char *name;     /* of the current opcode, for messages */
    bool stopped;
};

static inline bool failed(int code)
{
    return code == 0;
}
#define FAIL(m, code, ...) failed(fsdpck_error_at((m)->p->err, code, (m)->p->file, (m)->p->at, __VA_ARGS__))

/* Reads the next nbytes of the input. */
static inline const uint8_t *take(struct machine *m, uint64_t nbytes)
{
    if (nbytes > m->nbytes - m->at) {
        FAIL(m, FSDPCK_ERR_FORMAT, "the pickle ends inside %s: %llu bytes wanted, %zu left", m->name,
             (unsigned long long)nbytes, m->nbytes - m->at);
        return NULL;
    }
    const uint8_t *bytes = m->data + m->at;
    m->at += nbytes;
    return bytes;
}

/* Reads a little-endian integer of 1, 2, 4 or 8 bytes. */
static inline bool take_uint(struct machine *m, unsigned width, uint64_t *out)
{
    const uint8_t *b = take(m, width);
    if (b)
        *out = width == 1 ? b[0] : width == 2 ? fsdpck_le16(b) : width == 4 ? fsdpck_le32(b) : fsdpck_le64(b);
    return b;
}

static inline bool push(struct machine *m, fsdpck_node n)
{
    fsdpck_node *top = n == FSDPCK_NO_NODE ? NULL : fsdpck_vec_push(&m->stack, m->p->err);
    if (top)
        *top = n;
    return top;
}

/* Returns the height below which an opcode must not pop: the last MARK. */
static inline size_t fence(const struct machine *m)
{
    return m->marks.count ? ((const size_t *)m->marks.data)[m->marks.count - 1] : 0;
}

/* Pops n values; the array lives until the next push. */
static inline fsdpck_node *pop(struct machine *m, size_t n)
{
    size_t have = m->stack.count - fence(m);
    if (have < n) {
        FAIL(m, FSDPCK_ERR_FORMAT, "%s wants %zu values, there are %zu", m->name, n, have);
        return NULL;
    }
    m->stack.count -= n;
    return (fsdpck_node *)m->stack.data + m->stack.count;
}

/* Pops all values down to the last MARK, and the MARK. */
static inline fsdpck_node *pop_mark(struct machine *m, size_t *count)
{
    if (!m->marks.count) {
        FAIL(m, FSDPCK_ERR_FORMAT, "%s without a MARK before it", m->name);
        return NULL;
    }
    *count = m->stack.count - fence(m);
    fsdpck_node *values = pop(m, *count);
    m->marks.count--;
    return values;
}

/* Gets the topmost value without popping it. */
static inline bool top(struct machine *m, fsdpck_node *n)
{
    fsdpck_node *values = pop(m, 1);
    if (values) {
        *n = *values;
        m->stack.count++;
    }
    return values;
}

/* ---- objects.c: opcodes for names and objects ---- */

bool fsdpck_pickle_op_global(struct machine *m, uint8_t op);
bool fsdpck_pickle_op_stack_global(struct machine *m, uint8_t op);
bool fsdpck_pickle_op_make(struct machine *m, uint8_t op); /* REDUCE and NEWOBJ */
bool fsdpck_pickle_op_build(struct machine *m, uint8_t op);
bool fsdpck_pickle_op_persistent(struct machine *m, uint8_t op);

#endif
