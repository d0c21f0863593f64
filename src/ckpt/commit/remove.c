/* Removes trees without following links and without recursion. Knows nothing of what they held. */
#include "commit/commit_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

/* Pushes the entries of the directory on top of the stack. */
static int push_entries(const struct fsdpck_io *io, const char *dir, struct fsdpck_vec *stack, size_t *npushed, struct fsdpck_error *err)
{
    char **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(io, dir, &names, &count, err);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = fsdpck_strings_take(stack, fsdpck_path_join(dir, names[i], err), err);
    *npushed = count;
    fsdpck_list_free(names, count);
    return rc;
}

static void pop(struct fsdpck_vec *stack)
{
    char **paths = stack->data;
    free(paths[--stack->count]);
}

/* Removes the top of the stack, or puts what it holds on top of it. */
static int remove_top(const struct fsdpck_io *io, struct fsdpck_vec *stack, struct fsdpck_error *err)
{
    const char *path = ((char **)stack->data)[stack->count - 1];
    struct fsdpck_stat st;
    size_t nentries = 0;
    int rc = io->stat(io->ctx, path, false, &st);
    if (rc == 0)
        rc = st.type == FSDPCK_FILE_DIRECTORY ? io->rmdir(io->ctx, path) : io->unlink(io->ctx, path);
    if (rc == -ENOTEMPTY || rc == -EEXIST) {
        rc = push_entries(io, path, stack, &nentries, err);
        if (rc != 0)
            return rc;
        if (nentries > 0)
            return 0;
        rc = io->rmdir(io->ctx, path); /* emptied by another one meanwhile */
    }
    if (rc < 0 && rc != -ENOENT)
        return fsdpck_error_sys(err, -rc, path, "cannot remove");
    pop(stack);
    return 0;
}

int fsdpck_remove_tree(const struct fsdpck_io *io, const char *path, struct fsdpck_error *err)
{
    struct fsdpck_vec stack = FSDPCK_VEC(char *);
    int rc = fsdpck_strings_add(&stack, path, err);
    while (rc == 0 && stack.count > 0)
        rc = remove_top(io, &stack, err);
    fsdpck_strings_free(&stack);
    return rc;
}
