/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the part of Jinja that they use, with the settings of transformers (trim_blocks, lstrip_blocks, loop
 * controls, {% generation %}). Templates are untrusted: steps, depth, memory and output are limited. Knows nothing of
 * chats or tokens. */
#ifndef TRAIN_TEXT_JINJA_H
#define TRAIN_TEXT_JINJA_H

#include <fsdpck/error.h>
#include <time.h>

struct json_t;
struct jinja;

/* An unsupported construct is an error that names it and its line. `name` is copied; errors use it as the file name. */
int jinja_parse(const char *name, const char *source, size_t nbytes, struct jinja **out, struct fsdpck_error *err);
void jinja_free(struct jinja *j); /* NULL does nothing */
bool jinja_has_generation(const struct jinja *j);
bool jinja_has_clock(const struct jinja *j); /* the template asks for the date */

/* A {% generation %} block wrote bytes begin … end of the output. */
struct jinja_span {
    size_t begin, end;
};
/* Zero-initialise; free with jinja_output_free(). */
struct jinja_output {
    char *text; /* (nbytes), then a NUL */
    size_t nbytes, capacity;
    struct jinja_span *spans; /* (nspans), in order */
    size_t nspans, spans_capacity;
};
void jinja_output_free(struct jinja_output *o);

/* Renders the template with the members of `context` as variables. now: the time that strftime_now formats. Overwrites
 * `out`. */
int jinja_render(const struct jinja *j, struct json_t *context, time_t now, struct jinja_output *out,
                 struct fsdpck_error *err);

#endif
