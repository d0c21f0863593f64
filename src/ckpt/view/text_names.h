/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a model's text part: a model that sees images too has a part of its own for text, and programs differ
 * in what its names begin with. */
#ifndef CKPT_TEXT_NAMES_H
#define CKPT_TEXT_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* What the names begin with. */
struct fsdpck_text_names {
    const char *model, *head;
};

/* The names of a text part that is a model of its own. */
extern const struct fsdpck_text_names fsdpck_text_alone;
/* Whether a name begins so; not that of a head, which models without images may call the same. */
bool fsdpck_text_has(const struct fsdpck_text_names *names, const char *name);
/* Writes a name with its beginning of `from` replaced; others are copied. Cut off at nbytes. */
void fsdpck_text_rename(const struct fsdpck_text_names *from, const struct fsdpck_text_names *to, const char *name,
                        char *out, size_t nbytes);

#endif
