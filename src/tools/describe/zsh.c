/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a completion for zsh: a function that calls _arguments. */
#include <stdio.h>
#include <string.h>

#include "common/help.h"
#include "describe/describe.h"
#include "describe/words.h"

#define QUOTE "'\\''" /* ' inside '…' */

/* Prints text for use inside '…', with a backslash before the characters in `special`, which _arguments would
 * interpret. */
static void put_spec(const char *text, const char *special)
{
    for (const char *s = text; *s; s++) {
        const char one[2] = { *s, 0 };
        if (strchr(special, *s) || *s == '\\')
            putchar('\\');
        words_put_quoted(one, QUOTE);
    }
}

static void put_setting(const char *word)
{
    printf(" '");
    words_put_quoted(word, QUOTE);
    putchar('\'');
}

static void begin(const struct tool *tool)
{
    printf("#compdef %s\n"
           "# zsh completion for %s. The build makes this file from the tables that the program parses with.\n\n",
           tool->name, tool->name);
    if (describe_more.settings) {
        printf("_%s_settings() {\n    compadd -S '' --", tool->name);
        describe_more.settings(put_setting);
        printf("\n}\n\n");
    }
    printf("_%s() {\n    local -a verbs\n    verbs=(\n", tool->name);
    for (size_t i = 0; i < tool->ncommands; i++) {
        printf("        '%s:", tool->commands[i].name);
        put_spec(tool->commands[i].summary, ":");
        printf("'\n");
    }
    printf("    )\n"
           "    if (( CURRENT == 2 )); then\n"
           "        _describe -t verbs verb verbs -- '(--help:print\\ the\\ verbs --version:print\\ the\\ version)'\n"
           "        return\n"
           "    fi\n"
           "    local verb=$words[2]\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $verb in\n");
}

/* Prints ":message:action" of an option with a value. */
static void put_value(const struct option *o)
{
    putchar(':');
    put_spec(o->value, ":");
    putchar(':');
    if (words_has_setting(o) && describe_more.settings) {
        printf("_%s_settings", the_tool.name);
    } else {
        printf(words_has_path(o) ? "{compadd -- " : "(");
        if (!words_put(o))
            putchar(' ');
        printf(words_has_path(o) ? "; _files}" : ")");
    }
}

static void put_option(const struct option *o)
{
    char help[HELP_NBYTES];
    const char *again = words_is_repeated(o) ? "*" : "";
    printf(" \\\n            ");
    if (o->letter)
        printf("'(-%c --%s)'{-%c,--%s}'", o->letter, o->name, o->letter, o->name);
    else
        printf("'%s--%s%s", again, o->name, o->type == OPTION_FLAG ? "" : "=");
    putchar('[');
    put_spec(help_option_text(o, help), "[]");
    putchar(']');
    if (o->type != OPTION_FLAG)
        put_value(o);
    putchar('\'');
}

static void verb(const struct command_line *line)
{
    printf("    %s)\n        _arguments -s -S", line->command->name);
    words_each_option(line, put_option);
    if (*line->positionals) {
        printf(" \\\n            '*:");
        put_spec(line->positionals, ":");
        printf(":_files'");
    }
    printf(" ;;\n");
}

static void end(const struct tool *tool)
{
    printf("    help)\n        _describe -t verbs verb verbs ;;\n    esac\n}\n\n_%s \"$@\"\n", tool->name);
}

const struct form form_zsh = { .name = "zsh", .begin = begin, .verb = verb, .end = end };
