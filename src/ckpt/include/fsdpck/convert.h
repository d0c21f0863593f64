/* SPDX-License-Identifier: Apache-2.0 */
/* Any source to a sharded checkpoint directory: `fsdpck convert` and `fsdpck reshard`. */
#ifndef FSDPCK_CONVERT_H
#define FSDPCK_CONVERT_H

#include <fsdpck/select.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fsdpck_dcp_mode { FSDPCK_DCP_AUTO, FSDPCK_DCP_ALWAYS, FSDPCK_DCP_NEVER }; /* whether .metadata for PyTorch is written */

/* Tensors whose name matches glob get these placements instead of the default. */
struct fsdpck_placement_rule {
    const char *glob;
    const char *mesh_dim[FSDPCK_MAX_MESH_DIMS]; /* (n) name of a mesh dimension; the others keep their default */
    struct fsdpck_placement placement[FSDPCK_MAX_MESH_DIMS];
    size_t n;
};

struct fsdpck_convert_request {
    const char *out;                         /* the checkpoint directory to make */
    struct fsdpck_mesh mesh;                 /* 1-D: {"shard"} of N ranks. A dimension named "replicate", or "…_replicate", replicates;
                                              * the first other one shards dim 0 as FSDP2 does; the rest replicate unless a rule says more */
    const struct fsdpck_placement_rule *rules; /* (nrules) the first that matches */
    size_t nrules;
    const char *const *replicate; /* (nreplicate) globs of tensors kept whole */
    size_t nreplicate;
    struct fsdpck_select select;
    enum fsdpck_dcp_mode dcp;
    const char *assets; /* folder whose files become the assets, or NULL: those of the source */
    bool force;         /* replace an existing output, atomically, after the new one is complete */
    bool compress;      /* chunks by block, without loss; no .metadata then (FSDPCK_DCP_ALWAYS is an error). While it is made, OUT takes as much
                         * room as uncompressed */
};

/* The placements ((req->mesh.ndim)) that a conversion gives a tensor. Scalars and tensors that req->replicate matches are replicated; for others
 * the first rule that matches changes the default. FSDPCK_ERR_USAGE where a rule asks for what the tensor's shape cannot have. */
FSDPCK_API int fsdpck_convert_placements(const struct fsdpck_convert_request *req, const struct fsdpck_tensor *tensor,
                                         struct fsdpck_placement *placements, struct fsdpck_error *err);

/* A tensor that a conversion places, by its name in the output. */
struct fsdpck_placed {
    const char *name;
    uint32_t ndim;
    bool alias; /* a second name: it has the placements of what it names */
};
/* Each of the request's rules and replicate globs must be used by one of these tensors: else FSDPCK_ERR_USAGE, which names it and the nearest tensor. A rule
 * is not used where earlier rules and replicate globs take all that it matches. file: of the source, for messages. */
FSDPCK_API int fsdpck_convert_rules_check(const struct fsdpck_convert_request *req, const struct fsdpck_placed *tensors, size_t ntensors, const char *file,
                                          struct fsdpck_error *err);

struct fsdpck_transfer_result {
    uint64_t ntensors, nfiles;
    uint64_t payload_nbytes; /* tensor bytes written */
    uint64_t written_nbytes; /* all bytes of all files */
    uint64_t read_nbytes;    /* payload bytes read from the source */
    double seconds;
    char save_id[37]; /* "" for safetensors outputs */
};

/* Cost: reads each needed byte once, writes each output byte once, within opt->memory_nbytes. On failure nothing is left under
 * `out` that was not there before. */
FSDPCK_API int fsdpck_convert(struct fsdpck_source *src, const struct fsdpck_convert_request *req, const struct fsdpck_options *opt,
                              struct fsdpck_transfer_result *result, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
