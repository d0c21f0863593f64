/* SPDX-License-Identifier: Apache-2.0 */
#include "run/recall.h"

#include <stdlib.h>
#include <string.h>

#include "rank/files.h"

struct reading {
    bool (*read)(const struct fsdpck_source *src, void *out);
    void *out;
};

static bool read_checkpoint(const struct reading *r, const char *path)
{
    struct fsdpck_error ignored = { 0 };
    struct fsdpck_source *src;
    const bool found = fsdpck_source_open(path, "fsdpck", NULL, &src, &ignored) == 0 && r->read(src, r->out);
    fsdpck_source_close(src);
    return found;
}

static bool read_newest(const struct reading *r, const struct train_config *config)
{
    struct fsdpck_error ignored = { 0 };
    uint64_t *steps = NULL;
    size_t count = 0;
    char path[FILES_PATH];
    bool found = false;
    int rc = files_list_checkpoints(config, &steps, &count, &ignored);
    for (size_t i = 0; !rc && i < count && !found; i++)
        found = files_checkpoint_path(config, steps[i], path, &ignored) == 0 && read_checkpoint(r, path);
    free(steps);
    return found;
}

bool recall(const struct train_config *config, const struct train_options *opt,
            bool (*read)(const struct fsdpck_source *src, void *out), void *out)
{
    const struct reading r = { read, out };
    const char *resume = opt->resume ? opt->resume : "auto";
    if (strcmp(resume, "never") == 0)
        return false;
    return strcmp(resume, "auto") == 0 ? read_newest(&r, config) : read_checkpoint(&r, resume);
}
