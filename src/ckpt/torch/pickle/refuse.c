/* SPDX-License-Identifier: Apache-2.0 */
/* Refuses names that are not on the caller's list, and opcodes that no torch version writes. Names are only text;
 * nothing is looked up or imported. */
#include "torch/pickle/impl.h"

#include <stdio.h>
#include <string.h>

/* An entry "module.* *" allows plain names of all modules below that one. */
static bool is_below(const char *entry, const char *key)
{
    const char *star = strstr(entry, ".* *");
    return star && star[4] == '\0' && strncmp(entry, key, (size_t)(star - entry) + 1) == 0;
}

/* Returns the position of "module name" in the allowed list, or SIZE_MAX. An entry "module *" allows names without
 * dots. */
static size_t find_allowed(const char *const *allowed, const char *key, size_t module_nbytes, bool *wild)
{
    for (size_t i = 0; allowed[i]; i++) {
        *wild = is_below(allowed[i], key) ||
                (!strncmp(allowed[i], key, module_nbytes + 1) && !strcmp(allowed[i] + module_nbytes + 1, "*"));
        if (!strcmp(allowed[i], key) || (*wild && !strchr(key + module_nbytes + 1, '.')))
            return i;
    }
    return SIZE_MAX;
}

static bool is_dotted_name(const char *s, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!(s[i] == '_' || s[i] == '.' || (s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
              (s[i] >= 'A' && s[i] <= 'Z')))
            return false;
    return nbytes > 0 && nbytes < 256;
}

static int shown_nbytes(size_t nbytes)
{
    return nbytes < 100 ? (int)nbytes : 100;
}

fsdpck_node fsdpck_pickle_new_global(struct fsdpck_pickle *p, const char *const *allowed, fsdpck_node *seen,
                                     const char *module, size_t module_nbytes, const char *name, size_t name_nbytes)
{
    char key[512];
    if (!is_dotted_name(module, module_nbytes) || !is_dotted_name(name, name_nbytes)) {
        fsdpck_error_at(p->err, FSDPCK_ERR_FORMAT, p->file, p->at, "'%.*s' '%.*s' is not the name of a Python object",
                        shown_nbytes(module_nbytes), module, shown_nbytes(name_nbytes), name);
        return FSDPCK_NO_NODE;
    }
    memcpy(key, module, module_nbytes);
    key[module_nbytes] = ' ';
    memcpy(key + module_nbytes + 1, name, name_nbytes);
    key[module_nbytes + 1 + name_nbytes] = 0;
    bool wild;
    size_t i = find_allowed(allowed, key, module_nbytes, &wild);
    if (i == SIZE_MAX) {
        fsdpck_error_at(p->err, FSDPCK_ERR_UNSUPPORTED, p->file, p->at,
                        "the pickle asks for '%.*s.%.*s', which has no place here", shown_nbytes(module_nbytes), module,
                        shown_nbytes(name_nbytes), name);
        return FSDPCK_NO_NODE;
    }
    if (!wild && seen[i] != FSDPCK_NO_NODE)
        return seen[i];
    fsdpck_node n = fsdpck_pickle_new_text(p, FSDPCK_PICKLE_GLOBAL, key, strlen(key));
    if (!wild)
        seen[i] = n;
    return n;
}

bool fsdpck_pickle_may_make(struct fsdpck_pickle *p, fsdpck_node callable, fsdpck_node arguments)
{
    if (!fsdpck_pickle_is(p, callable, "builtins getattr"))
        return true;
    fsdpck_node class = fsdpck_pickle_child(p, arguments, 0), member = fsdpck_pickle_child(p, arguments, 1);
    size_t nbytes = 0;
    const char *name =
        fsdpck_pickle_type(p, member) == FSDPCK_PICKLE_STRING ? fsdpck_pickle_text(p, member, &nbytes) : "";
    if (fsdpck_pickle_count(p, arguments) == 2 && fsdpck_pickle_type(p, class) == FSDPCK_PICKLE_GLOBAL &&
        is_dotted_name(name, nbytes) && name[0] != '_' && memchr(name, '.', nbytes) == NULL)
        return true;
    fsdpck_error_at(p->err, FSDPCK_ERR_UNSUPPORTED, p->file, p->at,
                    "the pickle asks for 'builtins.getattr' of what is no member of an enum");
    return false;
}

/* Python's other opcodes, for the message. */
static const char *const refused[256] = {
    ['i'] = "INST",
    ['o'] = "OBJ",
    ['P'] = "PERSID",
    ['I'] = "INT",
    ['L'] = "LONG",
    ['F'] = "FLOAT",
    ['S'] = "STRING",
    ['V'] = "UNICODE",
    ['0'] = "POP",
    ['1'] = "POP_MARK",
    ['2'] = "DUP",
    ['d'] = "DICT",
    ['l'] = "LIST",
    ['p'] = "PUT",
    ['g'] = "GET",
    [0x82] = "EXT1",
    [0x83] = "EXT2",
    [0x84] = "EXT4",
    [0x8d] = "BINUNICODE8",
    [0x8e] = "BINBYTES8",
    [0x91] = "FROZENSET",
    [0x92] = "NEWOBJ_EX",
    [0x96] = "BYTEARRAY8",
    [0x97] = "NEXT_BUFFER",
    [0x98] = "READONLY_BUFFER",
};

bool fsdpck_pickle_refuse(struct fsdpck_pickle *p, uint8_t op)
{
    char text[64];
    const char *name = refused[op] ? refused[op] : "";
    if (op > ' ' && op < 0x7f)
        snprintf(text, sizeof text, "('%c'%s%s) ", op, *name ? " " : "", name);
    else
        snprintf(text, sizeof text, *name ? "(%s) " : "%s", name);
    fsdpck_error_at(p->err, FSDPCK_ERR_UNSUPPORTED, p->file, p->at, "opcode 0x%02x %shas no place here", op, text);
    return false;
}
