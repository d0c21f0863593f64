/* SPDX-License-Identifier: Apache-2.0 */
/* The description of a tensor in a checkpoint: name, shape, mesh and placement. Describes only: holds no payload. */
#ifndef FSDPCK_TENSOR_H
#define FSDPCK_TENSOR_H

#include <fsdpck/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDPCK_MAX_DIMS      64 /* of a tensor */
#define FSDPCK_MAX_MESH_DIMS 8  /* of a device mesh */
#define FSDPCK_MAX_RANKS     65536u

/* One step of a nested key: a dict key, or (if str is NULL) a list position. */
struct fsdpck_key {
    const char *str;
    uint64_t position;
};

/* A device mesh. The rank at coordinate (i, j, …) is ranks[row-major index], or the row-major index itself if ranks is
 * NULL. */
struct fsdpck_mesh {
    uint32_t ndim; /* 1 … FSDPCK_MAX_MESH_DIMS */
    const char *names[FSDPCK_MAX_MESH_DIMS];
    uint32_t sizes[FSDPCK_MAX_MESH_DIMS];
    const uint32_t *ranks;
};

enum fsdpck_placement_kind { FSDPCK_REPLICATE, FSDPCK_SHARD, FSDPCK_STRIDED_SHARD };

/* How one mesh dimension distributes a tensor. SHARD is torch.chunk along `dim`: each coordinate in turn gets ceil(d/n)
 * rows, the last ones fewer or none. STRIDED_SHARD(dim, split) first cuts the dimension into `split` chunks, then each
 * chunk among the coordinates (FSDP over tensor parallelism; torch's _StridedShard). Placements apply from the first
 * mesh dimension to the last. */
struct fsdpck_placement {
    enum fsdpck_placement_kind kind;
    uint32_t dim;
    uint32_t split; /* STRIDED_SHARD only, else 0 */
};

/* Borrowed from the source that lists it; lives as long as the source. */
struct fsdpck_tensor {
    const char *name; /* full key, UTF-8 without NUL; unique */
    const struct fsdpck_key
        *path; /* (npath) nested keys; a flat name is one key. Never obtained by splitting at dots */
    uint32_t npath;
    enum fsdpck_dtype dtype;
    uint32_t ndim;                             /* 0 = scalar */
    const uint64_t *shape;                     /* (ndim) */
    uint64_t nelem, nbytes;                    /* of the whole tensor */
    const struct fsdpck_mesh *mesh;            /* NULL: unknown */
    const struct fsdpck_placement *placements; /* (mesh->ndim), or NULL: explicit chunks, or unknown */
    int64_t alias_of;                          /* ordinal of the tensor that holds the bytes, or -1 */
    bool has_content;                          /* content is known */
    uint8_t content[16];                       /* FORMAT.md "Content id" */
};

/* The content id of `nrow` rows of a tensor from row `first` on. The ids of a tensor's rows, added up modulo 2^128 as
 * little-endian numbers, are that of the tensor. */
FSDPCK_API void fsdpck_content_of_rows(const void *rows, uint64_t row_nbytes, uint64_t first, uint64_t nrow,
                                       uint8_t out[16]);

/* Number of ranks of a mesh. */
FSDPCK_API uint64_t fsdpck_mesh_nranks(const struct fsdpck_mesh *mesh);
/* Finds the coordinate of `rank` on the mesh; returns false if the rank is not on it. coord: (mesh->ndim). */
FSDPCK_API bool fsdpck_mesh_coordinate(const struct fsdpck_mesh *mesh, uint32_t rank, uint32_t *coord);

/* Calls visit for each box (offset, size: (ndim) elements of the logical tensor) that the rank at `coord` holds, owner
 * or replica, in row-major order. An empty shard has no box; only strided shards have more than one. A nonzero return
 * of visit ends the walk and becomes its result. Otherwise returns 0, or FSDPCK_ERR_USAGE if a placement names a
 * dimension that the tensor lacks. Strided shards may also return FSDPCK_ERR_LIMIT (more than a million stripes) and
 * FSDPCK_ERR_NOMEM. */
typedef int (*fsdpck_box_fn)(void *ctx, const uint64_t *offset, const uint64_t *size);
FSDPCK_API int fsdpck_placement_boxes(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements,
                                      uint32_t ndim, const uint64_t *shape, const uint32_t *coord, fsdpck_box_fn visit,
                                      void *ctx);
/* Returns true if the rank at `coord` writes its chunks of tensor `ordinal` (FORMAT.md section 2). */
FSDPCK_API bool fsdpck_placement_owner(const struct fsdpck_mesh *mesh, const struct fsdpck_placement *placements,
                                       uint64_t ordinal, const uint32_t *coord);
/* Formats a placement as "shard(0)", "replicate" or "strided_shard(0,2)". Writes at most nbytes including NUL; returns
 * buf. */
FSDPCK_API char *fsdpck_placement_format(const struct fsdpck_placement *p, char *buf, size_t nbytes);
FSDPCK_API bool fsdpck_placement_parse(const char *text, struct fsdpck_placement *out);

#ifdef __cplusplus
}
#endif
#endif
