/* SPDX-License-Identifier: Apache-2.0 */
/* Text for people: names that may hold anything, sizes, rates, times, shapes. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Every text below fits. */
enum { TEXT_NBYTES = 32 };

/* Names come from files: bytes that fsdpck_printable() does not accept are printed as \xNN, so that no name can steer a
 * terminal or fake a line. A backslash stays as it is. */
void text_print(FILE *f, const char *text);
/* The same for several lines: newlines and tabs stay. */
void text_print_block(FILE *f, const char *text, size_t nbytes);
size_t text_width(const char *text); /* columns that text_print() takes, one a character */
void text_print_padded(FILE *f, const char *text, size_t width);

char *text_bytes(uint64_t nbytes, char buf[TEXT_NBYTES]);                /* "269.1 MB" */
char *text_rate(uint64_t nbytes, double seconds, char buf[TEXT_NBYTES]); /* "656 MB/s" */
char *text_seconds(double seconds, char buf[TEXT_NBYTES]);               /* "0.41 s" */
char *text_clock(double seconds, char buf[TEXT_NBYTES]);                 /* "3:05", "1:02:59" */
/* "[49152, 576]"; cut short with "…" where buf is too small. */
char *text_shape(uint32_t ndim, const uint64_t *shape, char *buf, size_t nbytes);
/* "1 file", "8 files": count and noun. */
char *text_count(uint64_t count, const char *noun, char buf[TEXT_NBYTES]);

#endif
