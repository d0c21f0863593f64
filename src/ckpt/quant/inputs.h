/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a box of a weight's codes and the scales that belong to it, and brings them to one form: rows of codes as
 * decode.h takes them, and a grid of float32 scales and zero points. One for each thread. */
#ifndef CKPT_QUANT_INPUTS_H
#define CKPT_QUANT_INPUTS_H

#include "engine/value_inputs.h"
#include "quant/weights.h"

#define FSDPCK_QUANT_PIECE (1u << 20) /* most codes of a box that need not be whole */
#define FSDPCK_QUANT_GRID  (1u << 18) /* most scales of such a box */
#define FSDPCK_QUANT_WHOLE_NBYTES \
    (24u << 20) /* a matrix of up to so many bytes is read whole where it is transposed \
                 */

/* A box of matrix `mat` of a weight, in stored rows and columns. */
struct fsdpck_quant_box {
    uint64_t mat, row, nrows, col, ncols;
};

struct fsdpck_quant_buffer {
    void *data;
    uint64_t nbytes;
};

struct fsdpck_quant_inputs {
    struct fsdpck_fetch fetch;           /* of the source that holds the parts */
    const struct fsdpck_quant_weight *w; /* that is loaded; NULL: none */
    struct fsdpck_quant_box box;
    uint64_t pitch;                         /* bytes from a row of codes to the next */
    uint64_t grid_row, grid_col, grid_cols; /* of the grid that is loaded; bitsandbytes: grid_col is its first block */
    struct fsdpck_quant_buffer codes, scale, zero, index, raw;
    float global, nested_map[256];
    float byte_scale[256]; /* value of a scale that is stored as a byte */
    struct fsdpck_decode decode;
};

int fsdpck_quant_inputs_init(struct fsdpck_quant_inputs *in, struct fsdpck_source *src, enum fsdpck_dtype to,
                             struct fsdpck_error *err);
void fsdpck_quant_inputs_free(struct fsdpck_quant_inputs *in);
/* Most memory that loading boxes of this weight takes, besides the workspace. */
uint64_t fsdpck_quant_inputs_nbytes(const struct fsdpck_quant_weight *w);
/* Whether boxes of the weight are better loaded as whole matrices. */
bool fsdpck_quant_is_whole(const struct fsdpck_quant_weight *w);

/* Whether a box needs the scales of whole rows, however narrow it is. */
bool fsdpck_quant_has_whole_grid_rows(const struct fsdpck_quant_weight *w);

/* Loads a box, or a larger one around it; does nothing if it is loaded already. A scale that is not finite is refused.
 * f: the reader's workspace, whose counts grow. */
int fsdpck_quant_load(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, const struct fsdpck_quant_weight *w,
                      const struct fsdpck_quant_box *box, struct fsdpck_error *err);
/* Dequantizes `ncols` codes from (row, col) on, which must be loaded, to out. */
void fsdpck_quant_row(const struct fsdpck_quant_inputs *in, uint64_t row, uint64_t col, uint64_t ncols, void *out);

/* Sets the values of a weight's 16 codes, where no tensor lists them. */
void fsdpck_quant_code_values(const struct fsdpck_quant_weight *w, float out[16]);

/* Fetches codes that fsdpck_quant_row() will want soon into the cache: rows are too short for the processor to see it.
 */
void fsdpck_quant_prefetch(const struct fsdpck_quant_inputs *in, uint64_t row, uint64_t col, uint64_t ncols);

/* Scales and zero points of the box, after its codes: inputs_grid.c. */
int fsdpck_quant_load_grid(struct fsdpck_quant_inputs *in, struct fsdpck_fetch *f, struct fsdpck_error *err);
int fsdpck_quant_reserve(struct fsdpck_quant_buffer *b, uint64_t nbytes, struct fsdpck_error *err);
/* Brings words of eight codes from AWQ's order to the order of columns. */
void fsdpck_quant_unshuffle_awq(uint8_t *words, uint64_t nwords);

#endif
