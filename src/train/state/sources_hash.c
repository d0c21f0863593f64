/* SPDX-License-Identifier: Apache-2.0 */
/* Hash of the weights' files, for a comparison between hosts. Reads a few numbers from the middle of each tensor:
 * another model with the same shapes differs there, and a model of any size takes milliseconds. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "state/sources.h"

enum { SAMPLE = 256 }; /* numbers from each tensor */

static int hash_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *t, XXH3_state_t *hash,
                       struct fsdpck_error *err)
{
    unsigned char numbers[SAMPLE * sizeof(double)];
    const uint32_t last = t->ndim - 1; /* sources_find() wants one to three */
    uint64_t offset[3] = { t->shape[0] / 2, 0, 0 }, size[3] = { 1, 1, 1 };
    size[last] = t->shape[last] < SAMPLE ? t->shape[last] : SAMPLE;
    offset[last] = (t->shape[last] - size[last]) / 2;
    const struct fsdpck_read read = { .tensor = t, .offset = offset, .size = size, .dst = numbers };
    int rc = fsdpck_source_read(src, &read, 1, err);
    if (!rc) {
        XXH3_64bits_update(hash, t->name, strlen(t->name));
        XXH3_64bits_update(hash, numbers, size[last] * fsdpck_dtype_info(t->dtype)->nbytes);
    }
    return rc;
}

static int hash_source(const struct job *job, bool adapter, XXH3_state_t *hash, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    int rc = sources_open(job, adapter, &src, err);
    for (size_t i = 0; i < job->layout.nparams && !rc; i++) {
        const struct fsdpck_tensor *t;
        if (!sources_has(job, &job->layout.params[i], adapter))
            continue;
        rc = sources_find(src, &job->layout.params[i], adapter, &t, err);
        if (!rc)
            rc = hash_tensor(src, t, hash, err);
    }
    fsdpck_source_close(src);
    return rc;
}

int sources_hash(const struct job *job, uint64_t *out, struct fsdpck_error *err)
{
    const bool adapter = job->config->lora.enabled && job->config->lora.init_adapter;
    XXH3_state_t *hash = XXH3_createState();
    *out = 0;
    if (!hash)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "out of memory");
    XXH3_64bits_reset(hash);
    int rc = hash_source(job, false, hash, err);
    if (!rc && adapter)
        rc = hash_source(job, true, hash, err);
    if (!rc)
        *out = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}
