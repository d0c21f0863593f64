/* SPDX-License-Identifier: Apache-2.0 */
/* The optim_states files: each rank's part of the flat fp32 weights and of the optimizer's states.
 *
 * ZeRO-1 and 2 cut each group of parameters, laid end to end, into equal parts. ZeRO-3 cuts each parameter into equal
 * parts, and lays a rank's parts end to end. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/hash.h"
#include "engine/files.h"
#include "torch/deepspeed/deepspeed.h"

struct partitions {
    struct deepspeed *d;
    uint32_t rank;
    fsdpck_node states; /* the optimizer_state_dict */
    fsdpck_node groups; /* list of flat fp32 tensors */
    fsdpck_node state;  /* dict: group -> { key: flat tensor, or a scalar }; NO_NODE: the optimizer has made no step */
};

static const struct fsdpck_pickle *pickle(const struct partitions *f)
{
    return f->d->r.archive.pickle;
}

static bool is(const struct partitions *f, fsdpck_node n, enum fsdpck_pickle_type type)
{
    return n != FSDPCK_NO_NODE && fsdpck_pickle_type(pickle(f), n) == type;
}

/* ---- the file ---- */

static int check_count(struct partitions *f)
{
    fsdpck_node n = fsdpck_pickle_get(pickle(f), f->states, "partition_count");
    const bool list = is(f, n, FSDPCK_PICKLE_LIST);
    const size_t count = n == FSDPCK_NO_NODE ? 0 : list ? fsdpck_pickle_count(pickle(f), n) : 1;
    for (size_t i = 0; i < count; i++) {
        int64_t parts = -1;
        if (!fsdpck_pickle_int(pickle(f), list ? fsdpck_pickle_child(pickle(f), n, i) : n, &parts) ||
            parts != f->d->set.nranks)
            return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, NULL,
                                  "says that there are %lld partitions, and the folder has files of %u rank%s",
                                  (long long)parts, f->d->set.nranks, fsdpck_plural(f->d->set.nranks));
    }
    if (fsdpck_pickle_get(pickle(f), f->states, "ds_zero_partition_groups") != FSDPCK_NO_NODE)
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_UNSUPPORTED, NULL,
                              "has partitions within groups of ranks (hpZ, MiCS), which are not joined");
    return 0;
}

static int find_parts(struct partitions *f)
{
    const char *key = f->d->set.stage3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    fsdpck_node inner;
    f->states = fsdpck_pickle_get(pickle(f), fsdpck_pickle_root(pickle(f)), "optimizer_state_dict");
    f->groups = fsdpck_pickle_get(pickle(f), f->states, key);
    if (!is(f, f->groups, FSDPCK_PICKLE_LIST))
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, NULL, "has no list 'optimizer_state_dict.%s'", key);
    inner = fsdpck_pickle_get(pickle(f), f->states, f->d->set.stage3 ? "optimizer_state_dict" : "base_optimizer_state");
    if (is(f, inner, FSDPCK_PICKLE_LIST))
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_UNSUPPORTED, NULL,
                              "is an elastic checkpoint, with one state for each parameter: such states are not read");
    f->state = fsdpck_pickle_get(pickle(f), inner, "state");
    int rc = f->rank == 0 ? fsdpck_ds_add_param_groups(f->d, inner) : 0;
    return rc ? rc : check_count(f);
}

/* Returns the state of group g; NO_NODE: it has none. */
static fsdpck_node state_of(const struct partitions *f, size_t g)
{
    size_t count = is(f, f->state, FSDPCK_PICKLE_DICT) ? fsdpck_pickle_count(pickle(f), f->state) : 0;
    for (size_t i = 0; i < count; i += 2) {
        int64_t key;
        if (fsdpck_pickle_int(pickle(f), fsdpck_pickle_child(pickle(f), f->state, i), &key) && key >= 0 &&
            (uint64_t)key == g)
            return fsdpck_pickle_child(pickle(f), f->state, i + 1);
    }
    return FSDPCK_NO_NODE;
}

/* ---- the optimizer's states: which there are ---- */

static bool is_flat(const struct partitions *f, fsdpck_node n)
{
    struct fsdpck_tensor_node t;
    const char *why;
    fsdpck_node args;
    return fsdpck_tensor_node_maker(pickle(f), n, &args) && fsdpck_tensor_node_read(pickle(f), n, &t, &why) == 0 &&
           t.ndim == 1;
}

static int add_kind(struct deepspeed *d, const char *key)
{
    int rc = fsdpck_ds_add_kind(d, key);
    for (size_t i = 0; !rc && i < d->params.count; i++)
        rc = ds_params(d)[i].frozen ? 0 : fsdpck_ds_add_state(d, i, d->nkinds - 1);
    return rc;
}

static int list_kinds(struct partitions *f)
{
    fsdpck_node first = FSDPCK_NO_NODE;
    for (size_t g = 0; first == FSDPCK_NO_NODE && g < fsdpck_pickle_count(pickle(f), f->groups); g++)
        first = state_of(f, g);
    size_t count = is(f, first, FSDPCK_PICKLE_DICT) ? fsdpck_pickle_count(pickle(f), first) : 0;
    f->d->nkinds = DS_WEIGHTS + 1;
    for (size_t i = 0; i < count; i += 2) {
        const char *key = fsdpck_pickle_text(pickle(f), fsdpck_pickle_child(pickle(f), first, i), NULL);
        int rc = key && is_flat(f, fsdpck_pickle_child(pickle(f), first, i + 1)) ? add_kind(f->d, key) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* The values that are no flat tensors (the step) belong to each parameter of the group. */
static int add_scalars(struct partitions *f, const struct ds_param *p, size_t g)
{
    fsdpck_node state = state_of(f, g);
    size_t count = is(f, state, FSDPCK_PICKLE_DICT) ? fsdpck_pickle_count(pickle(f), state) : 0, nvalues = 0;
    for (size_t i = 0; i < count; i += 2) {
        const char *key = fsdpck_pickle_text(pickle(f), fsdpck_pickle_child(pickle(f), state, i), NULL);
        fsdpck_node value = fsdpck_pickle_child(pickle(f), state, i + 1);
        if (!key || is_flat(f, value))
            continue;
        int rc = nvalues++ < DS_MAX_VALUES
                     ? fsdpck_ds_add_scalar(f->d, p, key, value)
                     : fsdpck_ds_fail(f->d, FSDPCK_ERR_LIMIT, NULL,
                                      "has more than %d values beside the flat tensors of group %zu", DS_MAX_VALUES, g);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- one flat tensor of each kind, for one group ---- */

struct group {
    size_t index;
    uint64_t nelem; /* of one rank, with padding */
    struct ds_flat flats[DS_MAX_KINDS];
};

static int read_group(struct partitions *f, size_t g, struct group *out)
{
    struct deepspeed *d = f->d;
    char what[64];
    snprintf(what, sizeof what, "group %zu", g);
    out->index = g;
    int rc = fsdpck_ds_flat(d, what, fsdpck_pickle_child(pickle(f), f->groups, g), &out->flats[DS_WEIGHTS]);
    if (rc)
        return rc;
    out->nelem = out->flats[DS_WEIGHTS].nelem;
    for (uint32_t k = DS_WEIGHTS + 1; k < d->nkinds; k++) {
        fsdpck_node n = fsdpck_pickle_get(pickle(f), state_of(f, g), d->kinds[k]);
        if (n == FSDPCK_NO_NODE)
            return fsdpck_ds_fail(d, FSDPCK_ERR_MISSING, what, "has no state '%s', another group has", d->kinds[k]);
        if ((rc = fsdpck_ds_flat(d, what, n, &out->flats[k])))
            return rc;
    }
    for (uint32_t k = DS_WEIGHTS; k < d->nkinds; k++)
        if (out->flats[k].dtype != FSDPCK_FLOAT32)
            return fsdpck_ds_fail(d, FSDPCK_ERR_UNSUPPORTED, what, "its flat tensors are %s, float32 is wanted",
                                  fsdpck_dtype_info(out->flats[k].dtype)->name);
    return 0;
}

/* Adds elements [begin, begin + n) of a parameter, which are at `from` of the group's flat tensors. */
static int add_part(struct partitions *f, const struct ds_param *p, uint64_t begin, uint64_t n, const struct group *g,
                    uint64_t from)
{
    for (uint32_t k = DS_WEIGHTS; n && k < f->d->nkinds; k++) {
        const struct ds_flat *flat = &g->flats[k];
        if (from + n > flat->nelem)
            return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, p->name,
                                  "its part ends at element %llu of group %zu, which has %llu",
                                  (unsigned long long)(from + n), g->index, (unsigned long long)flat->nelem);
        int rc = fsdpck_ds_add_range(f->d, p, k, begin, n, flat, from);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- ZeRO-1 and 2 ---- */

/* Reads the elements that follow parameter i of group g to align the next one; 0 if the file does not state any. */
static int read_padding(struct partitions *f, size_t g, size_t i, uint64_t *out)
{
    fsdpck_node all = fsdpck_pickle_get(pickle(f), f->states, "param_alignment_paddings");
    int64_t n = 0;
    *out = 0;
    if (!is(f, all, FSDPCK_PICKLE_LIST))
        return 0;
    if (!fsdpck_pickle_int(pickle(f), fsdpck_pickle_child(pickle(f), fsdpck_pickle_child(pickle(f), all, g), i), &n) ||
        n < 0)
        return fsdpck_ds_fail(f->d, FSDPCK_ERR_FORMAT, NULL,
                              "states no padding of parameter %zu of group %zu in 'param_alignment_paddings'", i, g);
    *out = (uint64_t)n;
    return 0;
}

/* Finds where each parameter of the group begins, and checks that they end where the partitions do. */
static int lay_out(struct partitions *f, const struct group *g)
{
    struct deepspeed *d = f->d;
    uint64_t at = 0, total, padding;
    size_t nth = 0;
    if (!checked_mul(g->nelem, d->set.nranks, &total))
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "the size of group %zu overflows", g->index);
    for (size_t i = 0; i < d->params.count; i++) {
        struct ds_param *p = &ds_params(d)[i];
        if (p->frozen || p->group != g->index)
            continue;
        int rc = read_padding(f, g->index, nth++, &padding);
        if (rc)
            return rc;
        if (f->rank > 0 && p->offset != at)
            return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, p->name, "is elsewhere in the group than rank 0's file says");
        p->offset = at;
        if (!checked_add(at, p->nelem, &at) || !checked_add(at, padding, &at) || at > total)
            return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, p->name,
                                  "lies beyond the partitions of %u rank%s: files of another run", d->set.nranks,
                                  fsdpck_plural(d->set.nranks));
    }
    if (total - at >= 2 * (uint64_t)d->set.nranks)
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL,
                              "%llu elements of group %zu belong to no parameter: files of another run",
                              (unsigned long long)(total - at), g->index);
    return 0;
}

static int add_cut_group(struct partitions *f, const struct group *g)
{
    struct deepspeed *d = f->d;
    int rc = lay_out(f, g);
    const uint64_t begin = rc ? 0 : g->nelem * f->rank, end = begin + g->nelem;
    for (size_t i = 0; !rc && i < d->params.count; i++) {
        const struct ds_param *p = &ds_params(d)[i];
        if (p->frozen || p->group != g->index)
            continue;
        const uint64_t from = p->offset > begin ? p->offset : begin,
                       to = p->offset + p->nelem < end ? p->offset + p->nelem : end;
        if (from < to)
            rc = add_part(f, p, from - p->offset, to - from, g, from - begin);
        if (!rc && f->rank == 0)
            rc = add_scalars(f, p, g->index);
    }
    return rc;
}

/* ---- ZeRO-3 ---- */

/* Adds the parameters from `first` on that end in this group; *first becomes the next one. */
static int add_joined_group(struct partitions *f, const struct group *g, size_t *first)
{
    struct deepspeed *d = f->d;
    uint64_t at = 0;
    for (; *first < d->params.count && at < g->nelem; ++*first) {
        const struct ds_param *p = &ds_params(d)[*first];
        const uint64_t each = (p->nelem + d->set.nranks - 1) / d->set.nranks, begin = each * f->rank;
        const uint64_t left = begin < p->nelem ? p->nelem - begin : 0;
        if (p->frozen)
            continue;
        int rc = add_part(f, p, begin, left < each ? left : each, g, at);
        if (!rc && f->rank == 0)
            rc = add_scalars(f, p, g->index);
        if (rc)
            return rc;
        at += each;
    }
    if (at != g->nelem)
        return fsdpck_ds_fail(
            d, FSDPCK_ERR_FORMAT, NULL,
            "the parameters of group %zu have %llu elements on a rank, its flat tensor has %llu: files "
            "of another run",
            g->index, (unsigned long long)at, (unsigned long long)g->nelem);
    return 0;
}

/* ---- all groups ---- */

/* All ranks have parts of the same size, but that of the last may be saved without the padding at its end. Sets the
 * size to rank 0's. */
static int check_size(struct partitions *f, struct group *g)
{
    struct deepspeed *d = f->d;
    uint64_t *known = d->group_nelem.data;
    const bool may_end_early = !d->set.stage3 && f->rank + 1 == d->set.nranks;
    if (f->rank == 0) {
        if (!(known = fsdpck_vec_push(&d->group_nelem, d->r.err)))
            return FSDPCK_ERR_NOMEM;
        *known = g->nelem;
        return 0;
    }
    if (g->nelem != known[g->index] && !(may_end_early && g->nelem < known[g->index]))
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "group %zu has %llu elements, in rank 0's file %llu",
                              g->index, (unsigned long long)g->nelem, (unsigned long long)known[g->index]);
    g->nelem = known[g->index];
    return 0;
}

/* Reads a scalar of the open file: a number, or a float32 tensor. -1 if it is neither. */
static int read_number(struct partitions *f, fsdpck_node n, double *out)
{
    struct fsdpck_tensor_node t;
    struct fsdpck_stored_box at = { 0 };
    const struct fsdpck_zip_record *record;
    const char *why;
    fsdpck_node args;
    int64_t whole;
    uint8_t bytes[4];
    *out = -1;
    if (n == FSDPCK_NO_NODE || fsdpck_pickle_float(pickle(f), n, out))
        return 0;
    if (fsdpck_pickle_int(pickle(f), n, &whole)) {
        *out = (double)whole;
        return 0;
    }
    if (!fsdpck_tensor_node_maker(pickle(f), n, &args) || fsdpck_tensor_node_read(pickle(f), n, &t, &why) != 0 ||
        t.dtype != FSDPCK_FLOAT32 || t.ndim != 0)
        return 0;
    int rc = fsdpck_pt_locate(&f->d->r, "step", &t, &at, &record);
    if (!rc)
        rc = fsdpck_files_read(f->d->r.src, f->d->r.file, bytes, sizeof bytes, at.payload, f->d->r.err);
    if (rc)
        return rc;
    const uint32_t bits = fsdpck_le32(bytes);
    float value;
    memcpy(&value, &bits, sizeof value);
    *out = at.swap ? -1 : (double)value;
    return 0;
}

/* The files of partitions do not name their save, but count the optimizer's steps. */
static int check_step(struct partitions *f, size_t g)
{
    struct deepspeed *d = f->d;
    double steps, *known = d->group_steps.data;
    int rc = read_number(f, fsdpck_pickle_get(pickle(f), state_of(f, g), "step"), &steps);
    if (rc)
        return rc;
    if (f->rank == 0) {
        if (!(known = fsdpck_vec_push(&d->group_steps, d->r.err)))
            return FSDPCK_ERR_NOMEM;
        *known = steps;
    } else if (steps != known[g]) {
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL,
                              "group %zu is at step %.0f, in rank 0's file at step %.0f: files of two saves", g, steps,
                              known[g]);
    }
    return 0;
}

static int read_groups(struct partitions *f)
{
    struct deepspeed *d = f->d;
    const size_t count = fsdpck_pickle_count(pickle(f), f->groups), wanted = f->rank         ? d->group_nelem.count
                                                                             : d->set.stage3 ? count
                                                                                             : d->ngroups;
    size_t next = 0;
    int rc = 0;
    if (count != wanted)
        return fsdpck_ds_fail(d, FSDPCK_ERR_FORMAT, NULL, "has %zu groups of parameters, the files before have %zu",
                              count, wanted);
    for (size_t i = 0; !rc && i < count; i++) {
        struct group g;
        if ((rc = read_group(f, i, &g)) || (rc = check_size(f, &g)) || (rc = check_step(f, i)))
            break;
        rc = d->set.stage3 ? add_joined_group(f, &g, &next) : add_cut_group(f, &g);
    }
    for (; !rc && d->set.stage3 && next < d->params.count; next++)
        if (!ds_params(d)[next].frozen && ds_params(d)[next].nelem)
            rc = fsdpck_ds_fail(d, FSDPCK_ERR_MISSING, ds_params(d)[next].name, "is in no group");
    return rc;
}

int fsdpck_ds_read_partitions(struct deepspeed *d, uint32_t rank)
{
    struct partitions f = { .d = d, .rank = rank };
    int rc = fsdpck_ds_open(d, d->set.optim[rank], rank);
    if (rc)
        return rc;
    rc = find_parts(&f);
    if (!rc && rank == 0)
        rc = list_kinds(&f);
    if (!rc)
        rc = read_groups(&f);
    fsdpck_pt_file_close(&d->r);
    return rc;
}
