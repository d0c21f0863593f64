# SPDX-License-Identifier: Apache-2.0
"""Reads boxes of a source into tensors of any dtype and device, with memory of a fixed size for those that are cast or
lie on a GPU."""
from __future__ import annotations

import math
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from fsdpck import _arrays
from fsdpck._source import Source, Tensor

_SLOT_NBYTES = 64 << 20
_ALIGNMENT = 64


class Fill(NamedTuple):
    """A box of a tensor, and the tensor of its shape that gets it."""
    tensor: Tensor
    box: Tuple[slice, ...]  # in it
    target: torch.Tensor
    then: Callable[[], Any] = lambda: None  # called when the target is filled


def fill(source: Source, fills: Iterable[Fill]) -> None:
    """Fills the targets: one read for all that the library can write to. The others are read in parts of bounded size
    into pinned memory if they lie on a GPU, which copies a part while the next one is read. Takes from `fills` only
    what the next read needs."""
    slots, batch = [_Slot(), _Slot()], []  # type: List[_Slot], List[Tuple[Fill, Optional[torch.Tensor]]]
    for f in fills:
        if _takes(f.target, f.tensor):
            batch.append((f, None))
            continue
        for part in _parts_of(f):
            memory = slots[0].take(part)
            if memory is None:
                _read(source, batch, slots[0])
                batch, slots = [], sorted(slots, key=_Slot.is_copied)
                memory = slots[0].take(part)
            batch.append((part, memory))
    _read(source, batch, slots[0])
    for slot in slots:
        slot.wait()


def _read(source: Source, batch: List[Tuple[Fill, Optional[torch.Tensor]]], slot: "_Slot") -> None:
    source._read([(f.tensor, f.box, f.target if memory is None else memory) for f, memory in batch], "torch")
    for f, memory in batch:
        if memory is not None:
            device = f.target.device
            f.target.copy_(memory.to(device, non_blocking=device.type == "cuda"))  # a GPU casts faster
    slot.used_by([f.target.device for f, memory in batch if memory is not None])
    for f, _ in batch:
        f.then()


def _takes(target: torch.Tensor, tensor: Tensor) -> bool:
    """Whether the library can read into the memory of the target."""
    return (target.device.type == "cpu" and target.layout is torch.strided and not target.is_conj()
            and not target.is_neg() and not _arrays.repeats(target.shape, target.stride())
            and target.dtype is _arrays.torch_dtype(tensor.dtype))


# --- memory for parts ---


class _Slot:
    """Memory that parts are read into, which is used again. Pinned if a GPU copies from it."""

    def __init__(self) -> None:
        self._bytes: Optional[torch.Tensor] = None
        self._nused = 0
        self._copies: List[Any] = []  # events of GPUs that copy from it

    def take(self, part: Fill) -> Optional[torch.Tensor]:
        """Returns memory for a part, or None if this buffer is full."""
        self.wait()
        dtype, shape = _arrays.torch_dtype(part.tensor.dtype), part.target.shape
        begin = -(-self._nused // _ALIGNMENT) * _ALIGNMENT
        end = begin + math.prod(shape) * dtype.itemsize
        if end > _SLOT_NBYTES:
            return None
        pinned = part.target.device.type == "cuda"
        if self._bytes is None or pinned and not self._bytes.is_pinned():
            if self._nused:
                return None  # what it holds is read first
            self._bytes = torch.empty(_SLOT_NBYTES, dtype=torch.uint8, pin_memory=pinned)
        self._nused = end
        return self._bytes[begin:end].view(dtype).reshape(shape)

    def used_by(self, devices: Sequence[torch.device]) -> None:
        """These devices copy from it. Afterwards it is free again."""
        self._nused = 0
        for device in {d for d in devices if d.type == "cuda"}:
            self._copies.append(torch.cuda.current_stream(device).record_event())

    def is_copied(self) -> bool:
        """Devices may still be copying from it."""
        return bool(self._copies)

    def wait(self) -> None:
        """Waits for these copies."""
        while self._copies:
            self._copies.pop().synchronize()


def _parts_of(f: Fill) -> Iterator[Fill]:
    """The fill in parts that each fit into a slot. The last one does what follows."""
    parts = list(_parts(f.target.shape, _arrays.torch_dtype(f.tensor.dtype).itemsize))
    for i, part in enumerate(parts):
        begins = [n.indices(size)[0] for n, size in zip(f.box, f.tensor.shape)]
        box = tuple(slice(b + p.start, b + p.stop) for b, p in zip(begins, part))
        yield Fill(f.tensor, box, f.target[part], f.then if i == len(parts) - 1 else lambda: None)


def _parts(shape: Sequence[int], nbytes: int) -> Iterator[Tuple[slice, ...]]:
    """Boxes of a tensor of this shape and bytes an element, in row-major order."""
    whole = tuple(slice(0, n) for n in shape)
    row = math.prod(shape[1:]) * nbytes
    if not shape or math.prod(shape) * nbytes <= _SLOT_NBYTES:
        yield whole
        return
    step = max(1, _SLOT_NBYTES // row)
    for begin in range(0, shape[0], step):
        rows = slice(begin, min(begin + step, shape[0]))
        if row <= _SLOT_NBYTES:
            yield (rows, *whole[1:])
        else:
            for rest in _parts(shape[1:], nbytes):
                yield (rows, *rest)
