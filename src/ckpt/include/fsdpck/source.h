/* SPDX-License-Identifier: Apache-2.0 */
/* Reading checkpoints of any kind: open, list, and read boxes of tensors into the caller's memory, verified.
 *
 * A source is opened once and may then be used by several threads at a time. Opening reads metadata only; cost: the index (or
 * headers), never payload. Everything returned by pointer is borrowed and lives until fsdpck_source_close(). */
#ifndef FSDPCK_SOURCE_H
#define FSDPCK_SOURCE_H

#include <fsdpck/io.h>
#include <fsdpck/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FSDPCK_DEFAULT_MEMORY (256ull << 20)

/* That this process may use, at least 1. */
FSDPCK_API unsigned fsdpck_processors(void);

/* How to run. Zero-initialise: every zero means the default. Must outlive whatever was opened with it. */
struct fsdpck_options {
    const struct fsdpck_io *io; /* default fsdpck_io_posix */
    unsigned nthreads;          /* default: fsdpck_processors() */
    uint64_t memory_nbytes;     /* budget for buffers; default FSDPCK_DEFAULT_MEMORY */
    /* Called from one thread at a time, with bytes of payload done and to do; may be NULL. */
    void (*progress)(void *ctx, uint64_t done_nbytes, uint64_t total_nbytes);
    /* Things worth saying that are no errors ("lm_head.weight is stored once …"), one line without newline; may be NULL. */
    void (*note)(void *ctx, const char *line);
    void *ctx;
    bool no_verify; /* payload is taken as it is: neither hashes nor CRC-32s of it are looked at */
    const volatile int *stop; /* where it becomes nonzero, work ends with FSDPCK_ERR_STOPPED and nothing is committed; may be NULL. Read atomically */
};

struct fsdpck_source;

/* A non-tensor value that is carried along untouched (an int, a string … as PyTorch pickled it). */
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
    int64_t rank;     /* that wrote it, or -1 */
};

/* Opens whatever lies at path: a safetensors or torch.save file, a Hugging Face folder, an fsdpck or a PyTorch DCP directory, a folder of
 * rank files, recognised by content. from: "safetensors", "hf", "dcp", "fsdpck", "pt", "ranks" to insist on one, or NULL. opt may be NULL. On failure *out is NULL. */
FSDPCK_API int fsdpck_source_open(const char *path, const char *from, const struct fsdpck_options *opt, struct fsdpck_source **out,
                                  struct fsdpck_error *err);
/* Shows a Llama's weights under the names, and with q and k in the order of rows, of Hugging Face ("hf") or torchtitan ("torchtitan"); a source
 * that has them stays as it is. What is no weight is left out. folder: where config.json is, which says how many heads there are; NULL: the
 * source's own. Right after opening: pointers into the catalogue become invalid. On failure the source can only be closed. */
FSDPCK_API int fsdpck_source_set_names(struct fsdpck_source *src, const char *names, const char *folder, struct fsdpck_error *err);
/* Whether its weights are called, and q and k ordered, as torchtitan does, and nobody said that this is meant. */
FSDPCK_API bool fsdpck_source_is_torchtitan(const struct fsdpck_source *src);
FSDPCK_API void fsdpck_source_close(struct fsdpck_source *src); /* NULL does nothing */

FSDPCK_API const char *fsdpck_source_kind(const struct fsdpck_source *src); /* "fsdpck", "dcp", "safetensors", "hf", "pt", "ranks" */
FSDPCK_API const char *fsdpck_source_path(const struct fsdpck_source *src);
FSDPCK_API const char *fsdpck_source_save_id(const struct fsdpck_source *src); /* UUID text, or NULL where the kind has none */
FSDPCK_API const char *fsdpck_source_state(const struct fsdpck_source *src);   /* the saver's own JSON, or NULL */
FSDPCK_API uint64_t fsdpck_source_nranks(const struct fsdpck_source *src);     /* ranks that wrote it; 0 where not known */
FSDPCK_API bool fsdpck_source_is_compressed(const struct fsdpck_source *src);  /* whether chunks may be stored in fewer bytes (--compress) */

FSDPCK_API size_t fsdpck_source_ntensors(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_tensor *fsdpck_source_tensor(const struct fsdpck_source *src, size_t ordinal);
FSDPCK_API const struct fsdpck_tensor *fsdpck_source_find(const struct fsdpck_source *src, const char *name); /* NULL: not there */
FSDPCK_API size_t fsdpck_source_nitems(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_item *fsdpck_source_item(const struct fsdpck_source *src, size_t i);
FSDPCK_API size_t fsdpck_source_nassets(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_asset *fsdpck_source_asset(const struct fsdpck_source *src, size_t i);
FSDPCK_API size_t fsdpck_source_nfiles(const struct fsdpck_source *src);
FSDPCK_API const struct fsdpck_file *fsdpck_source_file(const struct fsdpck_source *src, size_t i);

/* One box of one tensor, and where it shall go. */
struct fsdpck_read {
    const struct fsdpck_tensor *tensor; /* of the same source */
    const uint64_t *offset, *size;      /* (ndim) elements; both NULL: the whole tensor. Inside the shape, or FSDPCK_ERR_USAGE */
    void *dst;                          /* first element; little-endian elements of the tensor's dtype, any alignment */
    const int64_t *strides;             /* (ndim) bytes between neighbours in dst; NULL: dense row-major */
};

/* What a set of reads will cost. */
struct fsdpck_plan {
    uint64_t needed_nbytes; /* bytes of the boxes */
    uint64_t read_nbytes;   /* bytes that will be read for them: whole hashed blocks, gaps that are cheaper to read through */
    uint64_t nruns;         /* separate reads */
    uint64_t nfiles;        /* files opened */
    uint64_t peak_nbytes;   /* buffers besides dst */
};

/* Pure but for chunk tables and item headers, which it may have to read: no payload is touched. reads[].dst is ignored. */
FSDPCK_API int fsdpck_source_plan(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads, struct fsdpck_plan *out,
                                  struct fsdpck_error *err);

/* Reads all boxes, split among threads. Hashed sources are verified: a mismatch is FSDPCK_ERR_DAMAGED, names file, tensor, rows and
 * rank, and leaves the contents of every dst undefined. Boxes may overlap in the source, not in memory. torch.save files and PyTorch DCP
 * directories have one CRC-32 a stored tensor, or chunk of one: it is checked by the read that brings the last part of it. */
FSDPCK_API int fsdpck_source_read(struct fsdpck_source *src, const struct fsdpck_read *reads, size_t nreads, struct fsdpck_error *err);
/* After the last read: reads the rest of what the reads have brought only parts of, and checks it. A note tells how many records have no CRC-32. */
FSDPCK_API int fsdpck_source_check(struct fsdpck_source *src, struct fsdpck_error *err);
/* The same for everything that is stored of one tensor, whether it was read or not: ranks that read slices share the checking of whole tensors so. */
FSDPCK_API int fsdpck_source_check_tensor(struct fsdpck_source *src, const struct fsdpck_tensor *tensor, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
