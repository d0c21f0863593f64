/* SPDX-License-Identifier: Apache-2.0 */
/* Reads XDG_CACHE_HOME and HOME. */
#include "cache_folder.h"

#include <stdio.h>
#include <stdlib.h>

/* The XDG base directory specification ignores relative paths. */
static const char *absolute(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] == '/' ? value : NULL;
}

bool cache_folder(char out[PATH_MAX])
{
    const char *cache = absolute("XDG_CACHE_HOME"), *home = absolute("HOME");
    int n = 0;
    if (cache)
        n = snprintf(out, PATH_MAX, "%s/fsdpck", cache);
    else if (home)
        n = snprintf(out, PATH_MAX, "%s/.cache/fsdpck", home);
    return n > 0 && n < PATH_MAX;
}
