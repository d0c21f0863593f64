/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the uses of a micro-batch once and assigns slots. A group that is still in a slot is not gathered again (the
 * last layer of the forward pass is the first of the backward pass); otherwise evicts the least recently used slot. */
#include "comm/schedule.h"

#include <stdlib.h>
#include <xxhash.h>

struct slot {
    uint32_t group; /* the group in the slot; UINT32_MAX: none */
    uint32_t until; /* number of uses after which the slot is free */
};

static uint32_t count_ring(const struct schedule_request *req)
{
    uint32_t moving = 0,
             most = req->forward_prefetch > req->backward_prefetch ? req->forward_prefetch : req->backward_prefetch;
    for (uint32_t g = 0; g < req->ngroups; g++)
        moving += !req->stays[g];
    return moving < most + 1 ? moving : most + 1;
}

static uint32_t find_slot(const struct schedule *s, const struct slot *slots, uint32_t nring, uint32_t group)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < s->nslots; i++) {
        if (slots[i].group == group || s->slot_group[i] == group)
            return i;
        if (i < nring && slots[i].until < slots[best].until)
            best = i;
    }
    return best;
}

int schedule_make(const struct schedule_request *req, struct schedule *out, struct fsdpck_error *err)
{
    uint32_t nring = count_ring(req);
    struct schedule s = { .nentries = req->nuses, .nslots = nring };
    struct slot *slots = calloc(nring + req->ngroups, sizeof *slots);
    s.slot_group = calloc(nring + req->ngroups, sizeof *s.slot_group);
    s.entries = calloc(req->nuses, sizeof *s.entries);
    *out = s;
    if (!slots || !s.slot_group || !s.entries) {
        free(slots);
        schedule_free(out);
        return fsdpck_error_nomem(err, req->nuses * sizeof *s.entries);
    }
    for (uint32_t i = 0; i < nring + req->ngroups; i++)
        slots[i].group = s.slot_group[i] = UINT32_MAX;
    for (uint32_t g = 0; g < req->ngroups; g++) {
        if (req->stays[g])
            s.slot_group[s.nslots++] = g;
    }
    for (uint32_t u = 0; u < req->nuses; u++) {
        uint32_t group = req->uses[u].group, i = find_slot(&s, slots, nring, group);
        s.entries[u] =
            (struct schedule_entry){ .group = group,
                                     .slot = i,
                                     .gather = slots[i].group != group,
                                     .after = slots[i].until,
                                     .ahead = req->uses[u].backward ? req->backward_prefetch : req->forward_prefetch };
        slots[i] = (struct slot){ group, u + 1 };
    }
    free(slots);
    *out = s;
    return 0;
}

void schedule_free(struct schedule *s)
{
    free(s->entries);
    free(s->slot_group);
    *s = (struct schedule){ 0 };
}

uint64_t schedule_hash(const struct schedule *s)
{
    uint64_t hash = s->nslots;
    for (uint32_t u = 0; u < s->nentries; u++) {
        const uint32_t words[] = { s->entries[u].group, s->entries[u].slot, s->entries[u].gather, s->entries[u].after };
        hash = XXH3_64bits_withSeed(words, sizeof words, hash);
    }
    return hash;
}
