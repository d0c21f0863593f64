/* SPDX-License-Identifier: Apache-2.0 */
/* Prepares a batch on the host and copies it to where kernels read it. */
#include "model/compute_impl.h"

static void add_row(struct batch *b, int64_t token)
{
    b->rows[b->nrow] = (int32_t)token;
    b->row_targets[b->nrow++] = b->targets[token];
}

/* Lists the tokens with a target, then others without, up to a multiple of row_unit. The batch has enough of them. */
static void find_rows(struct compute *c)
{
    struct batch *b = &c->batch;
    b->nrow = 0;
    for (int64_t i = 0; i < b->ntok; i++)
        if (b->targets[i] >= 0)
            add_row(b, i);
    const int64_t n = compute_whole_units(c, b->nrow);
    for (int64_t i = 0; b->nrow < n; i++)
        if (b->targets[i] < 0)
            add_row(b, i);
}

/* Pads the batch to a multiple of row_unit. The padding is a document of its own: no other document attends to it, and
 * it has no targets. It repeats the first token, so its values are as finite as that token's. */
static void pad(struct compute *c)
{
    struct batch *b = &c->batch;
    const int64_t n = compute_whole_units(c, b->ntok);
    b->nreal = b->ntok;
    for (int64_t i = b->ntok; i < n; i++) {
        b->ids[i] = b->ids[0];
        b->positions[i] = (int32_t)(i - b->ntok);
        b->targets[i] = -1;
    }
    if (n > b->ntok)
        b->cu_seqlens[++b->ndocs] = n;
    b->ntok = n;
}

void compute_send_documents(struct compute *c, const int64_t *cu_seqlens, int64_t ndoc)
{
    struct kern_attention_shape shape = {
        .ntok = c->batch.ntok, .ndoc = ndoc, .cu_seqlens = cu_seqlens, .table = c->batch.documents
    };
    c->device->ops->attention_table(c->stream, &shape);
    c->batch.documents = shape.table;
}

void compute_send_weights(struct compute *c)
{
    const struct batch *b = &c->batch;
    for (int64_t i = 0; i < b->nrow; i++)
        b->row_weights[i] = b->weights[b->rows[i]];
    c->device->memory->copy(c->stream, c->on.weights, b->weights, (size_t)b->nreal * sizeof *b->weights);
    c->device->memory->copy(c->stream, c->on.row_weights, b->row_weights, (size_t)b->nrow * sizeof *b->row_weights);
}

int compute_take_losses(struct compute *c, const struct kern_head *head, int64_t first, int64_t n,
                        struct fsdpck_error *err)
{
    const struct batch *b = &c->batch;
    c->device->memory->copy(c->stream, b->row_losses + first, head->loss + first, (size_t)n * sizeof *b->row_losses);
    int rc = compute_sync(c, err);
    for (int64_t i = first; i < first + n && !rc; i++) {
        const int64_t token = head->rows ? b->rows[i] : i;
        if (token < b->nreal)
            b->losses[token] = b->row_losses[i];
    }
    return rc;
}

void compute_send_batch(struct compute *c)
{
    struct batch *b = &c->batch;
    pad(c);
    find_rows(c);
    int32_t *const to[] = { c->on.ids, c->on.positions, c->on.targets, c->on.rows, c->on.row_targets };
    const int32_t *const from[] = { b->ids, b->positions, b->targets, b->rows, b->row_targets };
    const int64_t nelem[] = { b->ntok, b->ntok, b->ntok, b->nrow, b->nrow };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++)
        c->device->memory->copy(c->stream, to[i], from[i], (size_t)nelem[i] * sizeof *to[i]);
    c->device->memory->copy(c->stream, c->on.rng_offset, b->rng_offset, sizeof *b->rng_offset);
    compute_send_documents(c, b->cu_seqlens, b->ndocs);
    if (c->weighing.on && !c->weighing.weigh)
        compute_send_weights(c);
}
