/* SPDX-License-Identifier: Apache-2.0 */
/* Derives from an adapter's tensors what adapter_config.json must state: the modules, their ranks and scalings, and the
 * modules saved whole. */
#ifndef CKPT_LORA_FACTS_H
#define CKPT_LORA_FACTS_H

#include "lora/adapter.h"

/* Strings come from the adapter's arena. Notes go to opt: layers that lack what others have. */
int fsdpck_lora_facts(struct fsdpck_lora_adapter *a, const struct fsdpck_options *opt, struct fsdpck_lora_facts *out,
                      struct fsdpck_error *err);

#endif
