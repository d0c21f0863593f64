/* SPDX-License-Identifier: Apache-2.0 */
/* The closed list of names that a .pt may contain: those of torch's weights-only loader, its additions for DTensors,
 * and numpy's scalars and arrays as trainers save them. It also has names of unsupported tensors, so that the error can
 * name the tensor. A reader that knows more files lists their names beside these. */
#ifndef CKPT_PT_NAMES_H
#define CKPT_PT_NAMES_H

#include "torch/pickle/torch_names.h"

#define FSDPCK_PT_PLACEMENTS_OF(module) \
    module " Shard", module " _StridedShard", module " Replicate", module " Partial", module " _Partial"

#define FSDPCK_PT_TENSORS \
    "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_tensor", \
        "torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state", \
        "torch._tensor _rebuild_from_type_v2", "torch Tensor", "torch.nn.parameter Parameter", FSDPCK_TORCH_STORAGES, \
        "torch.storage UntypedStorage", FSDPCK_TORCH_DTYPES, "torch Size", "torch device", \
        "torch.serialization _get_layout", "collections OrderedDict", "collections Counter"
/* Listed so that the error can name the tensor. */
#define FSDPCK_PT_REFUSED_TENSORS \
    "torch._utils _rebuild_qtensor", "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_sparse_csr_tensor", \
        "torch._utils _rebuild_nested_tensor", "torch._utils _rebuild_meta_tensor_no_storage", \
        "torch._utils _rebuild_device_tensor_from_numpy", "torch._utils _rebuild_device_tensor_from_cpu_tensor", \
        "torch QInt8Storage", "torch QUInt8Storage", "torch QInt32Storage", "torch QUInt4x2Storage", \
        "torch QUInt2x4Storage", "torch per_tensor_affine", "torch per_channel_affine"
/* Plain values, with the names of protocol 2 and of later protocols. */
#define FSDPCK_PT_VALUES \
    "_codecs encode", "__builtin__ set", "__builtin__ bytearray", "__builtin__ complex", "__builtin__ frozenset", \
        "builtins set", "builtins bytearray", "builtins complex", "builtins frozenset", \
        "numpy._core.multiarray scalar", "numpy.core.multiarray scalar", "numpy._core.multiarray _reconstruct", \
        "numpy.core.multiarray _reconstruct", "numpy dtype", "numpy ndarray"
/* DTensors, from torch 2.4 to 2.15. */
#define FSDPCK_PT_DTENSORS \
    "torch._utils _rebuild_wrapper_subclass", "torch.distributed.tensor DTensor", \
        "torch.distributed.tensor._api DTensor", "torch.distributed._tensor.api DTensor", \
        "torch.distributed._tensor DTensor", "torch.distributed.tensor._dtensor_spec DTensorSpec", \
        "torch.distributed.tensor._dtensor_spec TensorMeta", "torch.distributed.tensor._dtensor_spec ShardOrderEntry", \
        "torch.distributed._tensor.placement_types DTensorSpec", \
        "torch.distributed._tensor.placement_types TensorMeta", "torch.distributed._tensor._dtensor_spec DTensorSpec", \
        "torch.distributed._tensor._dtensor_spec TensorMeta", "torch.distributed.device_mesh DeviceMesh", \
        "torch.distributed._mesh_layout _MeshLayout", "torch.distributed._mesh_layout _FlatLayout", \
        FSDPCK_PT_PLACEMENTS_OF("torch.distributed.tensor.placement_types"), \
        FSDPCK_PT_PLACEMENTS_OF("torch.distributed._tensor.placement_types")
#define FSDPCK_PT_NAMES FSDPCK_PT_TENSORS, FSDPCK_PT_REFUSED_TENSORS, FSDPCK_PT_VALUES, FSDPCK_PT_DTENSORS

#endif
