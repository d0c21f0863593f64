/* SPDX-License-Identifier: Apache-2.0 */
/* Text for man(7) pages: nothing in it is taken for a request or an escape. */
#ifndef TOOLS_ROFF_H
#define TOOLS_ROFF_H

#include <stddef.h>

/* ".TH NAME SECTION": the first line of a page of this version. */
void roff_title(const char *name, int section, const char *manual);
void roff_text(const char *text, size_t nbytes); /* inside a line, or as one */
/* The same, each sentence on a line of its own, as man(7) wants it. Ends with a newline. */
void roff_sentences(const char *text, size_t nbytes);
/* Each line of text as a paragraph of sentences, the first one behind a heading. NULL: nothing. */
void roff_paragraphs(const char *text);
/* ".BR name (1),": the first name is preceded by nothing. */
void roff_see(const char *names, const char *end);

#endif
