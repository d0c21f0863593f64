# SPDX-License-Identifier: Apache-2.0
"""Saving arrays as a checkpoint of one rank."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

from fsdpck import _arrays
from fsdpck._call import Options, Progress
from fsdpck._errors import UsageError, of_tensor, text
from fsdpck._native import ffi, lib
from fsdpck._requests import Hold, key_path
from fsdpck._source import Path, path_bytes

Keys = Tuple[str, ...]


class Saved(NamedTuple):
    """What a save wrote."""
    tensors: int
    files: int
    written_nbytes: int
    seconds: float
    save_id: str


def save(tensors: "Mapping[str, Any]", path: Path, *, state: Optional[Dict[str, Any]] = None,
         assets: Optional[Path] = None, force: bool = False, threads: int = 0, memory: int = 0,
         progress: Optional[Progress] = None) -> Saved:
    """Saves NumPy arrays and PyTorch tensors as a checkpoint directory, which appears whole or not at all.

    tensors: a mapping of names to arrays; mappings in it give nested keys. Arrays may have any strides. Two names for
    the same memory of the CPU are stored once. Tensors of a GPU are copied to the CPU first, each name for itself.
    state: a JSON object for the index, which `Source.state` gives back.
    assets: a folder whose files (config.json, tokenizer.json …) are stored too.
    force: replaces an existing checkpoint, atomically."""
    options = Options(threads, memory, progress=progress)
    request = _Request(tensors)
    request.struct.out = request.hold.string(path_bytes(path))
    request.struct.state = request.hold.string(None if state is None else json.dumps(state))
    request.struct.assets = request.hold.string(None if assets is None else path_bytes(assets))
    request.struct.nranks = 1
    request.struct.force = force
    result = ffi.new("struct fsdpck_transfer_result *")
    options.call(lib.fsdpck_save, request.struct, options.struct, result, wait=True)
    return Saved(result.ntensors, result.nfiles, result.written_nbytes, result.seconds, text(result.save_id))


class _Request:
    """A struct fsdpck_save_request, and all that it points to."""

    def __init__(self, tensors: "Mapping[str, Any]") -> None:
        self.hold = Hold()
        self._names: Dict[Tuple, Any] = {}  # the first name of each piece of memory
        rows = [self._tensor(keys, value) for keys, value in _leaves(tensors, ())]
        self.struct = ffi.new("struct fsdpck_save_request *")
        self.struct.tensors, self.struct.ntensors = self.hold.new("struct fsdpck_save_tensor[]", rows), len(rows)

    def _tensor(self, keys: Keys, value: Any) -> Dict[str, Any]:
        with of_tensor(".".join(keys)):
            m = _arrays.memory(_host(value))
            dtype = _arrays.dtype_number(m.dtype)
        self.hold.append(m)
        name = self.hold.string(".".join(keys))
        path = key_path(self.hold, keys)
        row = {"name": name, "path": path, "npath": len(keys), "dtype": dtype,
               "ndim": len(m.shape), "shape": self.hold.new("uint64_t[]", m.shape)}
        first = self._names.setdefault((m.address, m.shape, m.strides, m.dtype), name)
        if first is not name and m.address and 0 not in m.shape:
            return dict(row, alias_of=first)
        if 0 in m.shape:
            return row
        box = {"offset": self.hold.new("uint64_t[]", [0] * len(m.shape)), "size": row["shape"],
               "data": ffi.cast("void *", m.address), "strides": self.hold.new("int64_t[]", m.strides)}
        return dict(row, boxes=self.hold.new("struct fsdpck_save_box[]", [box]), nboxes=1)


def _leaves(tensors: "Mapping[str, Any]", keys: Keys) -> Iterator[Tuple[Keys, Any]]:
    for key, value in tensors.items():
        if not isinstance(key, str):
            raise UsageError("names are strings; found %r below '%s'" % (key, ".".join(keys)))
        if isinstance(value, Mapping) and not hasattr(value, "__array__"):
            yield from _leaves(value, keys + (key,))
        else:
            yield keys + (key,), value


def _host(value: Any) -> Any:
    """The value as a NumPy array or a CPU tensor whose memory holds its elements, if it can be one."""
    if _arrays.is_torch(value):
        return value if value.is_meta else value.detach().cpu().resolve_conj().resolve_neg()
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):
        import numpy
        return numpy.asarray(value)  # a scalar of NumPy has no memory that outlives the question for its address
    return value
