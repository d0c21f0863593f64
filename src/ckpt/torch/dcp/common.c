/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron-core's common.pt: what is no tensor of a checkpoint. It is read as text alone: nothing of it is executed,
 * and a name that Megatron-core does not write is refused. */
#include "torch/dcp/common.h"

#include <stdlib.h>

#include "base/ioutil.h"
#include "torch/pickle/torch_names.h"
#include "torch/zip/archive.h"

#define COMMON_NAME       "common.pt"
#define MAX_COMMON_NBYTES (256u << 20)

/* Arguments of the training hold members of enums, functions and classes of these modules; they are names here. */
static const char *const allowed[] = {
    "argparse Namespace",
    "types SimpleNamespace",
    "collections OrderedDict",
    "collections defaultdict",
    "pathlib PosixPath",
    "pathlib Path",
    "pathlib._local PosixPath",
    "datetime timedelta",
    "_codecs encode",
    "builtins getattr",
    "builtins set",
    "builtins frozenset",
    "builtins bytearray",
    "builtins complex",
    "builtins slice",
    "__builtin__ set",
    "__builtin__ bytearray",
    "numpy.core.multiarray scalar",
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray scalar",
    "numpy._core.multiarray _reconstruct",
    "numpy dtype",
    "numpy ndarray",
    "torch._utils _rebuild_tensor_v2",
    "torch Size",
    "torch device",
    "torch.serialization _get_layout",
    "torch.nn.functional *",
    "torch._C._nn *", /* torch.nn.functional's own functions */
    "torch._VariableFunctions *",
    "megatron.* *",
    "transformer_engine.* *",
    FSDPCK_TORCH_DTYPES,
    FSDPCK_TORCH_STORAGES,
    "torch.storage UntypedStorage",
    NULL,
};

static bool is_true(const struct fsdpck_pickle *p, fsdpck_node n)
{
    int64_t value;
    return n != FSDPCK_NO_NODE && fsdpck_pickle_type(p, n) == FSDPCK_PICKLE_BOOL && fsdpck_pickle_int(p, n, &value) &&
           value;
}

static void interpret(const struct fsdpck_pickle *p, struct fsdpck_megatron_common *out)
{
    const fsdpck_node root = fsdpck_pickle_root(p);
    if (fsdpck_pickle_type(p, root) != FSDPCK_PICKLE_DICT)
        return;
    const fsdpck_node args = fsdpck_pickle_get(p, root, "args"),
                      keys = args == FSDPCK_NO_NODE ? FSDPCK_NO_NODE : fsdpck_pickle_state(p, args);
    if (keys != FSDPCK_NO_NODE && fsdpck_pickle_type(p, keys) == FSDPCK_PICKLE_DICT)
        out->norms_plus_one = is_true(p, fsdpck_pickle_get(p, keys, "apply_layernorm_1p"));
}

static int read(struct fsdpck_source *file, struct fsdpck_megatron_common *out, struct fsdpck_error *err)
{
    const struct fsdpck_archive_terms terms = { .allowed = allowed,
                                                .max_nbytes = MAX_COMMON_NBYTES,
                                                .check_crc = !file->opt.no_verify };
    struct fsdpck_archive archive;
    uint32_t number;
    int rc = fsdpck_source_add_file(file, file->path, COMMON_NAME, -1, &number, err);
    if (!rc)
        rc = fsdpck_archive_open(file, number, 0, source_files(file)[number].pub.nbytes, &terms, &archive, err);
    if (rc)
        return rc;
    interpret(archive.pickle, out);
    fsdpck_archive_free(&archive);
    return 0;
}

int fsdpck_megatron_common_read(const struct fsdpck_source *src, const char *folder, struct fsdpck_megatron_common *out,
                                struct fsdpck_error *err)
{
    char *below = fsdpck_path_join(folder, COMMON_NAME, err),
         *path = below ? fsdpck_path_join(src->path, below, err) : NULL;
    int rc = path ? 0 : FSDPCK_ERR_NOMEM;
    *out = (struct fsdpck_megatron_common){ 0 };
    if (!rc && fsdpck_is_file(src->io, path)) {
        struct fsdpck_source *file = fsdpck_source_new(path, &src->opt, err);
        rc = file ? read(file, out, err) : err->code;
        fsdpck_source_close(file);
    }
    free(path);
    free(below);
    return rc;
}
