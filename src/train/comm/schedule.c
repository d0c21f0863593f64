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

/* Slots of the ring: for the deepest prefetch of its groups, and the group in use. */
static uint32_t count_ring(const struct schedule_request *req)
{
    uint32_t moving = 0, most = 0;
    for (uint32_t i = 0; i < req->ngroups; i++) {
        const struct schedule_group *g = &req->groups[i];
        if (g->stays || g->apart || g->whole)
            continue;
        const uint32_t ahead = g->forward_prefetch > g->backward_prefetch ? g->forward_prefetch : g->backward_prefetch;
        moving++;
        most = ahead > most ? ahead : most;
    }
    return moving < most + 1 ? moving : most + 1;
}

static bool has_apart(const struct schedule_request *req)
{
    bool any = false;
    for (uint32_t g = 0; g < req->ngroups; g++)
        any |= req->groups[g].apart;
    return any;
}

/* nring: slots of the ring; the one apart from it is the next. */
static uint32_t find_slot(const struct schedule *s, const struct slot *slots, uint32_t nring, bool apart,
                          uint32_t group)
{
    uint32_t best = apart ? nring : 0;
    for (uint32_t i = 0; i < s->nslots; i++) {
        if (slots[i].group == group || s->slot_group[i] == group)
            return i;
        if (i < nring && !apart && slots[i].until < slots[best].until)
            best = i;
    }
    return best;
}

/* Marks gathers that repeat an earlier one of the same group, and the earlier one. */
static void mark_kept(const struct schedule_request *req, struct schedule *s)
{
    for (uint32_t u = 0; u < s->nentries; u++) {
        const bool keeps = req->groups[s->entries[u].group].keeps;
        for (uint32_t before = 0; before < u && keeps && s->entries[u].gather && !s->entries[u].kept; before++) {
            const bool same = s->entries[before].gather && s->entries[before].group == s->entries[u].group;
            s->entries[before].keep |= same;
            s->entries[u].kept |= same;
        }
    }
}

static void fill_entries(const struct schedule_request *req, uint32_t nring, struct slot *slots, struct schedule *s)
{
    for (uint32_t u = 0; u < req->nuses; u++) {
        const uint32_t group = req->uses[u].group;
        const struct schedule_group *g = &req->groups[group];
        if (g->whole) {
            s->entries[u] = (struct schedule_entry){ .group = group, .slot = s->nslots };
            continue;
        }
        const uint32_t i = find_slot(s, slots, nring, g->apart, group);
        s->entries[u] =
            (struct schedule_entry){ .group = group,
                                     .slot = i,
                                     .gather = slots[i].group != group,
                                     .after = slots[i].until,
                                     .ahead = req->uses[u].backward ? g->backward_prefetch : g->forward_prefetch };
        slots[i] = (struct slot){ group, u + 1 };
    }
}

int schedule_make(const struct schedule_request *req, struct schedule *out, struct fsdpck_error *err)
{
    const uint32_t nring = count_ring(req);
    struct schedule s = { .nentries = req->nuses, .nslots = nring + has_apart(req) };
    const size_t most = (size_t)s.nslots + req->ngroups;
    struct slot *slots = calloc(most, sizeof *slots);
    s.slot_group = calloc(most, sizeof *s.slot_group);
    s.entries = calloc(req->nuses, sizeof *s.entries);
    *out = s;
    if (!slots || !s.slot_group || !s.entries) {
        free(slots);
        schedule_free(out);
        return fsdpck_error_nomem(err, req->nuses * sizeof *s.entries);
    }
    for (size_t i = 0; i < most; i++)
        slots[i].group = s.slot_group[i] = UINT32_MAX;
    for (uint32_t g = 0; g < req->ngroups; g++) {
        if (req->groups[g].stays)
            s.slot_group[s.nslots++] = g;
    }
    fill_entries(req, nring, slots, &s);
    free(slots);
    mark_kept(req, &s);
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
        const uint32_t words[] = { s->entries[u].group, s->entries[u].slot, s->entries[u].gather,
                                   s->entries[u].after, s->entries[u].keep, s->entries[u].kept };
        hash = XXH3_64bits_withSeed(words, sizeof words, hash);
    }
    return hash;
}
