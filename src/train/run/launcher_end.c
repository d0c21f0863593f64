/* SPDX-License-Identifier: Apache-2.0 */
#include "run/launcher_end.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <train/train.h>
#include <unistd.h>

enum { MAX_DEPTH = 8, WAIT_MS = 4000 };

/* Reads the name and the parent of a process. */
static bool read_process(pid_t pid, char name[32], pid_t *parent)
{
    char path[64], line[512];
    int number;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL; /* "7 (name) S 1 …" */
    if (f)
        fclose(f);
    if (!end || sscanf(end, ") %*c %d", &number) != 1 || sscanf(line, "%*d (%31[^)]", name) != 1)
        return false;
    *parent = number;
    return true;
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* Returns the nearest ancestor with one of the names, or 0. A script may stand between. */
static pid_t find_launcher(const char *const *names)
{
    pid_t pid = getppid(), parent;
    char name[32];
    for (int depth = 0; depth < MAX_DEPTH && pid > 1 && read_process(pid, name, &parent); depth++) {
        if (is_one_of(name, names))
            return pid;
        pid = parent;
    }
    return 0;
}

/* mpirun's children are the ssh clients of the hosts: left alone, one waits for a lost host. */
static void end_children(pid_t of)
{
    DIR *dir = opendir("/proc");
    pid_t parent;
    char name[32];
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
        if (pid > 1 && read_process(pid, name, &parent) && parent == of)
            kill(pid, SIGTERM);
    }
    if (dir)
        closedir(dir);
}

void train_end_launcher(pid_t launcher)
{
    end_children(launcher);
    kill(launcher, SIGKILL);
}

void launcher_end_later(const char *const *names)
{
    const pid_t launcher = find_launcher(names);
    const int fd = launcher ? (int)syscall(SYS_pidfd_open, launcher, 0) : -1; /* safe if the number is used again */
    if (fd < 0)
        return;
    if (fork() == 0) {
        struct pollfd ended = { .fd = fd, .events = POLLIN };
        setsid();                            /* the launcher kills the process group of a rank */
        close_range(0, (unsigned)fd - 1, 0); /* the launcher waits until a rank's output is closed */
        close_range((unsigned)fd + 1, ~0U, 0);
        if (poll(&ended, 1, WAIT_MS) == 0) {
            end_children(launcher);
            syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
        }
        _exit(0);
    }
    close(fd);
}
