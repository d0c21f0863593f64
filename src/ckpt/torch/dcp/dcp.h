/* SPDX-License-Identifier: Apache-2.0 */
/* A PyTorch DCP directory as a source. read.c turns .metadata into the catalogue, item.c finds the payload inside an
 * item, verify.c reads everything, source.c answers where the bytes of a box lie. */
#ifndef CKPT_DCP_H
#define CKPT_DCP_H

#include <pthread.h>
#include <stdatomic.h>

#include "torch/pickle/pickle.h"
#include "engine/source_impl.h"
#include "engine/zstream.h"

enum {                  /* of struct dcp_chunk.state */
       DCP_FOUND = 1,   /* the item was read: location is valid */
       DCP_STRIDED = 2, /* not dense row-major: location.layout is valid */
       DCP_SWAPPED = 4, /* big-endian */
       DCP_PACKED = 8   /* the item is a zstd stream, and location is in its decoded bytes; set from the beginning */
};

struct dcp_layout {
    uint64_t payload;
    uint64_t strides[]; /* (ndim) elements */
};

/* There may be millions: 40 bytes, and a record for each that was read. */
struct dcp_chunk {
    uint64_t item, item_nbytes; /* the zip in the file, or the stream that it is in */
    uint32_t file;
    _Atomic uint32_t state; /* DCP_FOUND is set once, after location */
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
    struct fsdpck_zstream *items; /* for the non-tensor items that are in streams; NULL: not yet */
};

static inline const uint64_t *dcp_box(const struct dcp_tensor *d, uint32_t ndim, uint64_t chunk)
{
    return d->boxes + chunk * 2 * ndim;
}

struct fsdpck_catalogue;

/* One .metadata: what it is read into. */
struct fsdpck_dcp_document {
    const char *file;   /* its path, for messages */
    const char *folder; /* where its files are, below the source's folder; "" for that itself */
    struct fsdpck_catalogue
        *catalogue; /* of several ranks' documents; NULL: this one is complete, and goes into the source at once */
    uint32_t rank;  /* whose it is, with a catalogue */
};
/* Reads one document: file joined with the source's and its own folder. */
int fsdpck_dcp_read_document(struct fsdpck_source *src, struct dcp *dcp, const char *name,
                             const struct fsdpck_dcp_document *doc, struct fsdpck_error *err);
/* Fills catalogue and impl from the pickle `p` of nbytes. May be called for several documents whose names differ. */
int fsdpck_dcp_read(struct fsdpck_source *src, struct dcp *dcp, const struct fsdpck_dcp_document *doc,
                    const struct fsdpck_pickle *p, uint64_t nbytes, struct fsdpck_error *err);
/* NULL-terminated: the names that a .metadata may hold. */
extern const char *const fsdpck_dcp_metadata_names[];

/* The location and layout of a tensor's elements, as its item gives them. */
struct dcp_payload {
    uint64_t payload; /* file offset of the first element; of a packed item, in what it decodes to */
    bool dense, swap;
    uint64_t strides[FSDPCK_MAX_DIMS]; /* elements; where not dense */
    uint64_t record, record_nbytes;    /* that the payload is in; as payload */
    uint32_t crc32;                    /* of it, as the zip states it */
};
/* Reads the item's zip directory and data.pkl, holds dtype, shape and bounds against the catalogue. Thread-safe. */
int fsdpck_dcp_find_payload(struct fsdpck_source *src, const struct fsdpck_tensor *t, const struct dcp_chunk *chunk,
                            const uint64_t *size, struct dcp_payload *out, struct fsdpck_error *err);

/* Bytes that the packed item of a chunk may decode to. */
uint64_t fsdpck_dcp_packed_max(const struct fsdpck_tensor *t, const uint64_t *size);

/* struct fsdpck_source_ops; impl begins with a struct dcp */
int fsdpck_dcp_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                      struct fsdpck_verify_result *result, struct fsdpck_error *err);
int fsdpck_dcp_extents(struct fsdpck_source *src, size_t ordinal, const uint64_t *offset, const uint64_t *size,
                       fsdpck_extent_fn visit, void *ctx, struct fsdpck_error *err);
/* dcp_items.c: the non-tensor items that are zstd streams. Decodes each once, for its size. */
int fsdpck_dcp_measure_items(struct fsdpck_source *src, struct fsdpck_error *err);
struct fsdpck_zip_subject;
void fsdpck_dcp_item_subject(const struct source_item *item,
                             struct fsdpck_zip_subject *out); /* its zip, for fsdpck_zip_check_one() */
int fsdpck_dcp_read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                         struct fsdpck_error *err); /* as the ops' read_item */
void fsdpck_dcp_close(struct fsdpck_source *src);   /* NULL impl does nothing */
/* The extent of one chunk; its item is looked into at the first time. layout lives as long as the source. Thread-safe.
 */
int fsdpck_dcp_extent(struct fsdpck_source *src, size_t ordinal, uint64_t chunk, struct fsdpck_extent *out,
                      struct fsdpck_error *err);

#endif
