/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether the caller has asked to stop (fsdpck_options.stop), perhaps from a signal handler or another thread. */
#ifndef CKPT_STOP_H
#define CKPT_STOP_H

#include <stdbool.h>
#include <stddef.h>

static inline bool fsdpck_stop_asked(const volatile int *stop)
{
    return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

#endif
