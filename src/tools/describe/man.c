/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the man page of a tool, or of one verb. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/command.h"
#include "common/help.h"
#include "describe/describe.h"
#include "describe/roff.h"

static void put(const char *text)
{
    roff_text(text, strlen(text));
}

static void manual(char out[64])
{
    snprintf(out, 64, "%s manual", tool_name);
}

/* no: meaning of exit code 1, or NULL. */
static void put_exit_status(const char *no)
{
    const struct {
        const char *code, *means;
    } codes[] = {
        { "0", "The work is done." },
        { "1", no },
        { "2", "The command line or the config is wrong, or an output exists." },
        { "3", "The input is refused: it is malformed, unsupported, incomplete or damaged." },
        { "4", "The system failed: an I/O error, no space, no memory, or a lost rank." },
        { "128+n", "Signal n ended the program, after it had cleaned up." },
    };
    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (!codes[i].means)
            continue;
        printf(".TP\n.B %s\n", codes[i].code);
        roff_sentences(codes[i].means, strlen(codes[i].means));
    }
}

/* Where org/name of a model is looked for: common/model_path.c. */
static void put_environment(void)
{
    static const char *const variables[][2] = {
        { "HF_HUB_CACHE",
          "The folder of the local Hugging Face cache. A model that is typed as org/name is looked for there." },
        { "HF_HOME", "Without HF_HUB_CACHE, the cache is the folder hub in this one." },
        { "XDG_CACHE_HOME",
          "Without HF_HOME, the cache is the folder huggingface/hub in this one, or else in ~/.cache." },
    };
    puts(".SH ENVIRONMENT");
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        printf(".TP\n.B %s\n", variables[i][0]);
        roff_sentences(variables[i][1], strlen(variables[i][1]));
    }
}

/* Writes the lines "NAME: meaning". */
static void put_files(const char *files)
{
    if (files)
        puts(".SH FILES");
    while (files && *files) {
        const size_t n = strcspn(files, "\n"), name = strcspn(files, ":");
        fputs(".TP\n.I ", stdout);
        roff_text(files, name);
        putchar('\n');
        roff_sentences(files + name + 2, n - name - 2);
        files += n + (files[n] == '\n');
    }
}

/* Lists the other pages: the tool's, those of its verbs except `own`, and `also`. */
static void put_see_also(const char *own)
{
    char page[96];
    puts(".SH SEE ALSO");
    if (own) {
        snprintf(page, sizeof page, "%s(1)", the_tool.name);
        roff_see(page, ",");
    }
    for (size_t i = 0; i < the_tool.ncommands; i++) {
        snprintf(page, sizeof page, "%s-%s(1)", the_tool.name, the_tool.commands[i].name);
        if (!own || strcmp(own, the_tool.commands[i].name) != 0)
            roff_see(page, ",");
    }
    for (const char *const *also = describe_more.also; *also; also++)
        roff_see(*also, also[1] ? "," : "");
}

/* Makes a sentence of a help text, which starts with a small letter. A name such as config.json keeps it. */
static void put_help(const char *help)
{
    const size_t n = strspn(help, "abcdefghijklmnopqrstuvwxyz");
    const char first[2] = { help[n] == ' ' || help[n] == ',' ? (char)toupper((unsigned char)*help) : *help, 0 };
    put(first);
    put(help + 1);
    puts(".");
}

/* Writes "ranks|mesh" as "--ranks or --mesh". */
static void put_names(const char *before, const char *names, const char *after)
{
    put(before);
    for (const char *at = names; *at; at += *at == '|') {
        const size_t n = strcspn(at, "|");
        put(at == names ? "--" : " or --");
        roff_text(at, n);
        at += n;
    }
    put(after);
    putchar('\n');
}

static void put_option(const struct option *o)
{
    char help[HELP_NBYTES];
    printf(".TP\n\\fB");
    if (o->letter)
        printf("\\-%c\\fR, \\fB", o->letter);
    put("--");
    put(o->name);
    fputs("\\fR", stdout);
    if (o->type != OPTION_FLAG) {
        fputs(" \\fI", stdout);
        put(o->value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_help(help_option_text(o, help));
    if (o->needs)
        put_names("It needs ", o->needs, ".");
    if (o->excludes)
        put_names("It has no effect with ", o->excludes, ".");
}

static void put_options(const struct command_line *line)
{
    puts(".SH OPTIONS");
    for (size_t g = 0; g < line->ngroups; g++) {
        if (line->ngroups > 1) {
            printf(".SS ");
            put(line->groups[g].title);
            putchar('\n');
        }
        for (size_t i = 0; i < line->groups[g].count; i++) {
            if (line->groups[g].options[i].type != OPTION_LATER)
                put_option(&line->groups[g].options[i]);
        }
    }
    put_option(&help_option);
}

static void put_examples(const char *examples)
{
    if (!examples)
        return;
    puts(".SH EXAMPLES\n.EX");
    while (*examples) {
        const size_t n = strcspn(examples, "\n");
        roff_text(examples, n);
        putchar('\n');
        examples += n + (examples[n] == '\n');
    }
    puts(".EE");
}

static void put_synopsis(const struct command_line *line)
{
    puts(".SH SYNOPSIS");
    printf(".B %s ", tool_name);
    put(line->command->name);
    putchar('\n');
    if (*line->positionals) {
        printf(".I ");
        put(line->positionals);
        putchar('\n');
    }
    if (line->required) {
        put(line->required);
        putchar('\n');
    }
    puts(".RI [ options ]");
}

static void put_verb(const struct command_line *line)
{
    char name[64], title[64];
    snprintf(name, sizeof name, "%s-%s", tool_name, line->command->name);
    manual(title);
    roff_title(name, 1, title);
    puts(".SH NAME");
    put(name);
    fputs(" \\- ", stdout);
    put(line->command->summary);
    putchar('\n');
    put_synopsis(line);
    puts(".SH DESCRIPTION");
    if (line->notes)
        roff_paragraphs(line->notes);
    else
        put_help(line->command->summary);
    put_options(line);
    put_files(line->files);
    put_environment();
    put_exit_status(line->exit_no);
    put_examples(line->examples);
    put_see_also(line->command->name);
}

static void put_commands(const struct tool *tool)
{
    puts(".SH VERBS");
    for (size_t i = 0; i < tool->ncommands; i++) {
        char page[96];
        puts(".TP");
        snprintf(page, sizeof page, "%s-%s(1)", tool->name, tool->commands[i].name);
        roff_see(page, "");
        put_help(tool->commands[i].summary);
    }
}

static void put_tool(const struct tool *tool)
{
    char title[64];
    manual(title);
    roff_title(tool->name, 1, title);
    printf(".SH NAME\n%s \\- ", tool->name);
    put(tool->summary);
    printf("\n.SH SYNOPSIS\n.B %s\n.I VERB\n.RI [ arguments ]\n.br\n.B %s help\n.I VERB\n.br\n.B "
           "%s\n\\-\\-version\n.SH DESCRIPTION\n",
           tool->name, tool->name, tool->name);
    roff_paragraphs(tool->notes);
    put_commands(tool);
    put_environment();
    put_exit_status(describe_more.exit_no);
    put_see_also(NULL);
}

const struct form form_man = { .name = "man", .begin = put_tool, .verb = put_verb };
