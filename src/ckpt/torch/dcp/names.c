/* SPDX-License-Identifier: Apache-2.0 */
/* The closed list of names that a .metadata may contain, as torch 1.13 to 2.15 write it. Other names are refused. */
#include "torch/dcp/dcp.h"
#include "torch/pickle/torch_names.h"

#define METADATA_OF(module) \
    module " Metadata", module " TensorStorageMetadata", module " BytesStorageMetadata", \
        module " ChunkStorageMetadata", module " TensorProperties", module " MetadataIndex", module " StorageMeta", \
        module " _MEM_FORMAT_ENCODING", module " MEM_FORMAT_ENCODING"
#define PATHS_OF(module) \
    module " Path", module " PosixPath", module " WindowsPath", module " PurePath", module " PurePosixPath", \
        module " PureWindowsPath"

const char *const fsdpck_dcp_metadata_names[] = {
    METADATA_OF("torch.distributed.checkpoint.metadata"),
    METADATA_OF("torch.distributed._shard.checkpoint.metadata"),         /* torch 1.13 */
    "torch.distributed._shard.sharded_tensor.metadata TensorProperties", /* up to 2.2 */
    "torch.distributed._shard.sharded_tensor.metadata MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem _StorageInfo",
    "torch.distributed._shard.checkpoint.filesystem _StorageInfo",
    /* Megatron-core also saves its plans (never read), and up to 0.15 its own classes instead of torch's. */
    "torch.distributed.checkpoint.planner SavePlan",
    "torch.distributed.checkpoint.planner WriteItem",
    "torch.distributed.checkpoint.planner WriteItemType",
    "torch.distributed.checkpoint.planner TensorWriteData",
    "torch.distributed.checkpoint.planner BytesIOWriteData",
    "megatron.core.dist_checkpointing.strategies.torch MCoreSavePlan",
    "megatron.core.dist_checkpointing.strategies.torch MCoreMetadata",
    "torch Size",
    "torch.serialization _get_layout",
    "collections OrderedDict",
    "builtins getattr", /* for members of an enum, up to Python 3.11.3 */
    PATHS_OF("pathlib"),
    PATHS_OF("pathlib._local"), /* Python 3.13 */
    FSDPCK_TORCH_DTYPES,
    NULL,
};
