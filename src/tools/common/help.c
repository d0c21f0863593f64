/* Prints a verb's help from its option tables, on stdout. It must not know any verb or option by name but --help. */
#include "common/help.h"

#include <stdio.h>
#include <string.h>

#include "common/text.h"
#include "common/tool.h"

enum { COLUMN = 28, LINE = 100 }; /* where the explanations start, and where lines end */

/* Words of text from column COLUMN on, wrapped. */
static void wrap(const char *text, int column)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > COLUMN && column + 1 + n > LINE) {
            putchar('\n');
            column = 0;
        }
        int pad = column < COLUMN ? COLUMN - column : 1;
        printf("%*s%.*s", pad, "", n, text);
        column += pad + n;
        text += n + strspn(text + n, " ");
    }
    putchar('\n');
}

static void print_option(const struct option *o)
{
    char left[96];
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
    wrap(o->help, n);
}

void help_print_verb(const struct command_line *line)
{
    static const struct option help = { .name = "help", .letter = 'h', .type = OPTION_FLAG, .help = "this text" };
    printf("usage: %s %s %s%s%s [options]\n\n%s\n", tool_name, line->command->name, line->positionals, line->required ? " " : "",
           line->required ? line->required : "", line->command->summary);
    for (size_t g = 0; g < line->ngroups; g++) {
        printf("\n%s:\n", line->groups[g].title);
        for (size_t i = 0; i < line->groups[g].count; i++) {
            if (line->groups[g].options[i].type != OPTION_LATER)
                print_option(&line->groups[g].options[i]);
        }
    }
    print_option(&help);
    if (line->notes)
        printf("\n%s\n", line->notes);
}
