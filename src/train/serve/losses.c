/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/losses.h"

#include <math.h>

const char *serve_loss_name(enum serve_loss loss)
{
    static const char *const names[SERVE_NLOSSES] = { "cross_entropy", "importance_sampling", "ppo", "cispo", "dro",
                                                      "gspo" };
    return (unsigned)loss < SERVE_NLOSSES ? names[loss] : NULL;
}

bool losses_need_logprobs(const struct serve_pass *pass)
{
    return pass->loss != SERVE_CROSS_ENTROPY;
}

bool losses_are_by_token(const struct serve_pass *pass)
{
    return pass->loss != SERVE_GSPO;
}

int losses_check(const struct serve_pass *pass, size_t number, struct fsdpck_error *err)
{
    const struct serve_datum *d = &pass->data[number];
    const char *missing = !d->targets                                    ? "target_tokens"
                          : losses_need_logprobs(pass) && !d->logprobs   ? "logprobs"
                          : losses_need_logprobs(pass) && !d->advantages ? "advantages"
                          : pass->loss == SERVE_GSPO && !d->mask         ? "sequence_ratio_mask"
                                                                         : NULL;
    return missing ? fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "datum %zu: loss '%s' needs loss_fn_inputs['%s']",
                                      number, serve_loss_name(pass->loss), missing)
                   : 0;
}

/* A token as the formulas see it. s: the ratio of its sequence (GSPO). */
struct token {
    double p, q, advantage, low, high, weight, s;
};

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* min(ρA, clamp(ρ)A): true if it is the first, through which the gradient flows. */
static bool is_unclipped(const struct token *t, double ratio)
{
    return ratio * t->advantage <= clamp(ratio, t->low, t->high) * t->advantage;
}

static double clipped(const struct token *t, double ratio)
{
    return is_unclipped(t, ratio) ? ratio * t->advantage : clamp(ratio, t->low, t->high) * t->advantage;
}

/* -L of a token, and its derivative by p. */
static double gain(const struct serve_pass *pass, const struct token *t, double *slope)
{
    const double ratio = exp(t->p - t->q), far = t->p - t->q;
    switch (pass->loss) {
    case SERVE_CROSS_ENTROPY:
    case SERVE_NLOSSES: *slope = 1; return t->p;
    case SERVE_IMPORTANCE_SAMPLING: *slope = ratio * t->advantage; return *slope;
    case SERVE_PPO: *slope = is_unclipped(t, ratio) ? ratio * t->advantage : 0; return clipped(t, ratio);
    case SERVE_CISPO: *slope = clamp(ratio, t->low, t->high) * t->advantage; return *slope * t->p;
    case SERVE_DRO: *slope = t->advantage - pass->beta * far; return t->p * t->advantage - 0.5 * pass->beta * far * far;
    case SERVE_GSPO: *slope = is_unclipped(t, t->s) ? t->s * t->advantage : 0; return clipped(t, t->s);
    }
    return 0;
}

/* GSPO: exp of the mean of p - q over the masked tokens; no gradient flows through it. */
static double sequence_ratio(const struct serve_pass *pass, const struct serve_datum *d)
{
    double sum = 0, n = 0;
    for (int64_t i = 0; pass->loss == SERVE_GSPO && i < d->n; i++) {
        const double mask = (double)d->mask[i];
        sum += mask != 0 ? mask * ((double)d->target_logprobs[i] - (double)d->logprobs[i]) : 0;
        n += mask;
    }
    return n > 0 ? exp(sum / n) : 1;
}

/* Prompts have q = 0 and A = 0: they add nothing, whatever exp(p - q) is. */
static bool is_idle(const struct serve_pass *pass, const struct token *t)
{
    return t->weight == 0 || (pass->loss != SERVE_CROSS_ENTROPY && pass->loss != SERVE_DRO && t->advantage == 0);
}

static struct token token_of(const struct serve_pass *pass, const struct serve_datum *d, int64_t i, double s)
{
    return (struct token){ .p = (double)d->target_logprobs[i],
                           .q = d->logprobs ? (double)d->logprobs[i] : 0,
                           .advantage = d->advantages ? (double)d->advantages[i] : 0,
                           .low = d->clip_low ? (double)d->clip_low[i] : pass->clip_low,
                           .high = d->clip_high ? (double)d->clip_high[i] : pass->clip_high,
                           .weight = d->weights ? (double)d->weights[i] : 1,
                           .s = s };
}

void losses_weigh(const struct serve_pass *pass, const struct serve_datum *d, float *weights)
{
    const double s = losses_need_logprobs(pass) ? sequence_ratio(pass, d) : 1;
    for (int64_t i = 0; i < d->n; i++) {
        if (!losses_need_logprobs(pass)) {
            weights[i] = d->weights ? d->weights[i] : 1;
            continue;
        }
        const struct token t = token_of(pass, d, i, s);
        double slope = 0;
        if (!is_idle(pass, &t))
            gain(pass, &t, &slope);
        weights[i] = (float)(slope * t.weight);
    }
}

double losses_sum(const struct serve_pass *pass, const struct serve_datum *d)
{
    const double s = sequence_ratio(pass, d);
    double sum = 0, slope;
    for (int64_t i = 0; i < d->n; i++) {
        const struct token t = token_of(pass, d, i, s);
        sum -= is_idle(pass, &t) ? 0 : gain(pass, &t, &slope) * t.weight;
    }
    return sum;
}
