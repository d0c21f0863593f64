/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of jobs, which outlive the server and must be found again. */
#ifndef UI_PROCESS_H
#define UI_PROCESS_H

#include <fsdpck/error.h>
#include <sys/types.h>

enum { BOOT_NBYTES = 37 };

/* Identifies a process for good: pids are reused, but not with the same start time in the same boot. */
struct process {
    pid_t pid;
    uint64_t ticks;         /* start time in clock ticks since boot */
    char boot[BOOT_NBYTES]; /* /proc/sys/kernel/random/boot_id */
};

struct process_start {
    const char *const *argv; /* ends with NULL; argv[0] is the path of the program */
    const char *const *envp; /* up to NULL */
    const char *cwd, *log;   /* both outputs are appended to the log */
    const char *began;       /* a file that the process creates when it begins */
};

/* Starts a process in its own session. It waits for process_go() before it does anything, and exits if this process
 * ends first. */
int process_start(const struct process_start *start, struct process *out, int *go, struct fsdpck_error *err);
/* Lets the process begin, or exit at once. Closes go. */
void process_go(int go, bool begins);

/* False for zombies too. */
bool process_alive(const struct process *p);
/* Signals the process, or its group. Returns false if it has ended. */
bool process_signal(const struct process *p, int signal, bool group);

#endif
