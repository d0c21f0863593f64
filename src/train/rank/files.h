/* SPDX-License-Identifier: Apache-2.0 */
/* The files of output_dir: metrics, summary, the list of checkpoints. */
#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include <stdio.h>

#include "rank/rank.h"

enum { FILES_PATH = 4096 };

int files_join(char path[FILES_PATH], const char *folder, const char *name, struct fsdpck_error *err);
/* Creates output_dir and output_dir/checkpoints. */
int files_make_folders(const struct train_config *config, struct fsdpck_error *err);
/* FSDPCK_ERR_EXISTS: metrics or summary would overwrite a file that is not from this program. */
int files_check_own(const struct train_config *config, struct fsdpck_error *err);
int files_checkpoint_path(const struct train_config *config, uint64_t step, char path[FILES_PATH],
                          struct fsdpck_error *err);
/* The step in the name of such a path. */
uint64_t files_checkpoint_step(const char *path);
/* Steps of the folders named step-NUMBER, newest first. Owned. */
int files_list_checkpoints(const struct train_config *config, uint64_t **steps, size_t *count,
                           struct fsdpck_error *err);
/* Removes all but the newest `keep` checkpoints. Removes as many as it can; the error is the first failure. */
int files_prune(const struct train_config *config, uint64_t keep, const struct fsdpck_options *opt,
                struct fsdpck_error *err);

/* Called by rank 0's supervisor. Removes files of killed runs in output_dir: unfinished checkpoints of dead writers,
 * and half-removed checkpoints. A failure is only noted: it does not prevent training. */
void files_clean_up(const struct job *job);

/* Fails if output_dir is not the folder in which the run began: writes to a removed folder are lost silently. */
int files_check_folder(const struct job *job, struct fsdpck_error *err);
/* Opens metrics.jsonl and removes lines beyond `step`: a resumed run continues at its checkpoint. *nremoved: number of
 * their steps. */
int files_open_metrics(const struct train_config *config, uint64_t step, FILE **out, uint64_t *nremoved,
                       struct fsdpck_error *err);
/* If the file was moved or removed, continues in a new one, and prints a note. *line: what was written; owned. */
int files_write_metrics(const struct job *job, FILE *f, const struct train_metrics *m, struct json_t **line,
                        struct fsdpck_error *err);
/* Replaces the file atomically. well: the run succeeded. */
int files_write_summary(const struct job *job, const struct train_result *result, bool well, struct fsdpck_error *err);
uint64_t files_rss_nbytes(void);
uint64_t files_pss_nbytes(void); /* memory with shared pages counted in proportion; slow for large processes */

#endif
