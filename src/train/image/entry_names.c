/* SPDX-License-Identifier: Apache-2.0 */
#include "image/entry_names.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/file.h"

/* An element in the middle of a tensor. */
struct sample {
    uint64_t offset[8], size[8];
    char value[64];
};

/* The tensors that have elements. *n: of reads. */
static void list_reads(struct fsdpck_source *src, struct sample *samples, struct fsdpck_read *reads, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        struct sample *s = &samples[i];
        bool any = t->ndim < 8;
        for (uint32_t d = 0; d < t->ndim && d < 8; d++) {
            s->offset[d] = t->shape[d] / 2;
            s->size[d] = 1;
            any = any && t->shape[d];
        }
        if (any)
            reads[(*n)++] = (struct fsdpck_read){ .tensor = t, .offset = s->offset, .size = s->size, .dst = s->value };
    }
}

static int hash_samples(struct fsdpck_source *src, uint64_t *out, struct fsdpck_error *err)
{
    const size_t ntensors = fsdpck_source_ntensors(src);
    struct sample *samples = calloc(ntensors + 1, sizeof *samples);
    struct fsdpck_read *reads = calloc(ntensors + 1, sizeof *reads);
    XXH3_state_t *x = XXH3_createState();
    size_t n = 0;
    int rc = samples && reads && x ? 0 : fsdpck_error_nomem(err, ntensors * sizeof *samples);
    if (!rc) {
        list_reads(src, samples, reads, &n);
        rc = fsdpck_source_read(src, reads, n, err);
    }
    if (!rc)
        XXH3_64bits_reset(x);
    for (size_t i = 0; i < ntensors && !rc; i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        XXH3_64bits_update(x, t->name, strlen(t->name));
        XXH3_64bits_update(x, t->shape, t->ndim * sizeof *t->shape);
        XXH3_64bits_update(x, samples[i].value, sizeof samples[i].value);
    }
    if (!rc)
        *out = XXH3_64bits_digest(x);
    XXH3_freeState(x);
    free(samples);
    free(reads);
    return rc;
}

/* Of samples of all tensors and of the config of a part: another model has another one. */
static int hash_part(const struct pipeline *p, const struct fsdpck_options *fs, const char *part, uint64_t *out,
                     struct fsdpck_error *err)
{
    struct fsdpck_source *src = NULL;
    char path[PIPELINE_PATH];
    int rc = pipeline_part(p, part, path, err);
    if (!rc)
        rc = fsdpck_source_open(path, NULL, fs, &src, err);
    if (!rc)
        rc = hash_samples(src, out, err);
    fsdpck_source_close(src);
    return rc;
}

/* Adds the bytes of a file of the pipeline, if it is there. */
static int hash_file(const struct pipeline *p, const char *name, uint64_t *hash, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char path[PIPELINE_PATH], *data;
    size_t nbytes;
    int rc = pipeline_part(p, name, path, err);
    if (rc)
        return rc;
    rc = text_file_read(path, 1 << 28, &data, &nbytes, &why);
    if (rc == FSDPCK_ERR_MISSING)
        return 0;
    if (rc)
        return fsdpck_error_set(err, rc, path, "%s", why.message);
    *hash = XXH3_64bits_withSeed(data, nbytes, *hash);
    free(data);
    return 0;
}

int entry_names_open(const struct pipeline *p, const struct fsdpck_options *fs, struct entry_names *out,
                     struct fsdpck_error *err)
{
    static const char *const of_text[] = { "text_encoder/config.json", "tokenizer/tokenizer.json",
                                           "tokenizer/tokenizer_config.json", "tokenizer/special_tokens_map.json",
                                           "tokenizer/chat_template.jinja" };
    int rc = hash_part(p, fs, "text_encoder", &out->of_text, err);
    if (!rc)
        rc = hash_part(p, fs, "vae", &out->of_vae, err);
    for (size_t i = 0; i < sizeof of_text / sizeof of_text[0] && !rc; i++)
        rc = hash_file(p, of_text[i], &out->of_text, err);
    return rc ? rc : hash_file(p, "vae/config.json", &out->of_vae, err);
}

uint64_t entry_name_of_text(const struct entry_names *n, const char *text)
{
    const uint64_t parts[] = { XXH3_64bits(text, strlen(text)), n->of_text, (uint64_t)n->ntext, n->rounded, 1 };
    return XXH3_64bits(parts, sizeof parts);
}

/* A flip, tiles and an unusual fit change the name only where there are any, so that caches of before there were are
 * still of use. */
uint64_t entry_name_of_latents(const struct entry_names *n, const struct listed *x, const struct fit *f)
{
    const struct bucket *b = &f->bucket;
    const int64_t fit[] = { b->scaled_height, b->scaled_width, b->top, b->left, f->filter };
    const uint64_t parts[] = {
        x->content,         n->of_vae,  (uint64_t)b->height,
        (uint64_t)b->width, n->rounded, 2 + 256 * x->flip_x + 512 * x->flip_y + 1024 * n->tiled
    };
    return XXH3_64bits_withSeed(parts, sizeof parts, f->usual ? 0 : XXH3_64bits(fit, sizeof fit));
}
