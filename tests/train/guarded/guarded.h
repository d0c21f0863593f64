/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces between the parts of the guarded device. */
#ifndef GUARDED_GUARDED_H
#define GUARDED_GUARDED_H

#include <kernels/experts.h>
#include <kernels/image.h>
#include <kernels/link.h>
#include <kernels/memory.h>
#include <kernels/ops.h>

/* The CPU backend, which does the work. */
const struct kern_device *guarded_cpu(void);
/* Allow and forbid access to the device's memory; may be called in any thread. */
void guarded_enter(void);
void guarded_leave(void);
/* Ends the program with a message. */
_Noreturn void guarded_die(const char *what, const char *name);
/* Ends the program if p is not in the device's memory. NULL: the operand is absent. */
void guarded_must_own(const char *kernel, const void *p);

extern const struct kern_memory guarded_memory;
extern const struct kern_ops guarded_ops;
extern const struct kern_expert_ops guarded_expert_ops;
extern const struct kern_image_ops guarded_image_ops;
extern const struct kern_links guarded_links;

#endif
