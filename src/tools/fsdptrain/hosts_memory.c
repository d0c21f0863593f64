/* SPDX-License-Identifier: Apache-2.0 */
/* Each is a child, by ssh or srun on other hosts, with pipes for its input and output. It ends when its input does, so
 * it ends too if this process is killed. */
#include "hosts_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORDS = 16, READY_MS = 15000, BEAT_SECONDS = 2, END_MS = 2000, POLL_MS = 20 };

struct keeper {
    pid_t pid; /* 0: none */
    int life;  /* its input */
};

struct hosts_memory {
    char name[20];
    time_t beat;
    size_t count;
    struct keeper at[]; /* (count) */
};

int hosts_memory_new(size_t nhosts, struct hosts_memory **out, struct fsdpck_error *err)
{
    uint64_t token = 0;
    struct hosts_memory *m = calloc(1, sizeof *m + nhosts * sizeof *m->at);
    *out = m;
    if (!m)
        return fsdpck_error_nomem(err, nhosts * sizeof *m->at);
    m->count = nhosts;
    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        return fsdpck_error_sys(err, errno, NULL, "getrandom");
    snprintf(m->name, sizeof m->name, "%016llx", (unsigned long long)token);
    return 0;
}

const char *hosts_memory_name(const struct hosts_memory *m)
{
    return m->name;
}

static time_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

/* A word as the shell behind ssh takes it. NULL: out of memory. */
static char *quoted(const char *word)
{
    char *out = malloc(4 * strlen(word) + 3), *to = out;
    if (!out)
        return NULL;
    *to++ = '\'';
    for (; *word; word++) {
        if (*word == '\'')
            to = stpcpy(to, "'\\'");
        *to++ = *word;
    }
    strcpy(to, "'");
    return out;
}

/* The command line, up to NULL; its words are borrowed. */
static void put_command(const char *words[MAX_WORDS + 4], const struct host *host, const char *const *ask,
                        const char *program, const char *name)
{
    size_t n = 0;
    for (; !host_is_this(host) && ask[n + 1] && n < MAX_WORDS; n++)
        words[n] = strcmp(ask[n], "HOST") == 0 ? host->name : ask[n];
    words[n++] = program;
    words[n++] = "keep";
    words[n++] = name;
    words[n] = NULL;
}

static void run_child(const char **words, int in, int out)
{
    setpgid(0, 0); /* Ctrl-C is for the run */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execvp(words[0], (char *const *)words);
    _exit(127);
}

/* *out: its output. */
static void start(struct keeper *k, const char **words, int *out)
{
    int in[2] = { -1, -1 }, said[2] = { -1, -1 };
    *out = -1;
    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(said, O_CLOEXEC) == 0) {
        k->pid = fork();
        if (k->pid == 0)
            run_child(words, in[0], said[1]);
    }
    if (k->pid > 0) {
        k->life = in[1];
        *out = said[0];
        fcntl(k->life, F_SETFL, O_NONBLOCK);
    } else {
        k->pid = 0;
        close(in[1]);
        close(said[0]);
    }
    close(in[0]);
    close(said[1]);
}

static bool is_running(struct keeper *k)
{
    if (k->pid > 0 && waitpid(k->pid, NULL, WNOHANG) == 0)
        return true;
    if (k->pid > 0)
        close(k->life);
    k->pid = 0;
    return false;
}

/* The end of its input ends it; ssh to a host that is lost does not notice. */
static void end(struct keeper *k)
{
    if (k->pid <= 0)
        return;
    bool ended = false;
    close(k->life);
    for (long ms = 0; ms < END_MS && !ended; ms += POLL_MS) {
        ended = waitpid(k->pid, NULL, WNOHANG) != 0;
        nanosleep(&(struct timespec){ 0, POLL_MS * 1000000L }, NULL);
    }
    if (!ended && kill(k->pid, SIGKILL) == 0)
        waitpid(k->pid, NULL, 0);
    k->pid = 0;
}

/* Waits for "ready". */
static bool is_ready(int out, long until_ms)
{
    struct pollfd wait = { .fd = out, .events = POLLIN };
    char word[8];
    const bool ready = poll(&wait, 1, (int)until_ms) > 0 && read(out, word, sizeof word) > 0;
    close(out);
    return ready;
}

static void start_on(struct hosts_memory *m, size_t i, const struct host *host, const char *const *ask,
                     const char *program, struct report *report)
{
    char line[400];
    const char *words[MAX_WORDS + 4];
    char *safe = strcmp(ask[0], "ssh") == 0 && !host_is_this(host) ? quoted(program) : strdup(program);
    int out = -1;
    if (safe) {
        put_command(words, host, ask, safe, m->name);
        start(&m->at[i], words, &out);
    }
    if (out < 0 || !is_ready(out, READY_MS)) {
        snprintf(line, sizeof line, "host '%s' keeps no copies in memory: `fsdptrain keep` did not start there",
                 host->name);
        report_note(report, line);
        end(&m->at[i]);
    }
    free(safe);
}

void hosts_memory_start(struct hosts_memory *m, const struct hosts_list *hosts, const char *const *ask,
                        const char *program, struct report *report)
{
    for (size_t i = 0; m && i < m->count; i++) {
        const struct host *host = &hosts->at[i];
        if (!host->answers)
            end(&m->at[i]);
        else if (!is_running(&m->at[i]))
            start_on(m, i, host, ask, program, report);
    }
}

void hosts_memory_beat(struct hosts_memory *m)
{
    if (!m || now() < m->beat + BEAT_SECONDS)
        return;
    m->beat = now();
    for (size_t i = 0; i < m->count; i++) {
        if (m->at[i].pid > 0 && write(m->at[i].life, "\n", 1) < 0)
            continue; /* it has ended, or hangs: the next start finds out */
    }
}

void hosts_memory_free(struct hosts_memory *m)
{
    for (size_t i = 0; m && i < m->count; i++)
        end(&m->at[i]);
    free(m);
}
