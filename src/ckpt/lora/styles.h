/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor names and file metadata that consumers of LoRA expect. Pure text. */
#ifndef CKPT_LORA_STYLES_H
#define CKPT_LORA_STYLES_H

#include "lora/adapter.h"

/* Returns the name of a tensor of the module ("lora_A", "lora_B", "bias", "magnitude", "alpha") in the style, from the
 * adapter's arena. FSDPCK_ERR_UNSUPPORTED if the style has no name for such a module. */
enum fsdpck_lora_part { LORA_PART_A, LORA_PART_B, LORA_PART_BIAS, LORA_PART_MAGNITUDE, LORA_PART_ALPHA };
int fsdpck_lora_style_name(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                           const struct fsdpck_lora_module *m, enum fsdpck_lora_part part, const char **out,
                           struct fsdpck_error *err);
/* Refuses features that the style cannot store; gives notes about features that its consumers, or those of PEFT
 * folders, will ignore. */
int fsdpck_lora_style_check(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                            const struct fsdpck_lora_facts *facts, const struct fsdpck_options *opt,
                            struct fsdpck_error *err);
/* Members of the file's __metadata__, with a leading comma. */
int fsdpck_lora_style_metadata(struct fsdpck_lora_adapter *a, enum fsdpck_lora_style style,
                               const struct fsdpck_lora_facts *facts, struct fsdpck_text *out,
                               struct fsdpck_error *err);
/* Returns the scaling as these files state it: alpha, which consumers divide by the rank. */
double fsdpck_lora_style_alpha(const struct fsdpck_lora_adapter *a, const struct fsdpck_lora_module *m);
/* PEFT's names, in a folder with adapter_config.json. */
static inline bool lora_style_is_folder(enum fsdpck_lora_style style)
{
    return style == FSDPCK_LORA_PEFT || style >= FSDPCK_LORA_VLLM;
}
static inline bool lora_style_has_alpha(enum fsdpck_lora_style style)
{
    return style == FSDPCK_LORA_KOHYA || style == FSDPCK_LORA_COMFY;
}

#endif
