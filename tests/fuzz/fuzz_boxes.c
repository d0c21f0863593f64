/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: the input encodes a mesh, placements and a shape. Properties: over all ranks of the mesh, owners hold
 * every element exactly once; every replica holds it; boxes come in row-major order. */
#include <string.h>

#include <fsdpck/tensor.h>

#include "fuzz.h"

enum { MAX_DIMS = 3, MAX_NELEM = 512 };

struct task {
    struct fsdpck_mesh mesh;
    struct fsdpck_placement placements[3];
    uint32_t ndim;
    uint64_t shape[MAX_DIMS], nelem;
    uint8_t owners[MAX_NELEM], holders[MAX_NELEM];
    bool owner;    /* whether the boxes being visited belong to the owner */
    uint64_t last; /* flat index of the last box, plus one */
};

static void decode(struct task *k, struct fuzz_bytes *in)
{
    static const char *const names[] = { "a", "b", "c" };
    k->ndim = (uint32_t)fuzz_below(in, MAX_DIMS + 1);
    k->nelem = 1;
    for (uint32_t d = 0; d < k->ndim; d++)
        k->nelem *= k->shape[d] = fuzz_below(in, 9);
    k->mesh.ndim = 1 + (uint32_t)fuzz_below(in, 3);
    for (uint32_t m = 0; m < k->mesh.ndim; m++) {
        struct fsdpck_placement *p = &k->placements[m];
        k->mesh.names[m] = names[m];
        k->mesh.sizes[m] = 1 + (uint32_t)fuzz_below(in, 5);
        p->kind = k->ndim ? (enum fsdpck_placement_kind)fuzz_below(in, 3) : FSDPCK_REPLICATE;
        p->dim = p->kind == FSDPCK_REPLICATE ? 0 : (uint32_t)fuzz_below(in, k->ndim);
        p->split = p->kind == FSDPCK_STRIDED_SHARD ? 1 + (uint32_t)fuzz_below(in, 5) : 0;
    }
}

static int mark_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct task *k = ctx;
    uint64_t nelem = 1, begin = 0;
    for (uint32_t d = 0; d < k->ndim; d++) {
        FUZZ_CHECK(size[d] > 0 && offset[d] + size[d] <= k->shape[d]);
        nelem *= size[d];
        begin = begin * k->shape[d] + offset[d];
    }
    FUZZ_CHECK(begin + 1 > k->last);
    k->last = begin + 1;
    for (uint64_t n = 0; n < nelem; n++) {
        uint64_t rest = n, flat = 0, scale = 1;
        for (uint32_t d = k->ndim; d-- > 0; scale *= k->shape[d], rest /= size[d])
            flat += (offset[d] + rest % size[d]) * scale;
        k->owners[flat] = (uint8_t)(k->owners[flat] + k->owner);
        k->holders[flat]++;
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static struct task k;
    struct fuzz_bytes in = { data, nbytes };
    memset(&k, 0, sizeof k);
    decode(&k, &in);
    if (k.nelem > MAX_NELEM)
        return 0;
    uint64_t ordinal = fuzz_below(&in, 65536), nreplicas = 1;
    for (uint32_t rank = 0; rank < fsdpck_mesh_nranks(&k.mesh); rank++) {
        uint32_t coord[FSDPCK_MAX_MESH_DIMS];
        FUZZ_CHECK(fsdpck_mesh_coordinate(&k.mesh, rank, coord));
        k.owner = fsdpck_placement_owner(&k.mesh, k.placements, ordinal, coord);
        k.last = 0;
        FUZZ_CHECK(fsdpck_placement_boxes(&k.mesh, k.placements, k.ndim, k.shape, coord, mark_box, &k) == 0);
    }
    for (uint32_t m = 0; m < k.mesh.ndim; m++)
        nreplicas *= k.placements[m].kind == FSDPCK_REPLICATE ? k.mesh.sizes[m] : 1;
    for (uint64_t i = 0; i < k.nelem; i++)
        FUZZ_CHECK(k.owners[i] == 1 && k.holders[i] == nreplicas);
    return 0;
}
