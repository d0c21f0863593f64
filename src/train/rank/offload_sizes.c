/* SPDX-License-Identifier: Apache-2.0 */
#include "rank/offload_sizes.h"

#include <string.h>

enum {
    PAGE = 4096,
    TREE_NBYTES = 4 << 20,
    LEAST_CHUNKS = 8,
    LEAST_BUFFERS = 3
}; /* buffers: one is read, one computed, one written */

static uint64_t aligned(uint64_t nbytes)
{
    return (nbytes + PAGE - 1) / PAGE * PAGE;
}

const char *offload_folder(const struct train_config *config)
{
    const char *value = config->fsdp.offload;
    return value && strchr(value, '/') ? value : NULL;
}

int offload_check(const struct train_config *config, bool on_device, struct fsdpck_error *err)
{
    const char *value = config->fsdp.offload;
    if (!value)
        return 0;
    if (strcmp(value, "cpu") != 0 && !offload_folder(config)) {
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'fsdp.offload': \"%s\" is neither \"cpu\" nor a folder",
                         value);
        fsdpck_error_hint(err, "a folder is written with a slash, as ./%s", value);
        return err->code;
    }
    if (!on_device || !config->fsdp.offload_params || !offload_folder(config))
        return 0;
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                     "key 'fsdp.offload_params': ranks on devices keep parameters in host memory, not in a folder");
    fsdpck_error_hint(err, "\"offload\": \"cpu\" in fsdp moves them, and the optimizer state, to host memory");
    return err->code;
}

static uint64_t largest_row(const struct layout *l)
{
    int64_t most = 1;
    for (size_t i = 0; i < l->nparams; i++)
        if (l->params[i].trainable && layout_moves(l, &l->params[i]) && l->params[i].ncol > most)
            most = l->params[i].ncol;
    return (uint64_t)most * sizeof(float);
}

/* Counts the chunks of up to nelem elements, and lists them if asked to. */
static uint64_t walk(const struct layout *l, int64_t nelem, struct offload_chunk *chunks)
{
    struct offload_chunk c = { 0 };
    uint64_t n = 0;
    for (size_t i = 0; i < l->nparams; i++) {
        const struct param *p = &l->params[i];
        for (int64_t row = 0; p->trainable && layout_moves(l, p) && row < p->chunk;) {
            const int64_t at = p->own_at + row * p->ncol, from = c.nelem ? c.at : at, room = nelem - (at - from);
            int64_t nrow = room > 0 ? room / p->ncol : 0;
            nrow = nrow < p->chunk - row ? nrow : p->chunk - row;
            if (nrow > 0) {
                c = (struct offload_chunk){ from, at + nrow * p->ncol - from };
                row += nrow;
                continue;
            }
            if (chunks)
                chunks[n] = c;
            n++;
            c.nelem = 0;
        }
    }
    if (c.nelem && chunks)
        chunks[n] = c;
    return n + (c.nelem > 0);
}

/* The largest size of a chunk that leaves room for enough of them; a small state has some too. */
static uint64_t choose_tree(const struct layout *l, uint64_t memory_nbytes, uint32_t ntrees)
{
    const uint64_t all = aligned((uint64_t)(l->own_nelem - l->own_moved) * sizeof(float) / LEAST_CHUNKS),
                   fits = memory_nbytes / (LEAST_BUFFERS * ntrees + 1) / PAGE * PAGE;
    uint64_t nbytes = all < TREE_NBYTES ? all : TREE_NBYTES;
    nbytes = nbytes > aligned(largest_row(l)) ? nbytes : aligned(largest_row(l));
    return nbytes < fits ? nbytes : fits;
}

int offload_count(const struct train_config *config, const struct layout *l, bool on_device, struct offload_sizes *out,
                  struct fsdpck_error *err)
{
    const uint64_t memory = config->fsdp.offload_memory, row = aligned(largest_row(l));
    *out = (struct offload_sizes){ .gradients = config->fsdp.offload_gradients && l->grads_by_group,
                                   .in_memory = !offload_folder(config),
                                   .values = l->masters,
                                   .ntrees = l->masters ? OFFLOAD_TREES : OFFLOAD_TREES - 1 };
    if (!config->fsdp.offload || (out->in_memory && !on_device)) {
        *out = (struct offload_sizes){ 0 };
        return 0;
    }
    if (l->own_moved == l->own_nelem) {
        *out = (struct offload_sizes){ .gradients = out->gradients, .in_memory = out->in_memory };
        return 0;
    }
    const uint64_t least = row * (LEAST_BUFFERS * out->ntrees + 1);
    if (memory < least)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "key 'fsdp.offload_memory' is %llu bytes; the rows of this model need %llu",
                                (unsigned long long)memory, (unsigned long long)least);
    out->tree_nbytes = choose_tree(l, memory, out->ntrees);
    out->nchunks = walk(l, (int64_t)(out->tree_nbytes / sizeof(float)), NULL);
    out->nbuffers = (memory - out->tree_nbytes) / (out->ntrees * out->tree_nbytes);
    out->nbuffers = out->nbuffers < out->nchunks ? out->nbuffers : out->nchunks;
    out->memory_nbytes = (out->nbuffers * out->ntrees + 1) * out->tree_nbytes;
    out->device_nbytes = on_device ? (OFFLOAD_DEVICE_BUFFERS * out->ntrees + 1) * out->tree_nbytes : 0;
    out->file_nbytes = (out->values ? 6 : 5) * out->nchunks * out->tree_nbytes;
    out->step_nbytes = out->ntrees * out->nchunks * out->tree_nbytes;
    return 0;
}

void offload_cut(const struct layout *l, const struct offload_sizes *sizes, struct offload_chunk *chunks)
{
    walk(l, (int64_t)(sizes->tree_nbytes / sizeof(float)), chunks);
}
