/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operations of models that make pictures. */
#ifndef CPU_IMAGE_H
#define CPU_IMAGE_H

#include <kernels/image.h>

extern const struct kern_image_ops cpu_image_ops;

kern_conv_fn cpu_conv;
kern_conv_scratch_fn cpu_conv_scratch;
kern_group_norm_fn cpu_group_norm;

#endif
