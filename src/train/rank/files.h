/* SPDX-License-Identifier: Apache-2.0 */
/* The files of output_dir: metrics, summary, the list of checkpoints. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include <stdio.h>

#include "rank/rank.h"

enum { FILES_PATH = 4096 };

int files_join(char path[FILES_PATH], const char *folder, const char *name, struct fsdpck_error *err);
/* output_dir and output_dir/checkpoints. */
int files_make_folders(const struct train_config *config, struct fsdpck_error *err);
/* FSDPCK_ERR_EXISTS where the metrics or the summary would replace a file of somebody else's. */
int files_check_own(const struct train_config *config, struct fsdpck_error *err);
int files_checkpoint_path(const struct train_config *config, uint64_t step, char path[FILES_PATH],
                          struct fsdpck_error *err);
/* Newest first: steps of the folders named step-NUMBER. Owned. */
int files_list_checkpoints(const struct train_config *config, uint64_t **steps, size_t *count,
                           struct fsdpck_error *err);
/* Removes all but the newest `keep`; the error is of the first that could not be removed, the others go all the same.
 */
int files_prune(const struct train_config *config, uint64_t keep, const struct fsdpck_options *opt,
                struct fsdpck_error *err);

/* What killed runs left in output_dir: half-written checkpoints of writers that are gone, checkpoints that were being
 * removed. *nremoved of them. */
int files_clean(const struct train_config *config, const struct fsdpck_options *opt, size_t *nremoved,
                struct fsdpck_error *err);

/* Fails if output_dir is no longer the folder in which the run began: writes to a removed folder are lost silently. */
int files_check_folder(const struct job *job, struct fsdpck_error *err);
/* metrics.jsonl, cut back to `step` lines' worth: a resumed run goes on where its checkpoint was. */
int files_open_metrics(const struct train_config *config, uint64_t step, FILE **out, struct fsdpck_error *err);
/* Where somebody has moved or removed the file, it goes on in a new one, and a note says so. */
int files_write_metrics(const struct job *job, FILE *f, const struct train_metrics *m, struct fsdpck_error *err);
/* Replaced atomically. well: the run did not fail. */
int files_write_summary(const struct job *job, const struct train_result *result, bool well, struct fsdpck_error *err);
uint64_t files_rss_nbytes(void);
uint64_t files_pss_nbytes(void); /* what is shared counted in parts; slow where there is much memory */

#endif
