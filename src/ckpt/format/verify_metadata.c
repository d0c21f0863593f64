/* SPDX-License-Identifier: Apache-2.0 */
/* Compares .metadata with index.json: both must describe the same tensors and values; otherwise PyTorch would load
 * another checkpoint than fsdpck. Opens the folder as a PyTorch DCP directory; the hash of .metadata was checked
 * before. */
#include "format/verify_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/box.h"
#include "torch/dcp/dcp.h"
#include "torch/pickle/tensor_node.h"

struct comparison {
    struct fsdpck_verifier *v;
    struct fsdpck_source *src, *dcp;
    const struct fsdpck_tensor *tensor; /* the tensor being compared, in src */
    size_t there;                       /* its ordinal in dcp */
    bool differs;                       /* a difference was reported */
};

static void report(struct comparison *c, const char *tensor, const char *what)
{
    const struct fsdpck_problem p = { .file = ".metadata", .rank = -1, .tensor = tensor, .what = what };
    c->differs = true;
    fsdpck_verifier_report(c->v, &p);
}

static bool same_path(const struct fsdpck_key *a, uint32_t na, const struct fsdpck_key *b, uint32_t nb)
{
    bool same = na == nb;
    for (uint32_t i = 0; same && i < na; i++)
        same = a[i].str && b[i].str ? strcmp(a[i].str, b[i].str) == 0
                                    : !a[i].str && !b[i].str && a[i].position == b[i].position;
    return same;
}

static size_t stored(const struct fsdpck_source *src, size_t i)
{
    return source_tensors(src)[i].alias_of >= 0 ? (size_t)source_tensors(src)[i].alias_of : i;
}

/* The two may list the names of one tensor in different orders: only the set of names that share their bytes
 * matters. */
static bool same_aliases(const struct comparison *c, size_t i)
{
    const struct fsdpck_tensor *first = &source_tensors(c->src)[stored(c->src, i)],
                               *found = fsdpck_source_find(c->dcp, first->name);
    return c->tensor->nelem == 0 ||
           (found && stored(c->dcp, (size_t)(found - source_tensors(c->dcp))) == stored(c->dcp, c->there));
}

/* ---- locations ---- */

/* Returns the chunk of .metadata with this box, or NULL. Chunks are sorted by their offsets. */
static const struct dcp_chunk *find_chunk(const struct dcp_tensor *d, uint32_t ndim, const uint64_t *offset,
                                          const uint64_t *size)
{
    for (uint64_t low = 0, high = d->nchunks; low < high;) {
        uint64_t middle = low + (high - low) / 2;
        const uint64_t *box = dcp_box(d, ndim, middle);
        int order = 0;
        for (uint32_t k = 0; k < ndim && order == 0; k++)
            order = box[k] < offset[k] ? -1 : box[k] > offset[k];
        if (order == 0)
            return ndim && memcmp(box + ndim, size, ndim * sizeof *size) != 0 ? NULL : &d->chunks[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

struct payload_match {
    uint64_t payload; /* the expected payload offset */
    bool found;
};

static int compare_payload(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct payload_match *x = ctx;
    (void)err;
    x->found = e->payload == x->payload && !e->strides && !e->swap && !e->streamed;
    return 0;
}

/* Compares one chunk of the index, in its table: .metadata must point to the item around it; the item's own pickle must
 * point to the payload. */
static int compare_chunk(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err)
{
    struct comparison *c = ctx;
    const struct dcp_tensor *d = &((const struct dcp *)c->dcp->impl)->tensors[c->there];
    const struct dcp_chunk *chunk = find_chunk(d, c->tensor->ndim, e->offset, e->size);
    struct payload_match x = { e->payload, c->v->quick };
    struct fsdpck_error own = { 0 };
    if (c->differs)
        return 0;
    if (!chunk || strcmp(source_files(c->dcp)[chunk->file].path, source_files(c->src)[e->file].path) != 0 ||
        chunk->item > e->payload || chunk->item_nbytes < e->payload - chunk->item ||
        chunk->item_nbytes - (e->payload - chunk->item) < e->payload_nbytes)
        return report(c, c->tensor->name, "has its chunks elsewhere than index.json and the chunk tables"), 0;
    int rc = c->v->quick ? 0 : c->dcp->ops->extents(c->dcp, c->there, e->offset, e->size, compare_payload, &x, &own);
    if (fsdpck_is_system_error(rc)) {
        *err = own;
        return rc;
    }
    if (rc)
        report(c, c->tensor->name, own.message);
    else if (!x.found)
        report(c, c->tensor->name, "leads to other bytes than the chunk tables");
    return 0;
}

static int compare_chunks(struct comparison *c, size_t i, struct fsdpck_error *err)
{
    static const uint64_t zeros[FSDPCK_MAX_DIMS];
    struct fsdpck_error own = { 0 };
    c->there = stored(c->dcp, c->there);
    int rc = c->tensor->alias_of >= 0 || !c->tensor->nelem
                 ? 0
                 : c->src->ops->extents(c->src, i, zeros, c->tensor->shape, compare_chunk, c, &own);
    if (fsdpck_is_system_error(rc)) {
        *err = own;
        return rc;
    }
    return 0; /* problems of the tables were already reported */
}

/* ---- tensors and values ---- */

static int compare_tensor(struct comparison *c, size_t i, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *t = c->tensor = &source_tensors(c->src)[i], *d = fsdpck_source_find(c->dcp, t->name);
    char text[400], have[100], want[100];
    c->differs = false;
    if (!d)
        return report(c, t->name, "does not list it, index.json does"), 0;
    c->there = (size_t)(d - source_tensors(c->dcp));
    if (d->dtype != t->dtype || d->ndim != t->ndim ||
        (t->ndim && memcmp(d->shape, t->shape, t->ndim * sizeof *t->shape) != 0)) {
        snprintf(text, sizeof text, "says %s of shape %s, index.json %s of shape %s", fsdpck_dtype_info(d->dtype)->name,
                 fsdpck_format_dims(have, sizeof have, d->shape, d->ndim), fsdpck_dtype_info(t->dtype)->name,
                 fsdpck_format_dims(want, sizeof want, t->shape, t->ndim));
        return report(c, t->name, text), 0;
    }
    if (!same_path(t->path, t->npath, d->path, d->npath))
        return report(c, t->name, "has it at another path of keys than index.json"), 0;
    if (!same_aliases(c, i))
        return report(c, t->name, "does not name the same tensors as one as index.json does"), 0;
    return compare_chunks(c, i, err);
}

/* Checks that names which share their bytes in .metadata also do so in the index. */
static void compare_back(struct comparison *c, size_t i)
{
    const struct fsdpck_tensor *d = &source_tensors(c->dcp)[i], *t = fsdpck_source_find(c->src, d->name);
    if (!t)
        return report(c, d->name, "lists it, index.json does not");
    if (d->alias_of < 0)
        return;
    const struct fsdpck_tensor *first = fsdpck_source_find(c->src, source_tensors(c->dcp)[d->alias_of].name);
    if (first && stored(c->src, (size_t)(first - source_tensors(c->src))) !=
                     stored(c->src, (size_t)(t - source_tensors(c->src))))
        report(c, d->name, "makes it another name of a tensor that index.json has apart");
}

static void compare_item(struct comparison *c, const struct source_item *a, const struct source_item *b)
{
    if (!same_path(a->pub.path, a->pub.npath, b->pub.path, b->pub.npath))
        report(c, a->pub.name, "has it at another path of keys than index.json");
    else if (strcmp(source_files(c->src)[a->file].path, source_files(c->dcp)[b->file].path) != 0 ||
             a->offset != b->offset || a->pub.nbytes != b->pub.nbytes)
        report(c, a->pub.name, "has this value elsewhere than index.json");
}

static int compare_items(struct comparison *c, struct fsdpck_error *err)
{
    struct fsdpck_names names = { 0 };
    size_t nfound = 0, old;
    int rc = 0;
    for (size_t i = 0; !rc && i < c->src->items.count; i++)
        rc = fsdpck_names_add(&names, source_items(c->src)[i].pub.name, i, &old, err);
    for (size_t i = 0; !rc && i < c->dcp->items.count; i++) {
        const struct source_item *there = &source_items(c->dcp)[i];
        size_t at = fsdpck_names_find(&names, there->pub.name);
        if (at == SIZE_MAX)
            report(c, there->pub.name, "lists this value, index.json does not");
        else
            compare_item(c, &source_items(c->src)[at], there);
        nfound += at != SIZE_MAX;
    }
    if (!rc && nfound < c->src->items.count)
        report(c, NULL, "lacks values that index.json lists");
    fsdpck_names_free(&names);
    return rc;
}

static int compare_all(struct comparison *c, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < c->src->tensors.count; i++)
        rc = compare_tensor(c, i, err);
    for (size_t i = 0; !rc && i < c->dcp->tensors.count; i++)
        compare_back(c, i);
    return !rc ? compare_items(c, err) : rc;
}

int fsdpck_verify_metadata(struct fsdpck_verifier *v, struct fsdpck_error *err)
{
    struct fsdpck_options opt = v->src->opt;
    struct fsdpck_error own = { 0 };
    opt.note = NULL;
    opt.progress = NULL;
    struct comparison c = { .v = v, .src = v->src, .dcp = fsdpck_source_new(v->src->path, &opt, err) };
    int rc = c.dcp ? fsdpck_open_dcp(c.dcp, &own) : FSDPCK_ERR_NOMEM;
    if (!rc)
        rc = compare_all(&c, &own);
    fsdpck_source_close(c.dcp);
    if (fsdpck_is_system_error(rc)) {
        if (err->code == 0)
            *err = own;
        return rc;
    }
    if (rc)
        report(&c, own.tensor[0] ? own.tensor : NULL, own.message);
    return 0;
}
