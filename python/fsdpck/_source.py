# SPDX-License-Identifier: Apache-2.0
"""Sources: checkpoints of any kind as mappings of names to tensors that are read when they are indexed."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from fsdpck import _arrays
from fsdpck._call import Options
from fsdpck._errors import TensorNotFoundError, UsageError, encoded, of_tensor, text
from fsdpck._index import Box, box
from fsdpck._native import ffi, lib

_FRAMEWORKS = {"numpy": "numpy", "np": "numpy", "torch": "torch", "pt": "torch", "pytorch": "torch"}
_LONG_NBYTES = 8 << 20  # a read of more than this can be stopped with Ctrl-C

Index = Any  # integers, slices, "..." and None, as NumPy takes them
Path = Union[str, "os.PathLike[str]"]


def path_bytes(path: Path) -> bytes:
    return encoded(os.fsencode(path))


class Tensor:
    """A tensor of a source: `name`, `shape` and `dtype` (torch's name: "bfloat16"). Nothing of it is read until it is
    indexed: `t[8:16]`, `t[...]`, `t.numpy()`, `t.torch()`.

    An index is made of integers, slices, `...` and None, as NumPy takes them. Only the box that it spans is read;
    a step other than 1 reads the elements between too."""

    def __init__(self, source: "Source", info: Any) -> None:
        self._source, self._info = source, info
        self.name: str = text(info.name)
        self.shape: Tuple[int, ...] = tuple(info.shape[0:info.ndim])
        self.dtype: str = text(lib.fsdpck_dtype_info(info.dtype).name)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def path(self) -> Tuple[Union[str, int], ...]:
        """The keys of nested dicts and lists that led to it in the saver's state."""
        return _keys(self._info_of_open_source())

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return int(self._info_of_open_source().nbytes)

    @property
    def mesh(self) -> Optional[Dict[str, int]]:
        """Names and sizes of the dimensions of the device mesh that the tensor is stored for, or None."""
        info = self._info_of_open_source()
        if info.mesh == ffi.NULL:
            return None
        return {text(info.mesh.names[d]): info.mesh.sizes[d] for d in range(info.mesh.ndim)}

    @property
    def placements(self) -> Optional[Tuple[str, ...]]:
        """How each dimension of the mesh distributes the tensor: "replicate", "shard(0)", "strided_shard(0,2)"; None
        if that is unknown."""
        info = self._info_of_open_source()
        if info.mesh == ffi.NULL or info.placements == ffi.NULL:
            return None
        line = ffi.new("char[64]")
        return tuple(text(lib.fsdpck_placement_format(info.placements + d, line, 64)) for d in range(info.mesh.ndim))

    @property
    def alias_of(self) -> Optional[str]:
        """Name of the tensor that holds the bytes, if this is a second name of it (tied weights)."""
        alias = self._info_of_open_source().alias_of
        return None if alias < 0 else text(lib.fsdpck_source_tensor(self._source._open(), alias).name)

    def __getitem__(self, index: Index) -> Any:
        """Reads the index into a new array of the framework that `open()` was given."""
        return self._source.read([(self, index)])[0]

    def numpy(self, index: Index = ..., *, out: Any = None, raw: bool = False) -> Any:
        """Reads into a new NumPy array, or into `out`, which has the shape and dtype of the result and any strides.

        bfloat16 and float8 need ml_dtypes. raw: the bits of dtypes that NumPy lacks, as unsigned integers."""
        return self._source._read([(self, index, out)], "numpy", raw)[0]

    def torch(self, index: Index = ..., *, out: Any = None, device: Any = None) -> Any:
        """Reads into a new PyTorch tensor, or into `out`, a CPU tensor of the shape and dtype of the result. device:
        copies the result there."""
        array = self._source._read([(self, index, out)], "torch")[0]
        return array if device is None else array.to(device)

    def get_shape(self) -> List[int]:
        """The shape, as safetensors' slices have it."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """The dtype by safetensors' name ("BF16"), or by torch's if safetensors has none."""
        name = lib.fsdpck_dtype_info(self._info_of_open_source().dtype).safetensors
        return text(name) if name != ffi.NULL else self.dtype

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        if copy is False:
            raise ValueError("a tensor of a checkpoint is read, so it is always a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return "<fsdpck.Tensor %s %s %s>" % (self.name, self.dtype, list(self.shape))

    def _info_of_open_source(self) -> Any:
        self._source._open()
        return self._info


class Plan(NamedTuple):
    """What reading costs: the bytes asked for; the bytes read, which are those of whole hashed blocks, and of gaps that
    are cheaper to read than to skip; separate reads; files; the memory at the most, with the buffers."""
    needed_nbytes: int
    read_nbytes: int
    runs: int
    files: int
    peak_nbytes: int

    @classmethod
    def of(cls, p: Any) -> "Plan":
        return cls(p.needed_nbytes, p.read_nbytes, p.nruns, p.nfiles, p.needed_nbytes + p.peak_nbytes)


class Source(Mapping[str, Tensor]):
    """An open checkpoint: a mapping of names to `Tensor`s. Made by `fsdpck.open()`.

    Threads may share it. Arrays that were read outlive it, and reads of other threads end before it closes."""

    def __init__(self, path: Path, format: Optional[str], framework: str, device: Any, options: Options) -> None:
        self._framework = _FRAMEWORKS.get(framework, "")
        if not self._framework:
            raise UsageError("framework is %r; 'numpy' and 'torch' are known" % (framework,))
        if self._framework == "numpy" and device not in (None, "cpu"):
            raise UsageError("device %r needs framework='torch'" % (device,))
        self._device, self._options = device, options
        self._bases: List[Options] = []
        out = ffi.new("struct fsdpck_source **")
        self._options.call(lib.fsdpck_source_open, path_bytes(path), encoded(format) if format else ffi.NULL,
                           self._options.struct, out)
        # The library closes the source when nobody holds this any more, be it a thread that reads.
        self._handle: Any = ffi.gc(out[0], lib.fsdpck_source_close)

    # --- the mapping ---

    def __getitem__(self, name: str) -> Tensor:
        info = self._find(name)
        if info == ffi.NULL:
            raise self._not_found(name)
        return Tensor(self, info)

    def __iter__(self) -> Iterator[str]:
        source = self._open()
        for i in range(lib.fsdpck_source_ntensors(source)):
            yield text(lib.fsdpck_source_tensor(source, i).name)

    def __len__(self) -> int:
        return int(lib.fsdpck_source_ntensors(self._open()))

    def __contains__(self, name: object) -> bool:
        return self._find(name) != ffi.NULL

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> Any:
        raise TypeError("%r cannot be pickled or copied; open it where it is used" % self)

    def __repr__(self) -> str:
        return "<fsdpck.Source, closed>" if self._handle is None else "<fsdpck.Source %s: %s, %d tensors>" % (
            self.path, self.kind, len(self))

    # --- facts ---

    @property
    def path(self) -> str:
        """The path that it was opened by."""
        return text(lib.fsdpck_source_path(self._open()))

    @property
    def kind(self) -> str:
        """"fsdpck", "dcp", "safetensors", "hf", "pt", "ranks", "deepspeed" or "vllm-sharded"."""
        return text(lib.fsdpck_source_kind(self._open()))

    @property
    def state(self) -> Optional[str]:
        """The JSON that the saver left in the index, or None."""
        state = lib.fsdpck_source_state(self._open())
        return None if state == ffi.NULL else text(state)

    @property
    def nranks(self) -> int:
        """Number of ranks that wrote it; 0 if unknown."""
        return int(lib.fsdpck_source_nranks(self._open()))

    @property
    def notes(self) -> List[str]:
        """Notes of the library, each a sentence; errors are exceptions."""
        return list(self._options.notes)

    # --- reading ---

    def read(self, requests: Iterable[Sequence[Any]]) -> List[Any]:
        """Reads many boxes at once: sorted by their place on disk, neighbours in one go, by all threads. A request is
        `(name, index)` or `(name, index, out)`. Returns the arrays in the order of the requests."""
        asked = [(r[0], r[1], r[2] if len(r) > 2 else None) for r in requests]
        arrays = self._read(asked, self._framework)
        if self._framework == "torch" and self._device not in (None, "cpu"):
            return [a.to(self._device) if out is None else a for a, (_, _, out) in zip(arrays, asked)]
        return arrays

    def _read(self, requests: List[Tuple[Any, Index, Any]], framework: str, raw: bool = False) -> List[Any]:
        source = self._open()
        reads, results, nbytes = [], [], 0
        for name, index, out in requests:
            tensor = name if isinstance(name, Tensor) else self[name]
            b = box(tensor.shape, index)
            kind, place = framework, None  # type: str, Optional[_arrays.Memory]
            if out is not None:
                with of_tensor(tensor.name):
                    place = _arrays.target(out, b.shape, tensor.dtype, raw)
                kind = "torch" if _arrays.is_torch(out) else "numpy"
            if place is None or not b.is_whole:
                place = _arrays.memory(_arrays.new_array(kind, b.read_shape, tensor.dtype, raw))
            results.append((b, place, out))
            if 0 not in b.size:
                reads.append(_Read(tensor, b, place))
                nbytes += reads[-1].nbytes
        if reads:
            table = ffi.new("struct fsdpck_read[]", [r.struct for r in reads])
            if nbytes > _LONG_NBYTES or self._options.progress:
                options = self._options.of_one_call()
                options.call(lib.fsdpck_source_read_for, source, table, len(reads), options.struct,
                             wait=nbytes > _LONG_NBYTES)
            else:
                self._options.call(lib.fsdpck_source_read, source, table, len(reads))
        return [_finish(*r) for r in results]

    def plan(self, requests: Iterable[Sequence[Any]]) -> "Plan":
        """What `read(requests)` would cost. Reads metadata only."""
        source, reads = self._open(), []
        for name, index in (r[:2] for r in requests):
            tensor = name if isinstance(name, Tensor) else self[name]
            b = box(tensor.shape, index)
            if 0 not in b.size:
                reads.append(_Read(tensor, b))
        out = ffi.new("struct fsdpck_plan *")
        table = ffi.new("struct fsdpck_read[]", [r.struct for r in reads])
        self._options.call(lib.fsdpck_source_plan, source, table, len(reads), out)
        out.needed_nbytes = sum(r.nbytes for r in reads)
        return Plan.of(out)

    def objects(self) -> Dict[str, Tuple[Union[str, int], ...]]:
        """Names of the values other than tensors (numbers, strings …), and the keys that led to each."""
        source = self._open()
        items = (lib.fsdpck_source_item(source, i) for i in range(lib.fsdpck_source_nitems(source)))
        return {text(item.name): _keys(item) for item in items}

    def read_object(self, name: str) -> bytes:
        """Reads such a value as torch.save() wrote it: a file for torch.load(), checked."""
        source = self._open()
        for i in range(lib.fsdpck_source_nitems(source)):
            item = lib.fsdpck_source_item(source, i)
            if text(item.name) == name:
                data = bytearray(item.nbytes)
                self._options.call(lib.fsdpck_source_read_item, source, i, ffi.from_buffer(data))
                return bytes(data)
        raise TensorNotFoundError("%s: there is no value '%s'" % (self.path, name), file=self.path, tensor=name)

    # --- as safetensors' safe_open has it ---

    def get_tensor(self, name: str) -> Any:
        """Reads a whole tensor."""
        return self.read([(name, ...)])[0]

    def get_tensors(self, names: Optional[Iterable[str]] = None) -> Dict[str, Any]:
        """Reads these tensors, or all, at once."""
        wanted = list(self if names is None else names)
        return dict(zip(wanted, self.read([(n, ...) for n in wanted])))

    def get_slice(self, name: str) -> Tensor:
        """The same as `source[name]`."""
        return self[name]

    # --- closing ---

    def close(self) -> None:
        """Closes the source, as the end of a `with` block does."""
        self._handle = None

    def __enter__(self) -> "Source":
        self._open()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _own(self, base: "Source") -> None:
        """Keeps what the library uses of a source that is part of this one from now on."""
        self._bases.append(base._options)

    def _release(self) -> Any:
        """The library's source, which the library now closes."""
        handle, self._handle = self._open(), None
        ffi.gc(handle, None)
        return handle

    def _open(self) -> Any:
        """The library's source. Who holds it keeps it open."""
        if self._handle is None:
            raise ValueError("the source is closed")
        return self._handle

    def _find(self, name: object) -> Any:
        """The library's tensor of that name, or NULL."""
        source = self._open()
        try:
            return lib.fsdpck_source_find(source, encoded(name)) if isinstance(name, str) else ffi.NULL
        except UsageError:  # no tensor can have this name
            return ffi.NULL

    def _not_found(self, name: object) -> TensorNotFoundError:
        typed = str(name).encode("utf-8", "replace").replace(b"\0", b" ")
        near = min(self, key=lambda n: lib.fsdpck_name_distance(typed, encoded(n)), default=None)
        return TensorNotFoundError("%s: there is no tensor '%s'" % (self.path, name), file=self.path, tensor=name,
                                   hint=near and "the nearest is '%s'" % near)


def _keys(info: Any) -> Tuple[Union[str, int], ...]:
    """The path of a tensor or an item."""
    keys = (info.path[i] for i in range(info.npath))
    return tuple(int(k.position) if k.str == ffi.NULL else text(k.str) for k in keys)


class _Read:
    """A struct fsdpck_read, and the memory that it points to. Without a place it can be planned only."""

    def __init__(self, tensor: Tensor, b: Box, place: Optional[_arrays.Memory] = None) -> None:
        self._hold = (ffi.new("uint64_t[]", b.offset), ffi.new("uint64_t[]", b.size),
                      ffi.new("int64_t[]", b.strides(place.strides)) if place else ffi.NULL)
        offset, size, strides = self._hold if b.offset else (ffi.NULL,) * 3
        dst = ffi.cast("void *", place.address + b.first(place.strides)) if place else ffi.NULL
        self.struct = {"tensor": tensor._info, "offset": offset, "size": size, "strides": strides, "dst": dst}
        self.nbytes = _arrays.dtype_nbytes(tensor._info.dtype)
        for n in b.size:
            self.nbytes *= n


def _finish(b: Box, place: _arrays.Memory, out: Any) -> Any:
    """The result of a read: what was read, or its steps."""
    if b.is_whole:
        return place.array
    result = place.array[tuple(slice(None, None, abs(s)) for s in b.step)]
    if out is None:
        return result
    (out.detach() if _arrays.is_torch(out) else out)[...] = result
    return out

