/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/tenants.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json_out.h"
#include "ui/jobs.h"

bool tenant_folder(const json_t *job, const char *name, char path[PATH_MAX])
{
    struct stat st;
    if (!name || !*name || *name == '.' || strchr(name, '/'))
        return false;
    const int n = snprintf(path, PATH_MAX, "%s/tenants/%s", job_text(job, "output_dir"), name);
    return n >= 0 && n < PATH_MAX && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

json_t *tenant_names(const json_t *job)
{
    char path[PATH_MAX];
    struct dirent **found;
    json_t *names = json_array();
    const int k = snprintf(path, sizeof path, "%s/tenants", job_text(job, "output_dir"));
    const int n = k >= 0 && k < PATH_MAX ? scandir(path, &found, NULL, alphasort) : -1;
    for (int i = 0; i < n; i++) {
        if (tenant_folder(job, found[i]->d_name, path))
            json_out_append(names, json_out_text(found[i]->d_name));
        free(found[i]);
    }
    if (n >= 0)
        free(found);
    return names;
}
