/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch DCP directory as a source. read.c turns .metadata into the catalogue, item.c finds the payload inside an
 * item, verify.c reads everything, source.c tells where the bytes of a box lie. */
#ifndef CKPT_DCP_H
#define CKPT_DCP_H

#include <pthread.h>
#include <stdatomic.h>

#include "torch/pickle/pickle.h"
#include "engine/source_impl.h"
#include "engine/zstream.h"

enum {                  /* of struct dcp_chunk.state */
       DCP_FOUND = 1,   /* the item was read, so location is valid */
       DCP_STRIDED = 2, /* not dense row-major: location.layout is valid */
       DCP_SWAPPED = 4, /* big-endian */
       DCP_PACKED = 8   /* the item is a zstd stream, location is in its decoded bytes; set from the start */
};

struct dcp_layout {
    uint64_t payload;
    uint64_t strides[]; /* (ndim) elements */
};

/* There may be millions of chunks: 40 bytes each, and a layout or CRC record for those that were read. */
struct dcp_chunk {
    uint64_t item, item_nbytes; /* the zip in the file, or the zstd stream that contains it */
    uint32_t file;
    _Atomic uint32_t state; /* DCP_FOUND is set once, after location is written */
    union {
        uint64_t payload;
        const struct dcp_layout *layout;
    } location;
    struct fsdpck_crc_record *crc; /* valid with location; NULL: the zip states none */
};

struct dcp_tensor {
    uint64_t nchunks;
    const uint64_t *boxes; /* (nchunks, 2, ndim): offsets, sizes; sorted by offsets */
    struct dcp_chunk *chunks;
    uint64_t longest; /* largest size of a chunk along dim 0 */
};

struct dcp {
    struct dcp_tensor *tensors; /* (number of tensors in the source); aliases have no chunks */
    pthread_mutex_t lock;       /* guards layouts, the publishing of a location, and items */
    struct fsdpck_arena layouts;
    struct fsdpck_zstream *items; /* decodes the non-tensor items that are streams; NULL: none so far */
};

static inline const uint64_t *dcp_box(const struct dcp_tensor *d, uint32_t ndim, uint64_t chunk)
{
    return d->boxes + chunk * 2 * ndim;
}

struct fsdpck_catalogue;

/* One .metadata document. */
struct fsdpck_dcp_document {
    const char *file;   /* its path, for messages */
    const char *folder; /* folder of its files, relative to the source's folder; "" for the source's folder */
    struct fsdpck_catalogue
        *catalogue; /* joins several ranks' documents; NULL: this one is complete, and goes directly into the source */
    uint32_t rank;  /* rank of the document, if there is a catalogue */
};
/* Reads one document: the path is the source's folder, doc's folder and name. */
int fsdpck_dcp_read_document(struct fsdpck_source *src, struct dcp *dcp, const char *name,
                             const struct fsdpck_dcp_document *doc, struct fsdpck_error *err);
/* Fills catalogue and impl from the pickle `p` of nbytes. May be called for several documents if their names differ. */
int fsdpck_dcp_read(struct fsdpck_source *src, struct dcp *dcp, const struct fsdpck_dcp_document *doc,
                    const struct fsdpck_pickle *p, uint64_t nbytes, struct fsdpck_error *err);
/* NULL-terminated list of the names that a .metadata may contain. */
extern const char *const fsdpck_dcp_metadata_names[];

/* The location and layout of a tensor's elements, as its item states them. */
struct dcp_payload {
    uint64_t payload; /* file offset of the first element; of a packed item, offset in the decoded bytes */
    bool dense, swap;
    uint64_t strides[FSDPCK_MAX_DIMS]; /* elements; valid if not dense */
    uint64_t record, record_nbytes;    /* of the record that contains the payload; same offsets as payload */
    uint32_t crc32;                    /* of the record, as the zip states it */
};
/* Reads the item's zip directory and data.pkl; checks dtype, shape and bounds against the catalogue. Thread-safe. */
int fsdpck_dcp_find_payload(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct dcp_chunk *chunk,
                            const uint64_t *size, struct dcp_payload *out, struct fsdpck_error *err);

/* Maximum number of bytes that a chunk's packed item may decode to. */
uint64_t fsdpck_dcp_packed_max(const struct fsdpck_tensor *t, const uint64_t *size);

/* struct fsdpck_source_ops; impl begins with a struct dcp */
int fsdpck_dcp_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                      struct fsdpck_verify_result *result, struct fsdpck_error *err);
int fsdpck_dcp_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                       fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err);
/* items.c: decodes each non-tensor item that is a zstd stream once, to find its size. */
int fsdpck_dcp_measure_items(struct fsdpck_source *src, struct fsdpck_error *err);
struct fsdpck_zip_subject;
void fsdpck_dcp_item_subject(const struct source_item *item,
                             struct fsdpck_zip_subject *out); /* the item's zip, for fsdpck_zip_check_one() */
int fsdpck_dcp_read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                         struct fsdpck_error *err); /* as the ops' read_item */
void fsdpck_dcp_close(struct fsdpck_source *src);   /* does nothing if impl is NULL */
/* Gets the extent of one chunk; opens its item on first use. layout lives as long as the source. Thread-safe. */
int fsdpck_dcp_extent(struct fsdpck_source *src, size_t ordinal, uint64_t chunk, struct fsdpck_extent *out,
                      struct fsdpck_error *err);

#endif
