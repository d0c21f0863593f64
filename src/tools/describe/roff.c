/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes text for man(7). It must not know the subject of a page. */
#include "describe/roff.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <fsdpck/fsdpck.h>

/* man(7) of groff sets hyphenation anew at each heading, from the register HY: without it, .nh ends there. */
void roff_title(const char *name, int section, const char *manual)
{
    fputs(".\\\" The build makes this page from the tables that the program parses with.\n.TH ", stdout);
    for (const char *s = name; *s; s++)
        putchar(toupper((unsigned char)*s));
    printf(" %d \"\" \"fsdpck %s\" \"%s\"\n.nh\n.nr HY 0\n.ad l\n", section, fsdpck_version(), manual);
}

/* Writes the UTF-8 character at s as \[uXXXX]; returns its bytes. */
static size_t put_unicode(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    const size_t n = u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
    unsigned code = u[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (u[i] & 0x3fu);
    printf("\\[u%04X]", code);
    return n;
}

void roff_text(const char *text, size_t nbytes)
{
    static const struct {
        char is;
        const char *escape;
    } escapes[] = {
        { '\\', "\\e" },  { '-', "\\-" },   { '\'', "\\(aq" }, { '`', "\\(ga" },
        { '^', "\\(ha" }, { '~', "\\(ti" }, { '"', "\\(dq" },
    };
    if (nbytes && *text == '.')
        fputs("\\&", stdout);
    for (size_t i = 0, n; i < nbytes; i += n) {
        const char *escape = NULL;
        n = 1;
        for (size_t k = 0; k < sizeof escapes / sizeof escapes[0]; k++)
            escape = escapes[k].is == text[i] ? escapes[k].escape : escape;
        if (escape)
            fputs(escape, stdout);
        else if (text[i] & 0x80)
            n = put_unicode(text + i);
        else
            putchar(text[i]);
    }
}

/* Length of the first sentence in bytes. */
static size_t sentence(const char *text, size_t nbytes)
{
    for (size_t i = 0; i + 2 < nbytes; i++) {
        if (text[i] == '.' && text[i + 1] == ' ')
            return i + 1;
    }
    return nbytes;
}

void roff_sentences(const char *text, size_t nbytes)
{
    while (nbytes) {
        const size_t n = sentence(text, nbytes), blank = n < nbytes;
        roff_text(text, n);
        putchar('\n');
        text += n + blank;
        nbytes -= n + blank;
    }
}

void roff_paragraphs(const char *text)
{
    for (const char *first = text; text && *text;) {
        const size_t n = strcspn(text, "\n");
        if (text != first)
            puts(".PP");
        roff_sentences(text, n);
        text += n + (text[n] == '\n');
    }
}

void roff_see(const char *name, const char *end)
{
    const size_t n = strcspn(name, "(");
    fputs(".BR ", stdout);
    roff_text(name, n);
    printf(" %s%s\n", name + n, end);
}
