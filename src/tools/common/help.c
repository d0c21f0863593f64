/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a verb's help on stdout, from its option tables. It must know no verb, and no option but --help, by name. */
#include "common/help.h"

#include <stdio.h>
#include <string.h>

#include "common/command.h"
#include "common/text.h"

const struct option help_option = { .name = "help", .letter = 'h', .type = OPTION_FLAG, .help = "print this text" };

enum { COLUMN = 28, LINE = 100 }; /* the column where explanations start; the longest line */

/* Width of valid UTF-8 in columns, one per character. */
static int width_of(const char *text, size_t nbytes)
{
    int n = 0;
    for (size_t i = 0; i < nbytes; i++)
        n += (text[i] & 0xc0) != 0x80;
    return n;
}

/* Prints the words of text (nbytes), wrapped and indented to column `indent`. column: the cursor's. */
static void wrap(const char *text, size_t nbytes, int indent, int column)
{
    const char *end = text + nbytes;
    while (text < end) {
        const size_t left = (size_t)(end - text), n = strcspn(text, " ") < left ? strcspn(text, " ") : left;
        const int width = width_of(text, n);
        if (column > indent && column + 1 + width > LINE) {
            putchar('\n');
            column = 0;
        }
        int pad = column < indent ? indent - column : column > 0;
        printf("%*s%.*s", pad, "", (int)n, text);
        column += pad + width;
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

const char *help_option_text(const struct option *o, char text[HELP_NBYTES])
{
    const char *value = o->usual ? o->usual : o->computed;
    const size_t n = strlen(o->help);
    const bool bracket = n && o->help[n - 1] == ')'; /* the default joins what stands in brackets already */
    if (value)
        snprintf(text, HELP_NBYTES, "%.*s%sdefault%s %s)", (int)(bracket ? n - 1 : n), o->help, bracket ? "; " : " (",
                 o->usual ? "" : ":", value);
    else
        snprintf(text, HELP_NBYTES, "%s", o->help);
    return text;
}

static void print_option(const struct option *o)
{
    char left[96], help[HELP_NBYTES];
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    bool flag = o->type == OPTION_FLAG;
    snprintf(left, sizeof left, "  %s--%s%s%s", letter, o->name, flag ? "" : " ", flag ? "" : o->value);
    int n = (int)text_width(left);
    fputs(left, stdout);
    if (n >= COLUMN - 1) {
        putchar('\n');
        n = 0;
    }
    help_option_text(o, help);
    wrap(help, strlen(help), COLUMN, n);
}

/* Prints each line of text as a paragraph. NULL: prints nothing. */
static void print_lines(const char *title, const char *text, int indent)
{
    if (text)
        putchar('\n');
    if (text && title)
        printf("%s:\n", title);
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        wrap(text, n, indent, 0);
        text += n + (text[n] == '\n');
    }
}

void help_print_verb(const struct command_line *line)
{
    printf("usage: %s %s%s%s%s%s [options]\n\n%s\n", tool_name, line->command->name, *line->positionals ? " " : "",
           line->positionals, line->required ? " " : "", line->required ? line->required : "", line->command->summary);
    for (size_t g = 0; g < line->ngroups; g++) {
        printf("\n%s:\n", line->groups[g].title);
        for (size_t i = 0; i < line->groups[g].count; i++) {
            if (line->groups[g].options[i].type != OPTION_LATER)
                print_option(&line->groups[g].options[i]);
        }
    }
    print_option(&help_option);
    print_lines(NULL, line->notes, 0);
    print_lines("Examples", line->examples, 2);
}
