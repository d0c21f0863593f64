# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and tensors of PyTorch as memory: address, shape, strides, dtype by torch's name. Imports each only
where it is used."""
from __future__ import annotations

import sys
from typing import Any, Sequence, Tuple

from fsdpck._errors import UnsupportedError, UsageError, encoded
from fsdpck._native import ffi, lib

# What NumPy has only with ml_dtypes. Names are torch's.
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


class Memory:
    """Where an array lies. Holds the array."""

    def __init__(self, array: Any, address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> None:
        self.array, self.address, self.dtype = array, address, dtype
        self.shape, self.strides = tuple(shape), tuple(strides)  # strides in bytes


def dtype_nbytes(dtype: int) -> int:
    return lib.fsdpck_dtype_info(dtype).nbytes


def dtype_number(name: str) -> int:
    """The enum fsdpck_dtype of a name."""
    out = ffi.new("enum fsdpck_dtype *")
    if not lib.fsdpck_dtype_from_name(encoded(name), out):
        raise UnsupportedError("the dtype %s cannot be stored" % name)
    return int(out[0])


def full_name(dtype: str) -> str:
    """A dtype's name by torch, of that or of its short form."""
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}.get(dtype, dtype)


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def numpy_dtype(name: str, raw: bool) -> Any:
    """NumPy's dtype for elements of a tensor; raw: unsigned integers for those that NumPy does not have."""
    import numpy
    if raw and (name in _ML_DTYPES or name in ("complex32", "float4_e2m1fn_x2")):
        return numpy.dtype("u%d" % dtype_nbytes(dtype_number(name)))
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            raise UnsupportedError("NumPy has no %s" % name,
                                   hint="install ml_dtypes, or ask for the bits with raw=True") from None
    try:
        return numpy.dtype(name)
    except TypeError:
        raise UnsupportedError("NumPy has no %s" % name, hint="ask for the bits with raw=True") from None


def torch_dtype(name: str) -> Any:
    import torch
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError("torch %s has no %s" % (torch.__version__, name))
    return dtype


def new_array(framework: str, shape: Sequence[int], dtype: str, raw: bool = False) -> Any:
    """Uninitialised memory for a tensor."""
    if framework == "torch":
        import torch
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype))
    import numpy
    return numpy.empty(tuple(shape), numpy_dtype(dtype, raw))


def memory(x: Any) -> Memory:
    """The memory of an array or CPU tensor, which may have any strides."""
    if is_torch(x):
        if x.device.type != "cpu" or x.layout is not sys.modules["torch"].strided:
            raise UsageError("a dense tensor on the CPU is wanted, found %s on %s" % (x.layout, x.device))
        if x.is_conj() or x.is_neg():
            raise UsageError("a lazily conjugated or negated tensor has other bits in memory",
                             hint="call .resolve_conj().resolve_neg()")
        if x.numel() and not x.data_ptr():
            raise UsageError("a %s has no memory of its own" % type(x).__name__,
                             hint="DTensor's .full_tensor() gathers it, .to_local() gives the part of this rank")
        nbytes = x.element_size()
        return Memory(x, x.data_ptr(), x.shape, [s * nbytes for s in x.stride()], str(x.dtype)[len("torch."):])
    interface = getattr(x, "__array_interface__", None)
    if interface is None:
        raise UsageError("a NumPy array or a PyTorch tensor is wanted, found %s" % type(x).__name__)
    if not x.dtype.isnative:
        raise UsageError("an array in this machine's byte order is wanted, found dtype %s" % x.dtype.str)
    return Memory(x, interface["data"][0], x.shape, x.strides, x.dtype.name)


def target(x: Any, shape: Tuple[int, ...], dtype: str, raw: bool) -> Memory:
    """The memory of `out`, which must fit what is read into it."""
    m = memory(x)
    if not is_torch(x) and not x.flags.writeable:
        raise UsageError("out cannot be written to")
    wanted = numpy_dtype(dtype, raw).name if raw and not is_torch(x) else dtype
    if m.shape != shape or m.dtype != wanted:
        raise UsageError("out has shape %s and dtype %s; the result has %s and %s" %
                         (list(m.shape), m.dtype, list(shape), wanted))
    if repeats(m.shape, m.strides):
        raise UsageError("out has several elements in one place: shape %s, strides %s" %
                         (list(m.shape), list(m.strides)))
    return m


def repeats(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a dimension of an array is one piece of memory again and again, as broadcasting makes it."""
    return 0 not in shape and any(n > 1 and s == 0 for n, s in zip(shape, strides))
