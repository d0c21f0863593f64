/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a pass to `fsdptrain serve`. Properties: what is taken has whole arrays of as many elements as the datum
 * has tokens, and a loss that has a name; what is refused says why. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "serve/pass_body.h"

/* Reads every element, for the sanitizers. */
static double sum_of(const float *values, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; values && i < n; i++)
        sum += (double)values[i];
    return sum;
}

static double read_datum(const struct serve_datum *d)
{
    double sum = 0;
    for (int64_t i = 0; i < d->n; i++)
        sum += (double)d->tokens[i] + (d->targets ? d->targets[i] : 0);
    for (int64_t i = 0; i < d->n; i++)
        d->target_logprobs[i] = 0;
    return sum + sum_of(d->weights, d->n) + sum_of(d->logprobs, d->n) + sum_of(d->advantages, d->n) +
           sum_of(d->mask, d->n) + sum_of(d->clip_low, d->n) + sum_of(d->clip_high, d->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    double sum = 0;
    struct serve_pass pass = { 0 };
    struct pass_wrong wrong = { "" };
    struct pass_body *body = pass_body_new(data, nbytes);
    if (!body)
        return 0;
    if (pass_body_take(body, &pass, &wrong)) {
        if (!serve_loss_name(pass.loss) || pass.ndata != body->message->n_data)
            abort();
        for (size_t i = 0; i < pass.ndata; i++)
            sum += read_datum(&pass.data[i]);
    } else if (!wrong.text[0] || strlen(wrong.text) >= sizeof wrong.text) {
        abort();
    }
    pass_body_free(body);
    static volatile double read; /* so that every element is */
    read = sum;
    (void)read;
    return 0;
}
