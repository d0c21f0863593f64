/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a decoder's micro-batch, as compute_parts wants it. */
#ifndef TRAIN_DECODER_ALLOC_H
#define TRAIN_DECODER_ALLOC_H

struct bump;
struct compute;

void decoder_alloc(struct compute *c, struct bump *v);
void decoder_alloc_host(struct compute *c, struct bump *v);

#endif
