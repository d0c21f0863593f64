/* SPDX-License-Identifier: Apache-2.0 */
/* metadata.json says that the checkpoint is one of torch_dist; common.pt holds what is no tensor of the model: no
 * optimizer, no step, and that layers and experts are dimensions. */
#include "verbs/convert_megatron.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "torch/zip/item.h"

static const char metadata[] = "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, "
                               "\"common_backend\": \"torch\", \"common_backend_version\": 1}";

/* {"iteration": 0, "checkpoint_version": 3.0, "content_metadata": {"singleton_local_shards": False}}, protocol 2 */
static const char common[] = "\x80\x02}("
                             "X\x09\0\0\0iterationK\0"
                             "X\x12\0\0\0checkpoint_versionG\x40\x08\0\0\0\0\0\0"
                             "X\x10\0\0\0content_metadata}X\x16\0\0\0singleton_local_shards\x89s"
                             "u.";

static int write_file(const struct fsdpck_io *io, struct fsdpck_commit *commit, const char *name, const void *data,
                      uint64_t nbytes, struct fsdpck_error *err)
{
    int rc = fsdpck_commit_created(commit, name, err);
    char *path = rc ? NULL : fsdpck_path_join(fsdpck_commit_dir(commit), name, err);
    if (!rc)
        rc = path ? fsdpck_write_file(io, path, data, nbytes, err) : FSDPCK_ERR_NOMEM;
    free(path);
    return rc;
}

int fsdpck_convert_write_megatron(const struct fsdpck_io *io, struct fsdpck_commit *commit, struct fsdpck_error *err)
{
    const uint64_t nbytes = fsdpck_item_value(common, sizeof common - 1, NULL);
    uint8_t *zip = malloc(nbytes);
    if (!zip)
        return fsdpck_error_nomem(err, nbytes);
    fsdpck_item_value(common, sizeof common - 1, zip);
    int rc = write_file(io, commit, "common.pt", zip, nbytes, err);
    free(zip);
    return rc ? rc : write_file(io, commit, "metadata.json", metadata, sizeof metadata - 1, err);
}
