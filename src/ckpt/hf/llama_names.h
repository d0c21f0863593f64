/* SPDX-License-Identifier: Apache-2.0 */
/* The two conventions for a Llama's weights: Hugging Face's, and torchtitan's (Meta's own). They differ in names and in
 * the row order of q and k: torchtitan stores the two halves of a rotary pair side by side, Hugging Face half a head
 * apart. */
#ifndef CKPT_LLAMA_NAMES_H
#define CKPT_LLAMA_NAMES_H

#include <fsdpck/error.h>

enum fsdpck_llama_role { FSDPCK_LLAMA_PLAIN, FSDPCK_LLAMA_Q, FSDPCK_LLAMA_K };

/* Translates a weight's name to the other convention; false if `name` does not belong to the first one. out: at most
 * nbytes with NUL. */
bool fsdpck_llama_rename(const char *name, bool to_hf, char *out, size_t nbytes, enum fsdpck_llama_role *role);

#endif
