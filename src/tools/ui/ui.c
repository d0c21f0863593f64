/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/ui.h"

#include <stdio.h>

void ui_poke(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    ui->pokes = true;
    ui->version++;
    pthread_cond_broadcast(&ui->changed);
    pthread_mutex_unlock(&ui->mutex);
}

char *ui_job_file(const struct ui *ui, int64_t id, const char *ending, char buf[PATH_MAX])
{
    /* places_find() limits the length of the state folder. */
    if (snprintf(buf, PATH_MAX, "%.4000s/jobs/%lld%s", ui->state, (long long)id, ending) >= PATH_MAX)
        buf[0] = '\0';
    return buf;
}

bool ui_absolute(const char *cwd, const char *path, char out[PATH_MAX])
{
    const int n = path[0] == '/' ? snprintf(out, PATH_MAX, "%s", path) : snprintf(out, PATH_MAX, "%s/%s", cwd, path);
    return n >= 0 && n < PATH_MAX;
}
