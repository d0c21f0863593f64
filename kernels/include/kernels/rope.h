/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embeddings (Su et al. 2021) in the "rotate half" form of Hugging Face: features j and j + dim/2 of a
 * head are rotated by position · inv_freq[j]; or features 2j and 2j + 1, as in that paper. Scalings: linear (Chen et
 * al. 2023), llama3 (Llama 3.1), yarn (Peng et al. 2023), each as transformers computes it, but in fp64. */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum kern_rope_kind { KERN_ROPE_DEFAULT, KERN_ROPE_LINEAR, KERN_ROPE_LLAMA3, KERN_ROPE_YARN };

struct kern_rope {
    enum kern_rope_kind kind;
    int64_t dim; /* features of a head that are rotated, the first ones; even */
    double theta;
    double factor;                            /* all but default */
    double original_max_position;             /* llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn: 32 and 1 if the config has none */
    double attention_factor; /* yarn; 0: from mscale and mscale_all_dim if both are set, else 0.1·ln(factor) + 1 */
    double mscale, mscale_all_dim; /* yarn; 0: not set */
    bool no_truncate;              /* yarn: the config says "truncate": false */
};

/* inv_freq: (dim/2). Returns the factor for cosines and sines (1 except with yarn). */
double kern_rope_frequencies(const struct kern_rope *rope, double *inv_freq);
/* Tables on the host, (npos, dim/2) each, for positions 0 … npos-1; they include that factor. scratch: dim/2 doubles.
 */
void kern_rope_tables(const struct kern_rope *rope, int64_t npos, float *cosines, float *sines, double *scratch);

struct kern_rope_apply {
    int64_t nrow, nhead, dim;
    int64_t rotary;       /* how many of the dim features of a head are rotated, the first ones; even */
    struct kern_mat x;    /* (nrow, nhead · dim), rotated in place */
    const float *cosines; /* (npos, rotary/2), readable by the kernels of the stream */
    const float *sines;
    const int32_t *positions; /* (nrow), each below npos: the position inside its document */
    bool inverse;             /* rotate backwards, for the gradient */
    bool adjacent;            /* features 2j and 2j + 1 are rotated together, not j and j + rotary/2 */
};

typedef void kern_rope_fn(struct kern_stream *, const struct kern_rope_apply *);

#ifdef __cplusplus
}
#endif
#endif
