/* SPDX-License-Identifier: Apache-2.0 */
/* A text is padded on the right. Padding sees the text and not itself, and takes part in all that follows. */
#include "image/text_embed.h"

#include <stdlib.h>
#include <string.h>

#include "image/prompt_tokens.h"
#include "sample/whole.h"
#include "text/file.h"

enum { STATES = 3, EVERY = 9, LAYERS = STATES * EVERY }; /* states after the layers 9, 18 and 27 */

struct text_embed {
    struct whole whole;
    struct compute *compute;
    struct kern_buffer memory;
    struct prompt_tokens tokens;
    int64_t ntok;
    bool last_is_normed;  /* the model has no layer above the last state, which then is the model's output */
    void *states[STATES]; /* (ntok, hidden) in the dtype of the model, host memory */
};

/* The layers above the last state that is wanted are not read; nor is the head. */
static int cut_layers(void *ctx, struct model *m, const char *path, struct fsdpck_error *err)
{
    struct text_embed *t = ctx;
    int rc = model_check_decoder(m, path, err);
    if (!rc && m->nlayer < LAYERS)
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "a text encoder of %lld layers; %d are needed",
                                (long long)m->nlayer, LAYERS);
    t->last_is_normed = m->nlayer == LAYERS;
    m->nlayer = LAYERS;
    m->tied = true;
    return rc;
}

static int make_buffers(struct text_embed *t, struct fsdpck_error *err)
{
    const struct job *job = &t->whole.job;
    struct compute *base = t->whole.alone.rank->compute;
    char message[KERN_MESSAGE_BYTES];
    int rc = compute_new_beside(base, &job->model, &job->layout, job->config, t->ntok, 1, &t->compute, err);
    if (rc)
        return rc;
    const struct kern_location where = { .kind = KERN_MEMORY_DEVICE, .index = base->index, .huge_pages = true };
    if (base->device->memory->alloc(where, t->compute->nbytes, &t->memory, message) != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "no memory for a text of %lld tokens: %s",
                                (long long)t->ntok, message);
    for (int i = 0; i < STATES; i++)
        if (!(t->states[i] = calloc((size_t)(t->ntok * job->model.hidden), sizeof(float))))
            return fsdpck_error_nomem(err, (size_t)(t->ntok * job->model.hidden) * sizeof(float));
    return compute_bind(t->compute, t->memory.data, NULL, NULL, err);
}

int text_embed_open(const struct pipeline *p, const struct sampler_options *opt, int64_t ntok, struct text_embed **out,
                    struct fsdpck_error *err)
{
    struct text_embed *t = calloc(1, sizeof *t);
    const struct whole_choice choice = { .check = cut_layers, .ctx = t, .partial = true };
    struct sampler_options of_text = *opt;
    char path[PIPELINE_PATH];
    *out = NULL;
    if (!t)
        return fsdpck_error_nomem(err, sizeof *t);
    t->ntok = ntok;
    of_text.adapter = NULL;
    int rc = prompt_tokens_open(p, &t->tokens, err);
    if (!rc)
        rc = pipeline_part(p, "text_encoder", path, err);
    if (!rc)
        rc = whole_open(path, &of_text, &choice, &t->whole, err);
    if (!rc)
        rc = make_buffers(t, err);
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
    if (t->compute)
        t->compute->device->memory->free(&t->memory);
    compute_free(t->compute);
    whole_close(&t->whole);
    prompt_tokens_close(&t->tokens);
    for (int i = 0; i < STATES; i++)
        free(t->states[i]);
    free(t);
}

int64_t text_embed_width(const struct text_embed *t)
{
    return STATES * t->whole.job.model.hidden;
}

static int no_gather(void *ctx, uint32_t group, struct fsdpck_error *err)
{
    (void)ctx, (void)group, (void)err; /* all parameters are in memory */
    return 0;
}

/* After a block: its output is the input of the next one. After the last norm: its output. */
static void take_state(void *ctx, uint32_t group)
{
    struct text_embed *t = ctx;
    struct compute *c = t->compute;
    const bool normed = group == LAYERS + 1 && t->last_is_normed;
    if (normed)
        group = LAYERS;
    if (group == 0 || group % EVERY || group > LAYERS)
        return;
    const void *x = normed ? c->h : group < LAYERS ? c->blocks[group].x : c->x_last;
    c->device->memory->copy(c->stream, t->states[group / EVERY - 1], x,
                            (size_t)(t->ntok * c->m->hidden * kern_dtype_bytes(layout_dtype(c->l, group))));
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
        if (list->ids[i] >= (uint64_t)t->whole.job.model.nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                    "the tokenizer has a token %u; the text encoder knows %lld", list->ids[i],
                                    (long long)t->whole.job.model.nvocab);
    return 0;
}

int text_embed_run(struct text_embed *t, const char *text, float *out, bool *cut, struct fsdpck_error *err)
{
    const struct compute_hook hook = { .before_group = no_gather, .after_group = take_state, .ctx = t };
    struct token_list list = { 0 };
    int rc = prompt_tokens_of(&t->tokens, text, &list, err);
    if (!rc)
        rc = check_ids(t, &list, err);
    if (!rc) {
        fill(t, &list);
        *cut = (int64_t)list.count > t->ntok;
        rc = compute_states(t->compute, &hook, err);
    }
    if (!rc)
        lay_side_by_side(t, out);
    token_list_free(&list);
    return rc;
}
