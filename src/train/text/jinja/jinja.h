/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the part of Jinja that they use, as transformers runs it (trim_blocks, lstrip_blocks, loop controls,
 * {% generation %}). A template is untrusted: its steps, its depth, its memory and what it writes are capped. Knows
 * nothing of chats or tokens. */
#ifndef TRAIN_TEXT_JINJA_H
#define TRAIN_TEXT_JINJA_H

#include <fsdpck/error.h>
#include <time.h>

struct json_t;
struct jinja;

/* What it cannot run is refused by name and line. name: what errors call it; copied. */
int jinja_parse(const char *name, const char *source, size_t nbytes, struct jinja **out, struct fsdpck_error *err);
void jinja_free(struct jinja *j); /* NULL does nothing */
bool jinja_has_generation(const struct jinja *j);
bool jinja_has_clock(const struct jinja *j); /* asks for the date */

/* Bytes begin … end of the output lay in a {% generation %} block. */
struct jinja_span {
    size_t begin, end;
};
/* Zero-initialise, then jinja_output_free(). */
struct jinja_output {
    char *text; /* (nbytes), NUL behind it */
    size_t nbytes, capacity;
    struct jinja_span *spans; /* (nspans) in order */
    size_t nspans, spans_capacity;
};
void jinja_output_free(struct jinja_output *o);

/* Runs it with the members of `context` as variables. now: what strftime_now shows. `out` is emptied first. */
int jinja_render(const struct jinja *j, struct json_t *context, time_t now, struct jinja_output *out,
                 struct fsdpck_error *err);

#endif
