/* SPDX-License-Identifier: Apache-2.0 */
/* The gated activation of experts, on the CPU. */
#include "cpu/experts.h"

#include "cpu/work.h"

/* A strip of gate and one of up: where they are, or in the rooms. */
struct strips {
    const float *gate, *up;
    float gate_room[CPU_STRIP], up_room[CPU_STRIP];
};

static void load_strips(const struct cpu_simd *simd, struct strips *s, struct kern_cmat gate, struct kern_cmat up,
                        int64_t row, int64_t col, int64_t n)
{
    if (up.data) {
        s->gate = cpu_load(simd, gate, row, col, n, s->gate_room);
        s->up = cpu_load(simd, up, row, col, n, s->up_room);
        return;
    }
    float room[2][CPU_STRIP];
    const int64_t half = n / 2, rest = n - half; /* of the pairs */
    const float *pairs[2] = { cpu_load(simd, gate, row, 2 * col, 2 * half, room[0]),
                              cpu_load(simd, gate, row, 2 * (col + half), 2 * rest, room[1]) };
    for (int64_t i = 0; i < n; i++) {
        const float *pair = i < half ? pairs[0] + 2 * i : pairs[1] + 2 * (i - half);
        s->gate_room[i] = pair[0];
        s->up_room[i] = pair[1];
    }
    s->gate = s->gate_room, s->up = s->up_room;
}

static void store_strips(const struct cpu_simd *simd, struct kern_mat gate, struct kern_mat up, int64_t row,
                         int64_t col, int64_t n, const float *of_gate, const float *of_up)
{
    if (up.data) {
        cpu_store(simd, gate, row, col, n, of_gate);
        cpu_store(simd, up, row, col, n, of_up);
        return;
    }
    float pairs[2 * CPU_STRIP];
    for (int64_t i = 0; i < n; i++) {
        pairs[2 * i] = of_gate[i];
        pairs[2 * i + 1] = of_up[i];
    }
    cpu_store(simd, gate, row, 2 * col, 2 * n, pairs);
}

/* The strips as they are, or of which silu is the activation with a slope: silu(s·g)·(u + 1)/s = g·σ(s·g)·(u + 1). NaN
 * stays. */
static void limit_strips(struct strips *to, const struct strips *from, float slope, float limit, int64_t n)
{
    to->gate = from->gate, to->up = from->up;
    if (slope <= 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        const float gate = from->gate[i], up = from->up[i], g = gate > limit ? limit : gate,
                    u = up > limit ? limit : up;
        to->gate_room[i] = slope * g;
        to->up_room[i] = ((u < -limit ? -limit : u) + 1) / slope;
    }
    to->gate = to->gate_room, to->up = to->up_room;
}

/* From the gradients of limit_strips' results to those of its operands, in place. */
static void limit_strips_grad(float *dgate, float *dup, const struct strips *from, float slope, float limit, int64_t n)
{
    for (int64_t i = 0; i < n && slope > 0; i++) {
        dgate[i] = from->gate[i] <= limit ? dgate[i] * slope : 0;
        dup[i] = from->up[i] >= -limit && from->up[i] <= limit ? dup[i] / slope : 0;
    }
}

static void act_strip(const struct cpu_simd *simd, void *ctx, int64_t row, int64_t col, int64_t n)
{
    const struct kern_expert_act *a = ctx;
    const int64_t choice = cpu_choice_of(a->choices, row);
    float y[CPU_STRIP] = { 0 };
    struct strips s, clamped;
    if (choice >= 0) {
        load_strips(simd, &s, a->gate, a->up, row, col, n);
        limit_strips(&clamped, &s, a->slope, a->limit, n);
        simd->swiglu(y, clamped.gate, clamped.up, n);
        if (a->weights)
            simd->scale(y, y, a->weights[choice], n);
    }
    cpu_store(simd, a->y, row, col, n, y);
}

void cpu_expert_act(struct kern_stream *stream, const struct kern_expert_act *a)
{
    struct kern_expert_act copy = *a;
    cpu_for_strips(stream, a->nrow, a->ncol, act_strip, &copy);
}

/* One strip of a row; returns its part of the weight's gradient. Computed into separate strips, because the results may
 * overwrite operands. */
static float act_grad_strip(const struct cpu_simd *simd, const struct kern_expert_act_grad *g, int64_t row, int64_t col,
                            int64_t n)
{
    const float weight = g->weights ? g->weights[cpu_choice_of(g->choices, row)] : 1;
    float dy[CPU_STRIP], y[CPU_STRIP], dgate[CPU_STRIP], dup[CPU_STRIP];
    struct strips s, clamped;
    load_strips(simd, &s, g->gate, g->up, row, col, n);
    limit_strips(&clamped, &s, g->slope, g->limit, n);
    cpu_load_copy(simd, dy, g->dy, row, col, n);
    simd->swiglu(y, clamped.gate, clamped.up, n);
    const float part = simd->dot(dy, y, n);
    simd->scale(dy, dy, weight, n);
    simd->swiglu_grad(dgate, dup, clamped.gate, clamped.up, dy, n);
    limit_strips_grad(dgate, dup, &s, g->slope, g->limit, n);
    store_strips(simd, g->dgate, g->dup, row, col, n, dgate, dup);
    if (g->y.data) {
        simd->scale(y, y, weight, n);
        cpu_store(simd, g->y, row, col, n, y);
    }
    return part;
}

static void clear_strip(const struct cpu_simd *simd, const struct kern_expert_act_grad *g, int64_t row, int64_t col,
                        int64_t n)
{
    static const float zeros[CPU_STRIP];
    store_strips(simd, g->dgate, g->dup, row, col, n, zeros, zeros);
    if (g->y.data)
        cpu_store(simd, g->y, row, col, n, zeros);
}

static void act_grad_block(const struct cpu_simd *simd, void *ctx, int64_t block, int64_t row0, int64_t row1)
{
    const struct kern_expert_act_grad *g = ctx;
    (void)block;
    for (int64_t row = row0; row < row1; row++) {
        const int64_t choice = cpu_choice_of(g->choices, row);
        float sum = 0;
        for (int64_t col = 0; col < g->ncol; col += CPU_STRIP) {
            const int64_t n = g->ncol - col < CPU_STRIP ? g->ncol - col : CPU_STRIP;
            if (choice < 0)
                clear_strip(simd, g, row, col, n);
            else
                sum += act_grad_strip(simd, g, row, col, n);
        }
        if (choice >= 0 && g->weights)
            g->dweights[choice] = sum;
    }
}

void cpu_expert_act_grad(struct kern_stream *stream, const struct kern_expert_act_grad *g)
{
    struct kern_expert_act_grad copy = *g;
    cpu_for_blocks(stream, g->nrow, act_grad_block, &copy);
}
