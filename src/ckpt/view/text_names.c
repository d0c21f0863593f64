/* SPDX-License-Identifier: Apache-2.0 */
/* See text_names.h. */
#include "view/text_names.h"

#include <stdio.h>
#include <string.h>

const struct fsdpck_text_names fsdpck_text_alone = { "model.", "lm_head." };

bool fsdpck_text_has(const struct fsdpck_text_names *names, const char *name)
{
    return strncmp(name, names->model, strlen(names->model)) == 0;
}

/* Replaces the beginning `from` by `to` in out; returns false where the name has another beginning. */
static bool replace(const char *name, const char *from, const char *to, char *out, size_t nbytes)
{
    const size_t n = strlen(from);
    if (strncmp(name, from, n) != 0)
        return false;
    snprintf(out, nbytes, "%s%s", to, name + n);
    return true;
}

void fsdpck_text_rename(const struct fsdpck_text_names *from, const struct fsdpck_text_names *to, const char *name,
                        char *out, size_t nbytes)
{
    if (!replace(name, from->model, to->model, out, nbytes) && !replace(name, from->head, to->head, out, nbytes))
        snprintf(out, nbytes, "%s", name);
}
