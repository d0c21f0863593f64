/* SPDX-License-Identifier: Apache-2.0 */
/* Converts any source to a sharded checkpoint directory: `fsdpck convert` and `fsdpck reshard`. */
#ifndef FSDPCK_CONVERT_H
#define FSDPCK_CONVERT_H

#include <fsdpck/select.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_dcp_mode {
    FSDPCK_DCP_AUTO,
    FSDPCK_DCP_ALWAYS,
    FSDPCK_DCP_NEVER
}; /* whether .metadata for PyTorch is written */

/* A tensor whose name matches the glob gets these placements instead of the default ones. */
struct fsdpck_placement_rule {
    const char *glob;
    const char *mesh_dim[FSDPCK_MAX_MESH_DIMS]; /* (n) names of mesh dimensions; the others keep their default */
    struct fsdpck_placement placement[FSDPCK_MAX_MESH_DIMS];
    size_t n;
};

struct fsdpck_convert_request {
    const char *out; /* the checkpoint directory to write */
    struct fsdpck_mesh
        mesh; /* 1-D: {"shard"} of N ranks. A dimension named "replicate", or "…_replicate", replicates;
               * the first other one shards dim 0 as FSDP2 does; the rest replicate unless a rule says more */
    const struct fsdpck_placement_rule *rules; /* (nrules) the first rule that matches applies */
    size_t nrules;
    const char *const *replicate; /* (nreplicate) globs of tensors to replicate */
    size_t nreplicate;
    struct fsdpck_select select;
    enum fsdpck_dcp_mode dcp;
    const char *assets; /* folder whose files become the assets; NULL: the source's assets */
    bool force;         /* replace an existing output atomically, once the new one is complete */
    bool compress; /* compress chunks block by block, without loss. Writes no .metadata (FSDPCK_DCP_ALWAYS is an error).
                    * Until it is done, OUT needs as much disk space as without compression */
};

/* Computes the placements (req->mesh.ndim of them) that a conversion gives a tensor. Scalars and tensors that match
 * req->replicate are replicated; for any other tensor the first rule that matches changes the default. Returns
 * FSDPCK_ERR_USAGE if a rule does not fit the tensor's shape. */
FSDPCK_API int fsdpck_convert_placements(const struct fsdpck_convert_request *req, const struct fsdpck_tensor *tensor,
                                         struct fsdpck_placement *placements, struct fsdpck_error *err);

/* A tensor that a conversion places, by its name in the output. */
struct fsdpck_placed {
    const char *name;
    uint32_t ndim;
    bool alias; /* a second name: it has the placements of the tensor that it names */
};
/* Checks that every rule and every replicate glob of the request applies to at least one of these tensors. Returns
 * FSDPCK_ERR_USAGE otherwise; the message names the rule and the nearest tensor. A rule is unused if earlier rules and
 * globs take every tensor that it matches. file: the source, for messages. */
FSDPCK_API int fsdpck_convert_rules_check(const struct fsdpck_convert_request *req, const struct fsdpck_placed *tensors,
                                          size_t ntensors, const char *file, struct fsdpck_error *err);

struct fsdpck_transfer_result {
    uint64_t ntensors, nfiles;
    uint64_t payload_nbytes; /* tensor bytes written */
    uint64_t written_nbytes; /* total size of all files */
    uint64_t read_nbytes;    /* payload bytes read from the source */
    double seconds;
    char save_id[37]; /* "" for safetensors outputs */
};

/* Reads each needed byte once and writes each output byte once, with buffers of at most opt->memory_nbytes. A failure
 * leaves `out` as it was before the call. */
FSDPCK_API int fsdpck_convert(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                              const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                              struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
