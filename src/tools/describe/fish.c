/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a completion for fish: one `complete` command per option. */
#include <stdio.h>

#include "common/help.h"
#include "describe/describe.h"
#include "describe/words.h"

#define QUOTE "\\'" /* ' inside '…' */

static const char *verb_name; /* verb whose options are being written */

static void put_setting(const char *word)
{
    printf(" '%s'", word);
}

static void put_description(const char *text)
{
    printf(" -d '");
    words_put_quoted(text, QUOTE);
    printf("'\n");
}

static void begin(const struct tool *tool)
{
    const char *name = tool->name;
    printf("# fish completion for %s. The build makes this file from the tables that the program parses with.\n\n",
           name);
    printf("function __%s_has_no_verb\n    test (count (commandline -opc)) -eq 1\nend\n\n", name);
    printf("function __%s_verb_is\n    set -l words (commandline -opc)\n    test (count $words) -ge 2; and test "
           "$words[2] = $argv[1]\nend\n\n",
           name);
    if (describe_more.settings) {
        printf("function __%s_settings\n    printf '%%s\\n'", name);
        describe_more.settings(put_setting);
        printf("\nend\n\n");
    }
    printf("complete -c %s -n __%s_has_no_verb -f\n", name, name);
    printf("complete -c %s -n __%s_has_no_verb -s h -l help -d 'print the verbs'\n", name, name);
    printf("complete -c %s -n __%s_has_no_verb -l version -d 'print the version'\n", name, name);
    for (size_t i = 0; i < tool->ncommands; i++) {
        printf("complete -c %s -n __%s_has_no_verb -a %s", name, name, tool->commands[i].name);
        put_description(tool->commands[i].summary);
        printf("complete -c %s -n '__%s_verb_is help' -f -a %s", name, name, tool->commands[i].name);
        put_description(tool->commands[i].summary);
    }
}

static void put_value(const struct option *o)
{
    printf(words_has_path(o) ? " -r -F -a '" : " -x -a '");
    if (words_has_setting(o) && describe_more.settings)
        printf("(__%s_settings)", the_tool.name);
    else
        words_put(o);
    putchar('\'');
}

static void put_option(const struct option *o)
{
    char help[HELP_NBYTES];
    printf("complete -c %s -n '__%s_verb_is %s'", the_tool.name, the_tool.name, verb_name);
    if (o->letter)
        printf(" -s %c", o->letter);
    printf(" -l %s", o->name);
    if (o->type != OPTION_FLAG)
        put_value(o);
    put_description(help_option_text(o, help));
}

static void verb(const struct command_line *line)
{
    verb_name = line->command->name;
    putchar('\n');
    words_each_option(line, put_option);
}

static void end(const struct tool *tool)
{
    (void)tool;
}

const struct form form_fish = { .name = "fish", .begin = begin, .verb = verb, .end = end };
