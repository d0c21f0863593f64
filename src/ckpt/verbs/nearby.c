/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises run folders and step folders of trainers: step-000200, checkpoint-500, iter_0000007, global_step12,
 * 1000. */
#include "verbs/nearby.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "base/suffix.h"

/* Files that identify a folder as a checkpoint. check_name() recognises others by the ends of their names. */
static const char *const marks[] = { "index.json", ".metadata", FSDPCK_DCP_FIRST_PART "/.metadata",
                                     "model.safetensors.index.json", NULL };

struct search {
    const struct fsdpck_source *src;
    char *newest; /* path relative to the source's folder */
    uint64_t step, count;
};

static int check_name(void *ctx, const char *name)
{
    *(bool *)ctx |= ends_with(name, ".safetensors") || ends_with(name, ".pt") || ends_with(name, ".pth") ||
                    ends_with(name, ".bin") || fsdpck_dcp_ranks_is(name);
    return 0;
}

static bool is_checkpoint(const struct fsdpck_source *src, const char *folder)
{
    bool is = false;
    if (!fsdpck_is_directory(src->io, folder) || src->io->list(src->io->ctx, folder, check_name, &is) < 0)
        return false;
    for (size_t i = 0; !is && marks[i]; i++) {
        char *path = fsdpck_path_join(folder, marks[i], NULL);
        is = path && fsdpck_is_file(src->io, path);
        free(path);
    }
    return is;
}

/* Parses the number at the end of a step folder's name. Left-overs of writers ("step-000200.tmp-…") have a dot in their
 * names. */
static bool is_step(const char *name, uint64_t *step)
{
    const char *digits = name + strlen(name);
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    *step = strtoull(digits, NULL, 10);
    return *digits && !strchr(name, '.');
}

static void search(struct search *s, const char *below)
{
    char **names, *folder = fsdpck_path_join(s->src->path, below, NULL);
    size_t count;
    if (!folder || !fsdpck_is_directory(s->src->io, folder) ||
        fsdpck_list_sorted(s->src->io, folder, &names, &count, NULL) != 0) {
        free(folder);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t step;
        char *path = is_step(names[i], &step) ? fsdpck_path_join(folder, names[i], NULL) : NULL;
        bool is = path && is_checkpoint(s->src, path);
        s->count += is;
        if (is && (!s->newest || step >= s->step)) {
            free(s->newest);
            s->newest = path;
            s->step = step;
            path = NULL;
        }
        free(path);
    }
    fsdpck_list_free(names, count);
    free(folder);
}

bool fsdpck_hint_nearby(const struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct search s = { .src = src };
    search(&s, "");
    if (!s.newest)
        search(&s, "checkpoints");
    if (s.newest && s.count > 1)
        fsdpck_error_hint(err, "it holds %" PRIu64 " checkpoints: give one of them, the newest is '%s'", s.count,
                          s.newest);
    else if (s.newest)
        fsdpck_error_hint(err, "it holds a checkpoint: give '%s'", s.newest);
    bool found = s.newest != NULL;
    free(s.newest);
    return found;
}
