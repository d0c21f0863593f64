/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts of --hosts, and which of them answer. */
#ifndef TOOLS_HOSTS_LIST_H
#define TOOLS_HOSTS_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct host {
    char name[256];
    uint32_t nranks;
    bool answers;
    pid_t asker;    /* the command that asks it; 0: none */
    double limit_s; /* time when the command takes too long */
};

struct hosts_list {
    struct host *at; /* (count) */
    size_t count;
};

/* Reads "node1:8,node2:8"; no number means one rank. All hosts answer at first. Returns OPTIONS_OK, or prints a usage
 * error. */
int hosts_list_read(const char *text, struct hosts_list *out);
void hosts_list_free(struct hosts_list *list);
bool host_is_this(const struct host *host);
/* Hosts that answer, and their ranks. */
uint32_t hosts_nanswers(const struct hosts_list *list);
uint32_t hosts_nranks(const struct hosts_list *list);
/* Starts a command that asks a host. command: up to NULL; "HOST" stands for the name. says: it may print its errors. */
void host_ask(struct host *host, const char *const *command, bool says);
/* True while the command runs. Afterwards `answers` says whether it has succeeded, within some seconds. */
bool host_is_asked(struct host *host);
/* Asks all hosts at once, and waits. */
void hosts_ask(struct hosts_list *list, const char *const *command, bool says);

#endif
