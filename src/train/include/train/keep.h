/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps memory for the ranks of a host (checkpoint.memory_every over several hosts). */
#ifndef TRAIN_KEEP_H
#define TRAIN_KEEP_H

#include <fsdpck/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Serves the ranks whose train_options.keeper is `name`, until the file `life` ends, or nothing can be read from it for
 * silence_ms, or a signal is handled. ready: called once ranks may ask. */
FSDPCK_API int train_keep(const char *name, int life, int silence_ms, void (*ready)(void), struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif

#endif
