/* SPDX-License-Identifier: Apache-2.0 */
/* Tied embeddings: a model's two names for one tensor, if its files list only one. */
#include "hf/ties.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/ioutil.h"
#include "commit/commit_view.h"
#include "hf/config.h"

static int add_heads(struct fsdpck_source *src, struct fsdpck_error *err)
{
    size_t n = src->tensors.count;
    for (size_t i = 0; i < n; i++) {
        const char *head = fsdpck_config_tied_head(source_tensors(src)[i].name);
        if (!head || fsdpck_names_find(&src->names, head) != SIZE_MAX)
            continue;
        int rc = fsdpck_source_add_alias(src, src->path, head, NULL, 0, i, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool is_tied(struct fsdpck_source *src, const char *path)
{
    struct fsdpck_error why = { 0 };
    char *text = NULL, line[1024];
    uint64_t nbytes;
    bool tied = false;
    if (fsdpck_read_file(src->io, path, FSDPCK_CONFIG_MAX_NBYTES, &text, &nbytes, &why) != 0 ||
        fsdpck_config_tied(path, text, nbytes, &tied, &why) != 0) {
        snprintf(line, sizeof line, "config.json is not understood (%s): tied embeddings, if any, are not known",
                 why.message);
        if (src->opt.note)
            src->opt.note(src->opt.ctx, line);
    }
    free(text);
    return tied;
}

int fsdpck_ties_add(struct fsdpck_source *src, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_commit_view view = { 0 };
    char *path = NULL, **names = NULL;
    size_t count = 0;
    int rc = fsdpck_list_sorted(src->io, folder, &names, &count, err);
    if (!rc)
        rc = fsdpck_commit_view(src->io, folder, names, count, &view, err);
    if (!rc && !(path = fsdpck_commit_view_path(&view, folder, "config.json", err)))
        rc = FSDPCK_ERR_NOMEM;
    fsdpck_commit_view_free(&view);
    fsdpck_list_free(names, count);
    if (rc)
        return rc;
    bool tied = fsdpck_is_file(src->io, path) && is_tied(src, path);
    free(path);
    return tied ? add_heads(src, err) : 0;
}
