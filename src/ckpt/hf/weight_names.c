/* SPDX-License-Identifier: Apache-2.0 */
/* See weight_names.h. */
#include "hf/weight_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "hf/name_pattern.h"

const char *fsdpck_weight_name(const struct fsdpck_tensor *t)
{
    bool nested = t->npath > 1 && t->path[0].str && !strcmp(t->path[0].str, "model") && !strncmp(t->name, "model.", 6);
    return nested ? t->name + 6 : t->name;
}

const char *fsdpck_weight_in_layer(const char *name, uint64_t *layer)
{
    static const char layers[] = "model.layers.";
    const size_t n = sizeof layers - 1;
    const char *rest = strncmp(name, layers, n) == 0 ? fsdpck_name_index(name + n, layer) : NULL;
    return rest && *rest == '.' ? rest + 1 : NULL;
}

bool fsdpck_weight_is_state(const struct fsdpck_tensor *t)
{
    static const char *const trees[] = { "optimizer",   "optim",      "state", "param_groups", "lr_scheduler",
                                         "train_state", "dataloader", "ema",   "extra_state",  "master" };
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        size_t n = strlen(trees[i]);
        if (!strncmp(t->name, trees[i], n) && (t->name[n] == '.' || t->name[n] == 0))
            return true;
    }
    return false;
}

char *fsdpck_weight_config(const struct fsdpck_source *src, const char *folder)
{
    if (folder)
        return fsdpck_path_join(folder, "config.json", NULL);
    for (size_t i = 0; i < src->assets.count; i++)
        if (!strcmp(source_assets(src)[i].pub.path, "config.json"))
            return strdup(source_assets(src)[i].from);
    return NULL;
}

void fsdpck_weight_note_left_out(const struct fsdpck_source *src, size_t nleft, size_t nitems)
{
    char line[160];
    if (!src->opt.note || (!nleft && !nitems))
        return;
    snprintf(
        line, sizeof line,
        "only the model's weights get other names: %zu tensor%s and %zu value%s of the trainer's state are left out",
        nleft, fsdpck_plural(nleft), nitems, fsdpck_plural(nitems));
    src->opt.note(src->opt.ctx, line);
}

void fsdpck_weight_note_unchanged(const struct fsdpck_source *src, const char *names)
{
    char line[120];
    if (!names)
        return;
    snprintf(line, sizeof line, "--names %s: the weights are called so already, and are taken as they are", names);
    if (src->opt.note)
        src->opt.note(src->opt.ctx, line);
}
