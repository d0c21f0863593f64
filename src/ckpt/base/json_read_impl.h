/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of the JSON reader: json_read.c reads containers, numbers and literals, json_read_string.c
 * strings. */
#ifndef CKPT_JSON_READ_IMPL_H
#define CKPT_JSON_READ_IMPL_H

#include "base/json_read.h"

static inline void json_skip_space(struct fsdpck_json *j)
{
    while (j->at < j->nbytes) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        j->at++;
    }
}

/* Returns the next byte that is not white space; 0 at the end (a NUL in the text is not a token either). */
static inline char json_next_token(struct fsdpck_json *j)
{
    json_skip_space(j);
    return j->at < j->nbytes ? j->text[j->at] : 0;
}

/* Fails at the current position; the message quotes the text there and names the expected token. */
void fsdpck_json_unexpected(struct fsdpck_json *j, const char *wanted);

#endif
