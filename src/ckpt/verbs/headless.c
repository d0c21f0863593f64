/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises an fsdpck checkpoint without its index by the trailers of its shard files. */
#include "verbs/headless.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/ioutil.h"
#include "format/table.h"

static int refuse(const struct fsdpck_source *src, const char *file, const char *save_id, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->path,
                     "is incomplete: '%s' is a shard of the fsdpck checkpoint of save %s, whose index.json is not here",
                     file, *save_id ? save_id : "(its trailer is damaged)");
    fsdpck_error_hint(
        err,
        "its writer did not finish, or the file was lost; '--from dcp' reads what .metadata names, without its hashes");
    return FSDPCK_ERR_MISSING;
}

bool fsdpck_is_headless(const struct fsdpck_source *src, const char *shard, struct fsdpck_error *err)
{
    char save_id[37], *path = *shard ? fsdpck_path_join(src->path, shard, err) : NULL;
    bool is = path && fsdpck_shard_is(src->io, path, save_id);
    if (is)
        refuse(src, shard, save_id, err);
    free(path);
    return is;
}

int fsdpck_headless_check(struct fsdpck_source *src, bool insists, struct fsdpck_error *err)
{
    char save_id[37], line[200];
    for (size_t i = 0; i < src->files.count; i++) {
        if (!fsdpck_shard_is(src->io, source_files(src)[i].path, save_id))
            continue;
        if (!insists)
            return refuse(src, source_files(src)[i].pub.name, save_id, err);
        snprintf(line, sizeof line,
                 "an fsdpck checkpoint (save %s) is read as PyTorch's: the hashes in its shards are not looked at",
                 save_id);
        if (src->opt.note)
            src->opt.note(src->opt.ctx, line);
        return 0;
    }
    return 0;
}
