/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of a pass, token by token, summed and never divided: cross-entropy; importance sampling (REINFORCE with a
 * ratio); PPO (arXiv 1707.06347, eq. 7); CISPO (arXiv 2506.13585, eq. 4); DRO (arXiv 2405.19107, in the quadratic form
 * of the Tinker API); GSPO (arXiv 2507.18071, eq. 5). p: ln of the target's probability now; q: when it was sampled; A:
 * its advantage; w: its weight. */
#ifndef SERVE_LOSSES_H
#define SERVE_LOSSES_H

#include <train/serve.h>

/* Sets weights[i] = -dL/dp of each token of a datum, L being the sum of its losses: the factor by which the gradient of
 * -p counts. p: d->target_logprobs. */
void losses_weigh(const struct serve_pass *pass, const struct serve_datum *d, float *weights);
/* L, from d->target_logprobs. */
double losses_sum(const struct serve_pass *pass, const struct serve_datum *d);
/* True if weights depend on p. */
bool losses_need_logprobs(const struct serve_pass *pass);
/* True if that of a token depends on no other token's p. */
bool losses_are_by_token(const struct serve_pass *pass);
/* Checks that the datum has what the loss needs. number: for the message. */
int losses_check(const struct serve_pass *pass, size_t number, struct fsdpck_error *err);

#endif
