/* SPDX-License-Identifier: Apache-2.0 */
/* The two factors of an adapter in products. Those of experts that PEFT stores together are parts of larger matrices:
 * an expert's A is a few rows; the elements of its B lie apart, and are copied out before they are used. */
#include "model/bump.h"
#include "model/compute_impl.h"

/* An expert's part of B (…, r·npairs), as one column of a matrix with a row for each of its elements. */
static int64_t column_at(const struct linear *lin)
{
    return lin->b_row * lin->r * lin->npairs + lin->expert;
}

struct kern_cmat pair_a(const struct compute *c, const struct linear *lin)
{
    return row_of(c, lin->a, lin->a_row);
}

float *pair_da(const struct compute *c, const struct linear *lin)
{
    float *da = grad_of(c, lin->a);
    return da ? da + lin->a_row * lin->nin : NULL;
}

struct kern_cmat pair_b(struct compute *c, const struct linear *lin, int64_t at)
{
    struct kern_cmat b = value_of(c, lin->b);
    if (!lin->npairs)
        return b;
    const int64_t nbytes = kern_dtype_bytes(b.dtype);
    const struct kern_mat to = { (char *)c->b_one + at * nbytes, 1, b.dtype };
    b.data = (const char *)b.data + column_at(lin) * nbytes;
    b.pitch = lin->npairs;
    c->device->ops->cast(c->stream, to, b, lin->nout * lin->r, 1);
    return (struct kern_cmat){ to.data, lin->r, to.dtype };
}

float *pair_db(struct compute *c, const struct linear *lin)
{
    float *db = grad_of(c, lin->b);
    if (!lin->npairs || !db)
        return db;
    c->device->memory->zero(c->stream, c->db_one, (size_t)(lin->nout * lin->r) * sizeof(float));
    return c->db_one;
}

void pair_add_db(struct compute *c, const struct linear *lin)
{
    float *all = grad_of(c, lin->b);
    if (!lin->npairs || !all)
        return;
    const struct kern_mat db = grad_mat(all + column_at(lin), lin->npairs);
    c->device->ops->add(c->stream, db, kern_const(db), kern_const(grad_mat(c->db_one, 1)), lin->nout * lin->r, 1);
}

static void widen(void *ctx, const struct linear *const *layers, int n)
{
    int64_t *nelem = ctx, sum = 0;
    for (int i = 0; i < n; i++)
        sum += layers[i]->npairs ? layers[i]->nout * layers[i]->r : 0;
    *nelem = sum > *nelem ? sum : *nelem;
}

void compute_alloc_pairs(struct compute *c, struct bump *v, bool backward)
{
    int64_t nelem = 0;
    layout_each(c->l, widen, &nelem);
    c->b_one = bump_acts(v, c->widest, nelem);
    c->db_one = bump_floats(v, backward ? nelem : 0);
}
