/* SPDX-License-Identifier: Apache-2.0 */
/* Prediction with one set of buffers for all blocks, which compute in place. */
#include "model/flux2_forward.h"

#include <stdlib.h>

#include "model/flux2_impl.h"

struct flux2_forward {
    struct compute c; /* a view of the caller's with buffers of its own */
    struct flux2_run run;
    struct flux2_kept kept;
    struct kern_buffer memory;
};

static void alloc_all(struct flux2_forward *f, struct bump *v)
{
    const struct model *m = f->c.m;
    const int64_t n = f->run.n, d = m->hidden;
    struct flux2_kept *k = &f->kept;
    flux2_alloc(&f->run, v, false);
    k->z = k->z2 = f->run.last = bump_acts(v, f->c.dtype, n * d);
    k->q_raw = k->q = k->o = bump_acts(v, f->c.dtype, n * d);
    k->k_raw = k->k = bump_acts(v, f->c.dtype, n * d);
    k->v = bump_acts(v, f->c.dtype, n * d);
    k->wide = bump_acts(v, f->c.dtype, n * (3 * d + 2 * m->inner));
    k->both = bump_acts(v, f->c.dtype, n * (d + m->inner));
    void *s = bump_floats(v, n * compute_largest_rank(f->c.l));
    for (int i = 0; i < FLUX2_STREAMS; i++)
        k->s_qkv[i] = k->s_out[i] = k->s_mlp_in[i] = k->s_mlp_out[i] = s;
}

/* In the given memory, or in memory of its own. */
static int allocate(struct flux2_forward *f, void *memory, struct fsdpck_error *err)
{
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = f->c.index, .huge_pages = true };
    char message[KERN_MESSAGE_BYTES] = "";
    struct bump v = { 0 };
    alloc_all(f, &v);
    if (!memory && f->c.device->memory->alloc(where, v.at, &f->memory, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL,
                                "no memory for a picture of %lld × %lld latent pixels (%zu bytes): %s",
                                (long long)f->run.height, (long long)f->run.width, v.at, message);
    v = (struct bump){ .base = memory ? memory : f->memory.data };
    alloc_all(f, &v);
    return flux2_send_tables(&f->run, err);
}

/* A view of the caller's parameters, without buffers yet. */
static void view(struct flux2_forward *f, const struct compute *from, int64_t ntext, int64_t height, int64_t width)
{
    f->c = *from;
    f->c.dropout = 0;
    f->c.dtype = from->widest;
    f->c.batch = (struct batch){ 0 };
    f->run = (struct flux2_run){ .c = &f->c,
                                 .ntext = ntext,
                                 .nimage = height * width,
                                 .n = ntext + height * width,
                                 .height = height,
                                 .width = width };
}

uint64_t flux2_forward_nbytes(const struct compute *from, int64_t ntext, int64_t height, int64_t width)
{
    struct flux2_forward f = { 0 };
    struct bump v = { 0 };
    view(&f, from, ntext, height, width);
    alloc_all(&f, &v);
    return v.at;
}

int flux2_forward_new(const struct compute *from, int64_t ntext, int64_t height, int64_t width, void *memory,
                      struct flux2_forward **out, struct fsdpck_error *err)
{
    *out = NULL;
    if (!from->device->images)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "device '%s' has no kernels for pictures",
                                from->device->name);
    struct flux2_forward *f = calloc(1, sizeof *f);
    if (!f)
        return fsdpck_error_nomem(err, sizeof *f);
    view(f, from, ntext, height, width);
    int rc = allocate(f, memory, err);
    if (rc)
        flux2_forward_free(f);
    else
        *out = f;
    return rc;
}

void flux2_forward_free(struct flux2_forward *f)
{
    if (!f)
        return;
    f->c.device->memory->free(&f->memory);
    free(f);
}

int flux2_forward_text(struct flux2_forward *f, const float *text, struct fsdpck_error *err)
{
    flux2_send_text(&f->run, text);
    return compute_sync(&f->c, err);
}

int flux2_forward_run(struct flux2_forward *f, const struct compute_hook *hook, const float *x, float sigma,
                      float guidance, float *velocity, struct fsdpck_error *err)
{
    const uint32_t ngroups = f->c.l->ngroups;
    int rc = 0;
    for (uint32_t group = 0; group < ngroups && !rc; group++) {
        rc = compute_enter(hook, group, err);
        if (rc)
            return rc;
        if (group == 0)
            flux2_first(&f->run, x, sigma, guidance, f->kept.z);
        else if (group == ngroups - 1)
            flux2_end(&f->run);
        else
            flux2_block(&f->run, (int64_t)group - 1, &f->kept, f->kept.z);
        compute_leave(hook, group);
    }
    f->c.device->memory->copy(f->c.stream, velocity, f->run.velocity,
                              (size_t)(f->run.nimage * f->c.m->flux2.nchannel) * sizeof *velocity);
    return compute_sync(&f->c, err);
}
