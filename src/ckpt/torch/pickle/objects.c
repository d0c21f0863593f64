/* SPDX-License-Identifier: Apache-2.0 */
/* Opcodes for names and for objects. Creates no Python object: compares names with a list, and turns calls into nodes
 * of the tree. */
#include "torch/pickle/machine.h"

#include <string.h>

static bool push_global(struct machine *m, const char *module, size_t module_nbytes, const char *name,
                        size_t name_nbytes)
{
    return push(m, fsdpck_pickle_new_global(m->p, m->allowed, m->globals, module, module_nbytes, name, name_nbytes));
}

bool fsdpck_pickle_op_global(struct machine *m, uint8_t op)
{
    (void)op;
    const char *line[2];
    size_t nbytes[2];
    for (int i = 0; i < 2; i++) {
        line[i] = (const char *)m->data + m->at;
        const char *end = memchr(line[i], '\n', m->nbytes - m->at);
        if (!end)
            return FAIL(m, FSDPCK_ERR_FORMAT, "the pickle ends inside GLOBAL");
        nbytes[i] = (size_t)(end - line[i]);
        m->at += nbytes[i] + 1;
    }
    return push_global(m, line[0], nbytes[0], line[1], nbytes[1]);
}

bool fsdpck_pickle_op_stack_global(struct machine *m, uint8_t op)
{
    (void)op;
    const fsdpck_node *values = pop(m, 2);
    if (!values)
        return false;
    if (fsdpck_pickle_type(m->p, values[0]) != FSDPCK_PICKLE_STRING ||
        fsdpck_pickle_type(m->p, values[1]) != FSDPCK_PICKLE_STRING)
        return FAIL(m, FSDPCK_ERR_FORMAT, "STACK_GLOBAL wants two strings");
    size_t module_nbytes, name_nbytes;
    const char *module = fsdpck_pickle_text(m->p, values[0], &module_nbytes),
               *name = fsdpck_pickle_text(m->p, values[1], &name_nbytes);
    return push_global(m, module, module_nbytes, name, name_nbytes);
}

bool fsdpck_pickle_op_make(struct machine *m, uint8_t op)
{
    const fsdpck_node *values = pop(m, 2);
    if (!values)
        return false;
    if (fsdpck_pickle_type(m->p, values[0]) != FSDPCK_PICKLE_GLOBAL ||
        fsdpck_pickle_type(m->p, values[1]) != FSDPCK_PICKLE_TUPLE)
        return FAIL(m, FSDPCK_ERR_FORMAT, "%s wants a name and a tuple", m->name);
    if (!fsdpck_pickle_may_make(m->p, values[0], values[1]))
        return false;
    return push(
        m, fsdpck_pickle_new_pair(m->p, op == 'R' ? FSDPCK_PICKLE_CALL : FSDPCK_PICKLE_OBJECT, values[0], values[1]));
}

bool fsdpck_pickle_op_build(struct machine *m, uint8_t op)
{
    (void)op;
    fsdpck_node target, state;
    const fsdpck_node *values = pop(m, 1);
    if (!values)
        return false;
    state = *values;
    if (!top(m, &target))
        return false;
    enum fsdpck_pickle_type type = fsdpck_pickle_type(m->p, target);
    if (type == FSDPCK_PICKLE_DICT) /* attributes of an OrderedDict, such as a state dict's _metadata: not needed */
        return true;
    if (type != FSDPCK_PICKLE_CALL && type != FSDPCK_PICKLE_OBJECT)
        return FAIL(m, FSDPCK_ERR_FORMAT, "BUILD on a value that is no object");
    return fsdpck_pickle_set_state(m->p, target, state);
}

bool fsdpck_pickle_op_persistent(struct machine *m, uint8_t op)
{
    (void)op;
    const fsdpck_node *id = pop(m, 1);
    return id && push(m, fsdpck_pickle_new_pair(m->p, FSDPCK_PICKLE_PERSISTENT, *id, FSDPCK_NO_NODE));
}
