/* SPDX-License-Identifier: Apache-2.0 */
/* Small directory trees for tests. Knows nothing of the library, so that it cannot share its mistakes. */
#include "tree.h"

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void *must(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

char *tree_path(const char *dir, const char *name)
{
    char *path = must(malloc(strlen(dir) + strlen(name) + 2));
    sprintf(path, "%s/%s", dir, name);
    return path;
}

/* Containers have a /dev/shm of 64 MiB, or none. */
static bool is_roomy(const char *dir)
{
    struct statvfs st;
    return access(dir, W_OK | X_OK) == 0 && statvfs(dir, &st) == 0 &&
           (uint64_t)st.f_bavail * st.f_frsize >= (uint64_t)4 << 30;
}

static char *new_in(const char *otherwise)
{
    const char *base = getenv("TMPDIR");
    if (base == NULL || base[0] != '/')
        base = otherwise;
    char *made = tree_path(base, "fsdpck-test-XXXXXX");
    must(mkdtemp(made));
    char *path = must(realpath(made, NULL));
    free(made);
    return path;
}

/* In memory, because some tests make a hundred thousand small files. */
char *tree_new(void)
{
    return new_in(is_roomy("/dev/shm") ? "/dev/shm" : "/tmp");
}

char *tree_new_on_disk(void)
{
    return new_in("/tmp");
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Entries of a folder, sorted, ended by NULL. */
static char **entries(const char *path)
{
    size_t n = 0;
    char **list = must(calloc(1, sizeof *list));
    DIR *d = must(opendir(path));
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        list = must(realloc(list, (n + 2) * sizeof *list));
        list[n++] = must(strdup(e->d_name));
        list[n] = NULL;
    }
    closedir(d);
    qsort(list, n, sizeof *list, compare_strings);
    return list;
}

void tree_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return;
    if (!S_ISDIR(st.st_mode)) {
        unlink(path);
        return;
    }
    chmod(path, 0700);
    char **list = entries(path);
    for (size_t i = 0; list[i] != NULL; i++) {
        char *child = tree_path(path, list[i]);
        tree_remove(child);
        free(child);
        free(list[i]);
    }
    free(list);
    rmdir(path);
}

static void make_above(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0777);
        *p = '/';
    }
}

void tree_file(const char *dir, const char *name, const char *text)
{
    char *path = tree_path(dir, name);
    make_above(path);
    FILE *f = must(fopen(path, "wb"));
    if (fputs(text, f) < 0 || fclose(f) != 0)
        abort();
    free(path);
}

void tree_dir(const char *dir, const char *name)
{
    char *path = tree_path(dir, name);
    make_above(path);
    if (mkdir(path, 0777) != 0)
        abort();
    free(path);
}

bool tree_exists(const char *dir, const char *name)
{
    struct stat st;
    char *path = tree_path(dir, name);
    bool there = lstat(path, &st) == 0;
    free(path);
    return there;
}

struct text {
    char *data;
    size_t nbytes, room;
    bool names; /* names only */
};

static void append(struct text *t, const char *bytes, size_t nbytes)
{
    if (t->room < t->nbytes + nbytes + 1) { /* doubled, because a sanitizer's realloc() is slow */
        t->room = 2 * (t->nbytes + nbytes + 1);
        t->data = must(realloc(t->data, t->room));
    }
    memcpy(t->data + t->nbytes, bytes, nbytes);
    t->nbytes += nbytes;
    t->data[t->nbytes] = '\0';
}

static void append_string(struct text *t, const char *s)
{
    append(t, s, strlen(s));
}

static void dump_entry(struct text *t, const char *path, const char *name);

static void dump_dir(struct text *t, const char *path, const char *name)
{
    char **list = entries(path);
    for (size_t i = 0; list[i] != NULL; i++) {
        char *child = tree_path(path, list[i]),
             *full = name[0] != '\0' ? tree_path(name, list[i]) : must(strdup(list[i]));
        dump_entry(t, child, full);
        free(full);
        free(child);
        free(list[i]);
    }
    free(list);
}

static void dump_entry(struct text *t, const char *path, const char *name)
{
    struct stat st;
    char buf[4096];
    if (lstat(path, &st) != 0)
        abort();
    append_string(t, name);
    if (S_ISDIR(st.st_mode)) {
        append_string(t, "/\n");
        dump_dir(t, path, name);
        return;
    }
    if (t->names) {
        append_string(t, "\n");
        return;
    }
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(path, buf, sizeof buf);
        append_string(t, "->");
        append(t, buf, n > 0 ? (size_t)n : 0);
    } else {
        FILE *f = must(fopen(path, "rb"));
        append_string(t, "=");
        for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0;)
            append(t, buf, n);
        fclose(f);
    }
    append_string(t, "\n");
}

static char *dump(const char *path, bool names)
{
    struct text t = { .names = names };
    struct stat st;
    append_string(&t, "");
    if (lstat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            dump_dir(&t, path, "");
        else
            dump_entry(&t, path, "");
    }
    return t.data;
}

char *tree_dump(const char *path)
{
    return dump(path, false);
}
char *tree_names(const char *path)
{
    return dump(path, true);
}

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    FILE *in = must(fopen(from, "rb")), *out = must(fopen(to, "wb"));
    for (size_t n; (n = fread(buf, 1, sizeof buf, in)) > 0;)
        if (fwrite(buf, 1, n, out) != n)
            abort();
    fclose(in);
    if (fclose(out) != 0)
        abort();
}

void tree_copy(const char *from, const char *to)
{
    struct stat st;
    if (stat(from, &st) != 0)
        abort();
    if (!S_ISDIR(st.st_mode)) {
        copy_file(from, to);
        return;
    }
    mkdir(to, 0777);
    char **list = entries(from);
    for (size_t i = 0; list[i] != NULL; i++) {
        char *a = tree_path(from, list[i]), *b = tree_path(to, list[i]);
        tree_copy(a, b);
        free(a);
        free(b);
        free(list[i]);
    }
    free(list);
}
