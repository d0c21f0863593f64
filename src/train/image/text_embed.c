/* SPDX-License-Identifier: Apache-2.0 */
/* A text is padded on the right. Padding sees the text and not itself, and takes part in all that follows. */
#include "image/text_embed.h"

#include <stdlib.h>
#include <string.h>

#include "image/prompt_tokens.h"
#include "rank/gather.h"
#include "state/load.h"

enum { STATES = 3, EVERY = 9, LAYERS = STATES * EVERY }; /* states after the layers 9, 18 and 27 */

struct text_embed {
    struct text_encoder own; /* of a single rank */
    const struct text_encoder *encoder;
    struct rank *joined; /* of a run's ranks; else NULL */
    struct compute *compute;
    struct gather *gather;
    struct prompt_tokens tokens;
    int64_t ntok;
    bool begun;           /* parameters have been gathered */
    void *states[STATES]; /* (ntok, hidden) in the dtype of the model, host memory */
};

/* The layers above the last state that is wanted are not read; nor is the head. */
static int cut_layers(void *ctx, struct model *m, const char *path, struct fsdpck_error *err)
{
    struct text_encoder *e = ctx;
    int rc = model_check_decoder(m, path, err);
    if (!rc && m->nlayer < LAYERS)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "a text encoder of %lld layers; %d are needed",
                                (long long)m->nlayer, LAYERS);
    e->last_is_normed = m->nlayer == LAYERS;
    m->nlayer = LAYERS;
    m->tied = true;
    return rc;
}

typedef int whole_fn(const char *model, const struct sampler_options *opt, const struct whole_choice *choice,
                     struct whole *out, struct fsdpck_error *err);

static int describe(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok, const struct job *among,
                    whole_fn *make, struct text_encoder *out, struct fsdpck_error *err)
{
    const struct whole_choice choice = {
        .check = cut_layers, .ctx = out, .partial = true, .ntok = ntok, .among = among
    };
    struct sampler_options of_text = *opt;
    char path[PIPELINE_PATH];
    *out = (struct text_encoder){ 0 };
    of_text.adapter = NULL;
    int rc = pipeline_part(p, "text_encoder", path, err);
    return rc ? rc : make(path, &of_text, &choice, &out->whole, err);
}

int text_encoder_describe(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok,
                          const struct job *among, struct text_encoder *out, struct fsdpck_error *err)
{
    return describe(p, opt, ntok, among, whole_describe, out, err);
}

void text_encoder_close(struct text_encoder *e)
{
    whole_close(&e->whole);
}

int64_t text_encoder_width(const struct text_encoder *e)
{
    return STATES * e->whole.job.model.hidden;
}

static int make_states(struct text_embed *t, struct fsdpck_error *err)
{
    const struct job *job = &t->encoder->whole.job;
    const size_t nelem = (size_t)(job->micro_ntok * job->model.hidden);
    t->ntok = job->micro_ntok;
    for (int i = 0; i < STATES; i++)
        if (!(t->states[i] = calloc(nelem, sizeof(float))))
            return fsdpck_error_nomem(err, nelem * sizeof(float));
    return 0;
}

/* r: has loaded the weights. */
static int start(struct text_embed *t, const struct text_encoder *encoder, struct rank *r, const struct pipeline *p,
                 struct fsdpck_error *err)
{
    t->encoder = encoder;
    t->compute = r->compute;
    t->gather = r->gather;
    int rc = prompt_tokens_open(p, &t->tokens, err);
    return rc ? rc : make_states(t, err);
}

int text_embed_open(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok, struct text_embed **out,
                    struct fsdpck_error *err)
{
    struct text_embed *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return fsdpck_error_nomem(err, sizeof *t);
    int rc = describe(p, opt, ntok, NULL, whole_open, &t->own, err);
    if (!rc)
        rc = start(t, &t->own, t->own.whole.alone.rank, p, err);
    if (rc)
        text_embed_close(t);
    else
        *out = t;
    return rc;
}

int text_embed_join(const struct pipeline *p, struct text_encoder *encoder, struct comm *comm, struct text_embed **out,
                    struct fsdpck_error *err)
{
    struct text_embed *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return fsdpck_error_nomem(err, sizeof *t);
    int rc = rank_open(&encoder->whole.job, comm, &t->joined, err);
    if (!rc)
        rc = rank_load(t->joined, false, err);
    if (!rc)
        rc = start(t, encoder, t->joined, p, err);
    if (rc)
        text_embed_close(t);
    else
        *out = t;
    return rc;
}

void text_embed_close(struct text_embed *t)
{
    if (!t)
        return;
    rank_close(t->joined);
    text_encoder_close(&t->own);
    prompt_tokens_close(&t->tokens);
    for (int i = 0; i < STATES; i++)
        free(t->states[i]);
    free(t);
}

int64_t text_embed_width(const struct text_embed *t)
{
    return text_encoder_width(t->encoder);
}

/* After a block: its output is the input of the next one. After the last norm: its output. */
static void take_state(struct text_embed *t, uint32_t group)
{
    struct compute *c = t->compute;
    const bool normed = group == LAYERS + 1 && t->encoder->last_is_normed;
    if (normed)
        group = LAYERS;
    if (group == 0 || group % EVERY || group > LAYERS)
        return;
    const void *x = normed ? c->h : group < LAYERS ? c->blocks[group].x : c->x_last;
    c->device->memory->copy(c->stream, t->states[group / EVERY - 1], x,
                            (size_t)(t->ntok * c->m->hidden * kern_dtype_bytes(layout_dtype(c->l, group))));
}

static int before_group(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    const struct compute_hook gathers = gather_hook(((struct text_embed *)ctx)->gather);
    return gathers.before_group(gathers.ctx, group, err);
}

static void after_group(void *ctx, uint32_t group)
{
    struct text_embed *t = ctx;
    const struct compute_hook gathers = gather_hook(t->gather);
    take_state(t, group);
    gathers.after_group(gathers.ctx, group);
}

/* One document; tokens beyond the text are padding. */
static void fill(struct text_embed *t, const struct token_list *list)
{
    struct batch *b = &t->compute->batch;
    b->ntok = t->ntok;
    b->ndocs = 1;
    b->cu_seqlens[0] = 0;
    b->cu_seqlens[1] = t->ntok;
    b->nkeys = (int64_t)list->count < t->ntok ? (int64_t)list->count : t->ntok;
    *b->rng_offset = (struct kern_rng_offset){ 0 };
    for (int64_t i = 0; i < t->ntok; i++) {
        b->ids[i] = i < b->nkeys ? (int32_t)list->ids[i] : t->tokens.pad;
        b->positions[i] = (int32_t)i;
        b->targets[i] = -1;
    }
}

static void lay_side_by_side(const struct text_embed *t, float *out)
{
    const struct compute *c = t->compute;
    const int64_t d = c->m->hidden;
    for (int64_t i = 0; i < t->ntok; i++)
        for (int s = 0; s < STATES; s++) {
            float *to = out + (i * STATES + s) * d;
            const bool rounded = layout_dtype(c->l, (uint32_t)(s + 1) * EVERY) == KERN_BF16;
            const char *from = (const char *)t->states[s] + i * d * (rounded ? 2 : 4);
            fsdpck_dtype_cast(rounded ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32, from, FSDPCK_FLOAT32, to, (uint64_t)d);
        }
}

static int check_ids(const struct text_embed *t, const struct token_list *list, struct fsdpck_error *err)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->ids[i] >= (uint64_t)t->encoder->whole.job.model.nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                    "the tokenizer has a token %u; the text encoder knows %lld", list->ids[i],
                                    (long long)t->encoder->whole.job.model.nvocab);
    return 0;
}

static void begin(struct text_embed *t)
{
    gather_begin(t->gather, !t->begun, false);
    t->begun = true;
}

int text_embed_run(struct text_embed *t, const char *text, float *out, bool *cut, struct fsdpck_error *err)
{
    const struct compute_hook hook = { .before_group = before_group, .after_group = after_group, .ctx = t };
    struct token_list list = { 0 };
    int rc = prompt_tokens_of(&t->tokens, text, &list, err);
    if (!rc)
        rc = check_ids(t, &list, err);
    if (!rc) {
        fill(t, &list);
        *cut = (int64_t)list.count > t->ntok;
        begin(t);
        rc = compute_states(t->compute, &hook, err);
    }
    if (!rc)
        lay_side_by_side(t, out);
    token_list_free(&list);
    return rc;
}

int text_embed_skip(struct text_embed *t, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(t->gather);
    begin(t);
    return compute_loss_skip(t->compute, &hook, err);
}
