/* SPDX-License-Identifier: Apache-2.0 */
/* Prints samples on stdout: as text while they grow, or as JSON at the end. */
#ifndef TOOLS_SAMPLE_OUT_H
#define TOOLS_SAMPLE_OUT_H

#include <train/sample.h>

#include "common/report.h"

struct sample_out;

/* titled: there are several samples, so each gets a title line. */
int sample_out_new(const struct tokenizer *t, bool json, bool quiet, bool titled, struct sample_out **out,
                   struct fsdpck_error *err);
void sample_out_begin(struct sample_out *o, size_t prompt, uint32_t number, const struct token_list *ids);
int sample_out_token(struct sample_out *o, uint32_t id, struct fsdpck_error *err);
/* prompt_seconds: until the first token; seconds: for the other tokens. */
int sample_out_end(struct sample_out *o, const struct sampled *done, double prompt_seconds, double seconds,
                   struct fsdpck_error *err);
/* Prints the JSON if --json was given and `complete` is true, and frees o. Returns the exit code. NULL does nothing. */
int sample_out_finish(struct sample_out *o, bool complete);

#endif
