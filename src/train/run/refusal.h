/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the ranks of a launcher prints an error that several have. */
#ifndef TRAIN_REFUSAL_H
#define TRAIN_REFUSAL_H

#include <train/train.h>

/* For a launched rank that cannot start: tells the other ranks. Returns true if this rank must print the error; ranks
 * that fail alike print it once. */
bool refusal_report(const struct train_options *opt, const struct fsdpck_error *err);
/* Launchers may end all processes when the first one fails. So a process whose error another rank prints waits until
 * that rank has ended. mpirun sends SIGTERM then, unless its host is lost; Slurm sends no signal. */
void refusal_await_report(const struct train_options *opt, const struct fsdpck_error *err);

#endif
