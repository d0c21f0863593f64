/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the CUDA operations of models that make pictures, which ops.c collects. */
#ifndef CUDA_IMAGES_H
#define CUDA_IMAGES_H

#include <kernels/image.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DECLARE(name, type) kern_##type##_fn cuda_##type;
KERN_IMAGE_OPS(DECLARE)
#undef DECLARE

extern const struct kern_image_ops cuda_image_ops;

#ifdef __cplusplus
}
#endif
#endif
