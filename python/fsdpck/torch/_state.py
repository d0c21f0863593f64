# SPDX-License-Identifier: Apache-2.0
"""Saves what a training resumes from: model, optimizer and values of the caller; and loads the last two again."""
from __future__ import annotations

import inspect
import io
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_optimizer_state_dict)

import fsdpck
from fsdpck._source import Path, Source
from fsdpck.torch._reader import StorageReader, checked_object
from fsdpck.torch._staging import Buffers
from fsdpck.torch._writer import StorageWriter

Optimizers = Union[torch.optim.Optimizer, List[torch.optim.Optimizer]]
_OPTIMIZER_KEYS = ("optim", "optimizer")
# torch leaves out an empty dict, so that the values after it in a list move up, and makes the keys of a dict strings.
_EMPTY = ("fsdpck: an empty dict", )
# First of a list of two that stands for a dict with such keys; the second is the list of its pairs.
_PAIRS = "fsdpck: a dict with keys other than strings"


def save(model: nn.Module, optimizer: Optional[Optimizers], extra: Optional[Mapping[Any, Any]], path: Path, *,
         overwrite: bool = True, compress: bool = False, process_group: Any = None) -> None:
    """Saves a checkpoint directory that appears whole or not at all, each rank its own shards. All ranks call it.

    optimizer: one, several, or None. An optimizer that has made no step gets the state that it begins with.
    extra: tensors, numbers and the like in nested dicts and lists, the same on every rank. Keys may be other values
    than strings; a mapping of another class comes back as a dict.
    overwrite: replaces an existing checkpoint, once the new one is complete.
    compress: without loss; PyTorch cannot read the result.
    process_group: a group of all ranks, if not the default one."""
    _write(_state(model, optimizer, extra), StorageWriter(path, overwrite=overwrite, compress=compress), process_group)


def load_optimizer(model: nn.Module, optimizer: Optimizers, source: Path, *, key: Optional[str] = None,
                   **options: Any) -> None:
    """Loads the state of an optimizer, saved at any number of ranks: each rank reads its own shards. All ranks call it.
    An optimizer that has made no step is given memory for its state first.

    source: what `save()` wrote, or any checkpoint of torch.distributed.checkpoint with an optimizer state dict in it.
    key: of that state dict; by default "optim" or "optimizer".
    options: further arguments of `fsdpck.open()`."""
    key = key or _found_key(source, options)
    state = get_optimizer_state_dict(model, optimizer)
    dcp.load({key: state}, storage_reader=StorageReader(source, **options), **_undistributed(dcp.load))
    set_optimizer_state_dict(model, optimizer, state)


def load_extra(source: Union[Path, Source]) -> Dict[Any, Any]:
    """The values that `save()` got as `extra`. Every rank reads all of them. Only values are unpickled that
    torch.load(weights_only=True) takes."""
    opened = source if isinstance(source, Source) else fsdpck.open(source, "torch")
    try:
        out: Dict[str, Any] = {}
        for tensor in opened.values():
            if tensor.path[0] == "extra":
                _put(out, tensor.path, tensor.torch())
        for name, keys in opened.objects().items():
            if keys[0] == "extra":
                _put(out, keys, torch.load(io.BytesIO(checked_object(opened, name)), weights_only=True))
        extra: Dict[Any, Any] = _with_dicts(_with_lists(out)).get("extra", {})
        return extra
    finally:
        if opened is not source:
            opened.close()


class AsyncSaver:
    """Saves as `save()` does while training goes on: `save()` copies the state to memory that is allocated once, pinned
    for tensors of a GPU, and a thread writes it. One save is in flight; the next one waits for it. All ranks make it
    and call it in the same order: it has a process group of its own.

    overwrite, compress: as for `fsdpck.torch.save()`."""

    def __init__(self, *, overwrite: bool = True, compress: bool = False) -> None:
        self._overwrite, self._compress = overwrite, compress
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._buffers = Buffers()
        self._thread: Optional[threading.Thread] = None
        self._failure: Optional[BaseException] = None

    def save(self, model: nn.Module, optimizer: Optional[Optimizers], extra: Optional[Mapping[Any, Any]],
             path: Path) -> None:
        """Returns when the state is copied. Raises the error of the save before."""
        self.wait()
        state = self._buffers.copy_of(_state(model, optimizer, extra))
        writer = StorageWriter(path, overwrite=self._overwrite, compress=self._compress)
        self._thread = threading.Thread(target=self._run, args=(state, writer), name="fsdpck save")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left
            self._thread = None
            raise

    def wait(self) -> None:
        """Waits for the save that is in flight, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> "AsyncSaver":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.wait()

    def _run(self, state: Dict[str, Any], writer: StorageWriter) -> None:
        try:
            _write(state, writer, self._group)
        except BaseException as e:  # torch's CheckpointException is no Exception
            self._failure = e


# --- saving ---


def _state(model: nn.Module, optimizer: Optional[Optimizers], extra: Optional[Mapping[Any, Any]]) -> Dict[str, Any]:
    state: Dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optim"] = get_optimizer_state_dict(model, optimizer)
    if extra:
        state["extra"] = _without_dicts(extra)
    return state


def _without_dicts(value: Any) -> Any:
    """The value with something else for each dict in it that torch would change."""
    if isinstance(value, Mapping):
        inner = {k: _without_dicts(v) for k, v in value.items()}
        if inner and not all(isinstance(k, str) for k in inner):
            return [_PAIRS, [[k, v] for k, v in inner.items()]]
        return inner or _EMPTY
    return type(value)(_without_dicts(v) for v in value) if type(value) in (list, tuple) else value


def _with_dicts(value: Any) -> Any:
    """The value that _without_dicts() got."""
    if type(value) is dict:
        return {k: _with_dicts(v) for k, v in value.items()}
    if type(value) not in (list, tuple):
        return value
    inner = [_with_dicts(v) for v in value]
    if len(inner) == 2 and type(inner[0]) is str and inner[0] == _PAIRS:
        return dict(inner[1])
    return {} if value == _EMPTY else type(value)(inner)


def _write(state: Dict[str, Any], writer: StorageWriter, process_group: Any) -> None:
    dcp.save(state, storage_writer=writer, process_group=process_group, **_undistributed(dcp.save))


def _undistributed(function: Callable[..., Any]) -> Dict[str, Any]:
    """What tells torch, since 2.5, that there is one rank."""
    alone = not dist.is_initialized() and "no_dist" in inspect.signature(function).parameters
    return {"no_dist": True} if alone else {}


# --- loading ---


def _found_key(source: Path, options: Mapping[str, Any]) -> str:
    with fsdpck.open(source, **options) as opened:
        there = {t.path[0] for t in opened.values()} | {keys[0] for keys in opened.objects().values()}
    for key in _OPTIMIZER_KEYS:
        if key in there:
            return key
    raise fsdpck.MissingError("%s: there is no optimizer state: found the trees %s" %
                              (source, ", ".join(sorted(map(str, there))[:8])), hint="key= names its state dict")


def _put(out: Dict[Any, Any], keys: Any, value: Any) -> None:
    for key in keys[:-1]:
        out = out.setdefault(key, {})
    out[keys[-1]] = value


def _with_lists(value: Any) -> Any:
    """Dicts whose keys are positions are lists."""
    if not isinstance(value, dict):
        return value
    inner = {k: _with_lists(v) for k, v in value.items()}
    if inner and all(isinstance(k, int) for k in inner):
        return [inner[k] for k in sorted(inner)]
    return inner
