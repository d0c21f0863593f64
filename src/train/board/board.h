/* SPDX-License-Identifier: Apache-2.0 */
/* What a run tells TensorBoard: the numbers of its steps, samples, its settings, and how the charts are laid out. It
 * knows the messages of TensorBoard's plugins, and nothing of ranks. */
#ifndef TRAIN_BOARD_H
#define TRAIN_BOARD_H

#include <fsdpck/error.h>
#include <jansson.h>

struct board;

enum board_end { BOARD_STOPPED = 0, BOARD_FINISHED = 1, BOARD_FAILED = 2 }; /* as the hparams plugin counts them */

/* Starts an event file in the folder, for a run that has done `step` steps; events of later steps that this program
 * wrote there are removed, so that curves go on. config: the tree of CONFIG.json. */
int board_open(const char *folder, uint64_t step, const json_t *config, struct board **out, struct fsdpck_error *err);
/* NULL does nothing. */
void board_close(struct board *b);

/* Adds every number of a line of metrics.jsonl as a scalar. null: NaN. */
int board_put_line(struct board *b, const json_t *line, struct fsdpck_error *err);
/* Adds a prompt and its sample as a text. */
int board_put_sample(struct board *b, uint64_t step, size_t number, const char *text, size_t nbytes,
                     struct fsdpck_error *err);
/* Adds a PNG file as a picture. */
int board_put_picture(struct board *b, uint64_t step, size_t number, const void *png, size_t nbytes,
                      struct fsdpck_error *err);
int board_put_end(struct board *b, uint64_t step, enum board_end how, struct fsdpck_error *err);

#endif
