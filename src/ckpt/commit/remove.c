/* SPDX-License-Identifier: Apache-2.0 */
/* Removes trees without following links and without recursion. It does not know their contents. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

/* If a directory is still not empty after this many lists, something keeps filling it: a file system (FUSE, NFS) that
 * renames open files instead of removing them does so without end. */
enum { MAX_LISTS = 8 };

struct entry {
    char *path;
    unsigned nlists;
};

/* Takes ownership of the path. NULL means out of memory. */
static int push(struct fsdpck_vec *stack, char *path, struct fsdpck_error *err)
{
    struct entry *e = path ? fsdpck_vec_push(stack, err) : NULL;
    if (!e) {
        free(path);
        return FSDPCK_ERR_NOMEM;
    }
    *e = (struct entry){ .path = path };
    return 0;
}

/* Pushes the entries of the directory on top of the stack. */
static int push_entries(const struct fsdpck_io *io, const char *dir, struct fsdpck_vec *stack, size_t *npushed,
                        struct fsdpck_error *err)
{
    char **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(io, dir, &names, &count, err);
    for (size_t i = 0; !rc && i < count; i++)
        rc = push(stack, fsdpck_path_join(dir, names[i], err), err);
    *npushed = count;
    fsdpck_list_free(names, count);
    return rc;
}

static void pop(struct fsdpck_vec *stack)
{
    struct entry *entries = stack->data;
    free(entries[--stack->count].path);
}

/* Removes the top of the stack, or pushes its entries. */
static int remove_top(const struct fsdpck_io *io, struct fsdpck_vec *stack, struct fsdpck_error *err)
{
    struct entry *e = &((struct entry *)stack->data)[stack->count - 1];
    const char *path = e->path;
    struct fsdpck_stat st;
    size_t nentries = 0;
    int rc = io->stat(io->ctx, path, false, &st);
    if (!rc)
        rc = st.type == FSDPCK_FILE_DIRECTORY ? io->rmdir(io->ctx, path) : io->unlink(io->ctx, path);
    if ((rc == -ENOTEMPTY || rc == -EEXIST) && e->nlists++ < MAX_LISTS) {
        rc = push_entries(io, path, stack, &nentries, err);
        if (rc)
            return rc;
        if (nentries > 0)
            return 0;
        rc = io->rmdir(io->ctx, path); /* another process emptied it meanwhile */
    }
    if (rc < 0 && rc != -ENOENT)
        return fsdpck_error_sys(err, -rc, path, "cannot remove");
    pop(stack);
    return 0;
}

int fsdpck_remove_tree(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err)
{
    struct fsdpck_vec stack = FSDPCK_VEC(struct entry);
    char *copy = strdup(path);
    int rc = copy ? push(&stack, copy, err) : fsdpck_error_nomem(err, strlen(path));
    while (!rc && stack.count > 0)
        rc = remove_top(io, &stack, err);
    while (stack.count > 0)
        pop(&stack);
    fsdpck_vec_free(&stack);
    return rc;
}
