/* SPDX-License-Identifier: Apache-2.0 */
/* Reads torch.save files into a catalogue. One reading may cover many files: shards of a model, or the files of all
 * ranks. */
#ifndef CKPT_PT_FILE_H
#define CKPT_PT_FILE_H

#include "torch/pt/reading.h"

/* Begins a reading. The caller sets ops, which depend on the kind of source. */
int fsdpck_pt_begin(struct fsdpck_pt_reading *r, struct fsdpck_source *src, struct fsdpck_error *err);
/* The role of a file in a set of rank files. */
struct fsdpck_pt_rank_file {
    int64_t rank;
    uint64_t nranks;
    const char *tree; /* first key of its names, or NULL */
    bool per_rank; /* ranks may differ in these values (random states): the lowest rank's are used, and a note is given
                    */
};
/* Adds the file at `path` to the source and parses its pickle, which stays open for the calls below. role NULL: the
 * file is independent. On failure there is nothing to close. */
int fsdpck_pt_file_open(struct fsdpck_pt_reading *r, const char *path, const char *name,
                        const struct fsdpck_pt_rank_file *role);
void fsdpck_pt_file_close(struct fsdpck_pt_reading *r);
/* Adds what is below a value of the open file. tree: first key of the names, or NULL. */
int fsdpck_pt_add_tree(struct fsdpck_pt_reading *r, fsdpck_node root, const char *tree);
/* Both are fsdpck_leaf_fn of a reading: they add one tensor, or one other value, of the open file. */
int fsdpck_pt_add_tensor(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n);
int fsdpck_pt_add_value(void *ctx, const char *name, const struct fsdpck_key *path, uint32_t npath, fsdpck_node n);
/* Adds the file at `path` and everything in it. */
int fsdpck_pt_read(struct fsdpck_pt_reading *r, const char *path, const char *name,
                   const struct fsdpck_pt_rank_file *role);
/* Makes the source's catalogue. */
int fsdpck_pt_finish(struct fsdpck_pt_reading *r);
void fsdpck_pt_end(struct fsdpck_pt_reading *r); /* frees the reading, never the source */

/* struct fsdpck_source_ops */
int fsdpck_pt_read_item(struct fsdpck_source *src, size_t item, void *buf, uint64_t nbytes, uint64_t at,
                        struct fsdpck_error *err);
int fsdpck_pt_verify(struct fsdpck_source *src, bool quick, fsdpck_problem_fn report, void *report_ctx,
                     struct fsdpck_verify_result *result, struct fsdpck_error *err);
void fsdpck_pt_close(struct fsdpck_source *src);

#endif
