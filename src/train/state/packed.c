/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the weights of the model's files that stay quantized. */
#include <fsdpck/packed.h>
#include <stdio.h>
#include <string.h>

#include "state/sources.h"

static struct kern_packed form_of(const struct fsdpck_packed *p)
{
    static const enum kern_code codes[] = {
        [FSDPCK_PACKED_E4M3] = KERN_CODE_E4M3, [FSDPCK_PACKED_NIBBLES] = KERN_CODE_NIBBLES
    };
    static const enum kern_code_scale scales[] = { [FSDPCK_PACKED_F32] = KERN_SCALE_F32,
                                                   [FSDPCK_PACKED_E8M0] = KERN_SCALE_E8M0,
                                                   [FSDPCK_PACKED_E4M3_TIMES] = KERN_SCALE_E4M3_TIMES,
                                                   [FSDPCK_PACKED_E4M3_DIVIDED] = KERN_SCALE_E4M3_DIVIDED };
    struct kern_packed form = { .code = codes[p->code],
                                .scale = scales[p->scale],
                                .group = (int64_t)p->group,
                                .flat = p->flat,
                                .pitch = (int64_t)p->row_nbytes,
                                .scales_at = (int64_t)p->scales_at,
                                .global_at = (int64_t)p->global_at };
    memcpy(form.values, p->values, sizeof form.values);
    return form;
}

/* A checkpoint with trees has "model.NAME". */
static const char *own_name(const struct fsdpck_tensor *t)
{
    return strncmp(t->name, "model.model.", 12) == 0 || strncmp(t->name, "model.lm_head.", 14) == 0 ? t->name + 6
                                                                                                    : t->name;
}

static int add(struct fsdpck_source *src, const struct fsdpck_tensor *t, struct packed_weights *out,
               struct fsdpck_error *err)
{
    struct fsdpck_packed packed;
    bool is;
    int rc = fsdpck_source_packed(src, t, &is, &packed, err);
    struct packed_weight *w = rc || !is ? NULL : packed_add(out, err);
    if (!w)
        return rc || !is ? rc : err->code;
    *w = (struct packed_weight){ .nrow = (int64_t)packed.rows, .ncol = (int64_t)packed.cols, .form = form_of(&packed) };
    snprintf(w->name, sizeof w->name, "%s", own_name(t));
    return 0;
}

static void say(const struct job *job, const char *line)
{
    if (job->fs.note)
        job->fs.note(job->fs.ctx, line);
}

static void note(const struct job *job, const struct packed_weights *p)
{
    double values = 0, rows = 0;
    char line[300];
    for (size_t i = 0; i < p->n; i++) {
        values += 2.0 * (double)p->list[i].nrow * (double)p->list[i].ncol;
        rows += (double)p->list[i].nrow * (double)p->list[i].form.pitch;
    }
    if (p->n)
        snprintf(line, sizeof line, "dtype.base: %s: %zu weights stay quantized, in %.2f of the bytes of bf16", p->held,
                 p->n, rows / values);
    else
        snprintf(line, sizeof line, "dtype.base: %s: the quantized weights of the model are dequantized to bf16",
                 p->held);
    if (p->held[0])
        say(job, line);
    else if (job->config->dtype.base == TRAIN_BASE_BF16)
        say(job, "key 'dtype.base' has no effect: no weight of the model is quantized");
}

/* The forms of weights are those of their tensors. */
static void note_unknown(const struct job *job)
{
    if (job->model.quantized || job->config->dtype.base > TRAIN_BASE_BF16)
        say(job, "dtype.base: without weights, the base is planned as one that is not quantized");
}

int sources_packed(const struct job *job, struct packed_weights *out, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    *out = (struct packed_weights){ 0 };
    if (job->opt->on_paper && !sources_has_weights(job)) {
        note_unknown(job);
        return 0;
    }
    int rc = sources_open(job, false, &src, err);
    for (size_t i = 0; !rc && i < fsdpck_source_ntensors(src); i++)
        rc = add(src, fsdpck_source_tensor(src, i), out, err);
    if (!rc && fsdpck_source_held(src))
        snprintf(out->held, sizeof out->held, "%s", fsdpck_source_held(src));
    packed_sort(out);
    if (!rc)
        note(job, out);
    if (rc)
        packed_free(out);
    fsdpck_source_close(src);
    return rc;
}
