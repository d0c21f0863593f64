/* SPDX-License-Identifier: Apache-2.0 */
/* index.json in memory (FORMAT.md section 1): the data that source_fsdpck.c needs besides the common catalogue. */
#ifndef CKPT_INDEX_H
#define CKPT_INDEX_H

#include <pthread.h>

#include "base/hash.h"
#include "engine/source_impl.h"
#include "format/table.h"

#define FSDPCK_INDEX_TAIL_NBYTES 43u /* `"hash":"` 32 digits `"}` newline */

/* A shard file: the index's description of its table, and the table after its first use. */
struct index_file {
    uint64_t table, table_nbytes;
    struct fsdpck_hash128 table_hash;
    struct fsdpck_table loaded;
    bool is_loaded;
    const struct fsdpck_error *broken; /* only while verifying: the reason why the file cannot be read */
};

struct index_chunk { /* of a tensor without a placement rule */
    uint32_t rank;
    const uint64_t *offset, *size;
};

struct index_tensor {
    const struct index_chunk *chunks; /* (nchunks), or NULL: placed by rule */
    uint64_t nchunks;
};

struct fsdpck_index {
    struct fsdpck_mesh *meshes; /* (nmeshes) in the arena */
    size_t nmeshes;
    struct fsdpck_vec files;   /* struct index_file; rank r is files[r] */
    struct fsdpck_vec tensors; /* struct index_tensor, parallel to the source's */
    uint8_t save_id[16];
    bool has_metadata;
    uint64_t metadata_nbytes;
    struct fsdpck_hash128 metadata_hash;
    pthread_mutex_t lock; /* guards the loaded tables */
};

/* Reads DIR/index.json into the source's catalogue and *index. Checks every name, number and reference. */
int fsdpck_index_read(struct fsdpck_source *src, struct fsdpck_index *index, struct fsdpck_error *err);

#endif
