/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of jobs: they outlive the server, and are found again. */
#ifndef UI_PROCESS_H
#define UI_PROCESS_H

#include <fsdpck/error.h>
#include <sys/types.h>

enum { BOOT_NBYTES = 37 };

/* A process that no later one can be taken for: numbers are used again, but not with the same start. */
struct process {
    pid_t pid;
    uint64_t ticks;         /* its start, in clock ticks since the boot */
    char boot[BOOT_NBYTES]; /* /proc/sys/kernel/random/boot_id */
};

struct process_start {
    const char *const *argv; /* up to NULL; argv[0] is the path of the program */
    const char *const *envp; /* up to NULL */
    const char *cwd, *log;   /* the log gets both outputs, after what is in it */
    const char *began;       /* a file that is made when it begins */
};

/* Starts a process in a session of its own that waits for process_go(); until then it has done nothing, and it ends if
 * this one does. */
int process_start(const struct process_start *start, struct process *out, int *go, struct fsdpck_error *err);
/* Lets it begin, or end at once without having begun. Closes go. */
void process_go(int go, bool begins);

/* False too for one that has ended and waits for its parent. */
bool process_alive(const struct process *p);
/* Sends a signal to the process, or to its group. Returns false if it is no longer there. */
bool process_signal(const struct process *p, int signal, bool group);

#endif
