/* SPDX-License-Identifier: Apache-2.0 */
/* The note about what an export leaves behind because it takes one tree of a checkpoint. Knows nothing of how the tree
 * was chosen. */
#include "engine/selection.h"

#include <stdio.h>

void fsdpck_selection_note_left(const struct fsdpck_selection *s, const struct fsdpck_select *select,
                                const struct fsdpck_options *opt)
{
    char line[1024], tensors[40] = "", values[40] = "";
    size_t nt = s->nleft_tensors, ni = s->nleft_items;
    if (!opt->note || select->tree || (!nt && !ni))
        return;
    if (nt)
        snprintf(tensors, sizeof tensors, "%zu tensor%s", nt, nt == 1 ? "" : "s");
    if (ni)
        snprintf(values, sizeof values, "%zu value%s", ni, ni == 1 ? "" : "s");
    if (s->flat_only)
        snprintf(line, sizeof line, "only the tensors outside all trees are written; left behind: %s%s%s in trees",
                 tensors, nt && ni ? ", " : "", values);
    else
        snprintf(line, sizeof line, "only the tree '%s' is written; left behind: %s%s%s outside it", s->tree, tensors,
                 nt && ni ? ", " : "", values);
    opt->note(opt->ctx, line);
}
