/* SPDX-License-Identifier: Apache-2.0 */
/* The linear layers of a FLUX.2 transformer in diffusers' names and in those of Black Forest Labs' own files, which
 * sd-scripts, ai-toolkit and ComfyUI use. Pure text. */
#ifndef CKPT_LORA_FLUX2_NAMES_H
#define CKPT_LORA_FLUX2_NAMES_H

#include <stdbool.h>
#include <stddef.h>

enum { FSDPCK_FLUX2_PARTS = 3, FSDPCK_FLUX2_NAME = 128 };

/* A linear layer. part: of queries, keys and values, which are one layer there; nparts 1: a layer of its own. */
struct fsdpck_flux2_naming {
    const char *name, *native;
    unsigned part, nparts;
    bool swapped; /* the halves of the output */
};

/* Writes diffusers' path of a module in Black Forest Labs' names: "double_blocks.0.img_attn.qkv". NULL: none has it. */
const struct fsdpck_flux2_naming *fsdpck_flux2_native(const char *path, char *native, size_t nbytes);
/* The other way: writes the path of one part of a native layer, which may be spelt with "_" for ".". NULL: none has it,
 * or it has fewer parts. */
const struct fsdpck_flux2_naming *fsdpck_flux2_module(const char *native, unsigned part, char *path, size_t nbytes);

#endif
