/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/meminfo, and the files of version 2 and of version 1 of control groups. What cannot be read sets no
 * limit. */
#include "rank/host_memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, FOLDER = 8192 };

/* The files of a version. The page cache that was not used lately can be taken back. */
static const struct version {
    const char *folder, *limit, *usage, *cached;
} versions[] = { { "", "memory.max", "memory.current", "inactive_file" },
                 { "memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file" } };

static FILE *open_file(const char *folder, const char *name)
{
    char path[FOLDER + 64];
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* False for "max". */
static bool read_number(const char *folder, const char *name, uint64_t *out)
{
    unsigned long long value = 0;
    FILE *f = open_file(folder, name);
    const bool found = f && fscanf(f, "%llu", &value) == 1;
    if (f)
        fclose(f);
    *out = value;
    return found;
}

static uint64_t read_cached(const char *folder, const char *key)
{
    char line[200], name[64];
    unsigned long long value = 0, found = 0;
    FILE *f = open_file(folder, "memory.stat");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %llu", name, &value) == 2 && strcmp(name, key) == 0)
            found = value;
    if (f)
        fclose(f);
    return found;
}

static uint64_t room_of(const struct version *v, const char *folder)
{
    uint64_t limit, usage;
    if (!read_number(folder, v->limit, &limit) || !read_number(folder, v->usage, &usage))
        return UINT64_MAX;
    const uint64_t cached = read_cached(folder, v->cached), used = usage > cached ? usage - cached : 0;
    return limit > used ? limit - used : 0;
}

/* The smallest room of a group and of those that it belongs to. group: "/a/b"; in a container it may be "/", or the
 * path outside. */
static uint64_t room_of_all(const struct version *v, const char *root, char *group)
{
    uint64_t least = UINT64_MAX;
    char folder[FOLDER];
    for (char *end = group + strlen(group);; end = strrchr(group, '/')) {
        *(end ? end : group) = '\0';
        const int n = snprintf(folder, sizeof folder, "%s/%s%s", root, v->folder, *group == '/' ? group + 1 : group);
        const uint64_t room = n > 0 && n < (int)sizeof folder ? room_of(v, folder) : UINT64_MAX;
        least = room < least ? room : least;
        if (!*group)
            return least;
    }
}

uint64_t host_memory_of_groups(const char *list, const char *root)
{
    uint64_t least = UINT64_MAX;
    char line[LINE];
    FILE *f = fopen(list, "re");
    while (f && fgets(line, sizeof line, f)) { /* "0::/a/b", "9:memory:/a/b" */
        char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!group)
            continue;
        group[strcspn(group, "\n")] = '\0';
        *group++ = '\0';
        const bool second = kinds[1] == '\0';
        if (!second && strcmp(kinds + 1, "memory") != 0)
            continue;
        const uint64_t room = room_of_all(&versions[second ? 0 : 1], root, group);
        least = room < least ? room : least;
    }
    if (f)
        fclose(f);
    return least;
}

static uint64_t available(void)
{
    unsigned long long kib = 0;
    char line[200];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1)
        continue;
    if (f)
        fclose(f);
    return kib * 1024;
}

uint64_t host_memory(uint32_t nlocal)
{
    const uint64_t all = available(), room = host_memory_of_groups("/proc/self/cgroup", "/sys/fs/cgroup");
    return (room < all ? room : all) / nlocal;
}
