/* Reads torch.save files into a catalogue. One reading may go over many files: shards of a model, or the files of all ranks. */
#ifndef CKPT_PT_FILE_H
#define CKPT_PT_FILE_H

#include "torch/archive.h"
#include "torch/catalogue.h"

extern const char *const fsdpck_pt_names[]; /* NULL-terminated: what a .pt may name */

/* A .pt source. The catalogue is a DCP directory's, with every chunk already found. */
struct fsdpck_pt {
    struct dcp dcp;           /* first: source_dcp.c's functions take it for theirs */
    struct fsdpck_vec values; /* const uint8_t *: the bytes of each item, in the source's arena */
};

/* What the first rank saved for a tensor that every rank saves whole. */
struct fsdpck_pt_plain {
    bool known, differs;
    uint32_t crc32;
    uint64_t nbytes;
};

/* Where the file's rank is on a mesh. */
struct fsdpck_pt_mesh {
    fsdpck_node node; /* NO_NODE: not known yet */
    uint32_t coordinate[FSDPCK_MAX_MESH_DIMS];
};

struct fsdpck_pt_reading {
    struct fsdpck_source *src;
    struct fsdpck_pt *pt;
    struct fsdpck_catalogue catalogue;
    struct fsdpck_names values; /* of items: name -> ordinal */
    struct fsdpck_error *err;   /* never NULL */
    uint64_t file_nbytes, tensor_nbytes; /* of all files so far */
    struct fsdpck_vec plain;             /* struct fsdpck_pt_plain, by ordinal in the catalogue */
    /* The file being read. */
    struct fsdpck_archive archive;
    struct fsdpck_names records; /* "data/0" -> record */
    struct fsdpck_crc_record **crcs; /* (records of the zip) NULL: it has no CRC-32. In the source's arena */
    uint32_t file;
    uint64_t value_nbytes; /* that its values may still take */
    int64_t rank;          /* that saved it; -1: the file stands for itself */
    uint64_t nranks;
    const char *tree;
    bool per_rank;
    struct fsdpck_pt_mesh mesh;
};

/* What tells one kind of source apart is set by the caller: ops. */
int fsdpck_pt_begin(struct fsdpck_pt_reading *r, struct fsdpck_source *src, struct fsdpck_error *err);
/* What a file is in a set of rank files. */
struct fsdpck_pt_part {
    int64_t rank;
    uint64_t nranks;
    const char *tree; /* first key of its names, or NULL */
    bool per_rank;    /* ranks may differ in it (random states): the lowest rank's values are taken, and that is noted */
};
/* Adds the file at `path` to the source and reads what it lists. part NULL: the file stands for itself. */
int fsdpck_pt_read(struct fsdpck_pt_reading *r, const char *path, const char *name, const struct fsdpck_pt_part *part);
/* Makes the source's catalogue. */
int fsdpck_pt_finish(struct fsdpck_pt_reading *r);
void fsdpck_pt_end(struct fsdpck_pt_reading *r); /* frees the reading, never the source */

/* struct fsdpck_source_ops */
int fsdpck_pt_read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at, struct fsdpck_error *err);
int fsdpck_pt_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx, struct fsdpck_verify_result *result,
                     struct fsdpck_error *err);
void fsdpck_pt_close(struct fsdpck_source *src);

#endif
