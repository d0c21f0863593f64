/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a reader does with a checkpoint, on files in memory: open, list, plan, read, verify. fuzz_source.c
 * checks the properties that must hold for any bytes. */
#ifndef TESTS_FUZZ_SOURCE_H
#define TESTS_FUZZ_SOURCE_H

#include "../support/memory_io.h"

/* from: the required kind, or NULL. */
void fuzz_source(struct memory_io *m, const char *path, const char *from);

/* Adds every file in or below a folder of the source tree, as MEMORY_ROOT/name. They are read from disk once; a process
 * uses three such folders at most. folder: a constant. */
void fuzz_add_folder(struct memory_io *m, const char *folder);
/* Finds one of them. */
const struct memory_file *fuzz_find_file(const struct memory_io *m, const char *path);

#endif
