/* SPDX-License-Identifier: Apache-2.0 */
/* The autoencoder of FLUX.2 (diffusers' AutoencoderKLFlux2; Rombach et al. 2021): from pixels to latents, and back. */
#ifndef TRAIN_VAE_H
#define TRAIN_VAE_H

#include <fsdpck/source.h>
#include <kernels/image.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

#include "image/pipeline.h"

enum { VAE_STAGES = 8, VAE_RESNETS = 8 };

/* Of vae/config.json. */
struct vae_config {
    int64_t nlatent;                      /* channels of the latents, before 2 × 2 of them become one */
    int64_t nstage;                       /* each but the first doubles the sides */
    int64_t channels[VAE_STAGES];         /* of the decoder's stages, the one with pixels first */
    int64_t encoder_channels[VAE_STAGES]; /* of the encoder's, likewise */
    int64_t nresnet;                      /* of a stage of the encoder; the decoder has one more */
    int64_t ngroup;
    bool quant, post_quant;
    double norm_eps; /* of the latents' normalization */
    int64_t tile;    /* larger pictures are computed in tiles of so many pixels a side (tiles.h); 0: none are */
};

struct vae_norm {
    int64_t nchannel;
    float *gamma, *beta; /* (nchannel) owned */
};

struct vae_conv {
    int64_t nin, nout, size; /* taps: size × size, 3 or 1 */
    void *weight;            /* (nout, nin, size, size) in the dtype of the computation; owned */
    float *bias;             /* (nout) owned */
};

struct vae_resnet {
    struct vae_norm norm1, norm2;
    struct vae_conv conv1, conv2, shortcut; /* shortcut.nout 0: none */
};

struct vae_stage {
    struct vae_resnet resnets[VAE_RESNETS];
    struct vae_conv resizes; /* after its upsampling, or with a stride of 2; nout 0: it does not */
};

/* The encoder or the decoder. */
struct vae_half {
    int64_t nresnet;       /* of a stage */
    struct vae_conv quant; /* 1 × 1, at the end of the encoder, or the beginning of the decoder; nout 0: none */
    struct vae_conv in, out;
    struct vae_resnet mid[2];
    struct vae_norm mid_norm, norm_out;
    struct vae_conv q, k, v, o;          /* of the attention: 1 × 1 */
    struct vae_stage stages[VAE_STAGES]; /* in the order of the computation */
};

struct vae {
    struct vae_config config;
    enum kern_dtype dtype;
    struct vae_half half;
    float *mean, *scale;              /* (4 · nlatent) of the normalized latents; owned */
    const struct kern_device *device; /* that the weights were moved to; NULL: they are in host memory */
    int index;
    struct kern_buffer moved;
};

/* One half of it. dtype: of the computation. tiled: pictures that are larger than sample_size of its config are
 * computed in tiles of that size. */
int vae_open(const struct pipeline *p, bool encoder, enum kern_dtype dtype, bool tiled,
             const struct fsdpck_options *opt, struct vae **out, struct fsdpck_error *err);
void vae_close(struct vae *v); /* NULL does nothing */
/* Moves the weights to the memory of a device, which then computes. Does nothing if it reads the host's. */
int vae_move(struct vae *v, const struct kern_device *device, int index, struct kern_stream *stream,
             struct fsdpck_error *err);

/* latents: (height · width, 4 · nlatent), normalized. pixels: (16 · height, 16 · width, 3) for the published model: a
 * latent pixel gives vae_unit() pixels on each side. */
int vae_decode(const struct vae *v, const struct kern_device *device, struct kern_stream *stream, const float *latents,
               int64_t height, int64_t width, uint8_t *pixels, struct fsdpck_error *err);
int64_t vae_unit(const struct vae *v);
/* The bytes that one half takes for a picture of height × width latent pixels: its weights and its buffers. Reads
 * headers only. */
int vae_count(const struct pipeline *p, bool encoder, enum kern_dtype dtype, bool tiled,
              const struct fsdpck_options *opt, int64_t height, int64_t width, uint64_t *nbytes,
              struct fsdpck_error *err);
/* pixels: (height, width, 3), both multiples of vae_unit(). latents: (height · width / unit², 4 · nlatent), normalized:
 * the mean of the distribution, so that a picture has one encoding. */
int vae_encode(const struct vae *v, const struct kern_device *device, struct kern_stream *stream, const uint8_t *pixels,
               int64_t height, int64_t width, float *latents, struct fsdpck_error *err);

/* Of the .c files: the bytes of the buffers for a picture of height × width pixels, whose stages have these channels.
 */
uint64_t vae_buffers(int64_t height, int64_t width, enum kern_dtype dtype, const struct vae_config *c,
                     const int64_t *channels);
/* Of the .c files: the side of the tiles for a picture of so many pixels; 0: it is computed whole. */
int64_t vae_tile(const struct vae_config *c, int64_t height, int64_t width);
/* Of the .c files: fills the layers from the tensors of a source. */
int vae_load(struct vae *v, bool encoder, struct fsdpck_source *src, struct fsdpck_error *err);

#endif
