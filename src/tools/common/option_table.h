/* SPDX-License-Identifier: Apache-2.0 */
/* One option table a verb: the same table parses the command line and prints the help, so the two cannot differ. */
#ifndef TOOLS_OPTION_TABLE_H
#define TOOLS_OPTION_TABLE_H

#include "common/command.h"
#include "common/values.h"

/* The kind of value that an option takes, and its C type in the struct. */
enum option_type {
    OPTION_FLAG,    /* nothing; bool */
    OPTION_STRING,  /* any text; const char *, borrowed from argv */
    OPTION_CHOICE,  /* one of the words in `value`; const char * */
    OPTION_STRINGS, /* any text, again and again; struct strings */
    OPTION_LIST,    /* comma separated, again and again; struct strings */
    OPTION_SIZE,    /* bytes, not 0; uint64_t */
    OPTION_MEMORY,  /* the same, at most the memory of this machine */
    OPTION_COUNT,   /* 1 and more; uint32_t */
    OPTION_NUMBER,  /* 0 and more; double */
    OPTION_LATER    /* refused by name: a later version has it; not in the help */
};

struct option {
    const char *name; /* without "--" */
    char letter;      /* short form, or 0 */
    enum option_type type;
    size_t offset;     /* in the group's values */
    const char *value; /* what the help calls it; OPTION_CHOICE: "a|b|c" */
    const char *help;
    const char *also;     /* OPTION_CHOICE: further words that are taken but not advertised, or NULL */
    const char *later;    /* OPTION_CHOICE: words that a later version will know, or NULL */
    const char *needs;    /* options ("a|b"): refused without any of them, as it would have no effect; or NULL */
    const char *excludes; /* options: refused beside any of them, as it would have no effect; or NULL */
};

struct option_group {
    const char *title;
    const struct option *options; /* (count) */
    size_t count;
    void *values; /* preset to the defaults */
};

/* The options and arguments of a verb. Every verb has --help, which is in no table. */
struct command_line {
    const struct command *command;
    const char *positionals; /* "SOURCE OUT": all are required */
    const char *required;    /* options worth showing in the usage line ("--ranks N"), or NULL */
    const char *notes;       /* paragraphs, one a line, or NULL */
    const char *examples;    /* commands, one a line */
    const struct option_group *groups;
    size_t ngroups;
};

#endif
