/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles one value of a parsed pickle on its own: a checkpoint stores the non-tensor values of a .pt as items. */
#ifndef CKPT_PT_VALUE_H
#define CKPT_PT_VALUE_H

#include "base/json_write.h"
#include "torch/pickle/pickle.h"

/* Appends node n in protocol 2. It uses only names that the parsed pickle uses. max_nbytes limits the text: sharing can
 * make a value much larger than its pickle. FSDPCK_ERR_UNSUPPORTED if the value refers to a storage. file: for
 * messages. */
int fsdpck_pt_value(const struct fsdpck_pickle *p, fsdpck_node n, uint64_t max_nbytes, const char *file,
                    struct fsdpck_text *out, struct fsdpck_error *err);

#endif
