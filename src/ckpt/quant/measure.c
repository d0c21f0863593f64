/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of a quantized weight from the shapes of its parts: matrices, packing, blocks and their scales. Reads no
 * payload. Every count is checked against the shapes, so that later reads stay inside the tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "quant/weights.h"
#include "tensor/shape_text.h"

enum { MX_GROUP = 32, NV_GROUP = 16, DEFAULT_BLOCK = 128 };

struct measure {
    const struct fsdpck_source *src;
    const struct fsdpck_quant_config *config;
    struct fsdpck_quant_weight *w;
    struct fsdpck_error *err;
};

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static const struct fsdpck_tensor *part(const struct measure *m, enum fsdpck_quant_part p)
{
    return quant_part(m->src, m->w, p);
}

/* Refuses a part by its shape. */
static int misfit(const struct measure *m, enum fsdpck_quant_part p, const char *wanted)
{
    char found[160];
    return fsdpck_quant_refuse(m->src, m->w->part[p], m->err, "has shape %s; %s '%.120s' needs %s",
                               fsdpck_shape_text(part(m, p), found, sizeof found), m->w->form, m->w->name, wanted);
}

static int misfit_at(const struct measure *m, enum fsdpck_quant_part p, uint64_t rows, uint64_t cols)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, "[%" PRIu64 ", %" PRIu64 "]", rows, cols);
    return misfit(m, p, wanted);
}

static bool is_matrix(const struct fsdpck_tensor *t, uint64_t rows, uint64_t cols)
{
    return t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static bool is_grid(const struct fsdpck_tensor *t, const struct fsdpck_quant_weight *w)
{
    return t->ndim >= 2 && t->shape[t->ndim - 2] == w->grid_rows && t->shape[t->ndim - 1] == w->grid_cols &&
           t->nelem == w->nmat * w->grid_rows * w->grid_cols;
}

/* Blocks that are larger than the matrix are as large as it. */
static void set_groups(struct fsdpck_quant_weight *w, uint64_t rows, uint64_t cols)
{
    w->group_rows = rows < w->rows ? rows : w->rows;
    w->group_cols = cols < w->cols ? cols : w->cols;
    w->grid_rows = ceil_div(w->rows, rows);
    w->grid_cols = ceil_div(w->cols, cols);
}

/* The logical shape, from nmat, rows and cols. */
static void set_shape(struct fsdpck_quant_weight *w, bool stacked)
{
    w->ndim = 0;
    if (stacked)
        w->shape[w->ndim++] = w->nmat;
    w->shape[w->ndim++] = w->transposed ? w->cols : w->rows;
    w->shape[w->ndim++] = w->transposed ? w->rows : w->cols;
}

/* Codes of [rows, bytes] or [nmat, rows, bytes]. */
static int measure_codes(const struct measure *m, uint64_t codes_per_item)
{
    const struct fsdpck_tensor *t = part(m, FSDPCK_QUANT_CODES);
    struct fsdpck_quant_weight *w = m->w;
    if ((t->ndim != 2 && t->ndim != 3) || t->nelem == 0 || t->shape[t->ndim - 1] > INT64_MAX / 8)
        return misfit(m, FSDPCK_QUANT_CODES, "two dimensions, or three for stacked experts, and none of them 0");
    w->nmat = t->ndim == 3 ? t->shape[0] : 1;
    w->rows = t->shape[t->ndim - 2];
    w->row_nbytes = t->shape[t->ndim - 1];
    w->cols = w->row_nbytes * codes_per_item;
    set_shape(w, t->ndim == 3);
    return 0;
}

/* ---- groups along a row ---- */

static int measure_groups(const struct measure *m, uint64_t group)
{
    struct fsdpck_quant_weight *w = m->w;
    const struct fsdpck_tensor *global = part(m, FSDPCK_QUANT_GLOBAL);
    if (w->cols % group != 0)
        return fsdpck_quant_refuse(m->src, w->part[FSDPCK_QUANT_CODES], m->err,
                                   "has rows of %" PRIu64 " codes; %s has groups of %" PRIu64, w->cols, w->form, group);
    set_groups(w, 1, group);
    if (!is_grid(part(m, FSDPCK_QUANT_SCALE), w))
        return misfit_at(m, FSDPCK_QUANT_SCALE, w->grid_rows, w->grid_cols);
    if (global && global->nelem != 1)
        return misfit(m, FSDPCK_QUANT_GLOBAL, "one element");
    return 0;
}

/* gpt-oss: blocks [E, rows, groups, 16]. */
static int measure_blocks(const struct measure *m)
{
    const struct fsdpck_tensor *t = part(m, FSDPCK_QUANT_CODES), *s = part(m, FSDPCK_QUANT_SCALE);
    struct fsdpck_quant_weight *w = m->w;
    if (t->ndim != 4 || t->shape[3] != MX_GROUP / 2 || t->nelem == 0)
        return misfit(m, FSDPCK_QUANT_CODES, "[experts, rows, groups, 16]");
    w->nmat = t->shape[0];
    w->rows = t->shape[1];
    w->row_nbytes = t->shape[2] * t->shape[3];
    w->cols = w->row_nbytes * 2;
    w->transposed = true;
    set_shape(w, true);
    set_groups(w, 1, MX_GROUP);
    if (s->ndim != 3 || s->shape[0] != w->nmat || s->shape[1] != w->rows || s->shape[2] != w->grid_cols)
        return misfit(m, FSDPCK_QUANT_SCALE, "the shape of the codes without the last dimension");
    return 0;
}

/* ---- FP8 ---- */

/* Takes the blocks that the config names and whose grid is the scales' shape; 128 x 128 if it names none. Two such
 * blocks are refused. */
static int choose_block(const struct measure *m)
{
    const struct fsdpck_tensor *s = part(m, FSDPCK_QUANT_SCALE);
    struct fsdpck_quant_weight *w = m->w;
    uint64_t taken[2] = { 0 }, asked[2] = { 0 };
    bool named = false;
    for (size_t i = 0; i <= m->config->nschemes; i++) {
        bool last = i == m->config->nschemes;
        const struct fsdpck_quant_scheme *c = &m->config->schemes[i];
        uint64_t bm = last ? DEFAULT_BLOCK : c->block[0] ? c->block[0] : 1;
        uint64_t bn = last ? DEFAULT_BLOCK : c->block[1] ? c->block[1] : c->group;
        if ((last && named) || !bn)
            continue;
        named = true;
        asked[0] = bm;
        asked[1] = bn;
        set_groups(w, bm, bn);
        bm = w->group_rows;
        bn = w->group_cols;
        if (!is_grid(s, w) || (taken[0] == bm && taken[1] == bn))
            continue;
        if (taken[0])
            return fsdpck_quant_refuse(m->src, w->part[FSDPCK_QUANT_SCALE], m->err,
                                       "may be scales of %" PRIu64 "x%" PRIu64 " or of %" PRIu64 "x%" PRIu64
                                       " blocks: quantization_config names both, and the shapes fit both",
                                       taken[0], taken[1], bm, bn);
        taken[0] = bm;
        taken[1] = bn;
    }
    if (taken[0]) {
        set_groups(w, taken[0], taken[1]);
        return 0;
    }
    char wanted[200];
    snprintf(wanted, sizeof wanted,
             "[%" PRIu64 ", %" PRIu64 "] for %" PRIu64 " rows of %" PRIu64 " in blocks of %" PRIu64 "x%" PRIu64 "%s",
             w->grid_rows, w->grid_cols, w->rows, w->cols, asked[0], asked[1],
             named && m->config->nschemes ? "" : " (quantization_config names no block size)");
    return misfit(m, FSDPCK_QUANT_SCALE, wanted);
}

static int measure_fp8(const struct measure *m)
{
    const struct fsdpck_tensor *s = part(m, FSDPCK_QUANT_SCALE);
    struct fsdpck_quant_weight *w = m->w;
    bool byte = fsdpck_dtype_info(s->dtype)->nbytes == 1;
    if (byte && w->rule == FSDPCK_SCALE_E8M0)
        return measure_groups(m, MX_GROUP);
    w->rule = byte ? FSDPCK_SCALE_E8M0 : FSDPCK_SCALE_FLOAT;
    if (!byte && strcmp(m->config->method, "compressed-tensors") == 0)
        w->via = s->dtype; /* its own code multiplies in the scale's dtype */
    if (s->nelem == w->nmat && (s->ndim < 2 || s->shape[s->ndim - 1] == 1) && (w->nmat == 1 || w->rows != 1)) {
        set_groups(w, w->rows, w->cols);
        return 0;
    }
    bool column = s->ndim >= 2 && s->shape[s->ndim - 1] == 1 && s->shape[s->ndim - 2] == w->rows;
    if (s->nelem == w->nmat * w->rows && (column || (s->ndim == 1 && w->nmat == 1))) {
        set_groups(w, 1, w->cols);
        return 0;
    }
    return choose_block(m);
}

static int measure_int8(const struct measure *m, const uint8_t *format)
{
    struct fsdpck_quant_weight *w = m->w;
    if (part(m, FSDPCK_QUANT_CODES)->ndim != 2 || part(m, FSDPCK_QUANT_SCALE)->nelem != w->rows)
        return misfit_at(m, FSDPCK_QUANT_SCALE, w->rows, 1);
    if (format && *format != 0)
        return fsdpck_quant_refuse(m->src, w->part[FSDPCK_QUANT_STATE], m->err,
                                   "is %u: the codes are tiled for one GPU's kernels; only 0 (rows) is read", *format);
    set_groups(w, 1, w->cols);
    return 0;
}

/* ---- integers in words of 32 bits ---- */

/* Sets the group along `n` inputs whose scales have `count` rows or columns; 0 if there is none. */
static uint64_t choose_group(const struct measure *m, uint64_t n, uint64_t count)
{
    for (size_t i = 0; i < m->config->nschemes; i++) {
        uint64_t g = m->config->schemes[i].group;
        if (g && ceil_div(n, g) == count)
            return g;
    }
    return count && n % count == 0 ? n / count : 0;
}

static int set_bits(const struct measure *m, uint64_t bits)
{
    struct fsdpck_quant_weight *w = m->w;
    if (bits != 4 && bits != 8) {
        int rc = fsdpck_error_set(m->err, FSDPCK_ERR_UNSUPPORTED, m->src->path,
                                  "holds integers of %" PRIu64 " bits; those of 4 and 8 bits are read", bits);
        fsdpck_error_tensor(m->err, source_tensors(m->src)[w->part[FSDPCK_QUANT_CODES]].name);
        return rc;
    }
    w->bits = (unsigned)bits;
    w->code = bits == 4 ? FSDPCK_DECODE_NIBBLE : FSDPCK_DECODE_INT8;
    w->via = part(m, FSDPCK_QUANT_SCALE)->dtype;
    return 0;
}

static int check_index(const struct measure *m)
{
    const struct fsdpck_tensor *index = part(m, FSDPCK_QUANT_INDEX);
    if (index && (index->ndim != 1 || index->nelem != m->w->cols))
        return misfit(m, FSDPCK_QUANT_INDEX, "the group of each input");
    return 0;
}

static int measure_packed(const struct measure *m, const int64_t *shape)
{
    const struct fsdpck_tensor *t = part(m, FSDPCK_QUANT_CODES), *s = part(m, FSDPCK_QUANT_SCALE),
                               *z = part(m, FSDPCK_QUANT_ZERO);
    struct fsdpck_quant_weight *w = m->w;
    uint64_t bits = 0;
    if (t->ndim != 2 || s->ndim != 2 || !shape || shape[0] < 1 || shape[1] < 1 || shape[1] > INT32_MAX)
        return misfit(m, FSDPCK_QUANT_CODES, "two dimensions, and weight_shape two numbers from 1 on");
    w->nmat = 1;
    w->rows = (uint64_t)shape[0];
    w->cols = (uint64_t)shape[1];
    for (size_t i = 0; i < m->config->nschemes && !bits; i++)
        if (is_matrix(t, w->rows, ceil_div(w->cols * (m->config->schemes[i].bits & 63), 32)))
            bits = m->config->schemes[i].bits;
    for (uint64_t b = 8; b >= 4 && !bits; b -= 4)
        bits = is_matrix(t, w->rows, ceil_div(w->cols * b, 32)) ? b : 0;
    if (!bits)
        return misfit_at(m, FSDPCK_QUANT_CODES, w->rows, ceil_div(w->cols, 8));
    int rc = set_bits(m, bits);
    if (rc)
        return rc;
    w->row_nbytes = t->shape[1] * 4;
    uint64_t group = choose_group(m, w->cols, s->shape[1]);
    set_shape(w, false);
    set_groups(w, 1, group ? group : w->cols);
    if (!is_grid(s, w))
        return misfit_at(m, FSDPCK_QUANT_SCALE, w->grid_rows, w->grid_cols);
    if (z && !is_matrix(z, ceil_div(w->rows * bits, 32), w->grid_cols))
        return misfit_at(m, FSDPCK_QUANT_ZERO, ceil_div(w->rows * bits, 32), w->grid_cols);
    return check_index(m);
}

/* GPTQ has words along the inputs, AWQ along the outputs. */
static int measure_qweight(const struct measure *m)
{
    const struct fsdpck_tensor *t = part(m, FSDPCK_QUANT_CODES), *s = part(m, FSDPCK_QUANT_SCALE),
                               *z = part(m, FSDPCK_QUANT_ZERO);
    struct fsdpck_quant_weight *w = m->w;
    if (t->ndim != 2 || s->ndim != 2 || z->ndim != 2 || t->nelem == 0 || s->nelem == 0 || t->shape[0] > INT32_MAX ||
        t->shape[1] > INT32_MAX)
        return misfit(m, FSDPCK_QUANT_CODES, "two dimensions, none of them 0, and so its scales and zero points");
    uint64_t out = s->shape[1], ngroups = s->shape[0];
    bool gptq = out == t->shape[1];
    if (!gptq && out != t->shape[1] * 8)
        return misfit_at(m, FSDPCK_QUANT_SCALE, ngroups, t->shape[1]);
    int rc = set_bits(m, gptq ? z->shape[1] * 32 / out : 4);
    if (rc)
        return rc;
    if (!is_matrix(z, ngroups, ceil_div(out * w->bits, 32)))
        return misfit_at(m, FSDPCK_QUANT_ZERO, ngroups, ceil_div(out * w->bits, 32));
    uint64_t in = gptq ? t->shape[0] * (32 / w->bits) : t->shape[0], group = choose_group(m, in, ngroups);
    if (!group)
        return misfit_at(m, FSDPCK_QUANT_SCALE, in, out);
    w->nmat = 1;
    w->form = gptq ? "GPTQ" : "AWQ";
    w->packing = gptq ? FSDPCK_PACK_DOWN : FSDPCK_PACK_AWQ;
    w->transposed = !gptq;
    w->rows = gptq ? out : in;
    w->cols = gptq ? in : out;
    w->row_nbytes = gptq ? t->shape[0] * 4 : t->shape[1] * 4;
    w->zero_less_one = gptq && !m->config->gptq_v2;
    set_shape(w, false);
    set_groups(w, gptq ? 1 : group, gptq ? group : 1);
    if (!gptq)
        w->part[FSDPCK_QUANT_INDEX] = SIZE_MAX;
    return check_index(m);
}

int fsdpck_quant_measure(const struct fsdpck_source *src, const struct fsdpck_quant_config *config,
                         const void *const small[FSDPCK_QUANT_NPARTS], struct fsdpck_quant_weight *w,
                         struct fsdpck_error *err)
{
    const struct measure m = { src, config, w, err };
    w->via = FSDPCK_FLOAT32;
    if (w->part[FSDPCK_QUANT_MAP] != SIZE_MAX)
        return fsdpck_quant_read_state(src, small[FSDPCK_QUANT_STATE], part(&m, FSDPCK_QUANT_STATE)->nbytes, w, err);
    if (w->part[FSDPCK_QUANT_SHAPE] != SIZE_MAX) {
        const struct fsdpck_tensor *shape = part(&m, FSDPCK_QUANT_SHAPE);
        return shape->nelem == 2 ? measure_packed(&m, small[FSDPCK_QUANT_SHAPE])
                                 : misfit(&m, FSDPCK_QUANT_SHAPE, "[2]");
    }
    if (w->packing == FSDPCK_PACK_AWQ)
        return measure_qweight(&m);
    if (part(&m, FSDPCK_QUANT_CODES)->ndim == 4)
        return measure_blocks(&m);
    int rc = measure_codes(&m, w->packing == FSDPCK_PACK_NIBBLES ? 2 : 1);
    if (rc)
        return rc;
    w->plus_zero = w->rule == FSDPCK_SCALE_TIMES; /* modelopt's own table has +0 for code 8 */
    if (w->packing == FSDPCK_PACK_NIBBLES)
        return measure_groups(&m, w->rule == FSDPCK_SCALE_E8M0 ? MX_GROUP : NV_GROUP);
    return w->code == FSDPCK_DECODE_INT8 ? measure_int8(&m, small[FSDPCK_QUANT_STATE]) : measure_fp8(&m);
}
