/* SPDX-License-Identifier: Apache-2.0 */
/* The file name endings that folders do not have. Opens nothing. */
#include "verbs/out_name.h"

#include <string.h>
#include <strings.h>

#include "base/ioutil.h"

static const char *const endings[] = {
    "safetensors", "safetensor", "bin", "pt",     "pth", "ckpt", "gguf", "ggml",  "onnx", "h5",  "hdf5", "msgpack",
    "npz",         "npy",        "pkl", "pickle", "txt", "md",   "json", "jsonl", "yaml", "yml", "csv",  "tsv",
    "parquet",     "log",        "py",  "zip",    "tar", "gz",   "tgz",  "bz2",   "xz",   "zst", NULL,
};

int fsdpck_out_is_folder(const struct fsdpck_io *io, const char *out, const char *verb_makes, struct fsdpck_error *err)
{
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out, *dot = strrchr(name, '.');
    if (!dot || dot == name)
        return 0;
    for (size_t i = 0; endings[i]; i++) {
        if (strcasecmp(dot + 1, endings[i]) != 0)
            continue;
        if (fsdpck_is_directory(io, out))
            return 0;
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, out, "ends as a file does, and %s", verb_makes);
        fsdpck_error_hint(err, "a folder of this name is meant where it ends in '/'");
        return FSDPCK_ERR_USAGE;
    }
    return 0;
}
