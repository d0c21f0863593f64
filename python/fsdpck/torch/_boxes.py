# SPDX-License-Identifier: Apache-2.0
"""The boxes of a DTensor that this rank holds, by the library's rule of placements."""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple

from fsdpck._errors import UnsupportedError
from fsdpck._native import ffi, lib

Box = Tuple[Tuple[int, ...], Tuple[int, ...]]  # offset, size


def placement(p: Any, ndim: int) -> Dict[str, int]:
    """A placement of torch as a struct fsdpck_placement."""
    if p.is_replicate():
        return {"kind": lib.FSDPCK_REPLICATE}
    split = getattr(p, "split_factor", None)
    if split is None and not p.is_shard():
        raise UnsupportedError("a tensor of placement %s holds parts of sums, which no checkpoint does" % (p, ))
    dim = p.dim % max(ndim, 1)
    if split is None:
        return {"kind": lib.FSDPCK_SHARD, "dim": dim}
    return {"kind": lib.FSDPCK_STRIDED_SHARD, "dim": dim, "split": split}


@ffi.def_extern()
def fsdpck_py_box(ctx: Any, offset: Any, size: Any) -> int:
    boxes, ndim = ffi.from_handle(ctx)
    boxes.append((tuple(offset[0:ndim]), tuple(size[0:ndim])))
    return 0


def boxes(tensor: Any) -> List[Box]:
    """Boxes of a DTensor on this rank, in row-major order."""
    ndim, mesh, coordinate = tensor.ndim, tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return []
    sizes = ffi.new("struct fsdpck_mesh *", {"ndim": mesh.ndim, "sizes": list(mesh.shape)})
    found: List[Box] = []
    handle = ffi.new_handle((found, ndim))
    code = lib.fsdpck_placement_boxes(sizes, [placement(p, ndim) for p in tensor.placements], ndim, list(tensor.shape),
                                      list(coordinate), lib.fsdpck_py_box, handle)
    if code:
        raise UnsupportedError("the placements %s do not fit a tensor of shape %s" %
                               (tensor.placements, list(tensor.shape)))
    return found


def places(found: Sequence[Box]) -> Iterator[Tuple[Box, Tuple[slice, ...]]]:
    """Each box, and where it lies in the local tensor: the boxes of a rank are packed along each dimension."""
    for offset, size in found:
        begins = [sum(n for _, n in {(o[d], s[d]) for o, s in found if o[d] < offset[d]}) for d in range(len(offset))]
        yield (offset, size), tuple(slice(b, b + n) for b, n in zip(begins, size))
