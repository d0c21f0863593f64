/* SPDX-License-Identifier: Apache-2.0 */
/* Reads prompts from the command line or from standard input. */
#ifndef TOOLS_SAMPLE_PROMPTS_H
#define TOOLS_SAMPLE_PROMPTS_H

#include <fsdpck/error.h>
#include <jansson.h>

#include "common/values.h"

/* *out: a list for sample_prompt_encode, owned by the caller. If typed is empty, all of standard input is one prompt.
 * chat: a JSON list of messages, or an object with "messages", is a conversation. system: a message to insert before
 * each, or NULL. */
int sample_prompts_read(const struct strings *typed, bool chat, const char *system, json_t **out,
                        struct fsdpck_error *err);

#endif
