/* SPDX-License-Identifier: Apache-2.0 */
/* Text for people: names with arbitrary bytes, sizes, rates, times, shapes. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Large enough for every text below. */
enum { TEXT_NBYTES = 32 };

/* Prints a name from a file. Bytes that fsdpck_printable() does not accept become \xNN, so that no name can steer a
 * terminal or fake a line. A backslash is printed as it is. */
void text_print(FILE *f, const char *text);
/* The same as one word of a shell's command, in quotes where it needs them. */
void text_print_word(FILE *f, const char *text);
/* The same for several lines: newlines and tabs are printed as they are. */
void text_print_block(FILE *f, const char *text, size_t nbytes);
size_t text_width(const char *text); /* columns that text_print() uses, one per character */
void text_print_padded(FILE *f, const char *text, size_t width);

char *text_bytes(uint64_t nbytes, char buf[TEXT_NBYTES]);                /* "269.1 MB" */
char *text_rate(uint64_t nbytes, double seconds, char buf[TEXT_NBYTES]); /* "656 MB/s" */
char *text_seconds(double seconds, char buf[TEXT_NBYTES]);               /* "0.41 s" */
char *text_clock(double seconds, char buf[TEXT_NBYTES]);                 /* "3:05", "1:02:59" */
/* "[49152, 576]"; truncated with "…" if buf is too small. */
char *text_shape(uint32_t ndim, const uint64_t *shape, char *buf, size_t nbytes);
/* Count and noun: "1 file", "8 files". */
char *text_count(uint64_t count, const char *noun, char buf[TEXT_NBYTES]);

#endif
