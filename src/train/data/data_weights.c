/* SPDX-License-Identifier: Apache-2.0 */
/* Applies the weights of several files: a document occurs as often as the weight of its file says; a fractional part is
 * drawn at random. */
#include "data/data_impl.h"

#include <kernels/random.h>
#include <stdlib.h>
#include <xxhash.h>

/* Number of copies of document i with weight w: floor(w), plus one with the probability of the fraction. A pure
 * function of seed and document. */
static size_t times(uint64_t seed, uint64_t i, double weight)
{
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    const uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, XXH32("data.weight", 11, 0) };
    uint32_t out[4];
    kern_philox4x32(counter, key, out);
    return (size_t)weight + (out[0] * 0x1p-32 < weight - (double)(size_t)weight);
}

int data_apply_weights(struct data *d, const struct train_config *config, struct fsdpck_error *err)
{
    struct document *docs = NULL;
    size_t ndocs = 0, capacity = 0, file = 0;
    bool plain = true;
    for (size_t i = 0; i < config->data.nfiles; i++)
        plain &= config->data.files[i].weight == 1;
    if (plain)
        return 0;
    for (size_t i = 0; i < d->ndocs; i++) {
        while (i >= d->file_ends[file])
            file++;
        size_t n = times(config->seed, i, config->data.files[file].weight);
        if (ndocs + n > UINT32_MAX || !grow((void **)&docs, &capacity, ndocs + n, sizeof *docs)) {
            free(docs);
            return ndocs + n > UINT32_MAX ? fsdpck_error_set(err, FSDPCK_ERR_LIMIT, config->data.train,
                                                             "the weights make more than 2^32 documents")
                                          : fsdpck_error_nomem(err, ndocs * sizeof *docs);
        }
        while (n-- > 0)
            docs[ndocs++] = d->docs[i];
    }
    if (ndocs == 0) {
        free(docs);
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config->data.train, "the weights leave no document");
    }
    free(d->docs);
    d->docs = docs;
    d->ndocs = ndocs;
    d->docs_capacity = capacity;
    return 0;
}
