# SPDX-License-Identifier: Apache-2.0
"""Tensors as boxes of a save: by address where the memory holds their elements, or copied while they are written."""
from __future__ import annotations

from typing import Any, Dict, Sequence

import torch

from fsdpck import _arrays
from fsdpck._call import Options
from fsdpck._errors import UsageError
from fsdpck._native import ffi, lib
from fsdpck._requests import Hold


def box(hold: Hold, tensor: torch.Tensor, offset: Sequence[int], options: Options) -> Dict[str, Any]:
    """A struct fsdpck_save_box of a tensor's elements. Those on a GPU, or conjugated or negated lazily, are copied to
    the CPU a few at a time. hold keeps the tensor."""
    out = {"offset": hold.new("uint64_t[]", list(offset)), "size": hold.new("uint64_t[]", list(tensor.shape))}
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise UsageError("a dense tensor is wanted, found %s on %s" % (tensor.layout, tensor.device))
    if tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg():
        m = _arrays.memory(tensor)
        hold.append(m)
        return {**out, "data": ffi.cast("void *", m.address), "strides": hold.new("int64_t[]", m.strides)}
    handle = ffi.new_handle(_Copied(tensor, options))
    hold.append(handle)
    return {**out, "read": lib.fsdpck_py_read, "ctx": handle}


class _Copied:
    """A tensor whose elements the library asks for, in row-major order."""

    def __init__(self, tensor: torch.Tensor, options: Options) -> None:
        self._tensor, self.options = tensor, options
        self._elements: Any = None

    def read(self, first: int, nelem: int, dst: Any) -> None:
        if self._elements is None:
            self._elements = self._tensor.resolve_conj().resolve_neg().reshape(-1)
        nbytes, end = nelem * self._tensor.element_size(), first + nelem
        part = self._elements[first:end].view(torch.uint8)
        torch.frombuffer(ffi.buffer(dst, nbytes), dtype=torch.uint8).copy_(part)
        if end == self._tensor.numel():
            self._elements = None


@ffi.def_extern()
def fsdpck_py_read(ctx: Any, box: Any, first: int, nelem: int, dst: Any, error: Any) -> int:
    copied = ffi.from_handle(ctx)
    try:
        copied.read(first, nelem, dst)
        return 0
    except BaseException as e:  # Options.call() raises it
        copied.options.failure = copied.options.failure or e
        error.code = lib.FSDPCK_ERR_NOMEM
        return int(error.code)
