/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a completion for bash. */
#include <stdio.h>

#include "describe/describe.h"
#include "describe/words.h"

static void put_word(const char *word)
{
    printf("%s ", word);
}

static void begin(const struct tool *tool)
{
    printf("# bash completion for %s. The build makes this file from the tables that the program parses with.\n\n",
           tool->name);
    if (describe_more.settings) {
        printf("_%s_settings='", tool->name);
        describe_more.settings(put_word);
        printf("'\n\n");
    }
    printf("# Sets, of verb and option: options, the verb's options; takes, what follows the option: \"\" (nothing), "
           "any, files or words; words.\n"
           "_%s_facts() {\n"
           "    options= takes= words=\n"
           "    case $1 in\n",
           tool->name);
}

static void put_name(const struct option *o)
{
    printf("--%s ", o->name);
    if (o->letter)
        printf("-%c ", o->letter);
}

static void put_value(const struct option *o)
{
    if (o->type == OPTION_FLAG)
        return;
    printf("        --%s) ", o->name);
    if (words_has_setting(o) && describe_more.settings) {
        printf("words=$_%s_settings takes=words ;;\n", the_tool.name);
        return;
    }
    printf("words='");
    const bool words = words_put(o);
    printf("' takes=%s ;;\n", words_has_path(o) ? "files" : words ? "words" : "any");
}

static void verb(const struct command_line *line)
{
    printf("    %s)\n        options='", line->command->name);
    words_each_option(line, put_name);
    printf("'\n        case $2 in\n");
    words_each_option(line, put_value);
    printf("        esac ;;\n");
}

/* bash cuts words at "=" if COMP_WORDBREAKS contains it. This joins the pieces to `word`; n is the index of the first
 * piece. */
static const char join_pieces[] =
    "    local word=${COMP_WORDS[COMP_CWORD]} n=$COMP_CWORD option value options takes words\n"
    "    if [[ $word == = ]]; then\n"
    "        word=${COMP_WORDS[n - 1]}=\n"
    "        ((n -= 1))\n"
    "    fi\n"
    "    while ((n > 2)) && [[ ${COMP_WORDS[n - 1]} == = ]]; do\n"
    "        word=${COMP_WORDS[n - 2]}=$word\n"
    "        ((n -= 2))\n"
    "    done\n"
    "    option=${COMP_WORDS[n - 1]} value=$word\n"
    "    if [[ $word == --*=* ]]; then\n"
    "        option=${word%%=*} value=${word#*=}\n"
    "    fi\n"
    "    COMPREPLY=()\n";

/* bash replaces only the last piece, so a reply must omit everything before its "=". If "=" does not break words, the
 * reply must contain the option. Without any reply bash offers file names. */
static const char reply[] =
    "    if [[ $takes && $words ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$words\" -- \"$value\"))\n"
    "        [[ $value == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=(\"${COMPREPLY[@]#\"${value%=*}=\"}\")\n"
    "        [[ $word == --*=* && $COMP_WORDBREAKS != *=* ]] && COMPREPLY=(\"${COMPREPLY[@]/#/$option=}\")\n"
    "        if [[ $takes == files ]]; then\n"
    "            mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$value\")\n"
    "            compopt -o filenames 2>/dev/null\n"
    "        fi\n"
    "        [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
    "    elif [[ ! $takes && $word == -* ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
    "    fi\n"
    "    [[ $takes == any || $takes == words ]] && compopt +o default 2>/dev/null\n"
    "    return 0\n"
    "}\n\n";

static void put_verbs(const struct tool *tool)
{
    printf("    if ((n == 1)) || [[ $n,${COMP_WORDS[1]} == 2,help ]]; then\n"
           "        compopt +o default 2>/dev/null\n"
           "        COMPREPLY=($(compgen -W '");
    for (size_t i = 0; i < tool->ncommands; i++)
        printf("%s ", tool->commands[i].name);
    printf("--help --version' -- \"$word\"))\n"
           "        return\n"
           "    fi\n");
}

static void end(const struct tool *tool)
{
    printf("    esac\n}\n\n_%s() {\n%s", tool->name, join_pieces);
    put_verbs(tool);
    printf("    _%s_facts \"${COMP_WORDS[1]}\" \"$option\"\n%s", tool->name, reply);
    printf("complete -o default -F _%s %s\n", tool->name, tool->name);
}

const struct form form_bash = { .name = "bash", .begin = begin, .verb = verb, .end = end };
