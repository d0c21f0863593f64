/* SPDX-License-Identifier: Apache-2.0 */
/* The opcode machine of the pickle reader: a stack, marks and a memo that build the tree of tree.c. It runs no
 * code, imports nothing, and must not know the meaning of any name. */
#include "torch/pickle/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

struct opcode {
    bool (*run)(struct machine *m, uint8_t op); /* NULL: see refuse.c */
    const char *name;
};
static bool op_proto(struct machine *m, uint8_t op)
{
    (void)op;
    uint64_t version;
    if (!take_uint(m, 1, &version))
        return false;
    return version >= 2 && version <= 5
               ? true
               : FAIL(m, FSDPCK_ERR_UNSUPPORTED, "pickle protocol %u; 2 to 5 are read", (unsigned)version);
}

static bool op_frame(struct machine *m, uint8_t op)
{
    (void)op;
    uint64_t nbytes;
    if (!take_uint(m, 8, &nbytes))
        return false;
    return nbytes <= m->nbytes - m->at ? true
                                       : FAIL(m, FSDPCK_ERR_FORMAT, "a frame of %llu bytes, %zu are left",
                                              (unsigned long long)nbytes, m->nbytes - m->at);
}

static bool op_stop(struct machine *m, uint8_t op)
{
    (void)op;
    if (m->marks.count || m->stack.count != 1)
        return FAIL(m, FSDPCK_ERR_FORMAT,
                    "the pickle stops with %zu values and %zu marks on the stack, one value wanted", m->stack.count,
                    m->marks.count);
    m->p->root = *(const fsdpck_node *)m->stack.data;
    return m->stopped = true;
}

static bool op_mark(struct machine *m, uint8_t op)
{
    (void)op;
    size_t *height = fsdpck_vec_push(&m->marks, m->p->err);
    if (height)
        *height = m->stack.count;
    return height;
}

static bool op_constant(struct machine *m, uint8_t op)
{
    return push(m, op == 'N'    ? PICKLE_NODE_NONE
                   : op == ')'  ? PICKLE_NODE_EMPTY_TUPLE
                   : op == 0x88 ? PICKLE_NODE_TRUE
                                : PICKLE_NODE_FALSE);
}

static bool op_int(struct machine *m, uint8_t op)
{
    uint64_t v;
    if (!take_uint(m, op == 'K' ? 1 : op == 'M' ? 2 : 4, &v))
        return false;
    return push(m, fsdpck_pickle_new_int(m->p, op == 'J' ? (int32_t)(uint32_t)v : (int64_t)v));
}

/* LONG1, LONG4: two's complement of any length. */
static bool op_long(struct machine *m, uint8_t op)
{
    uint64_t nbytes, v = 0;
    if (!take_uint(m, op == 0x8a ? 1 : 4, &nbytes))
        return false;
    const uint8_t *b = take(m, nbytes);
    if (!b)
        return false;
    if (nbytes > 8)
        return push(m, fsdpck_pickle_new_text(m->p, FSDPCK_PICKLE_BIGINT, b, nbytes));
    for (size_t i = 0; i < 8; i++)
        v |= (uint64_t)(i < nbytes ? b[i] : nbytes && b[nbytes - 1] & 0x80 ? 0xff : 0) << 8 * i;
    return push(m, fsdpck_pickle_new_int(m->p, (int64_t)v));
}

static bool op_float(struct machine *m, uint8_t op)
{
    (void)op;
    const uint8_t *b = take(m, 8);
    fsdpck_node n = b ? fsdpck_pickle_new_node(m->p, FSDPCK_PICKLE_FLOAT) : FSDPCK_NO_NODE;
    if (n == FSDPCK_NO_NODE)
        return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | b[i];
    memcpy(&pickle_node(m->p, n)->as.real, &bits, sizeof bits);
    return push(m, n);
}

static bool op_text(struct machine *m, uint8_t op)
{
    uint64_t nbytes;
    if (!take_uint(m, op == 'X' || op == 'T' || op == 'B' ? 4 : 1, &nbytes))
        return false;
    const uint8_t *b = take(m, nbytes);
    if (!b)
        return false;
    bool utf8 = op != 'B' && op != 'C' && fsdpck_utf8_valid((const char *)b, nbytes);
    if (!utf8 && (op == 'X' || op == 0x8c))
        return FAIL(m, FSDPCK_ERR_FORMAT, "a string of %llu bytes is not valid UTF-8", (unsigned long long)nbytes);
    /* Python 2's strings (T, U) may be text or bytes: the opcode does not say which. */
    return push(m, fsdpck_pickle_new_text(m->p, utf8 ? FSDPCK_PICKLE_STRING : FSDPCK_PICKLE_BYTES, b, nbytes));
}

static bool op_empty(struct machine *m, uint8_t op)
{
    return push(m, fsdpck_pickle_new_node(m->p, op == ']'   ? FSDPCK_PICKLE_LIST
                                                : op == '}' ? FSDPCK_PICKLE_DICT
                                                            : FSDPCK_PICKLE_SET));
}

static bool op_tuple(struct machine *m, uint8_t op)
{
    size_t count = op == 't' ? 0 : op - 0x84u;
    const fsdpck_node *values = op == 't' ? pop_mark(m, &count) : pop(m, count);
    return values && push(m, fsdpck_pickle_new_tuple(m->p, values, count));
}

/* Turns an OrderedDict() that gets entries into an ordinary dict. */
static void become_dict(struct machine *m, fsdpck_node n)
{
    if (fsdpck_pickle_type(m->p, n) != FSDPCK_PICKLE_CALL ||
        !fsdpck_pickle_made_by(m->p, n, "collections OrderedDict") ||
        fsdpck_pickle_child(m->p, n, 1) != PICKLE_NODE_EMPTY_TUPLE || fsdpck_pickle_state(m->p, n) != FSDPCK_NO_NODE)
        return;
    pickle_node(m->p, n)->type = FSDPCK_PICKLE_DICT;
    pickle_node(m->p, n)->count = 0;
}

/* APPEND(S) to lists, SETITEM(S) to dicts, ADDITEMS to sets. */
static bool op_fill(struct machine *m, uint8_t op)
{
    size_t count = op == 's' ? 2 : 1;
    const fsdpck_node *values = op == 'a' || op == 's' ? pop(m, count) : pop_mark(m, &count);
    fsdpck_node target;
    if (!values || !top(m, &target))
        return false;
    bool dict = op == 's' || op == 'u';
    if (dict && count)
        become_dict(m, target);
    enum fsdpck_pickle_type want = dict ? FSDPCK_PICKLE_DICT : op == 0x90 ? FSDPCK_PICKLE_SET : FSDPCK_PICKLE_LIST;
    if (count && fsdpck_pickle_type(m->p, target) != want)
        return FAIL(m, FSDPCK_ERR_FORMAT, "%s on a value that is no %s", m->name,
                    dict         ? "dict"
                    : op == 0x90 ? "set"
                                 : "list");
    if (dict && count % 2)
        return FAIL(m, FSDPCK_ERR_FORMAT, "%s with a key that has no value", m->name);
    return fsdpck_pickle_append(m->p, target, values, count);
}

static bool put(struct machine *m, uint64_t i)
{
    fsdpck_node n;
    if (!top(m, &n))
        return false;
    if (i >= m->nbytes) /* each put takes at least one byte, and picklers number puts from 0 */
        return FAIL(m, FSDPCK_ERR_LIMIT, "memo number %llu in a pickle of %zu bytes", (unsigned long long)i, m->nbytes);
    while (m->memo.count <= i) {
        fsdpck_node *slot = fsdpck_vec_push(&m->memo, m->p->err);
        if (!slot)
            return false;
        *slot = FSDPCK_NO_NODE;
    }
    fsdpck_node *slot = (fsdpck_node *)m->memo.data + i;
    m->nmemo += *slot == FSDPCK_NO_NODE;
    *slot = n;
    return true;
}

static bool op_put(struct machine *m, uint8_t op)
{
    uint64_t i;
    return take_uint(m, op == 'q' ? 1 : 4, &i) && put(m, i);
}

static bool op_memoize(struct machine *m, uint8_t op)
{
    (void)op;
    return put(m, m->nmemo);
}

static bool op_get(struct machine *m, uint8_t op)
{
    uint64_t i;
    if (!take_uint(m, op == 'h' ? 1 : 4, &i))
        return false;
    fsdpck_node n = i < m->memo.count ? ((const fsdpck_node *)m->memo.data)[i] : FSDPCK_NO_NODE;
    return n == FSDPCK_NO_NODE ? FAIL(m, FSDPCK_ERR_FORMAT, "memo number %llu was never put", (unsigned long long)i)
                               : push(m, n);
}

static const struct opcode opcodes[256] = {
    [0x80] = { op_proto, "PROTO" },
    [0x95] = { op_frame, "FRAME" },
    ['.'] = { op_stop, "STOP" },
    ['('] = { op_mark, "MARK" },
    ['N'] = { op_constant, "NONE" },
    [0x88] = { op_constant, "NEWTRUE" },
    [0x89] = { op_constant, "NEWFALSE" },
    [')'] = { op_constant, "EMPTY_TUPLE" },
    ['J'] = { op_int, "BININT" },
    ['K'] = { op_int, "BININT1" },
    ['M'] = { op_int, "BININT2" },
    [0x8a] = { op_long, "LONG1" },
    [0x8b] = { op_long, "LONG4" },
    ['G'] = { op_float, "BINFLOAT" },
    ['X'] = { op_text, "BINUNICODE" },
    [0x8c] = { op_text, "SHORT_BINUNICODE" },
    ['T'] = { op_text, "BINSTRING" },
    ['U'] = { op_text, "SHORT_BINSTRING" },
    ['B'] = { op_text, "BINBYTES" },
    ['C'] = { op_text, "SHORT_BINBYTES" },
    [']'] = { op_empty, "EMPTY_LIST" },
    ['}'] = { op_empty, "EMPTY_DICT" },
    [0x8f] = { op_empty, "EMPTY_SET" },
    ['t'] = { op_tuple, "TUPLE" },
    [0x85] = { op_tuple, "TUPLE1" },
    [0x86] = { op_tuple, "TUPLE2" },
    [0x87] = { op_tuple, "TUPLE3" },
    ['a'] = { op_fill, "APPEND" },
    ['e'] = { op_fill, "APPENDS" },
    ['s'] = { op_fill, "SETITEM" },
    ['u'] = { op_fill, "SETITEMS" },
    [0x90] = { op_fill, "ADDITEMS" },
    ['c'] = { fsdpck_pickle_op_global, "GLOBAL" },
    [0x93] = { fsdpck_pickle_op_stack_global, "STACK_GLOBAL" },
    ['R'] = { fsdpck_pickle_op_make, "REDUCE" },
    [0x81] = { fsdpck_pickle_op_make, "NEWOBJ" },
    ['b'] = { fsdpck_pickle_op_build, "BUILD" },
    ['Q'] = { fsdpck_pickle_op_persistent, "BINPERSID" },
    ['q'] = { op_put, "BINPUT" },
    ['r'] = { op_put, "LONG_BINPUT" },
    [0x94] = { op_memoize, "MEMOIZE" },
    ['h'] = { op_get, "BINGET" },
    ['j'] = { op_get, "LONG_BINGET" },
};

static bool run(struct machine *m, uint64_t base)
{
    if (m->nbytes < 2 || m->data[0] != 0x80)
        return FAIL(m, FSDPCK_ERR_FORMAT, "not a pickle of protocol 2 or newer");
    while (!m->stopped) {
        m->p->at = base + m->at;
        if (m->at == m->nbytes)
            return FAIL(m, FSDPCK_ERR_FORMAT, "the pickle ends without STOP");
        uint8_t op = m->data[m->at++];
        m->name = opcodes[op].name;
        if (!(opcodes[op].run ? opcodes[op].run(m, op) : fsdpck_pickle_refuse(m->p, op)))
            return false;
    }
    m->p->used = m->at;
    return true;
}

static bool set_up(struct machine *m)
{
    size_t n = 0;
    while (m->allowed[n])
        n++;
    m->globals = malloc((n + 1) * sizeof *m->globals);
    if (!m->globals) {
        fsdpck_error_nomem(m->p->err, (n + 1) * sizeof *m->globals);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        m->globals[i] = FSDPCK_NO_NODE;
    /* Reserve first: popping zero values off an empty stack must return an array, because NULL means failure. */
    return fsdpck_vec_reserve(&m->stack, 64, m->p->err) == 0 && fsdpck_pickle_setup(m->p);
}

int fsdpck_pickle_parse(const char *file, uint64_t base, const void *data, size_t nbytes, const char *const *allowed,
                        struct fsdpck_pickle **out, struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct machine m = { .data = data,
                         .nbytes = nbytes,
                         .allowed = allowed,
                         .stack = FSDPCK_VEC(fsdpck_node),
                         .marks = FSDPCK_VEC(size_t),
                         .memo = FSDPCK_VEC(fsdpck_node) };
    *out = NULL;
    m.p = calloc(1, sizeof *m.p);
    if (!m.p)
        return fsdpck_error_nomem(err, sizeof *m.p);
    *m.p = (struct fsdpck_pickle){ .nodes = FSDPCK_VEC(struct pickle_node),
                                   .children = FSDPCK_VEC(fsdpck_node),
                                   .root = FSDPCK_NO_NODE,
                                   .file = file,
                                   .at = base,
                                   .err = err ? err : &own };
    int rc = set_up(&m) && run(&m, base) ? 0 : m.p->err->code;
    m.p->err = NULL;
    m.p->file = NULL;
    if (rc)
        fsdpck_pickle_free(m.p);
    else
        *out = m.p;
    free(m.globals);
    fsdpck_vec_free(&m.stack);
    fsdpck_vec_free(&m.marks);
    fsdpck_vec_free(&m.memo);
    return rc;
}
