/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of mixtures of experts (Shazeer et al. 2017): a router gives each token its top_k of nexperts experts. A
 * choice is a token and one of its experts: number token·top_k + slot. The rows that experts work on are the choices in
 * the order of experts, and of tokens within each: those of an expert are consecutive, so that its products are plain
 * ones. No token is left out, however uneven the choice. These operations are a table of their own,
 * kern_device.experts. */
#ifndef KERNELS_EXPERTS_H
#define KERNELS_EXPERTS_H

#include <kernels/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KERN_MOST_EXPERTS = 4096 };

/* How a router chooses and weighs a token's experts, from one logit for each. The scores are the softmax of the logits
 * over all experts, or their sigmoids (DeepSeek-AI 2024, DeepSeek-V3): then only experts of some groups may be chosen,
 * and a bias may be added to the scores for the choice. The weights are the scores of the chosen experts, without the
 * bias; of equal ones the lowest expert is chosen first. */
struct kern_router {
    int64_t nexperts, top_k; /* top_k from 1 to nexperts, which is at most KERN_MOST_EXPERTS */
    bool sigmoid;
    bool normalised;    /* the weights of a token are divided by their sum */
    float scale;        /* multiplies the weights */
    const float *bias;  /* (nexperts), with sigmoid only; NULL: none */
    int64_t ngroup;     /* groups of as many consecutive experts, at least two, with sigmoid only; 0 or 1: none */
    int64_t top_groups; /* those count whose two best scores, with bias, have the largest sums; they hold top_k */
};

/* True if as many experts can be chosen. */
static inline bool kern_router_can_choose(const struct kern_router *r)
{
    const int64_t n = r->ngroup > 1 ? r->nexperts / r->ngroup : r->nexperts;
    return r->top_k > 0 && r->top_k <= r->nexperts && r->nexperts <= KERN_MOST_EXPERTS &&
           (r->ngroup <= 1 || (r->sigmoid && n > 1 && r->nexperts % r->ngroup == 0 && r->top_groups <= r->ngroup &&
                               r->top_k <= r->top_groups * n));
}

struct kern_route {
    struct kern_router router;
    int64_t ntok;
    int64_t unit;        /* the rows of an expert are padded to a multiple of it */
    const float *logits; /* (ntok, nexperts) */
    float *weights;      /* (ntok, top_k) in the order of choice: the best expert comes first */
    int32_t *experts;    /* (ntok, top_k) whose they are */
    int32_t *rows;       /* (ntok, top_k) the row of each choice */
    int32_t *choices;    /* (kern_route_rows()) the choice of each row; -1: padding */
    int64_t *starts;     /* (nexperts + 1) host memory, complete when the call returns: the rows of expert e are
                            [starts[e], starts[e + 1]) */
};
/* A NaN among the logits of a token makes its weights NaN. */
typedef void kern_route_fn(struct kern_stream *, const struct kern_route *);

/* The most rows that a routing has, with padding. */
static inline int64_t kern_route_rows(int64_t ntok, int64_t nexperts, int64_t top_k, int64_t unit)
{
    const int64_t n = ntok * top_k;
    return n + (n < nexperts ? n : nexperts) * (unit - 1);
}

struct kern_route_grad {
    struct kern_router router; /* its bias is not read: it has no part in the weights */
    int64_t ntok;
    const float *slopes; /* (nexperts) from kern_expert_balance, with a softmax only; NULL: none. They count for */
    int64_t nsloped;     /* so many tokens, the first ones: not for padding */
    const float *logits, *weights, *dweights; /* (ntok, nexperts); (ntok, top_k) */
    const int32_t *experts;
    float *dlogits; /* (ntok, nexperts) */
};
typedef void kern_route_grad_fn(struct kern_stream *, const struct kern_route_grad *);

/* The load balancing loss of the Switch Transformer (Fedus et al. 2021), as transformers sums it over layers: with F_e
 * the choices of an expert and P_e the sum of its softmax over all experts, in nrow rows (tokens of each layer),
 * nexperts · Σ_e (F_e/nrow)·(P_e/nrow). F is a constant for the gradient. Adds a layer's to both. */
struct kern_expert_load {
    int64_t ntok, nexperts, top_k;
    const float *logits;    /* (ntok, nexperts) */
    const int32_t *experts; /* (ntok, top_k) */
    float *choices, *probs; /* (nexperts) F and P */
    float *scratch;         /* (kern_row_blocks(ntok), nexperts) */
};
typedef void kern_expert_load_fn(struct kern_stream *, const struct kern_expert_load *);

struct kern_expert_balance {
    int64_t nexperts, nrow;
    const float *choices, *probs;
    double weight; /* *sum += weight · the loss */
    double *sum;
    float scale;   /* slopes[e] = scale · ∂loss/∂P_e */
    float *slopes; /* (nexperts) */
};
typedef void kern_expert_balance_fn(struct kern_stream *, const struct kern_expert_balance *);

struct kern_expert_rows {
    int64_t nrow, ncol, top_k;
    const int32_t *choices; /* (nrow) */
    struct kern_cmat src;   /* (ntok, ncol) */
    struct kern_mat dst;    /* (nrow, ncol) each row that of its token; padding is zero */
};
typedef void kern_expert_rows_fn(struct kern_stream *, const struct kern_expert_rows *);

struct kern_expert_sum {
    int64_t ntok, ncol, top_k;
    const int32_t *rows;  /* (ntok, top_k) */
    struct kern_cmat src; /* (nrow, ncol) */
    struct kern_cmat add; /* (ntok, ncol) or none; may be dst */
    struct kern_mat dst;  /* (ntok, ncol): add + Σ rows of src, in the order of a token's choices */
};
typedef void kern_expert_sum_fn(struct kern_stream *, const struct kern_expert_sum *);

/* The weight of a choice is applied to the activation, before the last product of an expert, which is linear. The
 * activation f of gate and up is silu(gate)·up, or with a slope that of gpt-oss (GptOssExperts of transformers):
 * g·σ(slope·g)·(u + 1), with g = min(gate, limit), u = up clamped to [-limit, limit]. */
struct kern_expert_act {
    int64_t nrow, ncol;
    const int32_t *choices;    /* (nrow); NULL: the weight of a row is the one with its number */
    const float *weights;      /* by choice; NULL, if choices is: all are 1 */
    struct kern_cmat gate, up; /* (nrow, ncol); up without data: gate is (nrow, 2·ncol), gate and up in turn */
    float slope, limit;        /* slope 0: none */
    struct kern_mat y;         /* weight·f; may be gate or up of (nrow, ncol); padding is zero */
};
typedef void kern_expert_act_fn(struct kern_stream *, const struct kern_expert_act *);

struct kern_expert_act_grad {
    int64_t nrow, ncol;
    const int32_t *choices;
    const float *weights;
    float *dweights;               /* by choice: Σ dy·f; not wanted if weights is NULL */
    struct kern_cmat gate, up, dy; /* gate, up: as above */
    float slope, limit;            /* what lies beyond the limit has no gradient */
    struct kern_mat dgate, dup;    /* like gate and up, and may be these; of padding zero */
    struct kern_mat y;             /* the activation anew; may be dy; data NULL: not wanted */
};
typedef void kern_expert_act_grad_fn(struct kern_stream *, const struct kern_expert_act_grad *);

/* A bias after an expert's last product, whose operand has the weight of the choice already: y_row += weight·bias. */
struct kern_expert_bias {
    int64_t nrow, ncol;
    const int32_t *choices; /* (nrow); NULL: as above */
    const float *weights;   /* by choice */
    struct kern_cmat bias;  /* (ncol), pitch ignored */
    struct kern_mat y;      /* (nrow, ncol); padding stays as it is */
};
typedef void kern_expert_bias_fn(struct kern_stream *, const struct kern_expert_bias *);

struct kern_expert_bias_grad {
    int64_t nrow, ncol;
    const int32_t *choices;
    const float *weights;
    struct kern_cmat bias, dy; /* (ncol), pitch ignored; (nrow, ncol) */
    float *dweights;           /* by choice: += Σ dy·bias */
    float *dbias;              /* (ncol): += Σ over rows of weight·dy; NULL: not wanted */
    float *scratch;            /* kern_sum_rows_scratch floats; not read without dbias */
};
typedef void kern_expert_bias_grad_fn(struct kern_stream *, const struct kern_expert_bias_grad *);

/* The weight of an expert that every token shares: weight = σ(logit); its gradient is dlogit =
 * dweight·weight·(1 - weight). All (ntok). */
struct kern_expert_gate {
    int64_t ntok;
    const float *logits;
    float *weights;
};
typedef void kern_expert_gate_fn(struct kern_stream *, const struct kern_expert_gate *);

struct kern_expert_gate_grad {
    int64_t ntok;
    const float *weights, *dweights;
    float *dlogits; /* may be dweights */
};
typedef void kern_expert_gate_grad_fn(struct kern_stream *, const struct kern_expert_gate_grad *);

/* clang-format off */
#define KERN_EXPERT_OPS(OP) \
    OP(route, route) OP(route_grad, route_grad) OP(load, expert_load) OP(balance, expert_balance) \
    OP(rows, expert_rows) OP(sum, expert_sum) OP(act, expert_act) OP(act_grad, expert_act_grad) \
    OP(bias, expert_bias) OP(bias_grad, expert_bias_grad) OP(gate, expert_gate) OP(gate_grad, expert_gate_grad)
/* clang-format on */

struct kern_expert_ops {
#define KERN_MEMBER(name, type) kern_##type##_fn *name;
    KERN_EXPERT_OPS(KERN_MEMBER)
#undef KERN_MEMBER
};

#ifdef __cplusplus
}
#endif
#endif
