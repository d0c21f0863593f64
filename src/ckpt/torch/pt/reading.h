/* SPDX-License-Identifier: Apache-2.0 */
/* The state that all files that read .pt files share. */
#ifndef CKPT_PT_READING_H
#define CKPT_PT_READING_H

#include "torch/zip/archive.h"
#include "torch/catalogue.h"
#include "torch/pickle/tensor_node.h"

extern const char *const fsdpck_pt_names[]; /* NULL-terminated: names that a .pt may contain */

/* A .pt source. It has a DCP directory's catalogue, with every chunk already found. */
struct fsdpck_pt {
    struct dcp dcp;           /* first, so that the functions of dcp/source.c work on it */
    struct fsdpck_vec values; /* const uint8_t *: the bytes of each item, in the source's arena */
};

/* The first rank's values of a tensor that every rank saves whole. */
struct fsdpck_pt_plain {
    bool known, differs;
    uint32_t crc32;
    uint64_t nbytes;
};

/* The position of the file's rank on a mesh. */
struct fsdpck_pt_mesh {
    fsdpck_node node; /* NO_NODE: not known yet */
    uint32_t coordinate[FSDPCK_MAX_MESH_DIMS];
};

struct fsdpck_pt_reading {
    struct fsdpck_source *src;
    struct fsdpck_pt *pt;
    struct fsdpck_catalogue catalogue;
    struct fsdpck_names values;          /* of items: name -> ordinal */
    struct fsdpck_error *err;            /* never NULL */
    const char *const *allowed;          /* names that the pickles may contain */
    uint64_t file_nbytes, tensor_nbytes; /* of all files so far */
    struct fsdpck_vec plain;             /* struct fsdpck_pt_plain, by ordinal in the catalogue */
    /* The file being read. */
    struct fsdpck_archive archive;
    struct fsdpck_names records;     /* "data/0" -> record */
    struct fsdpck_crc_record **crcs; /* (records of the zip) NULL: it has no CRC-32. In the source's arena */
    uint32_t file;
    uint64_t value_nbytes; /* bytes that its values may still take */
    int64_t rank;          /* that saved it; -1: the file is independent */
    uint64_t nranks;
    const char *tree;
    bool per_rank;
    struct fsdpck_pt_mesh mesh;
};

/* Returns the path of the current file, for messages. */
const char *fsdpck_pt_path(const struct fsdpck_pt_reading *r);
/* Fills err with file and tensor (name may be NULL) and returns the code. */
int fsdpck_pt_fail(struct fsdpck_pt_reading *r, int code, const char *name, const char *what);
/* Locates a tensor in the current file; out->strides points into t. */
int fsdpck_pt_locate(struct fsdpck_pt_reading *r, const char *name, const struct fsdpck_tensor_node *t,
                     struct fsdpck_stored_box *out, const struct fsdpck_zip_record **record);
/* Returns the rank of the current file, for the catalogue; 0 if the file is independent. */
uint32_t fsdpck_pt_rank(const struct fsdpck_pt_reading *r);

#endif
