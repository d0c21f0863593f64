/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks and their supervisor tell each other without a message: where each rank is, that it is alive, the first error, a stop that was asked for. One piece
 * of memory that the supervisor makes before its ranks part from it; it outlives them. Knows nothing of how ranks reach each other. */
#ifndef TRAIN_BOARD_H
#define TRAIN_BOARD_H

#include <fsdpck/error.h>

struct board;

enum { BOARD_NOTES = 8 };

/* Ranks first … first+nlocal-1 of nranks have a place on it: those of this supervisor. */
int board_new(uint32_t first, uint32_t nlocal, uint32_t nranks, double patience_seconds, struct board **out, struct fsdpck_error *err);
void board_free(struct board *b); /* NULL does nothing */
double board_patience(const struct board *b);

/* Where a rank is, for those who ask when it is lost. Cheap, and a sign of life. operation: static text. */
void board_at(struct board *b, uint32_t rank, uint64_t step, const char *operation);
void board_operation(struct board *b, uint32_t rank, const char *operation); /* in the same step */
void board_beat(struct board *b, uint32_t rank); /* a sign of life, from any thread of the rank */
uint64_t board_beats(const struct board *b, uint32_t rank);
/* "in step 3, forward and backward" */
void board_describe(const struct board *b, uint32_t rank, char *text, size_t nbytes);

/* A failed rank records its error here. The first one wins; FSDPCK_ERR_PEER is not recorded. Whoever waits polls board_failed(). */
void board_fail(struct board *b, const struct fsdpck_error *err);
bool board_failed(const struct board *b);
/* Supervisor: rank `rank` is gone (how: "was killed by signal 9"), or stalls. */
void board_lost(struct board *b, uint32_t rank, const char *how);
/* Records the error of a rank of another supervisor, which prints it. Returns whether it is the first error here. */
bool board_tell(struct board *b, const struct fsdpck_error *err);
void board_hush(struct board *b); /* another supervisor prints an error for both */
bool board_was_told(const struct board *b); /* one of these was called: this supervisor does not print the error */
bool board_has_lost(const struct board *b); /* the error is that of board_lost() */
/* Supervisor: the first error that was left; false where there is none. */
bool board_error(const struct board *b, struct fsdpck_error *err);

void board_stop(struct board *b);
bool board_stopping(const struct board *b);
/* Requests for a save since the run began. The supervisor sets the number of its own; a rank adds one. */
void board_ask_saves(struct board *b, uint64_t count);
void board_ask_save(struct board *b);
uint64_t board_saves(const struct board *b);
/* (BOARD_NOTES) for the supervisor, kept when the rank is gone. */
uint64_t *board_notes(struct board *b);

#endif
