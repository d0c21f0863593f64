# SPDX-License-Identifier: Apache-2.0
"""Copies a state, so that training goes on while the copy is saved."""
from __future__ import annotations

import copy
import weakref
from typing import Any, Dict, List, Mapping, Set

import torch
from torch import nn


class AsyncStager:
    """Copies the state for `torch.distributed.checkpoint.async_save(…, async_stager=…)` into memory that it uses again
    for each save: pinned for tensors of a GPU. While a save still needs its copy, the next one gets other memory.
    The program makes one stager, and passes it to every save; `close()` frees the memory."""

    should_synchronize_after_execute = False  # stage() returns when the state is copied

    def __init__(self) -> None:
        self._buffers: List[Buffers] = []

    def stage(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        for buffers in self._buffers:
            if not buffers.in_use():
                break
        else:
            buffers = Buffers()
            self._buffers.append(buffers)
        copied: Dict[str, Any] = buffers.copy_of(state_dict)
        return copied

    def synchronize_staging(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        self._buffers.clear()


class Buffers:
    """Memory for the tensors of a state. They are taken in the order of its tensors."""

    def __init__(self) -> None:
        self._kept: List[torch.Tensor] = []
        self._given: List["weakref.ref[torch.Tensor]"] = []

    def in_use(self) -> bool:
        """Somebody still has a tensor of the last copy."""
        return any(given() is not None for given in self._given)

    def copy_of(self, state: Any) -> Any:
        """The state with tensors in these buffers."""
        copies = _Copies(self._kept)
        out = copies.of(state)
        del self._kept[len(copies.given):]
        self._given = copies.given
        for device in copies.devices:
            torch.cuda.synchronize(device)
        return out


class _Copies:

    def __init__(self, kept: List[torch.Tensor]) -> None:
        self._kept, self._copies = kept, {}  # type: List[torch.Tensor], Dict[int, Any]
        self.given: List["weakref.ref[torch.Tensor]"] = []
        self.devices: Set[torch.device] = set()

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._copies:  # tied weights
                self._copies[id(value)] = value, self._tensor(value)
            return self._copies[id(value)][1]
        if isinstance(value, Mapping):
            return {k: self.of(v) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_make"):  # a namedtuple
            return value._make(self.of(v) for v in value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(v) for v in value)
        return copy.deepcopy(value)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        out = tensor.detach()
        local = getattr(out, "_local_tensor", None)
        if local is not None:
            out._local_tensor = self._buffer(local)  # type: ignore[attr-defined]
            return out
        # Only the class of another kind of tensor knows how to copy it.
        return self._buffer(out) if type(tensor) in (torch.Tensor, nn.Parameter) else out.clone()

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        n, on_gpu = len(self.given), tensor.device.type == "cuda"
        if n == len(self._kept):
            self._kept.append(torch.empty(0))
        kept = self._kept[n]
        if kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = self._kept[n] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
        if on_gpu:
            self.devices.add(tensor.device)
        given = kept.detach()
        self.given.append(weakref.ref(given))
        return given.copy_(tensor, non_blocking=on_gpu)
