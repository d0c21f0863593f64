/* SPDX-License-Identifier: Apache-2.0 */
/* Prompts from the command line or from standard input. */
#ifndef TOOLS_SAMPLE_PROMPTS_H
#define TOOLS_SAMPLE_PROMPTS_H

#include <fsdpck/error.h>
#include <jansson.h>

#include "common/values.h"

/* *out: a list of what sample_prompt_encode takes; owned by the caller. None typed: all of standard input is one. With
 * chat a text that is a JSON list of messages, or an object with "messages", is that conversation; system: a message
 * before each, or NULL. */
int sample_prompts_read(const struct strings *typed, bool chat, const char *system, json_t **out,
                        struct fsdpck_error *err);

#endif
