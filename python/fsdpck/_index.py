# SPDX-License-Identifier: Apache-2.0
"""NumPy's basic indexing, as a box of the tensor that is read and what remains to be done in memory."""
from __future__ import annotations

import operator
from typing import Any, List, Optional, Sequence, Tuple


class Box:
    """The result of an index. `offset` and `size` are the box to read. Axes of integers are dropped, and those of
    negative steps are turned while it is read; then the sizes of steps apply. An axis that None added has no dimension
    of the tensor."""

    def __init__(self) -> None:
        self.offset: List[int] = []
        self.size: List[int] = []
        self.axes: List[Optional[int]] = []  # dimension of the tensor of each axis of the result
        self.step: List[int] = []  # of each axis of the result

    @property
    def read_shape(self) -> Tuple[int, ...]:
        """Shape of the memory that the box is read into."""
        return tuple(1 if d is None else self.size[d] for d in self.axes)

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple((n + abs(s) - 1) // abs(s) for n, s in zip(self.read_shape, self.step))

    @property
    def is_whole(self) -> bool:
        """Whether the memory that was read is the result."""
        return all(abs(s) == 1 for s in self.step)

    def strides(self, strides: Sequence[int]) -> List[int]:
        """Distances in memory for each dimension of the tensor, of those for each axis of the result."""
        out = [0] * len(self.size)
        for d, stride, step in zip(self.axes, strides, self.step):
            if d is not None:
                out[d] = stride if step > 0 else -stride
        return out

    def first(self, strides: Sequence[int]) -> int:
        """Where the first element of the box goes, in bytes from the first one of the memory."""
        return sum((n - 1) * stride for n, stride, step in zip(self.read_shape, strides, self.step) if step < 0)

    def _add(self, entry: Any, n: int) -> None:
        """The next dimension, of n elements."""
        d = len(self.size)
        if isinstance(entry, slice):
            r = range(*entry.indices(n))
            self.offset.append(min(r[0], r[-1]) if r else 0)
            self.size.append(abs(r[-1] - r[0]) + 1 if r else 0)
            self.axes.append(d)
            self.step.append(r.step if len(r) > 1 else 1)
            return
        try:
            i = operator.index(entry)
        except TypeError:
            i = None
        if i is None or isinstance(entry, bool):
            raise IndexError("an index is made of integers, slices, '...' and None; found %r" % (entry,))
        if not -n <= i < n:
            raise IndexError("index %d is out of bounds for dimension %d of %d elements" % (i, d, n))
        self.offset.append(i % n)
        self.size.append(1)


def box(shape: Sequence[int], index: Any) -> Box:
    """The box of `index` in a tensor of this shape."""
    entries = list(index) if isinstance(index, tuple) else [index]
    ndots = sum(e is Ellipsis for e in entries)
    if ndots > 1:
        raise IndexError("an index has at most one '...'")
    missing = len(shape) - sum(e is not None and e is not Ellipsis for e in entries)
    if missing < 0:
        raise IndexError("%d indices for a tensor of %d dimensions" % (len(shape) - missing, len(shape)))
    dots = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[dots:dots + 1] = [slice(None)] * missing
    out = Box()
    for entry in entries:
        if entry is None:
            out.axes.append(None)
            out.step.append(1)
        else:
            out._add(entry, shape[len(out.size)])
    return out
