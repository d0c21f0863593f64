/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- which process */

static bool read_file(const char *path, char *text, size_t nbytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, nbytes - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Field 22 of /proc/PID/stat; the fields follow the name, which may hold anything. */
static bool read_start(pid_t pid, uint64_t *ticks, char *state)
{
    char path[64], text[2048];
    unsigned long long start;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const char *end = read_file(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    if (!end || sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                       state, &start) != 2)
        return false;
    *ticks = start;
    return true;
}

static void read_boot(char boot[BOOT_NBYTES])
{
    read_file("/proc/sys/kernel/random/boot_id", boot, BOOT_NBYTES);
    boot[strcspn(boot, "\n")] = '\0';
}

bool process_alive(const struct process *p)
{
    char boot[BOOT_NBYTES], state;
    uint64_t ticks;
    read_boot(boot);
    return p->pid > 0 && strcmp(boot, p->boot) == 0 && read_start(p->pid, &ticks, &state) && ticks == p->ticks &&
           state != 'Z' && state != 'X';
}

bool process_signal(const struct process *p, int signal, bool group)
{
    /* The descriptor pins the process with this number; the comparison follows, so no later process can be hit. */
    const int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    bool sent = fd >= 0 && process_alive(p);
    if (sent)
        sent = group ? kill(-p->pid, signal) == 0 : syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) == 0;
    if (fd >= 0)
        close(fd);
    return sent;
}

/* ---- starting */

/* The handlers of the server would take a signal that is meant for the program, and it would be lost. Ignored signals
 * stay ignored. */
static void reset_signals(void)
{
    static const int handled[] = { SIGTERM, SIGINT, SIGHUP };
    struct sigaction now;
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++)
        if (sigaction(handled[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            signal(handled[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
}

/* Runs in the child of a process with threads, so it may only make system calls. */
static void begin(const struct process_start *start, int go)
{
    sigset_t none;
    char word = 0;
    setsid();
    reset_signals();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    while (read(go, &word, 1) < 0 && errno == EINTR)
        ;
    if (word != 'g')
        _exit(0);
    const int log = open(start->log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    const int null = open("/dev/null", O_RDONLY);
    const int began = open(start->began, O_WRONLY | O_CREAT | O_NOFOLLOW, 0600);
    if (log < 0 || null < 0 || began < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
        chdir(start->cwd))
        _exit(126);
    syscall(SYS_close_range, 3, ~0U, 0);
    execve(start->argv[0], (char *const *)start->argv, (char *const *)start->envp);
    _exit(127);
}

int process_start(const struct process_start *start, struct process *out, int *go, struct fsdpck_error *err)
{
    int ends[2];
    char state;
    if (pipe2(ends, O_CLOEXEC))
        return fsdpck_error_sys(err, errno, start->argv[0], "pipe");
    /* Signals wait until the child has reset the handlers: it may be known before it has run. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]); /* so that it reads EOF if this process ends */
        begin(start, ends[0]);
    }
    const int why = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    close(ends[0]);
    *go = ends[1];
    if (pid > 0 && read_start(pid, &out->ticks, &state)) {
        out->pid = pid;
        read_boot(out->boot);
        return 0;
    }
    process_go(*go, false);
    return fsdpck_error_sys(err, pid < 0 ? why : ESRCH, start->argv[0], "start");
}

void process_go(int go, bool begins)
{
    /* If the child was killed meanwhile, the next look finds it dead. */
    if (begins && write(go, "g", 1) < 0)
        errno = 0;
    close(go);
}
