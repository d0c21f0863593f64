/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls, and makes a chosen one fail. */
#include "hosted.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hosted_die(const char *call, const char *what)
{
    fprintf(stderr, "hosted: %s: %s\n", call, what);
    abort();
}

enum { MOST_NAMES = 64 };

static struct {
    pthread_mutex_t lock;
    const char *name[MOST_NAMES];
    uint64_t ncalls[MOST_NAMES];
    int n;
} counts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void count(const char *name)
{
    int i = 0;
    pthread_mutex_lock(&counts.lock);
    while (i < counts.n && strcmp(counts.name[i], name) != 0)
        i++;
    if (i == MOST_NAMES)
        hosted_die(name, "more kinds of calls than can be counted");
    counts.n += i == counts.n;
    counts.name[i] = name;
    counts.ncalls[i]++;
    pthread_mutex_unlock(&counts.lock);
}

void hosted_tell_counts(void)
{
    const char *path = getenv("FSDPTRAIN_HOSTED_COUNTS");
    char own[4096];
    snprintf(own, sizeof(own), "%s.%d", path ? path : "", (int)getpid());
    FILE *f = path ? fopen(own, "we") : NULL;
    for (int i = 0; f && i < counts.n; i++)
        fprintf(f, "%s\"%s\": %llu", i ? ", " : "{", counts.name[i], (unsigned long long)counts.ncalls[i]);
    if (f && (fputs("}\n", f) == EOF || fclose(f) || rename(own, path)))
        hosted_die(path, "cannot be written");
}

int hosted_fails(const char *name, int device)
{
    static uint64_t ncalls;
    const char *asked = getenv("FSDPTRAIN_HOSTED_FAIL");
    char wanted[64];
    unsigned long long nth;
    int code, where = -1;
    if (getenv("FSDPTRAIN_HOSTED_COUNTS"))
        count(name);
    if (!asked)
        return 0;
    if (sscanf(asked, "%63s %llu %d %d", wanted, &nth, &code, &where) < 3)
        hosted_die("FSDPTRAIN_HOSTED_FAIL", "'NAME COUNT CODE [DEVICE]' is wanted");
    if (strcmp(name, wanted) != 0 || (where >= 0 && where != device))
        return 0;
    return __atomic_add_fetch(&ncalls, 1, __ATOMIC_RELAXED) == nth ? code : 0;
}
