/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a launcher that waits for ever for a lost host. mpirun and its daemons (orted) do: after a rank has failed they
 * wait for the answer of every host. */
#ifndef TRAIN_LAUNCHER_END_H
#define TRAIN_LAUNCHER_END_H

/* Starts a process that kills this process's launcher and its children if it does not end by itself within some
 * seconds. names: of the launcher's processes, up to NULL; nothing happens unless an ancestor has one of them. */
void launcher_end_later(const char *const *names);

#endif
