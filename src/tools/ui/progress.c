/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <train/history.h>

#include "common/json_out.h"
#include "ui/jobs.h"

enum { TAIL_NBYTES = 16384 }; /* room for two lines of a run with hundreds of ranks */

static char *key_of(int64_t id, char key[24])
{
    snprintf(key, 24, "%lld", (long long)id);
    return key;
}

/* Number of steps of the whole run, from its events; 0: unknown. */
static uint64_t count_steps(const char *folder)
{
    struct train_folder f;
    struct fsdpck_error err = { 0 };
    if (train_folder_read(folder, 0, &f, &err))
        return 0;
    const uint64_t n = f.nsteps;
    train_folder_free(&f);
    return n;
}

json_t *progress_values(const char *path, uint64_t nsteps)
{
    struct train_history h;
    struct fsdpck_error err = { 0 };
    json_t *o = json_object();
    if (train_history_read_tail(path, TAIL_NBYTES, &h, &err))
        return o;
    if (h.nsteps)
        json_out_put(o, "step", json_out_u64(h.steps[h.nsteps - 1]));
    json_out_put(o, "steps", json_out_u64(nsteps));
    for (size_t i = 0; i < h.ncurves; i++) {
        const struct train_curve *c = &h.curves[i];
        const char *name = c->name;
        if (c->count && (strcmp(name, "loss") == 0 || strcmp(name, "tokens_per_second") == 0 ||
                         strcmp(name, "pss_bytes") == 0 || strcmp(name, "step_seconds") == 0))
            json_out_put(o, name, isfinite(c->values[c->count - 1]) ? json_real(c->values[c->count - 1]) : json_null());
    }
    train_history_free(&h);
    return o;
}

bool progress_look(struct ui *ui, const json_t *job)
{
    char path[PATH_MAX], key[24];
    struct stat st;
    const char *folder = job_text(job, "output_dir");
    if (!job_metrics(job, path) || stat(path, &st))
        return false;
    key_of(job_int(job, "id"), key);
    pthread_mutex_lock(&ui->mutex);
    const json_t *known = json_object_get(ui->progress, key);
    const bool grown = job_int(known, "nbytes") != (int64_t)st.st_size;
    uint64_t nsteps = (uint64_t)job_int(known, "steps");
    pthread_mutex_unlock(&ui->mutex);
    if (!grown)
        return false;
    if (!nsteps)
        nsteps = count_steps(folder);
    json_t *values = progress_values(path, nsteps);
    json_out_put(values, "nbytes", json_integer(st.st_size));
    pthread_mutex_lock(&ui->mutex);
    json_out_put(ui->progress, key, values);
    pthread_mutex_unlock(&ui->mutex);
    return true;
}

void progress_drop(struct ui *ui, int64_t id)
{
    char key[24];
    pthread_mutex_lock(&ui->mutex);
    json_object_del(ui->progress, key_of(id, key));
    pthread_mutex_unlock(&ui->mutex);
}

json_t *progress_copy(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    json_t *copy = json_deep_copy(ui->progress);
    pthread_mutex_unlock(&ui->mutex);
    return copy;
}
