/* SPDX-License-Identifier: Apache-2.0 */
/* The forms in which weights can be quantized, and the choice of the weights of a source that are. */
#ifndef CKPT_QUANT_TARGETS_H
#define CKPT_QUANT_TARGETS_H

#include <pthread.h>

#include "engine/source_impl.h"
#include "quant/kept_scales.h"
#include "quant/quantize.h"

/* What a tensor of a quantized weight holds. */
enum fsdpck_quant_output {
    FSDPCK_OUT_PLAIN, /* it belongs to no quantized weight */
    FSDPCK_OUT_CODES,
    FSDPCK_OUT_SCALES,
    FSDPCK_OUT_NESTED, /* the factors of scales that are quantized themselves */
    FSDPCK_OUT_SEEN,   /* of no tensor: such scales as a reader computes them, float32 */
    FSDPCK_OUT_GLOBAL, /* the scale of all scales */
    FSDPCK_OUT_MAP,    /* values of the 16 codes */
    FSDPCK_OUT_STATE,  /* JSON of bitsandbytes */
};

enum fsdpck_quant_arithmetic {
    FSDPCK_TO_FP8_BLOCK,  /* scales as transformers makes them */
    FSDPCK_TO_FP8_SCALED, /* scales of groups, rounded to their dtype first */
    FSDPCK_TO_FP8_WHOLE,  /* one such scale for the weight; there are no groups */
    FSDPCK_TO_MXFP8,
    FSDPCK_TO_MXFP4,
    FSDPCK_TO_NVFP4,
    FSDPCK_TO_NF4
};

enum { FSDPCK_QUANT_MAX_OUTPUTS = 4 };

/* Weights have two dimensions. Flat forms count their groups over all elements, as if the weight were one row. */
struct fsdpck_quant_target_form {
    const char *name; /* as on the command line */
    const char *what; /* for messages */
    enum fsdpck_quant_arithmetic to;
    uint64_t group_rows, group_cols; /* of a block with one scale */
    unsigned per_byte;               /* codes in a byte */
    bool flat, whole_groups;         /* whole_groups: a row must be a multiple of group_cols */
    bool ue8m0;                      /* scales of FP8 are powers of two */
    struct {
        enum fsdpck_quant_output output; /* FSDPCK_OUT_PLAIN ends the list */
        const char *suffix;              /* after the weight's name */
        enum fsdpck_dtype dtype;
    } outputs[FSDPCK_QUANT_MAX_OUTPUTS];
    enum fsdpck_dtype via; /* of a form that was read: its reader rounds products to it */
    enum fsdpck_mx_rule mx;
    enum fsdpck_nvfp4_rule nv;
};

/* How the scales are quantized themselves (flat forms). */
struct fsdpck_quant_nested {
    float map[256], offset;
    uint64_t block;
};

/* A weight to quantize. */
struct fsdpck_quant_target {
    const struct fsdpck_quant_target_form *form;
    size_t inner;         /* ordinal in the source */
    uint64_t rows, cols;  /* flat: 1, all elements */
    const char *state;    /* OUT_STATE's text */
    uint64_t turned_rows; /* the values lie as [matrices, cols, rows]: rows of one matrix; 0: as their codes */
    uint64_t unit_nbytes; /* codes are listed with one more dimension, of so many bytes; 0: they are not */
    bool scales_in_line;  /* scales of rows that are listed as a vector */
    const struct fsdpck_quant_nested *nested; /* NULL: scales are stored as they are */
    pthread_mutex_t lock;                     /* of what follows */
    bool has_global;
    float global;
    struct fsdpck_kept_scales kept;
};

struct fsdpck_quant_targets {
    const struct fsdpck_quant_target_form *form; /* of all of them; NULL: each has its own */
    struct fsdpck_quant_target *list;            /* (count) by ordinal */
    size_t count;
    uint32_t *of;                 /* (ntensors) position in list; UINT32_MAX: the tensor stays */
    _Atomic uint64_t kept_nbytes; /* of scales */
};

enum fsdpck_dtype fsdpck_quant_scale_dtype(const struct fsdpck_quant_target_form *form);
/* Whether the codes depend on the whole weight: its `global`. */
bool fsdpck_quant_needs_global(const struct fsdpck_quant_target_form *form);
/* Returns NULL if no form has this name. */
const struct fsdpck_quant_target_form *fsdpck_quant_target_form(const char *name);
/* Chooses every matrix named "….weight" of a floating-point dtype, but embeddings, heads, norms, routers, and what
 * matches a glob of `keep`. Refuses weights that the form cannot hold, and quantized sources. Lives in the arena, but
 * the locks. */
int fsdpck_quant_targets_choose(const struct fsdpck_source *src, const struct fsdpck_quant_target_form *form,
                                const char *const *keep, size_t nkeep, struct fsdpck_arena *arena,
                                struct fsdpck_quant_targets *out, struct fsdpck_error *err);
void fsdpck_quant_targets_free(struct fsdpck_quant_targets *t);
/* Sets the shape of one of a weight's tensors; returns its number of dimensions. t: the weight. */
uint32_t fsdpck_quant_target_shape(const struct fsdpck_quant_target_form *form,
                                   const struct fsdpck_quant_target *target, enum fsdpck_quant_output output,
                                   uint64_t shape[2]);

#endif
