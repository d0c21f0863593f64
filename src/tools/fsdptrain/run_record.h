/* SPDX-License-Identifier: Apache-2.0 */
/* output_dir/events.jsonl: when a run started, with its config and machine, its notes, and how it ended. Lines are only
 * added, so a resumed run keeps those before. If a line cannot be written, the training continues. */
#ifndef TOOLS_RUN_RECORD_H
#define TOOLS_RUN_RECORD_H

#include <train/train.h>

/* In memory shared with the ranks that this process forks: rank 0 writes the start, others may write notes. */
struct run_record {
    bool started;
    char path[4096];
};

/* Lives as long as the process. NULL: out of memory. */
struct run_record *run_record_new(void);
/* launcher: "mpirun -n 4 ", or ""; command: what to type to resume the run. Returns false if the file
 * cannot be written; nothing else is recorded then. */
bool run_record_start(struct run_record *r, const struct train_start *start, const char *launcher, const char *command);
/* A note and the end of a tenant, whose start has its own file: that in the output_dir of its config. */
void run_record_tenant_note(const struct train_config *config, const char *line);
void run_record_tenant_end(const struct train_config *config, const struct train_result *done);
/* Both do nothing before a start: the run may not hold its output_dir yet. */
void run_record_note(const struct run_record *r, const char *line);
void run_record_end(const struct run_record *r, const struct train_result *done, const struct fsdpck_error *err);

#endif
