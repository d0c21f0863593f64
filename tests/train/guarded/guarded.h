/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces between the parts of the guarded device. */
#ifndef GUARDED_GUARDED_H
#define GUARDED_GUARDED_H

#include <kernels/link.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

/* The processor's row, which does the work. */
const struct kern_device *guarded_cpu(void);
/* Between them the device's memory can be touched; in any thread. */
void guarded_enter(void);
void guarded_leave(void);
/* Ends the program with a word. */
_Noreturn void guarded_die(const char *what, const char *name);
/* Ends the program where p is not in the device's memory. NULL: an operand left out. */
void guarded_must_own(const char *kernel, const void *p);

extern const struct kern_memory guarded_memory;
extern const struct kern_ops guarded_ops;
extern const struct kern_links guarded_links;

#endif
