/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks can share memory if kernel, process numbers and host name are the same. The name alone proves nothing: the
 * containers of several machines may share it. */
#include "comm/hosts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

struct identity {
    char boot_id[40];
    struct utsname name;
    uint64_t pid_namespace;
};

static uint64_t own_key(void)
{
    struct identity id;
    struct stat status;
    memset(&id, 0, sizeof id); /* the padding is hashed too */
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, id.boot_id, sizeof id.boot_id) < 0)
            id.boot_id[0] = '\0';
        close(fd);
    }
    uname(&id.name);
    id.pid_namespace = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
    return XXH3_64bits(&id, sizeof id);
}

static void number_hosts(struct hosts *h, uint32_t nranks, bool alone)
{
    for (uint32_t r = 0; r < nranks; r++) {
        if (r == 0 || alone || h->keys[r] != h->keys[r - 1])
            h->first[h->n++] = r;
        h->of[r] = h->n - 1;
    }
    h->first[h->n] = nranks;
}

int hosts_find(struct comm *c, bool alone, struct hosts *out, struct fsdpck_error *err)
{
    uint64_t keys[COMM_MAX_SUM] = { 0 };
    const uint32_t n = c->nranks;
    *out = (struct hosts){ .of = calloc(n, sizeof *out->of),
                           .first = calloc(n + 1, sizeof *out->first),
                           .keys = calloc(n, sizeof *out->keys) };
    if (!out->of || !out->first || !out->keys)
        return fsdpck_error_nomem(err, n * sizeof *out->keys);
    keys[c->rank] = own_key();
    int rc = c->ops->sum_u64(c, keys, n, err);
    memcpy(out->keys, keys, n * sizeof *keys);
    number_hosts(out, n, alone);
    out->mine = out->of[c->rank];
    return rc;
}

void hosts_free(struct hosts *h)
{
    free(h->of);
    free(h->first);
    free(h->keys);
    *h = (struct hosts){ 0 };
}

uint32_t hosts_size(const struct hosts *h, uint32_t host)
{
    return h->first[host + 1] - h->first[host];
}

bool hosts_has(const struct hosts *h, uint32_t host, uint32_t within, uint32_t remainder)
{
    const uint32_t first = h->first[host] % within, distance = (remainder + within - first) % within;
    return distance < hosts_size(h, host);
}

bool hosts_hold_all(const struct hosts *h, uint32_t within)
{
    for (uint32_t host = 0; host < h->n; host++) {
        if (hosts_size(h, host) < within)
            return false;
    }
    return true;
}
