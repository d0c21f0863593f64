/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the name nearest to a pattern without a match. Expensive (pattern times name, for every name), but runs only
 * before an error. */
#include "engine/unmatched.h"

#include <stdio.h>
#include <string.h>

enum { PREFIX_NBYTES = 256 };

/* Makes a glob for the names that begin with `text`: the quoted text and a star. */
static void quote_prefix(const char *text, char out[2 * PREFIX_NBYTES + 2])
{
    size_t n = 0;
    for (size_t i = 0; text[i] && i < PREFIX_NBYTES; i++) {
        if (strchr("*?[\\", text[i]))
            out[n++] = '\\';
        out[n++] = text[i];
    }
    memcpy(out + n, "*", 2);
}

void fsdpck_unmatched_try(struct fsdpck_unmatched *u, const char *name)
{
    char quoted[2 * PREFIX_NBYTES + 2];
    if (u->prefix)
        quote_prefix(u->pattern, quoted);
    unsigned distance = fsdpck_glob_distance(u->prefix ? quoted : u->pattern, name);
    if (u->nearest && distance >= u->distance)
        return;
    u->nearest = name;
    u->distance = distance;
}

int fsdpck_unmatched_error(const struct fsdpck_unmatched *u, const char *file, const char *option,
                           struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_USAGE, file, "%s: %s '%s'", option,
                     u->prefix ? "no name begins with" : "no tensor matches", u->pattern);
    if (u->nearest)
        fsdpck_error_hint(err, "the nearest name is '%s'; 'fsdpck ls' lists all", u->nearest);
    return FSDPCK_ERR_USAGE;
}

static bool matches_any(const struct fsdpck_source *src, const char *glob)
{
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++)
        if (fsdpck_glob_match(glob, fsdpck_source_tensor(src, i)->name))
            return true;
    for (size_t i = 0; i < fsdpck_source_nitems(src); i++)
        if (fsdpck_glob_match(glob, fsdpck_source_item(src, i)->name))
            return true;
    return false;
}

int fsdpck_globs_check(const struct fsdpck_source *src, const char *option, const char *const *globs, size_t nglobs,
                       struct fsdpck_error *err)
{
    for (size_t g = 0; g < nglobs; g++) {
        struct fsdpck_unmatched u = { .pattern = globs[g] };
        if (matches_any(src, globs[g]))
            continue;
        for (size_t i = 0; i < fsdpck_source_ntensors(src); i++)
            fsdpck_unmatched_try(&u, fsdpck_source_tensor(src, i)->name);
        return fsdpck_unmatched_error(&u, fsdpck_source_path(src), option, err);
    }
    return 0;
}
