/* SPDX-License-Identifier: Apache-2.0 */
/* Records the kernels of a block and replays them. While the shape of the micro-batch is the same, a block enqueues the
 * same work each time. If blocks are so small that launching takes longer than running, the work is recorded when a
 * shape occurs for the second time, and replayed by one call from then on. (The first occurrence prepares the tables of
 * a shape.) Data that changes is at fixed addresses: the batch, its documents, and the offsets of dropout's random
 * numbers. */
#include "model/compute_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 16 }; /* shapes per part */

/* Everything on which the launches depend. */
struct variant {
    int64_t ntok, ntile, nkeys;
    bool drops;
    const unsigned char *values; /* address of the group's parameters */
    uint64_t used;               /* time of the last use; 0: empty */
    struct kern_recording *recording;
};

struct replays {
    bool refused; /* the device refused once; do not try again */
    uint64_t clock;
    struct variant parts[][MOST]; /* (ngroups · REPLAY_PARTS) */
};

/* Compares the launches of a block's forward pass (33 at 2.5 us, three times as much on a slow host) with its matrix
 * products at 600 TFLOP/s. FSDPTRAIN_REPLAY=0 or 1 overrides the decision, for comparisons. */
static bool is_worth(const struct compute *c)
{
    const struct model *m = c->m;
    const char *asked =
        m->nexperts ? "0" : getenv("FSDPTRAIN_REPLAY"); /* their work depends on the choice of experts */
    const int64_t nheads = 2 * (m->nhead + m->nkv), nweights = m->hidden * (nheads * m->head_dim + 3 * m->inner);
    return asked ? strcmp(asked, "0") != 0 : nweights <= ((int64_t)1 << 36) / (c->ntok + 1);
}

int replays_new(struct compute *c, struct fsdpck_error *err)
{
    const size_t nparts = (size_t)c->l->ngroups * REPLAY_PARTS,
                 nbytes = sizeof(struct replays) + nparts * sizeof c->replays->parts[0];
    if (!c->device->record || !is_worth(c))
        return 0;
    c->replays = calloc(1, nbytes);
    return c->replays ? 0 : fsdpck_error_nomem(err, nbytes);
}

void replays_free(struct compute *c)
{
    for (uint32_t i = 0; c->replays && i < c->l->ngroups * REPLAY_PARTS * MOST; i++)
        c->device->recording_free(c->replays->parts[i / MOST][i % MOST].recording);
    free(c->replays);
}

static bool is_same(const struct variant *a, const struct variant *b)
{
    return a->ntok == b->ntok && a->ntile == b->ntile && a->nkeys == b->nkeys && a->drops == b->drops &&
           a->values == b->values;
}

/* The entry of this shape; else an empty one; else the least recently used one without a recording. NULL: all entries
 * have recordings of other shapes. */
static struct variant *place_of(struct variant *some, const struct variant *wanted)
{
    struct variant *found = NULL;
    for (int i = 0; i < MOST; i++) {
        if (some[i].used && is_same(&some[i], wanted))
            return &some[i];
        if (!some[i].recording && (!found || some[i].used < found->used))
            found = &some[i];
    }
    if (found)
        *found = *wanted;
    return found;
}

static void record(struct compute *c, struct variant *v, int64_t number, replay_work work)
{
    if (c->device->record(c->stream)) {
        work(c, number);
        v->recording = c->device->recorded(c->stream);
    }
    c->replays->refused = !v->recording;
}

void replay(struct compute *c, enum replay_part part, int64_t number, replay_work work)
{
    struct replays *r = c->replays;
    const struct variant wanted = { .ntok = c->batch.ntok,
                                    .ntile = c->batch.documents.ntile,
                                    .nkeys = c->batch.nkeys,
                                    .drops = c->dropout > 0,
                                    .values = c->group_data[c->group].data };
    struct variant *v =
        r && !r->refused && c->device->record ? place_of(r->parts[c->group * REPLAY_PARTS + part], &wanted) : NULL;
    if (v && v->used && !v->recording)
        record(c, v, number, work);
    if (v)
        v->used = ++r->clock;
    if (v && v->recording)
        c->device->replay(v->recording, c->stream);
    else
        work(c, number);
}
