/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the frozen model of a training checkpoint with the base. The adapter was trained on the frozen model; merged
 * into another base it would give wrong weights. */
#include "lora/merge_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

enum { PIECE = 1 << 16 }; /* elements per comparison */

struct pair {
    int64_t position; /* in the adapter's selection */
    size_t base;      /* ordinal in the base */
};

struct pairs {
    struct fsdpck_lora_merge *m;
    struct fsdpck_vec list; /* struct pair */
};

static int refuse(const struct fsdpck_lora_merge *m, int64_t position, int code, const char *what,
                  struct fsdpck_error *err)
{
    int rc = fsdpck_lora_refuse(m->adapter, position, code, err,
                                "belongs to the frozen model beside the adapter, and %s in the base %s", what,
                                fsdpck_source_path(m->base));
    fsdpck_error_hint(
        err, "is this that model? To merge into another, take the adapter alone out of the checkpoint: export-lora");
    return rc;
}

/* Returns whether v, rounded to the type, equals w. Only the two narrow types change a float32, and raw has no space
 * for a wider one. */
static bool rounds_to(const float *v, const float *w, uint64_t n, enum fsdpck_dtype dtype, float *rounded,
                      uint16_t *raw)
{
    if (dtype != FSDPCK_FLOAT16 && dtype != FSDPCK_BFLOAT16)
        return false;
    fsdpck_dtype_cast(FSDPCK_FLOAT32, v, dtype, raw, n);
    fsdpck_dtype_cast(dtype, raw, FSDPCK_FLOAT32, rounded, n);
    return memcmp(rounded, w, n * sizeof *w) == 0;
}

/* v: (4 * PIECE) */
static int compare_piece(const struct fsdpck_lora_merge *m, const struct pair *p, uint64_t at, uint64_t n, float *v,
                         bool *same, struct fsdpck_error *err)
{
    const struct fsdpck_tensor *own = lora_tensor(m->adapter, p->position),
                               *base = fsdpck_source_tensor(m->base, p->base);
    float *x = v, *y = v + PIECE, *rounded = v + 2 * PIECE;
    uint16_t *raw = (uint16_t *)(v + 3 * PIECE);
    int rc = fsdpck_lora_read(m->adapter->src, m->adapter->selection.tensors[p->position].source, at, n, x, err);
    if (!rc)
        rc = fsdpck_lora_read(m->base, p->base, at, n, y, err);
    if (rc)
        return rc;
    *same = memcmp(x, y, n * sizeof *x) == 0 || rounds_to(y, x, n, own->dtype, rounded, raw) ||
            rounds_to(x, y, n, base->dtype, rounded, raw);
    return 0;
}

static int compare(void *ctx, size_t number, unsigned worker, struct fsdpck_error *err)
{
    const struct pairs *all = ctx;
    const struct pair *p = (const struct pair *)all->list.data + number;
    const struct fsdpck_tensor *base = fsdpck_source_tensor(all->m->base, p->base);
    float *v = malloc(4 * PIECE * sizeof *v);
    int rc = v ? 0 : fsdpck_error_nomem(err, 4 * PIECE * sizeof *v);
    bool same = true;
    (void)worker;
    for (uint64_t at = 0; at < base->nelem && !rc && same; at += PIECE)
        rc = compare_piece(all->m, p, at, base->nelem - at < PIECE ? base->nelem - at : PIECE, v, &same, err);
    free(v);
    return rc || same ? rc : refuse(all->m, p->position, FSDPCK_ERR_FORMAT, "has other values", err);
}

static bool is_quantized(const struct fsdpck_tensor *t, const struct fsdpck_lora_name *n)
{
    return t->dtype > FSDPCK_BFLOAT16 || strncmp(n->leaf, "weight.", strlen("weight.")) == 0;
}

static int add_pair(struct pairs *all, size_t i, struct fsdpck_error *err)
{
    struct fsdpck_lora_merge *m = all->m;
    const struct fsdpck_lora_name *n = &m->adapter->names[i];
    const struct fsdpck_tensor *own = lora_tensor(m->adapter, (int64_t)i);
    const char *name = fsdpck_lora_merge_parameter(&m->arena, n->module, n->leaf, err);
    size_t at = name ? fsdpck_names_find(&m->names, name) : SIZE_MAX;
    if (!name)
        return FSDPCK_ERR_NOMEM;
    if (is_quantized(own, n) || (at == SIZE_MAX && n->role == LORA_ORIGINAL))
        return 0;
    if (at == SIZE_MAX)
        return refuse(m, (int64_t)i, FSDPCK_ERR_MISSING, "is not", err);
    const struct fsdpck_tensor *base = fsdpck_source_tensor(m->base, m->selection->tensors[at].source);
    if (own->ndim != base->ndim || (own->ndim && memcmp(own->shape, base->shape, own->ndim * sizeof *own->shape) != 0))
        return refuse(m, (int64_t)i, FSDPCK_ERR_FORMAT, "has another shape", err);
    if (base->dtype > FSDPCK_BFLOAT16)
        return 0;
    struct pair *p = fsdpck_vec_push(&all->list, err);
    if (p)
        *p = (struct pair){ .position = (int64_t)i, .base = m->selection->tensors[at].source };
    return p ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_lora_merge_frozen(struct fsdpck_lora_merge *m, struct fsdpck_error *err)
{
    struct pairs all = { .m = m, .list = FSDPCK_VEC(struct pair) };
    int rc = 0;
    for (size_t i = 0; i < m->adapter->selection.ntensors && !rc; i++) {
        enum fsdpck_lora_role role = m->adapter->names[i].role;
        if (!m->used[i] &&
            (role == LORA_ORIGINAL || (m->adapter->beside_model && (role == LORA_PLAIN || role == LORA_BASE))))
            rc = add_pair(&all, i, err);
    }
    if (!rc && all.list.count)
        rc = fsdpck_pool_run(m->opt->nthreads, all.list.count, compare, &all, m->opt->stop, err);
    fsdpck_vec_free(&all.list);
    return rc;
}
