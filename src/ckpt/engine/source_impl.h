/* SPDX-License-Identifier: Apache-2.0 */
/* The internals of a source: the catalogue that every format fills at open, and the operation that only the format can
 * do: locating the bytes of a box. Each format has one file: source_NAME.c in format/, hf/ and torch/. */
#ifndef CKPT_SOURCE_IMPL_H
#define CKPT_SOURCE_IMPL_H

#include <fsdpck/base.h>
#include <fsdpck/source.h>

#include "base/arena.h"
#include "base/names.h"
#include "base/vec.h"

/* A stored chunk of a tensor: a box, and the position of its elements in a file. Pointers live as long as the
 * source. */
struct fsdpck_extent {
    uint32_t file;                 /* ordinal in the source's files */
    const uint64_t *offset, *size; /* (ndim) box in the tensor */
    uint64_t payload;              /* file offset of the chunk's first element */
    uint64_t payload_nbytes;       /* of the elements */
    bool compressed;               /* compressed block by block: see decode.h */
    uint64_t stored_nbytes;        /* in the file, if compressed */
    bool streamed;                 /* part of a zstd stream: payload is an offset in the decoded bytes. See zstream.h */
    uint64_t stream, stream_nbytes; /* the stream's range in the file, if streamed */
    const uint64_t *strides;        /* (ndim) elements; NULL: dense row-major */
    uint64_t first;                 /* the box's first element in the payload; not 0 only with strides */
    bool swap;                      /* stored big-endian */
    struct fsdpck_crc_record *crc;  /* the record that contains it, with a CRC-32: see checks.h. NULL: none */
    uint64_t hashes; /* file offset of the XXH3-128s of the payload's blocks (16 bytes each; compressed: of their
                        records); 0: the format has none */
};
typedef int (*fsdpck_extent_fn)(void *ctx, const struct fsdpck_extent *e, struct fsdpck_error *err);

struct fsdpck_source_ops {
    const char *kind;
    /* Visits every stored chunk of tensor `ordinal` (never an alias) that intersects the box, each once. The box is
     * inside the shape and not empty. The caller checks what the chunks cover. Thread-safe. */
    int (*extents)(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                   fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err);
    /* Whole-file checks beyond reading the payload (envelopes, CRCs, stray files); NULL: none. May be slow: reads
     * everything it needs unless quick. Passes damage to report, and returns 0. */
    int (*verify)(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                  struct fsdpck_verify_result *result, struct fsdpck_error *err);
    /* Reads bytes [at, at + nbytes) of an item, checked. at is a multiple of the hash block, and so is nbytes except at
     * the end. NULL: no checksums. */
    int (*read_item)(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                     struct fsdpck_error *err);
    void (*close)(struct fsdpck_source *src); /* frees impl; NULL: nothing to free */
    const struct fsdpck_values *values;       /* computes some of the tensors: see value_view.h. NULL: all are stored */
};

struct source_item {
    struct fsdpck_item pub;
    const uint8_t *data; /* (pub.nbytes) of an item that a view makes; NULL: it is stored as follows */
    uint32_t file;
    uint64_t offset;        /* of pub.nbytes stored bytes */
    uint64_t stream_nbytes; /* not 0: a zstd stream of so many bytes is stored there, which decodes to pub.nbytes */
};

struct source_asset {
    struct fsdpck_asset pub;
    const char *from; /* full path of the file */
    bool has_hash;
    uint8_t hash[16];
};

struct source_file {
    struct fsdpck_file pub;
    const char *path; /* full path, for opening and for messages */
    uint64_t inode, device;
};

struct fsdpck_source {
    const struct fsdpck_source_ops *ops;
    struct fsdpck_options opt; /* defaults filled in */
    const struct fsdpck_io *io;
    const char *path;             /* as the user gave it, without trailing slashes */
    struct fsdpck_arena arena;    /* owns every string and array of the catalogue; only open() may allocate from it */
    struct fsdpck_vec tensors;    /* struct fsdpck_tensor */
    struct fsdpck_vec items;      /* struct source_item */
    struct fsdpck_vec assets;     /* struct source_asset */
    struct fsdpck_vec files;      /* struct source_file */
    struct fsdpck_names names;    /* of tensors */
    struct fsdpck_fdcache *fds;   /* cache of open descriptors: see files.h */
    struct fsdpck_checks *checks; /* CRC-32s of the records being read: see checks.h */
    const char *save_id, *state;
    const struct fsdpck_base *base; /* the base that it names; NULL: none */
    uint64_t nranks;
    bool compressed;        /* extents may be compressed */
    bool streamed;          /* extents and items may be in zstd streams */
    uint64_t turned_nbytes; /* a band of so many bytes of any tensor whose columns are stored as rows reads no byte
                               twice; 0: there is no such tensor */
    bool dequantized; /* a view presents its quantized weights dequantized: config.json must not call them quantized */
    const char *held; /* how fsdpck_source_hold() presents its quantized weights; NULL: as any source */
    bool norms_plus_one; /* Megatron-core trained its norms as 1 + weight */
    bool names_chosen;   /* the caller chose the naming of a Llama's weights */
    bool for_megatron; /* a view presents it as Megatron-core holds it: convert adds the files that Megatron-core reads
                          beside .metadata */
    bool to_verify;    /* opened for verification: a missing file or wrong size is a problem to report, not an error */
    void *impl;
};

/* Makes an empty catalogue with the options' defaults, for an opener to fill. NULL: err has the reason. */
struct fsdpck_source *fsdpck_source_new(const char *path, const struct fsdpck_options *opt, struct fsdpck_error *err);
/* Like read_item of the ops, for any source. */
int fsdpck_source_read_item_part(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                                 struct fsdpck_error *err);
/* Returns opt with every default filled in; NULL: the source's options. */
struct fsdpck_options fsdpck_source_options(const struct fsdpck_source *src, const struct fsdpck_options *opt);
void fsdpck_options_fill(struct fsdpck_options *opt);

/* For openers. All strings are copied into the arena. */
/* Appends a tensor (copies shape; path NULL: the name is the only key), fills nelem and nbytes. A duplicate name is
 * FSDPCK_ERR_FORMAT; more than FSDPCK_MAX_DIMS dims FSDPCK_ERR_LIMIT; overflow FSDPCK_ERR_FORMAT; errors name `file`.
 * The pointer is valid until the next call. */
struct fsdpck_tensor *fsdpck_source_add_tensor(struct fsdpck_source *src, const char *file, const char *name,
                                               const struct fsdpck_key *path, uint32_t npath, enum fsdpck_dtype dtype,
                                               uint32_t ndim, const uint64_t *shape, struct fsdpck_error *err);
/* Lists an existing tensor under a second name. */
int fsdpck_source_add_alias(struct fsdpck_source *src, const char *file, const char *name,
                            const struct fsdpck_key *path, uint32_t npath, size_t target, struct fsdpck_error *err);
/* The two steps of adding a file: FSDPCK_ERR_FORMAT if it is not regular; *ordinal may be NULL. */
int fsdpck_source_stat_file(struct fsdpck_source *src, const char *path, struct fsdpck_stat *st,
                            struct fsdpck_error *err);
int fsdpck_source_list_file(struct fsdpck_source *src, const char *path, const char *name, int64_t rank,
                            const struct fsdpck_stat *st, uint32_t *ordinal, struct fsdpck_error *err);
/* Both steps: stats path and appends it. */
int fsdpck_source_add_file(struct fsdpck_source *src, const char *path, const char *name, int64_t rank,
                           uint32_t *ordinal, struct fsdpck_error *err);
struct source_item *fsdpck_source_add_item(struct fsdpck_source *src, const char *name, const struct fsdpck_key *path,
                                           uint32_t npath, struct fsdpck_error *err);
struct source_asset *fsdpck_source_add_asset(struct fsdpck_source *src, const char *path, const char *from,
                                             uint64_t nbytes, struct fsdpck_error *err);
const struct fsdpck_key *fsdpck_source_copy_path(struct fsdpck_source *src, const struct fsdpck_key *path,
                                                 uint32_t npath, struct fsdpck_error *err);

static inline struct fsdpck_tensor *source_tensors(const struct fsdpck_source *s)
{
    return s->tensors.data;
}
static inline struct source_item *source_items(const struct fsdpck_source *s)
{
    return s->items.data;
}
static inline struct source_asset *source_assets(const struct fsdpck_source *s)
{
    return s->assets.data;
}
static inline struct source_file *source_files(const struct fsdpck_source *s)
{
    return s->files.data;
}

/* Openers: src->path, opt, io are set; they fill ops, impl and the catalogue. On failure the caller closes the
 * source. */
int fsdpck_open_safetensors(struct fsdpck_source *src, struct fsdpck_error *err); /* path: a file */
int fsdpck_open_hf(struct fsdpck_source *src, struct fsdpck_error *err);          /* path: a folder */
#define FSDPCK_DCP_FIRST_PART "pytorch_model_fsdp_0" /* a folder with it inside is a DCP source too */
bool fsdpck_dcp_ranks_is(const char *name); /* whether the name is that of one rank's metadata: "__3.metadata" */
bool fsdpck_dcp_shards_is(
    const char *name); /* whether the name is that of a rank's file in a DCP save in safetensors form */
int fsdpck_open_dcp(struct fsdpck_source *src, struct fsdpck_error *err);    /* path: a folder */
int fsdpck_open_fsdpck(struct fsdpck_source *src, struct fsdpck_error *err); /* path: a folder */
bool fsdpck_pt_is(
    const uint8_t head[512]); /* whether a file with this head (zeros after its end) is torch.save's, of any version */
int fsdpck_open_pt(struct fsdpck_source *src,
                   struct fsdpck_error *err); /* path: a torch.save file, or a folder of them */
bool fsdpck_ranks_is(const char *name);       /* whether the name is that of one rank's part of a model */
/* Whether each .pt of a folder is one rank's file of an item, ITEM_R.pt, and there are several items, or a
 * metadata.pkl. */
bool fsdpck_ranks_are_items(char *const *names, size_t count);
int fsdpck_open_ranks(struct fsdpck_source *src, struct fsdpck_error *err); /* path: a folder */
bool fsdpck_deepspeed_is(const char *name);        /* whether the name is that of DeepSpeed's model states */
bool fsdpck_deepspeed_names_tag(const char *name); /* whether a file of this name names the newest checkpoint */
/* Returns the folder of the checkpoint that such a file in this folder names, malloc'ed; NULL if it names none. */
char *fsdpck_deepspeed_tag(const struct fsdpck_source *src, const char *folder);
int fsdpck_open_deepspeed(struct fsdpck_source *src, struct fsdpck_error *err); /* path: a folder */

#endif
