/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SAID_NBYTES = 16384 };

/* Runs in the child of a process with threads, so it may only make system calls. */
static void begin(const char *const *argv, const char *cwd, const int *in, const int *out, const int *errors)
{
    sigset_t none;
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(in[0], 0) < 0 || dup2(out[1], 1) < 0 || dup2(errors[1], 2) < 0 || chdir(cwd))
        _exit(126);
    setpgid(0, 0);
    syscall(SYS_close_range, 3, ~0U, 0);
    execve(argv[0], (char *const *)argv, environ);
    _exit(127);
}

static void close_pair(int *pair)
{
    close(pair[0]);
    close(pair[1]);
}

int child_start(const char *const *argv, const char *cwd, const char *input, struct child *out,
                struct fsdpck_error *err)
{
    int pipes[3][2];
    size_t n = 0;
    *out = (struct child){ -1, -1, -1 };
    while (n < 3 && pipe2(pipes[n], O_CLOEXEC) == 0)
        n++;
    /* The input fits into the pipe, so this does not block. */
    const bool said = n == 3 && write(pipes[0][1], input, strlen(input)) == (ssize_t)strlen(input);
    const pid_t pid = said ? fork() : -1;
    const int why = errno;
    if (pid == 0)
        begin(argv, cwd, pipes[0], pipes[1], pipes[2]);
    if (pid < 0) {
        while (n)
            close_pair(pipes[--n]);
        return fsdpck_error_sys(err, why, argv[0], "start");
    }
    setpgid(pid, pid); /* parent and child both do it, as either may be first */
    close_pair(pipes[0]);
    close(pipes[1][1]);
    close(pipes[2][1]);
    *out = (struct child){ pid, pipes[1][0], pipes[2][0] };
    return 0;
}

int child_end(struct child *c)
{
    int status = 0;
    if (c->out >= 0)
        close(c->out);
    if (c->errors >= 0)
        close(c->errors);
    if (c->pid > 0) {
        kill(-c->pid, SIGKILL);
        while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
            ;
    }
    *c = (struct child){ -1, -1, -1 };
    return status;
}

/* ---- to its end */

struct text {
    char *bytes;
    size_t count, most;
};

/* Returns false if the text is full. */
static bool read_some(int *fd, struct text *t)
{
    char piece[16384];
    const ssize_t n = read(*fd, piece, sizeof piece);
    if (n <= 0) {
        close(*fd);
        *fd = -1;
        return true;
    }
    char *grown = t->count + (size_t)n > t->most ? NULL : realloc(t->bytes, t->count + (size_t)n + 1);
    if (!grown)
        return false;
    memcpy(grown + t->count, piece, (size_t)n);
    t->bytes = grown;
    t->count += (size_t)n;
    grown[t->count] = '\0';
    return true;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads both outputs to their ends. Returns false on timeout, or if they are too long. */
static bool read_all(struct child *c, struct text *out, struct text *said, int64_t until)
{
    bool ok = true;
    while (ok && (c->out >= 0 || c->errors >= 0)) {
        struct pollfd fds[] = { { c->out, POLLIN, 0 }, { c->errors, POLLIN, 0 } };
        const int64_t left = until - now_ms();
        if (left <= 0 || poll(fds, 2, (int)left) <= 0)
            return left > 0 && errno == EINTR;
        if (fds[0].revents)
            ok = read_some(&c->out, out);
        if (fds[1].revents)
            ok &= read_some(&c->errors, said);
    }
    return ok;
}

static char *last_line(char *text)
{
    size_t n = text ? strlen(text) : 0;
    while (n && text[n - 1] == '\n')
        text[--n] = '\0';
    const char *line = n ? strrchr(text, '\n') : NULL;
    char *copy = strdup(line ? line + 1 : n ? text : "");
    free(text);
    return copy;
}

int child_ask(const char *const *argv, const char *cwd, size_t nbytes, int seconds, char **out, char **said,
              struct fsdpck_error *err)
{
    struct child c;
    struct text result = { NULL, 0, nbytes }, words = { NULL, 0, SAID_NBYTES };
    *out = *said = NULL;
    if (child_start(argv, cwd, "", &c, err))
        return -1;
    const bool whole = read_all(&c, &result, &words, now_ms() + seconds * 1000);
    int status = 0;
    if (whole) /* both outputs are closed: the program is about to exit */
        while (waitpid(c.pid, &status, 0) < 0 && errno == EINTR)
            ;
    if (whole)
        c.pid = -1;
    child_end(&c);
    *out = result.bytes ? result.bytes : strdup("");
    *said = last_line(words.bytes);
    if (!whole)
        fsdpck_error_set(err, FSDPCK_ERR_IO, argv[1], "it took more than %d s, or wrote too much", seconds);
    return whole && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
