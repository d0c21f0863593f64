# SPDX-License-Identifier: Apache-2.0
"""A storage from which torch.distributed.checkpoint loads anything that fsdpck reads."""
from __future__ import annotations

import functools
import io
import uuid
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch.distributed.checkpoint import StorageReader as TorchReader
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata,
                                                   StorageMeta, TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

import fsdpck
from fsdpck import _arrays
from fsdpck._source import Path, Source
from fsdpck.torch._fill import Fill, fill


class StorageReader(TorchReader):
    """Loads any source with `torch.distributed.checkpoint.load()`: each rank reads the boxes that it holds, joined over
    the chunks that were saved, checked against their hashes, straight into CPU tensors of the same dtype.

    path: anything that `fsdpck.open()` takes.
    prefix: put before every name of the source ("model." for a folder of weights and a state dict {"model": …}).
    trust: unpickles values of any class; without it, only those that torch.load(weights_only=True) takes.
    options: further arguments of `fsdpck.open()`: format, dequantize, names, config, verify, threads, memory."""

    def __init__(self, path: Path, *, prefix: str = "", trust: bool = False, **options: Any) -> None:
        super().__init__()
        self._path, self._prefix, self._trust, self._options = path, prefix, trust, options
        self._source: Optional[Source] = None
        self.load_id = str(uuid.uuid4())

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._path = checkpoint_id
        self._source, self.load_id = None, str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._source = source = fsdpck.open(self._path, "torch", **self._options)
        described: Dict[str, Any] = {}
        paths: Dict[str, Tuple] = {}
        for tensor in source.values():
            whole = ChunkStorageMetadata(torch.Size([0] * tensor.ndim), torch.Size(tensor.shape))
            described[self._prefix + tensor.name] = TensorStorageMetadata(
                TensorProperties(dtype=_arrays.torch_dtype(tensor.dtype)), torch.Size(tensor.shape), [whole])
            paths[self._prefix + tensor.name] = self._keys(tensor.path)
        for name, keys in source.objects().items():
            described[self._prefix + name] = BytesStorageMetadata()
            paths[self._prefix + name] = self._keys(keys)
        return Metadata(described, paths, {}, StorageMeta(self._path, load_id=self.load_id))

    def _keys(self, keys: Tuple) -> Tuple:
        return tuple(k for k in self._prefix.split(".") if k) + keys

    # "kwargs": by this name torch sees that it may pass rank and use_collectives.
    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        assert self._source is not None, "read_metadata() comes first"
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._read_object(self._name(item))))
        fill(self._source, self._fills(plan, planner))
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _fills(self, plan: LoadPlan, planner: LoadPlanner) -> Iterator[Fill]:
        assert self._source is not None
        for item in plan.items:
            if item.type != LoadItemType.BYTE_IO:
                target = planner.resolve_tensor(item).detach()
                yield Fill(self._source[self._name(item)], _index(item), target,
                           functools.partial(planner.commit_tensor, item, target))

    def _name(self, item: ReadItem) -> str:
        return item.storage_index.fqn[len(self._prefix):]

    def _read_object(self, name: str) -> bytes:
        """The value as torch.save wrote it. The planner unpickles it without a second look."""
        assert self._source is not None
        return self._source.read_object(name) if self._trust else checked_object(self._source, name)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, (str, bytes)) or hasattr(checkpoint_id, "__fspath__")


def _index(item: ReadItem) -> Tuple[slice, ...]:
    """The box in the whole tensor: the metadata names one chunk, which begins at its first element."""
    return tuple(slice(o, o + n) for o, n in zip(item.storage_offsets, item.lengths))


def checked_object(source: Source, name: str) -> bytes:
    """A value that torch.load(weights_only=True) takes, as torch.save wrote it."""
    data = source.read_object(name)
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as e:
        raise fsdpck.UnsupportedError(
            "%s: the value '%s' is refused: %s" % (source.path, name, str(e).strip().split("\n")[0]), file=source.path,
            tensor=name, hint="trust=True unpickles it, which may run code; torch.serialization.add_safe_globals() "
            "allows a class") from None
    return data
