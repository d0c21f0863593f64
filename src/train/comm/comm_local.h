/* Ranks of one host, over memory that they share: made before the processes part, joined by each. The supervisor watches the same memory. */
#ifndef TRAIN_COMM_LOCAL_H
#define TRAIN_COMM_LOCAL_H

#include "comm/comm.h"

struct comm_world; /* shared by all processes */

/* Memory is backed when it is touched. */
int comm_world_new(uint32_t nranks, size_t value_nbytes, int64_t grad_nelem, double patience_seconds, struct comm_world **out, struct fsdpck_error *err);
void comm_world_free(struct comm_world *w); /* NULL does nothing */
/* This process is rank `rank` from now on. *out is freed with its ops->free. */
int comm_world_join(struct comm_world *w, uint32_t rank, struct comm **out, struct fsdpck_error *err);

/* Where a rank is, for those who ask when it is lost. Cheap. operation: static text. */
void comm_world_at(struct comm *c, uint64_t step, const char *operation);
/* A rank that fails leaves its error here, and every wait of the others ends. Nothing where it failed because another one had. */
void comm_world_fail(struct comm *c, const struct fsdpck_error *err);
/* Supervisor: rank `rank` is gone (how: "was killed by signal 9"). Ends every wait. */
void comm_world_lost(struct comm_world *w, uint32_t rank, const char *how);
/* Supervisor: the first error that was left; false where there is none. */
bool comm_world_error(const struct comm_world *w, struct fsdpck_error *err);
/* A stop that was asked for: set by the supervisor, read by ranks at the end of each step. */
void comm_world_stop(struct comm_world *w);
bool comm_world_stopping(const struct comm *c);
/* Supervisor: whether the run ended with a note for the exit code, and the note itself, kept across processes. */
uint64_t *comm_world_notes(struct comm_world *w);

#endif
