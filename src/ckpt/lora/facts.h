/* SPDX-License-Identifier: Apache-2.0 */
/* Derives the contents of adapter_config.json from an adapter's tensors: the modules, their ranks and scalings, and the
 * modules saved whole. */
#ifndef CKPT_LORA_FACTS_H
#define CKPT_LORA_FACTS_H

#include "lora/adapter.h"

/* The adapter's arena owns the strings. opt gets notes about layers that lack the modules of others. */
int fsdpck_lora_facts(struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt, struct fsdpck_lora_facts *out,
                      struct fsdpck_error *err);

#endif
