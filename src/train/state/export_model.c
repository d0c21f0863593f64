/* SPDX-License-Identifier: Apache-2.0 */
/* Writes output_dir/model with the export of libfsdpck, which handles dtype, assets and the replacement of a folder. */
#include "state/export_model.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fsdpck/export.h>

bool export_model_path(const struct train_config *config, char path[FILES_PATH])
{
    if (config->lora.enabled || !config->checkpoint.export_model)
        return false;
    /* a path that is too long is reported with the paths of the checkpoints */
    return files_join(path, config->output_dir, "model", NULL) == 0;
}

static bool is_same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static int refuse(const char *path, const char *why, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path, "the trained model is to be written there, and %s", why);
    fsdpck_error_hint(err, "move it away, choose another output_dir, or set checkpoint.export_model to false");
    return FSDPCK_ERR_EXISTS;
}

int export_model_check_place(const struct train_config *config, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    uint64_t *steps;
    size_t count;
    if (!export_model_path(config, path) || rmdir(path) == 0 || errno == ENOENT) /* an empty folder counts as missing */
        return 0;
    if (is_same_folder(path, config->model))
        return refuse(path, "it is the model that the run starts from", err);
    int rc = files_list_checkpoints(config, &steps, &count, err);
    free(steps);
    if (rc || count)
        return rc;
    return refuse(path, "this run has no checkpoint yet, so the folder is not its own", err);
}

int export_model_write(const struct job *job, const char *checkpoint, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    struct fsdpck_source *src = NULL;
    const struct fsdpck_export_request req = { .out = path, .select = { .tree = "model" }, .force = true };
    if (!export_model_path(job->config, path))
        return 0;
    int rc = fsdpck_source_open(checkpoint, "fsdpck", &job->fs, &src, err);
    if (!rc)
        rc = fsdpck_export(src, &req, &job->fs, NULL, err);
    fsdpck_source_close(src);
    return rc;
}
