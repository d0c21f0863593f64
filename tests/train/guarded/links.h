/* What the guarded device's links need of its memory, and give to its module. */
#ifndef GUARDED_LINKS_H
#define GUARDED_LINKS_H

#include <kernels/link.h>

/* Between them the device's memory can be touched; in any thread. */
void guarded_enter(void);
void guarded_leave(void);
/* Ends the program with a word. */
_Noreturn void guarded_die(const char *what, const char *name);
/* Ends the program where p is not in it. */
void guarded_must_own(const char *kernel, const void *p);

extern const struct kern_links guarded_links;

#endif
