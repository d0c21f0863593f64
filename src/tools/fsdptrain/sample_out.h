/* SPDX-License-Identifier: Apache-2.0 */
/* Samples on standard output: as text while they grow, or at the end as JSON. */
#ifndef TOOLS_SAMPLE_OUT_H
#define TOOLS_SAMPLE_OUT_H

#include <train/sample.h>

#include "common/report.h"

struct sample_out;

/* titled: there are several, and each has a line above it. */
int sample_out_new(const struct tokenizer *t, bool json, bool quiet, bool titled, struct sample_out **out,
                   struct fsdpck_error *err);
void sample_out_begin(struct sample_out *o, size_t prompt, uint32_t number, const struct token_list *ids);
int sample_out_token(struct sample_out *o, uint32_t id, struct fsdpck_error *err);
/* prompt_seconds: to the first token; seconds: for the others. */
int sample_out_end(struct sample_out *o, const struct sampled *done, double prompt_seconds, double seconds,
                   struct fsdpck_error *err);
/* Prints what --json asked for where all went well, and frees. Returns the exit code. NULL: nothing was printed. */
int sample_out_finish(struct sample_out *o, bool complete);

#endif
