/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts_list.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <train/ranks.h>
#include <unistd.h>

#include "common/options.h"
#include "common/usage.h"
#include "common/values.h"

enum { ASK_SECONDS = 10, POLL_MS = 50, MAX_WORDS = 16 };

/* "node1:8" */
static int read_host(const char *text, const struct hosts_list *before, struct host *out)
{
    const char *colon = strchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : strlen(text);
    *out = (struct host){ .nranks = 1, .answers = true };
    if (n == 0 || n >= sizeof out->name || text[0] == '-' || (colon && !value_count(colon + 1, &out->nranks)))
        return usage_error("--hosts: found '%s', wanted a host and its number of ranks, as in node1:8", text);
    memcpy(out->name, text, n);
    for (size_t i = 0; i < before->count; i++)
        if (strcmp(before->at[i].name, out->name) == 0)
            return usage_error("--hosts: '%s' is in it twice", out->name);
    return OPTIONS_OK;
}

int hosts_list_read(const char *text, struct hosts_list *out)
{
    struct strings words = { 0 };
    int status = OPTIONS_OK;
    uint64_t nranks = 0;
    *out = (struct hosts_list){ 0 };
    if (!strings_add_list(&words, text) || !(out->at = calloc(words.count + 1, sizeof *out->at)))
        status = usage_error("no memory for the arguments");
    for (size_t i = 0; i < words.count && status == OPTIONS_OK; i++) {
        status = read_host(words.at[i], out, &out->at[i]);
        nranks += out->at[i].nranks;
        out->count++;
    }
    if (status == OPTIONS_OK && nranks > TRAIN_MAX_RANKS)
        status = usage_error("--hosts: found %llu ranks in all, wanted at most %u", (unsigned long long)nranks,
                             TRAIN_MAX_RANKS);
    if (status == OPTIONS_OK && out->count < 2)
        status =
            usage_error("--hosts: found '%s', wanted two hosts or more; --ranks starts the ranks of this one", text);
    strings_free(&words);
    return status;
}

/* A name up to its domain. */
bool host_is_this(const struct host *host)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    const size_t n = strcspn(name, ".");
    return strcspn(host->name, ".") == n && strncmp(host->name, name, n) == 0;
}

uint32_t hosts_nanswers(const struct hosts_list *list)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->count; i++)
        n += list->at[i].answers;
    return n;
}

uint32_t hosts_nranks(const struct hosts_list *list)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->count; i++)
        n += list->at[i].answers ? list->at[i].nranks : 0;
    return n;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_asker(const struct host *host, const char *const *command, bool says)
{
    const char *words[MAX_WORDS + 1] = { NULL };
    for (size_t i = 0; i < MAX_WORDS && command[i]; i++)
        words[i] = strcmp(command[i], "HOST") == 0 ? host->name : command[i];
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < (says ? 2 : 3); fd++)
        dup2(null, fd);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(words[0], (char *const *)words);
    _exit(127);
}

static void end_asker(struct host *host)
{
    if (host->asker > 0 && kill(host->asker, SIGKILL) == 0)
        waitpid(host->asker, NULL, 0);
    host->asker = 0;
}

void host_ask(struct host *host, const char *const *command, bool says)
{
    end_asker(host);
    host->answers = false;
    host->limit_s = now() + ASK_SECONDS;
    host->asker = fork();
    if (host->asker == 0)
        run_asker(host, command, says);
}

bool host_is_asked(struct host *host)
{
    int status = -1;
    if (host->asker > 0 && now() > host->limit_s)
        end_asker(host);
    if (host->asker <= 0)
        return false;
    if (waitpid(host->asker, &status, WNOHANG) == 0)
        return true;
    host->asker = 0;
    host->answers = status == 0;
    return false;
}

void hosts_ask(struct hosts_list *list, const char *const *command, bool says)
{
    for (size_t i = 0; i < list->count; i++)
        host_ask(&list->at[i], command, says);
    for (size_t i = 0; i < list->count; i++) {
        while (host_is_asked(&list->at[i]))
            nanosleep(&(struct timespec){ 0, POLL_MS * 1000000L }, NULL);
    }
}

void hosts_list_free(struct hosts_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        end_asker(&list->at[i]);
    free(list->at);
    *list = (struct hosts_list){ 0 };
}
