/* SPDX-License-Identifier: Apache-2.0 */
/* One option table per verb. The same table parses the command line, sets the defaults and prints the help, so they
 * cannot differ. */
#ifndef TOOLS_OPTION_TABLE_H
#define TOOLS_OPTION_TABLE_H

#include "common/command.h"
#include "common/values.h"

/* Kind of an option's value, and its C type in the struct. */
enum option_type {
    OPTION_FLAG,      /* no value; bool */
    OPTION_STRING,    /* any text; const char *, borrowed from argv */
    OPTION_CHOICE,    /* one of the words in `value`; const char * */
    OPTION_STRINGS,   /* any text, repeatable; struct strings */
    OPTION_LIST,      /* comma separated, repeatable; struct strings */
    OPTION_SIZE,      /* bytes, above 0; uint64_t */
    OPTION_MEMORY,    /* OPTION_SIZE of at most this machine's memory */
    OPTION_COUNT,     /* a whole number from 1; uint32_t */
    OPTION_EXIT_CODE, /* 0 to 255; uint32_t */
    OPTION_NUMBER,    /* a number from 0; double */
    OPTION_LATER      /* planned for a later version: refused by name, not in the help */
};

/* A number of the library as text, for `usual` and `computed`. */
#define OPTION_TEXT(macro) OPTION_QUOTE(macro)
#define OPTION_QUOTE(text) #text

struct option {
    const char *name; /* without "--" */
    char letter;      /* short form, or 0 */
    enum option_type type;
    size_t offset;        /* in the group's values */
    const char *value;    /* name of the value in the help; OPTION_CHOICE: "a|b|c" */
    const char *help;     /* without the default, which is appended */
    const char *usual;    /* default, as it would be typed; the parser stores it first. NULL: none */
    const char *computed; /* words for a default that the verb computes when the option is not given; or NULL */
    size_t given;         /* offset of a bool that becomes true if the option is given; 0: there is none */
    const char *also;     /* OPTION_CHOICE: words that are accepted but not advertised, or NULL */
    const char *later;    /* OPTION_CHOICE: words planned for a later version, or NULL */
    const char *needs;    /* options ("a|b") of which one must be given, as this one has no effect alone; or NULL */
    const char *excludes; /* options of which none may be given, as this one then has no effect; or NULL */
};

struct option_group {
    const char *title;
    const struct option *options; /* (count) */
    size_t count;
    void *values; /* zero, except where 0 is a value and another one means "not given" */
};

/* The options and arguments of a verb. Every verb also has --help, which no table lists. */
struct command_line {
    const struct command *command;
    const char *positionals; /* "SOURCE OUT"; what is in brackets, first or last, may be omitted; "B…"
                              * stands for one argument or more */
    const char *required;    /* options worth showing in the usage line ("--ranks N"), or NULL */
    const char *notes;       /* paragraphs, one per line, or NULL */
    const char *examples;    /* commands, one per line */
    const char *exit_no;     /* meaning of exit code 1; NULL: the verb never returns it */
    const char *files;       /* what the verb writes, for its man page: "NAME: meaning", one per line, or NULL */
    const struct option_group *groups;
    size_t ngroups;
};

#endif
