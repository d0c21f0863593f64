/* SPDX-License-Identifier: Apache-2.0 */
/* Writes text for man(7) pages, escaped so that troff finds no request or escape in it. */
#ifndef TOOLS_ROFF_H
#define TOOLS_ROFF_H

#include <stddef.h>

/* Writes ".TH NAME SECTION", the first line of a page. */
void roff_title(const char *name, int section, const char *manual);
void roff_text(const char *text, size_t nbytes); /* text within a line */
/* The same with one sentence per line, as man(7) recommends. Ends with a newline. */
void roff_sentences(const char *text, size_t nbytes);
/* Writes each line of text as a paragraph of sentences; the first one follows a heading. NULL: writes nothing. */
void roff_paragraphs(const char *text);
/* Writes ".BR name (1)" and `end`, such as ",". */
void roff_see(const char *names, const char *end);

#endif
