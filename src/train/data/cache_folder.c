/* SPDX-License-Identifier: Apache-2.0 */
#include "data/cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int make_one(const char *path, struct fsdpck_error *err)
{
    return mkdir(path, 0777) && errno != EEXIST ? fsdpck_error_sys(err, errno, path, "mkdir") : 0;
}

int cache_folder_path(const char *output_dir, char folder[CACHE_FOLDER], struct fsdpck_error *err)
{
    return snprintf(folder, CACHE_FOLDER, "%s/cache", output_dir) < CACHE_FOLDER
               ? 0
               : fsdpck_error_set(err, FSDPCK_ERR_USAGE, output_dir, "the path is too long");
}

int cache_folder_make(const char *output_dir, char folder[CACHE_FOLDER], struct fsdpck_error *err)
{
    int rc = cache_folder_path(output_dir, folder, err);
    for (char *slash = rc ? NULL : folder + 1; !rc && (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        rc = make_one(folder, err);
        *slash = '/';
    }
    return rc ? rc : make_one(folder, err);
}
