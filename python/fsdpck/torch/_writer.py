# SPDX-License-Identifier: Apache-2.0
"""A storage to which torch.distributed.checkpoint saves: an fsdpck checkpoint, which PyTorch reads too."""
from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from torch.distributed.checkpoint import StorageWriter as TorchWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from fsdpck import _arrays
from fsdpck._call import Options, Progress
from fsdpck._errors import BusyError, UsageError, of_tensor, text
from fsdpck._native import ffi, lib
from fsdpck._requests import Hold, key_path
from fsdpck._source import Path, path_bytes
from fsdpck.torch._memory import box

_Names = Tuple[List[str], List[str]]  # of tensors and of other values: their order in the checkpoint


class _Share(NamedTuple):
    """What the coordinator tells a rank by its plan. The planner may give it to a later save again, if it caches
    plans; so nothing in it belongs to one save."""
    rank: int
    nranks: int
    ordinals: List[Optional[int]]  # of each item in its list of names; None: another rank writes the same
    digest: str  # of the names


class _Stored(NamedTuple):
    """What a rank tells the coordinator of an item that it wrote."""
    dtype: Optional[str]  # of a tensor: that of its data, which the plan need not know
    digest: str
    save_id: str


class StorageWriter(TorchWriter):
    """Saves with `torch.distributed.checkpoint.save()` and `async_save()`: each rank writes its boxes, hashed, into one
    file; the checkpoint appears whole or not at all. PyTorch reads the directory, unless it is compressed.

    path: the directory; a `checkpoint_id` that is passed to `save()` replaces it.
    overwrite: replaces an existing checkpoint, once the new one is complete.
    compress: without loss; PyTorch cannot read the result.
    threads, memory: as for `fsdpck.open()`.
    progress: called with the bytes done and in total, of this rank."""

    def __init__(self, path: Optional[Path] = None, *, overwrite: bool = True, compress: bool = False,
                 threads: int = 0, memory: int = 0, progress: Optional[Progress] = None) -> None:
        super().__init__()
        self._path, self._overwrite, self._compress = path, overwrite, compress
        self._options: Dict[str, Any] = {"threads": threads, "memory": memory, "progress": progress}
        self._begun: Any = None  # the coordinator's hold on a save
        self._names: Optional[_Names] = None

    def __getstate__(self) -> Dict[str, Any]:
        """async_save() may send the writer to another process."""
        return {**self.__dict__, "_begun": None, "_names": None}

    @property
    def checkpoint_id(self) -> Optional[Path]:
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, (str, bytes)) or hasattr(checkpoint_id, "__fspath__")

    def storage_meta(self) -> Optional[StorageMeta]:
        return StorageMeta(checkpoint_id=self._path)

    def reset(self, checkpoint_id: Any = None) -> None:
        self._begun = None
        if checkpoint_id is not None:
            self._path = checkpoint_id

    # "kwargs": by this name torch sees that it may pass rank and use_collectives.
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False would make each rank write a checkpoint of its own",
                             hint="leave it out; no_dist=True is for a program of one rank")
        if self._path is None:
            raise UsageError("a path is wanted", hint="StorageWriter(path), or checkpoint_id=path")
        self._begun = None  # nobody says that the last save failed

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        """The coordinator begins the save, and numbers all values."""
        self._begin(len(plans))
        self._names = None
        if not all(getattr(p, "usable", True) for p in plans):
            return plans  # the planner replaces them by those of an earlier save
        self._names = _names(plans)
        return [dataclasses.replace(p, storage_data=s) for p, s in zip(plans, _shares(plans, self._names))]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        share = plan.storage_data
        if not isinstance(share, _Share):
            raise UsageError("the plan does not carry what prepare_global_plan() put into storage_data")
        try:
            results = self._write(plan, planner, share)
        except BaseException:
            self._begun = None
            raise
        done: "Future[List[WriteResult]]" = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        names = _checked_names(self._names, metadata)
        stored = {r.index: r.storage_data for rank in results for r in rank}
        if any(s.digest != _digest(names) for s in stored.values()):
            raise UsageError("ranks saved other values than the plan has now",
                             hint="a planner with enable_plan_caching keeps plans of an earlier save; save without")
        request = _Whole(names, metadata, stored)
        self._describe(request, 0, len(results))
        begun, self._begun = self._begun, None
        ffi.gc(begun, None)  # the commit frees it
        options = Options(**self._options)
        options.call(lib.fsdpck_save_commit, begun, request.struct, options.struct, wait=True)
        save_id = next(iter(stored.values())).save_id if stored else None
        metadata.storage_data, metadata.storage_meta = {}, StorageMeta(self._path, save_id=save_id)

    # --- calls into the library ---

    def _describe(self, request: Any, rank: int, nranks: int) -> None:
        """Fills in what all phases of a save have in common."""
        assert self._path is not None, "set_up_storage_writer() comes first"
        request.struct.out = request.hold.string(path_bytes(self._path))
        request.struct.rank, request.struct.nranks = rank, nranks
        request.struct.force, request.struct.compress = self._overwrite, self._compress

    def _begin(self, nranks: int) -> None:
        request = _Request()
        self._describe(request, 0, nranks)
        begun, options = ffi.new("struct fsdpck_save_begun **"), Options(**self._options)
        try:
            options.call(lib.fsdpck_save_begin, request.struct, options.struct, begun)
        except BusyError:
            gc.collect()  # a writer of this process whose save failed may be held by the exception's tracebacks alone
            options.call(lib.fsdpck_save_begin, request.struct, options.struct, begun)
        self._begun = ffi.gc(begun[0], functools.partial(_abandon, os.getpid()))

    def _write(self, plan: SavePlan, planner: SavePlanner, share: _Share) -> List[WriteResult]:
        options, result = Options(**self._options), ffi.new("struct fsdpck_transfer_result *")
        part = _Part(plan, planner, share.ordinals, options)
        self._describe(part, share.rank, share.nranks)
        options.call(lib.fsdpck_save_part, part.struct, part.tensor_ordinals, part.item_ordinals, options.struct,
                     result, wait=True)
        save_id = text(result.save_id)
        return [WriteResult(index, nbytes, _Stored(dtype, share.digest, save_id))
                for index, nbytes, dtype in part.written]


def _abandon(pid: int, begun: Any) -> None:
    if os.getpid() == pid:  # a process that was forked does not own the save
        lib.fsdpck_save_abandon(begun)


# --- names and numbers ---


def _is_object(item: WriteItem) -> bool:
    return item.type == WriteItemType.BYTE_IO


def _names(plans: List[SavePlan]) -> _Names:
    names: Tuple[Dict[str, None], Dict[str, None]] = ({}, {})
    for plan in plans:
        for item in plan.items:
            names[_is_object(item)][item.index.fqn] = None
    return list(names[0]), list(names[1])


def _checked_names(names: Optional[_Names], metadata: Metadata) -> _Names:
    """The order of the coordinator's plans, or that of the metadata if the plans were cached."""
    found: _Names = ([], [])
    for name, value in metadata.state_dict_metadata.items():
        found[isinstance(value, BytesStorageMetadata)].append(name)
    if names is None:
        return found
    for have, want in zip(names, found):
        if set(have) != set(want):
            raise UsageError("the planner's plans and its metadata have different values: %s" %
                             ", ".join(sorted(set(have) ^ set(want))[:8]))
    return names


def _digest(names: _Names) -> str:
    return hashlib.sha256(repr(names).encode("utf-8", "surrogateescape")).hexdigest()


def _shares(plans: List[SavePlan], names: _Names) -> List[_Share]:
    ordinals = [{name: i for i, name in enumerate(part)} for part in names]
    digest, seen, shares = _digest(names), set(), []
    for rank, plan in enumerate(plans):
        mine: List[Optional[int]] = []
        for item in plan.items:
            planned: Any = item.tensor_data
            key = (item.index.fqn, None if _is_object(item) else tuple(planned.chunk.offsets))
            mine.append(None if key in seen else ordinals[_is_object(item)][item.index.fqn])
            seen.add(key)
        shares.append(_Share(rank, len(plans), mine, digest))
    return shares


# --- requests ---


class _Request:
    """A struct fsdpck_save_request, and all that it points to."""

    def __init__(self) -> None:
        self.hold = Hold()
        self.struct = ffi.new("struct fsdpck_save_request *")

    def lists(self, tensors: List[Dict[str, Any]], items: List[Dict[str, Any]]) -> None:
        self.struct.tensors, self.struct.ntensors = self.hold.new("struct fsdpck_save_tensor[]", tensors), len(tensors)
        self.struct.items, self.struct.nitems = self.hold.new("struct fsdpck_save_item[]", items), len(items)

    def tensor(self, name: str, dtype: str, shape: Tuple[int, ...], more: Dict[str, Any]) -> Dict[str, Any]:
        with of_tensor(name):
            number = _arrays.dtype_number(dtype)
        return {"name": self.hold.string(name), "dtype": number, "ndim": len(shape),
                "shape": self.hold.new("uint64_t[]", list(shape)), **more}


class _Part(_Request):
    """One rank's part of a save."""

    def __init__(self, plan: SavePlan, planner: SavePlanner, ordinals: List[Optional[int]], options: Options) -> None:
        super().__init__()
        self.written: List[Tuple[MetadataIndex, int, Optional[str]]] = []
        tensors: Dict[int, Tuple[str, str, Tuple[int, ...], List[Any]]] = {}
        items: Dict[int, Dict[str, Any]] = {}
        for item, ordinal in zip(plan.items, ordinals):
            if ordinal is None:
                continue
            data: Any = planner.resolve_data(item)
            if _is_object(item):
                items[ordinal] = self._object(item, data)
                continue
            planned: Any = item.tensor_data
            chunk, name = planned.chunk, item.index.fqn
            data, dtype = data.detach(), str(data.dtype)[len("torch."):]
            if data.shape != chunk.sizes:
                raise UsageError("'%s': the planner gave a tensor of shape %s for a box of %s" %
                                 (name, list(data.shape), list(chunk.sizes)))
            known = tensors.setdefault(ordinal, (name, dtype, tuple(planned.size), []))
            if known[1] != dtype:
                raise UsageError("'%s': the planner gave boxes of %s and of %s" % (name, known[1], dtype))
            if data.numel():
                with of_tensor(name):
                    known[3].append(box(self.hold, data, chunk.offsets, options))
            self.written.append((item.index, data.numel() * data.element_size(), dtype))
        numbers = sorted(tensors), sorted(items)
        self.tensor_ordinals, self.item_ordinals = (self.hold.new("uint32_t[]", n) for n in numbers)
        self.lists([self._tensor(*tensors[n]) for n in numbers[0]], [items[n] for n in numbers[1]])

    def _tensor(self, name: str, dtype: str, shape: Tuple[int, ...], boxes: List[Any]) -> Dict[str, Any]:
        return self.tensor(name, dtype, shape,
                           {"boxes": self.hold.new("struct fsdpck_save_box[]", boxes), "nboxes": len(boxes)})

    def _object(self, item: WriteItem, data: Any) -> Dict[str, Any]:
        """A value as the planner wrote it: a BytesIO."""
        name, view = item.index.fqn, data.getbuffer()
        self.written.append((item.index, len(view), None))
        self.hold.append(view)
        return {"name": self.hold.string(name), "data": self.hold.view(view), "nbytes": len(view)}


class _Whole(_Request):
    """The lists of the whole save."""

    def __init__(self, names: _Names, metadata: Metadata, stored: Dict[MetadataIndex, _Stored]) -> None:
        super().__init__()
        dtypes: Dict[str, str] = {}
        for index, s in stored.items():
            if s.dtype is not None and dtypes.setdefault(index.fqn, s.dtype) != s.dtype:
                raise UsageError("'%s': ranks saved it as %s and as %s" % (index.fqn, dtypes[index.fqn], s.dtype))
        self._paths = metadata.planner_data or {}
        self.lists([self._described(n, metadata, dtypes) for n in names[0]], [self._named(n) for n in names[1]])

    def _described(self, name: str, metadata: Metadata, dtypes: Dict[str, str]) -> Dict[str, Any]:
        tensor: Any = metadata.state_dict_metadata[name]
        dtype = dtypes.get(name, str(tensor.properties.dtype)[len("torch."):])
        return self.tensor(name, dtype, tuple(tensor.size), self._named(name))

    def _named(self, name: str) -> Dict[str, Any]:
        path = key_path(self.hold, self._paths.get(name, (name, )))
        return {"name": self.hold.string(name), "path": path, "npath": len(path)}
