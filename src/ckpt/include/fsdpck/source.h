/* SPDX-License-Identifier: Apache-2.0 */
/* Opens checkpoints of any kind, lists them, and reads boxes of tensors into the caller's memory. Reads are verified.
 *
 * Several threads may use an open source at the same time. Opening reads only metadata (the index or headers), never
 * payload. The source owns everything that it returns by pointer, until fsdpck_source_close(). */
#ifndef FSDPCK_SOURCE_H
#define FSDPCK_SOURCE_H

#include <fsdpck/io.h>
#include <fsdpck/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDPCK_DEFAULT_MEMORY (256ull << 20)

/* Returns the number of processors that this process may use, at least 1. */
FSDPCK_API unsigned fsdpck_processors(void);

/* Resources, callbacks and checks. Zero-initialise: every zero means the default. Must outlive everything that was
 * opened with it. */
struct fsdpck_options {
    const struct fsdpck_io *io; /* default fsdpck_io_posix */
    unsigned nthreads;          /* default: fsdpck_processors() */
    uint64_t memory_nbytes;     /* budget for buffers; default FSDPCK_DEFAULT_MEMORY */
    /* Called from one thread at a time, with payload bytes done and in total; may be NULL. */
    void (*progress)(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes);
    /* Receives notes that are no errors ("lm_head.weight is stored once …"), one line without newline; may be NULL. */
    void (*note)(void *ctx, const char *line);
    void *ctx;
    bool no_verify; /* check neither hashes nor CRC-32s of payload */
    const volatile int
        *stop; /* once nonzero, work ends with FSDPCK_ERR_STOPPED and commits nothing; may be NULL. Read atomically */
};

struct fsdpck_source;

/* A non-tensor value (an int, a string …) that is copied unchanged, as PyTorch pickled it. */
struct fsdpck_item {
    const char *name;
    const struct fsdpck_key *path; /* (npath) */
    uint32_t npath;
    uint64_t nbytes; /* of the stored torch.save zip */
};

/* A file of the model folder besides weights (config.json, tokenizer.json, …). */
struct fsdpck_asset {
    const char *path; /* relative, plain, '/'-separated */
    uint64_t nbytes;
};

/* A file that holds payload. */
struct fsdpck_file {
    const char *name; /* relative to the source's folder */
    uint64_t nbytes;
    int64_t rank; /* the rank that wrote it, or -1 */
};

/* Opens a safetensors or torch.save file, a Hugging Face folder, an fsdpck or a PyTorch DCP directory, or a folder of
 * rank files. Recognises the kind by content; from ("safetensors", "hf", "dcp", "fsdpck", "pt", "ranks", "deepspeed",
 * "vllm-sharded") requires one kind. from and opt may be NULL. On failure *out is NULL. */
FSDPCK_API int fsdpck_source_open(const char *path, const char *from, const struct fsdpck_options *opt,
                                  struct fsdpck_source **out, struct fsdpck_error *err);
/* Presents the weights with other names and layouts: "hf", as models are published; "transformers", as transformers 5
 * holds them, with the experts of a layer fused (other models: as "hf"); "vllm", as vLLM holds them on one rank, with
 * q, k and v joined, and gate and up; "torchtitan", as torchtitan holds them, of a Llama with its order of rows of q
 * and k; "megatron", as Megatron-core holds them, with the items that it wants beside them. Known are the families that
 * docs/formats.md lists; others are refused. A source that has the names already does not change. The state of trainers
 * is left out; of a Llama, all tensors but its weights. folder: of the config.json that gives the family and sizes;
 * NULL: the source's own. Call it right after opening: pointers into the catalogue become invalid. After a failure the
 * source can only be closed. */
FSDPCK_API int fsdpck_source_set_names(struct fsdpck_source *src, const char *names, const char *folder,
                                       struct fsdpck_error *err);
/* Presents the quantized weights (FP8, MXFP8, MXFP4, NVFP4, bitsandbytes, GPTQ, AWQ, packed integers of
 * compressed-tensors) dequantized to float32, float16 or bfloat16, with the bits that the library which wrote them
 * gives. Their codes and scales are no longer listed; other tensors do not change. Weights are computed while they are
 * read. A source without quantized weights does not change. Parts that are missing or contradict each other are
 * refused. folder: of a config.json, read for its quantization_config if the source's own files have none; NULL: none.
 * Call it right after opening: pointers into the catalogue become invalid. After a failure the source can only be
 * closed. */
FSDPCK_API int fsdpck_source_dequantize(struct fsdpck_source *src, enum fsdpck_dtype dtype, const char *folder,
                                        struct fsdpck_error *err);
/* Presents the weights quantized to a form: "fp8-block" (blocks of 128 x 128, as transformers and vLLM read them),
 * "mxfp4" or "nvfp4" (of compressed-tensors), or "nf4" (of bitsandbytes, blocks of 64), with the bits that the
 * library's own quantizer gives. A weight is every matrix named "….weight" of a floating-point dtype, but embeddings,
 * heads, norms, routers, and what matches one of the globs `keep` (nkeep): these stay as they are. Codes and scales are
 * tensors of their own, computed while they are read. export and convert then write quantization_config. Sources that
 * are quantized, rows that are no multiple of a group, and experts in one tensor are refused. Call it after
 * fsdpck_source_dequantize() and fsdpck_source_set_names(): pointers into the catalogue become invalid. After a failure
 * the source can only be closed. */
FSDPCK_API int fsdpck_source_quantize(struct fsdpck_source *src, const char *form, const char *const *keep,
                                      size_t nkeep, struct fsdpck_error *err);
/* Presents the source with the weights that it lacks taken from `base`, the model that it was made from. Their names
 * get the prefix that the source's names have, and lose one that they do not have. The source owns base from now on,
 * also after a failure. A base that is another model, or holds its weights in another form, is refused. Call it after
 * fsdpck_source_dequantize() and fsdpck_source_set_names(), of both, and before fsdpck_source_quantize(): pointers into
 * the catalogue become invalid. After a failure the source can only be closed. */
FSDPCK_API int fsdpck_source_complete(struct fsdpck_source *src, struct fsdpck_source *base, struct fsdpck_error *err);
/* Returns true if the weights have torchtitan's names and q/k row order, and fsdpck_source_set_names() did not ask for
 * them. */
FSDPCK_API bool fsdpck_source_is_torchtitan(const struct fsdpck_source *src);
FSDPCK_API void fsdpck_source_close(struct fsdpck_source *src); /* NULL does nothing */

/* "fsdpck", "dcp", "safetensors", "hf", "pt", "ranks", "deepspeed", "vllm-sharded" */
FSDPCK_API const char *fsdpck_source_kind(const struct fsdpck_source *src);
/* Whether ranks wrote it: "fsdpck", "dcp", "ranks", "deepspeed", "vllm-sharded". */
FSDPCK_API bool fsdpck_source_is_sharded(const struct fsdpck_source *src);
FSDPCK_API const char *fsdpck_source_path(const struct fsdpck_source *src);
FSDPCK_API const char *fsdpck_source_save_id(
    const struct fsdpck_source *src); /* UUID text, or NULL if the kind has none */
FSDPCK_API const char *fsdpck_source_state(const struct fsdpck_source *src); /* the saver's own JSON, or NULL */
FSDPCK_API uint64_t fsdpck_source_nranks(const struct fsdpck_source *src);   /* ranks that wrote it; 0 if unknown */
FSDPCK_API bool fsdpck_source_is_compressed(
    const struct fsdpck_source *src); /* whether chunks may be stored in fewer bytes (--compress) */

FSDPCK_API size_t fsdpck_source_ntensors(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_tensor *fsdpck_source_tensor(const struct fsdpck_source *src, size_t ordinal);
FSDPCK_API const struct fsdpck_tensor *fsdpck_source_find(const struct fsdpck_source *src,
                                                          const char *name); /* NULL: not found */
FSDPCK_API size_t fsdpck_source_nitems(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_item *fsdpck_source_item(const struct fsdpck_source *src, size_t i);
FSDPCK_API size_t fsdpck_source_nassets(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_asset *fsdpck_source_asset(const struct fsdpck_source *src, size_t i);
FSDPCK_API size_t fsdpck_source_nfiles(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_file *fsdpck_source_file(const struct fsdpck_source *src, size_t i);

/* One box of one tensor, and its destination in memory. */
struct fsdpck_read {
    const struct fsdpck_tensor *tensor; /* of the same source */
    const uint64_t *offset,
        *size;              /* (ndim) elements; both NULL: the whole tensor. FSDPCK_ERR_USAGE if outside the shape */
    void *dst;              /* first element; little-endian elements of the tensor's dtype, any alignment */
    const int64_t *strides; /* (ndim) bytes between neighbours in dst; NULL: dense row-major */
};

/* The cost of a set of reads. */
struct fsdpck_plan {
    uint64_t needed_nbytes; /* bytes of the boxes */
    uint64_t
        read_nbytes; /* bytes that will be read: whole hashed blocks, and gaps that are cheaper to read than to skip */
    uint64_t nruns;  /* separate reads */
    uint64_t nfiles; /* files opened */
    uint64_t peak_nbytes; /* buffers besides dst */
};

/* Computes the cost of reads. May read chunk tables and item headers, never payload. Ignores reads[].dst. */
FSDPCK_API int fsdpck_source_plan(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                                  struct fsdpck_plan *out, struct fsdpck_error *err);

/* Reads all boxes, split among threads. Boxes may overlap in the source, but not in memory. Hashed sources are
 * verified: a mismatch is FSDPCK_ERR_DAMAGED, which names file, tensor, rows and rank; the contents of every dst are
 * then undefined. torch.save files and PyTorch DCP directories have one CRC-32 for each stored tensor or chunk: the
 * read that completes a tensor or chunk checks it. */
FSDPCK_API int fsdpck_source_read(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                                  struct fsdpck_error *err);
/* The same, with the progress, ctx and stop of `caller` in place of the source's own: for threads that share a source
 * and are stopped one by one. */
FSDPCK_API int fsdpck_source_read_for(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads,
                                      const struct fsdpck_options *caller, struct fsdpck_error *err);
/* Reads item i, a file for torch.load() of nbytes bytes, and checks it. */
FSDPCK_API int fsdpck_source_read_item(struct fsdpck_source *src, size_t i, void *dst, struct fsdpck_error *err);
/* Call after the last read: for each record that was read in part, reads the rest and checks its CRC-32. A note gives
 * the number of records without one. */
FSDPCK_API int fsdpck_source_check(struct fsdpck_source *src, struct fsdpck_error *err);
/* Returns how many stored records without a CRC-32 were found since the source was opened, or since that note. */
FSDPCK_API uint64_t fsdpck_source_nunchecked(struct fsdpck_source *src);
/* Checks all stored records of one tensor, read or unread. Ranks that each read slices can so divide the checking of
 * whole tensors. */
FSDPCK_API int fsdpck_source_check_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *tensor,
                                          struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
