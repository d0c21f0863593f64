/* SPDX-License-Identifier: Apache-2.0 */
/* The model of power loss (faulty_io.h defines it). Memory holds a list of events on numbered nodes. The tree after a
 * crash is computed from the list, so that one run of a program yields all its crashes. */
#include "power_loss.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

enum node_type { NODE_FILE, NODE_DIR, NODE_LINK };
enum event_kind { EV_WRITE, EV_TRUNCATE, EV_FSYNC, EV_LINK, EV_UNLINK, EV_RENAME, EV_EXCHANGE };
enum { MAX_FD = 1024, NAME_NBYTES = 256 };

struct bytes {
    char *data;
    size_t nbytes;
};

struct node {
    enum node_type type;
    struct bytes start; /* contents at the start; for a link its target */
};

struct name {
    int dir, node;
    char name[NAME_NBYTES];
};

struct names {
    struct name *list;
    size_t count, capacity;
};

struct event {
    enum event_kind kind;
    int node, other; /* other: the second node of an exchange */
    int dir, dir2;
    char name[NAME_NBYTES], name2[NAME_NBYTES];
    struct bytes data;
    uint64_t offset; /* of a write; for a truncate the new size */
    int fsync;       /* number of this fsync */
};

struct power_log {
    char root[PATH_MAX];
    struct node *nodes;
    size_t nnodes, nodes_capacity;
    struct names start, now;
    struct event *events;
    size_t nevents, events_capacity;
    int nfsyncs;
    int fds[MAX_FD]; /* node, or -1 */
};

static void *grow(void *data, size_t count, size_t *capacity, size_t item_nbytes)
{
    if (count < *capacity)
        return data;
    *capacity = *capacity < 16 ? 16 : *capacity * 2;
    data = realloc(data, *capacity * item_nbytes);
    if (data == NULL)
        abort();
    return data;
}

static struct bytes copy_bytes(const void *data, size_t nbytes)
{
    struct bytes b = { malloc(nbytes + 1), nbytes };
    if (b.data == NULL)
        abort();
    memcpy(b.data, data, nbytes);
    b.data[nbytes] = '\0';
    return b;
}

/* ---- names */

static struct name *find(const struct names *n, int dir, const char *name)
{
    for (size_t i = 0; i < n->count; i++)
        if (n->list[i].dir == dir && strcmp(n->list[i].name, name) == 0)
            return &n->list[i];
    return NULL;
}

static void set(struct names *n, int dir, const char *name, int node)
{
    struct name *old = find(n, dir, name);
    if (old == NULL) {
        n->list = grow(n->list, n->count, &n->capacity, sizeof *n->list);
        old = &n->list[n->count++];
        old->dir = dir;
        snprintf(old->name, sizeof old->name, "%s", name);
    }
    old->node = node;
}

static void unset(struct names *n, int dir, const char *name)
{
    struct name *old = find(n, dir, name);
    if (old != NULL)
        *old = n->list[--n->count];
}

static bool is_empty(const struct names *n, int dir)
{
    for (size_t i = 0; i < n->count; i++)
        if (n->list[i].dir == dir)
            return false;
    return true;
}

/* Finds the directory of a path's last part. Returns false if the path is outside the root, or its directory is
 * unknown. */
static bool locate(const struct power_log *log, const char *path, int *dir, char leaf[NAME_NBYTES])
{
    size_t n = strlen(log->root);
    if (strncmp(path, log->root, n) != 0 || path[n] != '/')
        return false;
    *dir = 0;
    for (path += n + 1;; path++) {
        size_t part = strcspn(path, "/");
        snprintf(leaf, NAME_NBYTES, "%.*s", (int)part, path);
        path += part;
        if (*path == '\0')
            return true;
        const struct name *next = find(&log->now, *dir, leaf);
        if (next == NULL)
            return false;
        *dir = next->node;
    }
}

/* Node of a path, or -1. */
static int lookup(const struct power_log *log, const char *path)
{
    int dir;
    char leaf[NAME_NBYTES];
    if (strcmp(path, log->root) == 0)
        return 0;
    if (!locate(log, path, &dir, leaf))
        return -1;
    const struct name *n = find(&log->now, dir, leaf);
    return n != NULL ? n->node : -1;
}

/* ---- loading the initial tree */

static int new_node(struct power_log *log, enum node_type type)
{
    log->nodes = grow(log->nodes, log->nnodes, &log->nodes_capacity, sizeof *log->nodes);
    log->nodes[log->nnodes] = (struct node){ type, copy_bytes("", 0) };
    return (int)log->nnodes++;
}

static struct bytes slurp(const char *path)
{
    char buf[65536];
    struct bytes b = copy_bytes("", 0);
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        abort();
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0; b.nbytes += n) {
        b.data = realloc(b.data, b.nbytes + n + 1);
        if (b.data == NULL)
            abort();
        memcpy(b.data + b.nbytes, buf, n);
    }
    fclose(f);
    return b;
}

static void take_in(struct power_log *log, const char *path, int dir)
{
    DIR *d = opendir(path);
    if (d == NULL)
        abort();
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char child[PATH_MAX], target[PATH_MAX];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (snprintf(child, sizeof child, "%s/%s", path, e->d_name) >= (int)sizeof child || lstat(child, &st) != 0)
            abort();
        int node = new_node(log, S_ISDIR(st.st_mode) ? NODE_DIR : S_ISLNK(st.st_mode) ? NODE_LINK : NODE_FILE);
        set(&log->start, dir, e->d_name, node);
        if (S_ISDIR(st.st_mode)) {
            take_in(log, child, node);
            continue;
        }
        free(log->nodes[node].start.data);
        ssize_t n = S_ISLNK(st.st_mode) ? readlink(child, target, sizeof target) : -1;
        log->nodes[node].start = n >= 0 ? copy_bytes(target, (size_t)n) : slurp(child);
    }
    closedir(d);
}

static void copy_names(struct names *to, const struct names *from)
{
    memset(to, 0, sizeof *to);
    for (size_t i = 0; i < from->count; i++)
        set(to, from->list[i].dir, from->list[i].name, from->list[i].node);
}

struct power_log *power_log_new(const char *root)
{
    struct power_log *log = calloc(1, sizeof *log);
    if (log == NULL)
        abort();
    snprintf(log->root, sizeof log->root, "%s", root);
    new_node(log, NODE_DIR);
    take_in(log, root, 0);
    copy_names(&log->now, &log->start);
    for (int i = 0; i < MAX_FD; i++)
        log->fds[i] = -1;
    return log;
}

void power_log_free(struct power_log *log)
{
    for (size_t i = 0; i < log->nnodes; i++)
        free(log->nodes[i].start.data);
    for (size_t i = 0; i < log->nevents; i++)
        free(log->events[i].data.data);
    free(log->nodes);
    free(log->events);
    free(log->start.list);
    free(log->now.list);
    free(log);
}

/* ---- recording */

static struct event *add_event(struct power_log *log, enum event_kind kind, int node)
{
    log->events = grow(log->events, log->nevents, &log->events_capacity, sizeof *log->events);
    struct event *e = &log->events[log->nevents++];
    *e = (struct event){ .kind = kind, .node = node, .dir = -1, .dir2 = -1, .fsync = -1 };
    return e;
}

static void add_link(struct power_log *log, const char *path, enum node_type type)
{
    int dir;
    char leaf[NAME_NBYTES];
    if (!locate(log, path, &dir, leaf))
        return;
    struct event *e = add_event(log, EV_LINK, new_node(log, type));
    e->dir = dir;
    strcpy(e->name, leaf);
    set(&log->now, dir, leaf, e->node);
}

void power_log_open(struct power_log *log, int fd, const char *path, bool created)
{
    if (created)
        add_link(log, path, NODE_FILE);
    if (fd < MAX_FD)
        log->fds[fd] = lookup(log, path);
}

void power_log_close(struct power_log *log, int fd)
{
    if (fd >= 0 && fd < MAX_FD)
        log->fds[fd] = -1;
}

static int node_of(const struct power_log *log, int fd)
{
    return fd >= 0 && fd < MAX_FD ? log->fds[fd] : -1;
}

void power_log_write(struct power_log *log, int fd, const void *data, size_t nbytes, uint64_t offset)
{
    if (node_of(log, fd) < 0)
        return;
    struct event *e = add_event(log, EV_WRITE, node_of(log, fd));
    e->data = copy_bytes(data, nbytes);
    e->offset = offset;
}

void power_log_truncate(struct power_log *log, int fd, uint64_t nbytes)
{
    if (node_of(log, fd) >= 0)
        add_event(log, EV_TRUNCATE, node_of(log, fd))->offset = nbytes;
}

void power_log_fsync(struct power_log *log, int fd)
{
    if (node_of(log, fd) >= 0)
        add_event(log, EV_FSYNC, node_of(log, fd))->fsync = log->nfsyncs++;
}

void power_log_mkdir(struct power_log *log, const char *path)
{
    add_link(log, path, NODE_DIR);
}

void power_log_rename(struct power_log *log, const char *from, const char *to)
{
    int dir, dir2, node = lookup(log, from);
    char name[NAME_NBYTES], name2[NAME_NBYTES];
    if (node < 0 || !locate(log, from, &dir, name) || !locate(log, to, &dir2, name2))
        return;
    struct event *e = add_event(log, EV_RENAME, node);
    e->dir = dir;
    e->dir2 = dir2;
    strcpy(e->name, name);
    strcpy(e->name2, name2);
    unset(&log->now, dir, name);
    set(&log->now, dir2, name2, node);
}

void power_log_exchange(struct power_log *log, const char *a, const char *b)
{
    int dir, dir2, node = lookup(log, a), other = lookup(log, b);
    char name[NAME_NBYTES], name2[NAME_NBYTES];
    if (node < 0 || other < 0 || !locate(log, a, &dir, name) || !locate(log, b, &dir2, name2))
        return;
    struct event *e = add_event(log, EV_EXCHANGE, node);
    e->other = other;
    e->dir = dir;
    e->dir2 = dir2;
    strcpy(e->name, name);
    strcpy(e->name2, name2);
    set(&log->now, dir, name, other);
    set(&log->now, dir2, name2, node);
}

void power_log_remove(struct power_log *log, const char *path)
{
    int dir, node = lookup(log, path);
    char leaf[NAME_NBYTES];
    if (node < 0 || !locate(log, path, &dir, leaf))
        return;
    struct event *e = add_event(log, EV_UNLINK, node);
    e->dir = dir;
    strcpy(e->name, leaf);
    unset(&log->now, dir, leaf);
}

size_t power_log_nevents(const struct power_log *log)
{
    return log->nevents;
}
size_t power_log_nfsyncs(const struct power_log *log)
{
    return (size_t)log->nfsyncs;
}

/* ---- the tree after a crash */

struct crash {
    const struct power_log *log;
    size_t nevents;
    int seed, ignored;
    uint64_t random, digest;
    struct names names;
};

static uint64_t draw(struct crash *c, uint64_t n)
{
    uint64_t z = c->random += 0x9E3779B97F4A7C15u; /* splitmix64: neighbouring seeds give unrelated draws */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (z ^ (z >> 31)) % n;
}

static bool is_effective(const struct crash *c, const struct event *e)
{
    return e->kind == EV_FSYNC && e->fsync != c->ignored;
}

static bool synced_after(const struct crash *c, size_t i, int node)
{
    for (size_t j = i + 1; j < c->nevents; j++)
        if (is_effective(c, &c->log->events[j]) && c->log->events[j].node == node)
            return true;
    return false;
}

/* Every fourth seed loses all that is not safe, the next one loses nothing, the others are random. */
static bool happens(struct crash *c, size_t i)
{
    const struct event *e = &c->log->events[i];
    if (c->seed < 0 || c->seed % 4 == 1)
        return true;
    if (synced_after(c, i, e->dir) && (e->dir2 < 0 || synced_after(c, i, e->dir2)))
        return true;
    return c->seed % 4 != 0 && draw(c, 2) == 0;
}

static bool has(const struct crash *c, int dir, const char *name, int node)
{
    const struct name *n = find(&c->names, dir, name);
    return n != NULL && n->node == node;
}

static void apply(struct crash *c, const struct event *e)
{
    const struct name *target;
    switch (e->kind) {
    case EV_LINK:
        if (find(&c->names, e->dir, e->name) == NULL)
            set(&c->names, e->dir, e->name, e->node);
        break;
    case EV_UNLINK:
        if (has(c, e->dir, e->name, e->node))
            unset(&c->names, e->dir, e->name);
        break;
    case EV_RENAME:
        target = find(&c->names, e->dir2, e->name2);
        if (!has(c, e->dir, e->name, e->node) || (target != NULL && !is_empty(&c->names, target->node)))
            break;
        unset(&c->names, e->dir, e->name);
        set(&c->names, e->dir2, e->name2, e->node);
        break;
    case EV_EXCHANGE:
        if (has(c, e->dir, e->name, e->node) && has(c, e->dir2, e->name2, e->other)) {
            set(&c->names, e->dir, e->name, e->other);
            set(&c->names, e->dir2, e->name2, e->node);
        }
        break;
    default: break;
    }
}

static void resize(struct bytes *b, size_t nbytes)
{
    b->data = realloc(b->data, nbytes + 1);
    if (b->data == NULL)
        abort();
    if (nbytes > b->nbytes)
        memset(b->data + b->nbytes, 0, nbytes - b->nbytes);
    b->nbytes = nbytes;
}

/* Contents after the first n events. */
static struct bytes contents(const struct power_log *log, int node, size_t n)
{
    struct bytes b = copy_bytes(log->nodes[node].start.data, log->nodes[node].start.nbytes);
    for (size_t i = 0; i < n; i++) {
        const struct event *e = &log->events[i];
        if (e->node != node)
            continue;
        if (e->kind == EV_TRUNCATE)
            resize(&b, e->offset);
        if (e->kind == EV_WRITE) {
            if (e->offset + e->data.nbytes > b.nbytes)
                resize(&b, e->offset + e->data.nbytes);
            memcpy(b.data + e->offset, e->data.data, e->data.nbytes);
        }
    }
    return b;
}

static struct bytes surviving(struct crash *c, int node)
{
    size_t synced = 0;
    for (size_t i = 0; i < c->nevents; i++)
        if (c->log->events[i].node == node && is_effective(c, &c->log->events[i]))
            synced = i;
    struct bytes safe = contents(c->log, node, synced), last = contents(c->log, node, c->nevents);
    bool same = safe.nbytes == last.nbytes && memcmp(safe.data, last.data, safe.nbytes) == 0;
    uint64_t choice = same || c->seed < 0 || c->seed % 4 == 1 ? 0 : c->seed % 4 == 0 ? 1 : draw(c, 4);
    if (choice == 1) {
        free(last.data);
        return safe;
    }
    if (choice == 2)
        resize(&last, last.nbytes / 2);
    if (choice == 3)
        memset(last.data, 0, last.nbytes);
    free(safe.data);
    return last;
}

/* Adds data to the digest. */
static void digest(struct crash *c, const void *data, size_t nbytes)
{
    struct fsdpck_hash128 hash;
    uint64_t low;
    fsdpck_hash(data, nbytes, &hash);
    memcpy(&low, hash.bytes, sizeof low);
    c->digest = (c->digest ^ low) * 0x9E3779B97F4A7C15u + nbytes;
}

static void write_file(const char *path, const struct bytes *b)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(b->data, 1, b->nbytes, f) != b->nbytes || fclose(f) != 0)
        abort();
}

/* Leaves one name in a directory. path NULL: only for the digest. */
static void leave(struct crash *c, const struct name *n, const char *path)
{
    const struct node *node = &c->log->nodes[n->node];
    digest(c, n->name, strlen(n->name));
    digest(c, &node->type, sizeof node->type);
    struct bytes b = node->type == NODE_FILE ? surviving(c, n->node) : copy_bytes(node->start.data, node->start.nbytes);
    digest(c, b.data, b.nbytes);
    if (path != NULL && node->type == NODE_FILE)
        write_file(path, &b);
    if (path != NULL && node->type == NODE_LINK && symlink(b.data, path) != 0)
        abort();
    free(b.data);
}

static void leave_tree(struct crash *c, int dir, const char *path)
{
    if (path != NULL && mkdir(path, 0777) != 0)
        abort();
    for (size_t i = 0; i < c->names.count; i++) {
        const struct name *n = &c->names.list[i];
        char child[PATH_MAX];
        if (n->dir != dir)
            continue;
        if (path != NULL && snprintf(child, sizeof child, "%s/%s", path, n->name) >= (int)sizeof child)
            abort();
        leave(c, n, path != NULL ? child : NULL);
        if (c->log->nodes[n->node].type == NODE_DIR)
            leave_tree(c, n->node, path != NULL ? child : NULL);
    }
    digest(c, "", 0); /* marks the end of a directory */
}

uint64_t power_log_replay(const struct power_log *log, size_t nevents, int seed, int ignored, const char *to)
{
    struct crash c = { .log = log, .nevents = nevents, .seed = seed, .ignored = ignored };
    c.random = ((uint64_t)(seed + 2) << 32) + nevents;
    copy_names(&c.names, &log->start);
    for (size_t i = 0; i < nevents; i++)
        if (log->events[i].dir >= 0 && happens(&c, i))
            apply(&c, &log->events[i]);
    leave_tree(&c, 0, to);
    free(c.names.list);
    return c.digest;
}

const char *power_log_text(const struct power_log *log, size_t event, char *buf, size_t nbytes)
{
    static const char *const kinds[] = { "write", "truncate", "fsync", "make", "remove", "rename", "exchange" };
    const struct event *e = &log->events[event];
    const char *name = e->name;
    for (size_t i = 0; i < log->now.count && name[0] == '\0'; i++)
        if (log->now.list[i].node == e->node)
            name = log->now.list[i].name;
    snprintf(buf, nbytes, "%s %s%s%s", kinds[e->kind], name[0] != '\0' ? name : "(root or removed)",
             e->name2[0] != '\0' ? " to " : "", e->name2);
    return buf;
}
