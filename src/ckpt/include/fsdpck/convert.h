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
    bool by_family; /* what no rule takes is placed on the mesh dimensions "tp" (tensor parallel) and "ep" (experts) as
                       the model's family wants it; config.json says the family */
    struct fsdpck_select select;
    enum fsdpck_dcp_mode dcp;
    const char *assets; /* folder whose files become the assets; NULL: the source's assets */
    bool force;         /* replace an existing output atomically, once the new one is complete */
    bool compress; /* compress chunks block by block, without loss. Writes no .metadata (FSDPCK_DCP_ALWAYS is an error).
                    * Until it is done, OUT needs as much disk space as without compression */
};

/* Returns FSDPCK_ERR_USAGE if no conversion can have this mesh: without dimensions, with a name twice, or with a number
 * of ranks that is not allowed. */
FSDPCK_API int fsdpck_convert_mesh_check(const struct fsdpck_mesh *mesh, struct fsdpck_error *err);

/* Computes the placements (req->mesh.ndim of them) that a conversion gives a tensor. Scalars and tensors that match
 * req->replicate are replicated; for any other tensor the first rule that matches changes the default. Does not look at
 * req->by_family. Returns FSDPCK_ERR_USAGE if a rule does not fit the tensor's shape. */
FSDPCK_API int fsdpck_convert_placements(const struct fsdpck_convert_request *req, const struct fsdpck_tensor *tensor,
                                         struct fsdpck_placement *placements, struct fsdpck_error *err);

/* A tensor of a conversion's output. */
struct fsdpck_convert_tensor {
    const char *name; /* in the output */
    uint32_t ndim;
    bool alias; /* a second name of another tensor, whose placements it has */
};
/* Checks that every rule and every replicate glob of the request applies to at least one of these tensors (ntensors).
 * Returns FSDPCK_ERR_USAGE otherwise; the message names the rule and the nearest tensor. A rule is unused if earlier
 * rules and globs take every tensor that it matches. file: the source, for messages. */
FSDPCK_API int fsdpck_convert_rules_check(const struct fsdpck_convert_request *req,
                                          const struct fsdpck_convert_tensor *tensors, size_t ntensors,
                                          const char *file, struct fsdpck_error *err);

/* Where a conversion puts a tensor. */
struct fsdpck_convert_place {
    struct fsdpck_placement on[FSDPCK_MAX_MESH_DIMS]; /* (mesh.ndim) */
    uint32_t only_dim, only_at; /* of an expert's weights: ranks with another coordinate than only_at in mesh dimension
                                   only_dim hold nothing; other tensors: only_dim is mesh.ndim */
};
/* Computes the places of all tensors of a source, as if it were converted under its own names. places: (number of
 * tensors). Makes the checks of fsdpck_convert_rules_check(), and gives notes of req->by_family. */
FSDPCK_API int fsdpck_convert_places(const struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                                     struct fsdpck_convert_place *places, struct fsdpck_error *err);

/* Computes what each rank would read of src, if it were placed as the request says. Of the request, only mesh (which
 * fsdpck_convert_mesh_check() accepts), rules, replicate, by_family and assets count. plans: (number of ranks of the
 * mesh). Reads metadata only. */
FSDPCK_API int fsdpck_plan_ranks(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                                 const struct fsdpck_options *opt, struct fsdpck_plan *plans, struct fsdpck_error *err);

struct fsdpck_transfer_result {
    uint64_t ntensors, nfiles;
    uint64_t payload_nbytes;             /* tensor bytes written */
    uint64_t written_nbytes;             /* total size of all files */
    uint64_t read_nbytes;                /* payload bytes read from the source */
    uint64_t nleft_tensors, nleft_items; /* left behind: outside the tree that was taken, or (items) because the output
                                            cannot hold them. What include and exclude leave out does not count */
    double seconds;
    char save_id[37]; /* "" for safetensors outputs */
};

/* Converts src to a checkpoint directory. Reads each needed byte once and writes each output byte once, with buffers of
 * at most opt->memory_nbytes. A failure leaves `out` as it was before the call. */
FSDPCK_API int fsdpck_convert(struct fsdpck_source *src, const struct fsdpck_convert_request *req,
                              const struct fsdpck_options *opt, struct fsdpck_transfer_result *result,
                              struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
