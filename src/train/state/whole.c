/* output_dir/model, by libfsdpck's export: it knows the dtype, the assets and how a folder is replaced. */
#include "state/whole.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <fsdpck/export.h>

bool whole_path(const struct train_config *config, char path[WHOLE_PATH])
{
    if (config->lora.enabled || !config->checkpoint.export_model)
        return false;
    int n = snprintf(path, WHOLE_PATH, "%s/model", config->output_dir);
    return n > 0 && n < WHOLE_PATH; /* longer ones are refused with the checkpoints' paths */
}

int whole_check_place(const struct train_config *config, struct fsdpck_error *err)
{
    char path[WHOLE_PATH];
    if (!whole_path(config, path) || rmdir(path) == 0 || errno == ENOENT) /* an empty one is as good as none */
        return 0;
    int rc = fsdpck_error_set(err, FSDPCK_ERR_EXISTS, path, "this run has no checkpoint yet, so the folder is not its own: the trained model is to be written there");
    fsdpck_error_hint(err, "move it away, choose another output_dir, or set checkpoint.export_model to false");
    return rc;
}

int whole_export(const struct job *job, const char *checkpoint, struct fsdpck_error *err)
{
    char path[WHOLE_PATH];
    struct fsdpck_source *src = NULL;
    const struct fsdpck_export_request req = { .out = path, .force = true };
    if (!whole_path(job->config, path))
        return 0;
    int rc = fsdpck_source_open(checkpoint, "fsdpck", &job->fs, &src, err);
    if (!rc)
        rc = fsdpck_export(src, &req, &job->fs, NULL, err);
    fsdpck_source_close(src);
    return rc;
}
