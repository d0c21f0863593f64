/* SPDX-License-Identifier: Apache-2.0 */
/* A value out of a parsed pickle, pickled again on its own: what is no tensor in a .pt travels so as an item of a
 * checkpoint. */
#ifndef CKPT_PT_VALUE_H
#define CKPT_PT_VALUE_H

#include "base/json_write.h"
#include "torch/pickle/pickle.h"

/* Appends protocol 2 of node n, which names nothing that the parsed pickle did not name. max_nbytes bounds the text's
 * size: sharing can make a value much larger than the pickle it comes from. FSDPCK_ERR_UNSUPPORTED where it refers to a
 * storage. file: for messages. */
int fsdpck_pt_value(const struct fsdpck_pickle *p, fsdpck_node n, uint64_t max_nbytes, const char *file,
                    struct fsdpck_text *out, struct fsdpck_error *err);

#endif
