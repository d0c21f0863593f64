/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a verb's command line by its option tables. It must not know the meaning of any option. */
#include "common/options.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/error.h>

#include "common/help.h"
#include "common/json_out.h"
#include "common/text.h"

enum { MAX_GIVEN = 64 };

struct parser {
    const struct option *given[MAX_GIVEN]; /* (ngiven) once each */
    size_t ngiven;
    const struct command_line *line;
    int argc, next; /* next: index of the next argument */
    char **argv;
    const char **positional;
    size_t npositional;
};

static const struct option *find(const struct command_line *line, const char *name, size_t nbytes, char letter,
                                 void **values)
{
    for (size_t g = 0; g < line->ngroups; g++) {
        for (size_t i = 0; i < line->groups[g].count; i++) {
            const struct option *o = &line->groups[g].options[i];
            if (letter ? o->letter == letter : strlen(o->name) == nbytes && memcmp(o->name, name, nbytes) == 0) {
                *values = line->groups[g].values;
                return o;
            }
        }
    }
    return NULL;
}

static int unknown_option(const struct command_line *line, const char *typed)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed + 2, "="), typed + 2);
    const char *best = "help";
    unsigned best_distance = fsdpck_name_distance(name, best);
    for (size_t g = 0; g < line->ngroups; g++) {
        for (size_t i = 0; i < line->groups[g].count; i++) {
            const struct option *o = &line->groups[g].options[i];
            unsigned distance = fsdpck_name_distance(name, o->name);
            if (o->type != OPTION_LATER && distance < best_distance) {
                best = o->name;
                best_distance = distance;
            }
        }
    }
    return usage_error("%s has no option '--%s'; the nearest is '--%s'", line->command->name, name, best);
}

static int unknown_letter(const struct command_line *line, char letter)
{
    return usage_error("%s has no option '-%c'; see '%s %s --help'", line->command->name, letter, tool_name,
                       line->command->name);
}

static int wrong_value(const struct option *o, const char *text, const char *wanted)
{
    return usage_error("--%s: found '%s', wanted %s", o->name, text, wanted);
}

static int store_choice(const struct option *o, const char *text, const char **at)
{
    if (value_choice(text, o->later))
        return usage_error("'--%s %s' is not in this version", o->name, text);
    if (!value_choice(text, o->value) && !value_choice(text, o->also))
        return wrong_value(o, text, o->value);
    *at = text;
    return OPTIONS_OK;
}

static int check_memory(const struct option *o, const char *text, uint64_t nbytes)
{
    char wanted[80], has[TEXT_NBYTES];
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (nbytes <= machine)
        return OPTIONS_OK;
    snprintf(wanted, sizeof wanted, "at most the memory of this machine, %s", text_bytes(machine, has));
    return wrong_value(o, text, wanted);
}

static int store(const struct option *o, void *at, const char *text)
{
    uint64_t nbytes;
    bool stored = true;
    switch (o->type) {
    case OPTION_STRING: *(const char **)at = text; return OPTIONS_OK;
    case OPTION_CHOICE: return store_choice(o, text, at);
    case OPTION_STRINGS: stored = strings_add(at, text, strlen(text)); break;
    case OPTION_LIST: stored = strings_add_list(at, text); break;
    case OPTION_SIZE:
    case OPTION_MEMORY:
        if (!value_size(text, &nbytes) || nbytes == 0)
            return wrong_value(o, text, "a size such as 4096, 64KiB or 5GB");
        *(uint64_t *)at = nbytes;
        return o->type == OPTION_MEMORY ? check_memory(o, text, nbytes) : OPTIONS_OK;
    case OPTION_COUNT: return value_count(text, at) ? OPTIONS_OK : wrong_value(o, text, "a whole number from 1");
    case OPTION_EXIT_CODE:
        return value_exit_code(text, at) ? OPTIONS_OK : wrong_value(o, text, "an exit code from 0 to 255");
    case OPTION_NUMBER: return value_number(text, at) ? OPTIONS_OK : wrong_value(o, text, "a number from 0");
    case OPTION_FLAG:
    case OPTION_LATER: break;
    }
    if (stored)
        return OPTIONS_OK;
    usage_error("no memory for the arguments");
    return EXIT_SYSTEM;
}

static bool is_given(const struct parser *p, const char *choices)
{
    for (size_t i = 0; i < p->ngiven; i++)
        if (value_choice(p->given[i]->name, choices))
            return true;
    return false;
}

/* Writes "a|b" as "a or --b". */
static void join_names(const char *choices, char *text, size_t nbytes)
{
    size_t n = 0;
    for (*text = '\0'; *choices && n + sizeof " or --" < nbytes; choices++) {
        const char one[] = { *choices, '\0' };
        n += (size_t)snprintf(text + n, nbytes - n, "%s", *choices == '|' ? " or --" : one);
    }
}

/* Refuses options that would have no effect. */
static int check_given(const struct parser *p)
{
    for (size_t i = 0; i < p->ngiven; i++) {
        const struct option *o = p->given[i];
        bool lacks = o->needs && !is_given(p, o->needs), clashes = o->excludes && is_given(p, o->excludes);
        char others[80];
        if (!lacks && !clashes)
            continue;
        join_names(lacks ? o->needs : o->excludes, others, sizeof others);
        return usage_error("--%s has no effect %s --%s", o->name, lacks ? "without" : "with", others);
    }
    return OPTIONS_OK;
}

static bool is_repeatable(const struct option *o)
{
    return o->type == OPTION_STRINGS || o->type == OPTION_LIST;
}

/* attached: the text after '=', or NULL. */
static int take(struct parser *p, const struct option *o, void *values, const char *attached)
{
    void *at = (char *)values + o->offset;
    if (o->type == OPTION_LATER)
        return usage_error("'--%s' is not in this version", o->name);
    bool again = is_given(p, o->name);
    if (again && o->type != OPTION_FLAG && !is_repeatable(o))
        return usage_error("--%s is given twice; it takes one value", o->name);
    if (!again && p->ngiven < MAX_GIVEN)
        p->given[p->ngiven++] = o;
    if (o->given)
        *(bool *)((char *)values + o->given) = true;
    if (o->type == OPTION_FLAG) {
        if (attached)
            return usage_error("--%s takes no value, found '%s'", o->name, attached);
        *(bool *)at = true;
        return OPTIONS_OK;
    }
    if (!attached && p->next == p->argc)
        return usage_error("--%s wants a value (%s), found the end of the line", o->name, o->value);
    return store(o, at, attached ? attached : p->argv[p->next++]);
}

static int describe(const struct command_line *line)
{
    (line->command->describe ? line->command->describe : help_print_verb)(line);
    return EXIT_DONE;
}

static int take_long(struct parser *p, const char *arg)
{
    size_t n = strcspn(arg + 2, "=");
    const char *attached = arg[2 + n] ? arg + 2 + n + 1 : NULL;
    void *values = NULL;
    if (strcmp(arg, "--help") == 0) {
        return describe(p->line);
    }
    const struct option *o = find(p->line, arg + 2, n, 0, &values);
    return o ? take(p, o, values, attached) : unknown_option(p->line, arg);
}

/* Parses "-q", "-qf", "-n5", "-n 5". */
static int take_short(struct parser *p, const char *arg)
{
    for (const char *letter = arg + 1; *letter; letter++) {
        void *values = NULL;
        if (*letter == 'h') {
            return describe(p->line);
        }
        const struct option *o = find(p->line, NULL, 0, *letter, &values);
        if (!o)
            return unknown_letter(p->line, *letter);
        bool last = o->type != OPTION_FLAG && letter[1];
        int status = take(p, o, values, last ? letter + 1 : NULL);
        if (status != OPTIONS_OK || last)
            return status;
    }
    return OPTIONS_OK;
}

static size_t word_count(const char *words)
{
    size_t n = 0;
    for (const char *w = words; *w; w += strspn(w, " ")) {
        n++;
        w += strcspn(w, " ");
    }
    return n;
}

static bool repeats(const struct command_line *line)
{
    return strstr(line->positionals, "…") != NULL;
}

static int take_positional(struct parser *p, const char *arg)
{
    if (!repeats(p->line) && p->npositional == word_count(p->line->positionals))
        return usage_error("%s takes %s; '%s' is too much", p->line->command->name, p->line->positionals, arg);
    if (!*arg)
        return usage_error("%s takes %s; found an empty name", p->line->command->name, p->line->positionals);
    p->positional[p->npositional++] = arg;
    return OPTIONS_OK;
}

/* True if every positional that is not given is in brackets. */
static bool rest_is_optional(const struct parser *p)
{
    const char *word = p->line->positionals;
    for (size_t i = 0; *word; i++) {
        if (i >= p->npositional && *word != '[')
            return false;
        word += strcspn(word, " ");
        word += strspn(word, " ");
    }
    return true;
}

/* In "[FIRST] …" the first positional may be omitted. */
static bool lacks_optional(const struct parser *p)
{
    return p->line->positionals[0] == '[' && p->npositional + 1 == word_count(p->line->positionals);
}

static int check_complete(const struct parser *p)
{
    const char *name = p->line->positionals;
    if (repeats(p->line))
        p->positional[p->npositional] = NULL;
    if (p->npositional == word_count(name) || (repeats(p->line) && p->npositional > word_count(name)))
        return OPTIONS_OK;
    if (rest_is_optional(p)) {
        for (size_t i = p->npositional; i < word_count(name); i++)
            p->positional[i] = NULL;
        return OPTIONS_OK;
    }
    if (lacks_optional(p)) {
        memmove(p->positional + 1, p->positional, p->npositional * sizeof *p->positional);
        p->positional[0] = NULL;
        return OPTIONS_OK;
    }
    for (size_t i = 0, n = p->npositional + (name[0] == '['); i < n; i++)
        name += strcspn(name, " ") + 1;
    const char *required = p->line->required;
    return usage_error("%.*s is missing; usage: %s %s %s%s%s", (int)strcspn(name, " "), name, tool_name,
                       p->line->command->name, p->line->positionals, required ? " " : "", required ? required : "");
}

/* A default is never measured against this machine's memory: the user did not choose it. */
static void store_defaults(const struct command_line *line)
{
    for (size_t g = 0; g < line->ngroups; g++) {
        for (size_t i = 0; i < line->groups[g].count; i++) {
            const struct option *o = &line->groups[g].options[i];
            void *at = (char *)line->groups[g].values + o->offset;
            if (!o->usual)
                continue;
            bool stored = o->type == OPTION_MEMORY ? value_size(o->usual, at) : store(o, at, o->usual) == OPTIONS_OK;
            assert(stored);
            (void)stored;
        }
    }
}

/* Scans all arguments, so that a mistake before --json is reported as JSON too. */
static bool wants_json(const struct command_line *line, int argc, char **argv)
{
    void *values;
    bool wants = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        wants = wants || strcmp(argv[i], "--json") == 0;
    return wants && find(line, "json", strlen("json"), 0, &values);
}

int options_parse(const struct command_line *line, int argc, char **argv, const char **positional)
{
    struct parser p = { .line = line, .argc = argc, .argv = argv, .positional = positional };
    bool ended = false;
    json_out_errors(wants_json(line, argc, argv));
    store_defaults(line);
    while (p.next < argc) {
        const char *arg = argv[p.next++];
        int status = OPTIONS_OK;
        if (!ended && strcmp(arg, "--") == 0)
            ended = true;
        else if (!ended && strncmp(arg, "--", 2) == 0)
            status = take_long(&p, arg);
        else if (!ended && arg[0] == '-' && arg[1])
            status = take_short(&p, arg);
        else
            status = take_positional(&p, arg);
        if (status != OPTIONS_OK)
            return status;
    }
    int status = check_complete(&p);
    return status == OPTIONS_OK ? check_given(&p) : status;
}

void options_free(const struct command_line *line)
{
    for (size_t g = 0; g < line->ngroups; g++) {
        for (size_t i = 0; i < line->groups[g].count; i++) {
            const struct option *o = &line->groups[g].options[i];
            if (is_repeatable(o))
                strings_free((struct strings *)((char *)line->groups[g].values + o->offset));
        }
    }
}

int options_run(const struct command_line *line, int argc, char **argv,
                int (*run)(void *args, const char *const *positional), void *args)
{
    const char **positional = malloc(((size_t)argc + MAX_POSITIONALS) * sizeof *positional);
    if (!positional)
        return usage_error("no memory for the arguments"), EXIT_SYSTEM;
    int status = options_parse(line, argc, argv, positional);
    if (status == OPTIONS_OK)
        status = run(args, positional);
    options_free(line);
    free(positional);
    return status;
}
