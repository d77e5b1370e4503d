"""Basic indexing: integers, slices, None and Ellipsis become one slice and one reshape."""

from __future__ import annotations

import functools
import operator
from typing import Any

from ..core.record import record
from ..core.shape import Shape, contiguous_strides, split_sizes
from ..core.strides import Strides, offset_of, sliced, sliced_again
from ..ir.node import Node
from ..ops import build as b
from . import at_once


@record
class Region:
    """A rectangular, strided region of a tensor and the shape it is seen in.

    ``axes`` says which dimension each of ``shape`` goes along; ~d is a new one in front of d.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]
    shape: Shape
    axes: tuple[int, ...]
    sizes: Shape
    """How many positions are taken along each dimension of the tensor."""

    def strides(self, shape: Shape, strides: Strides | None) -> Strides | None:
        """Strides of the region of a tensor with this shape and these strides; None: row-major."""
        known = sliced(shape, strides, self.steps, self.axes)
        return None if known == contiguous_strides(self.shape) else known

    def at_front(self, strides: Strides) -> Region:
        """The same elements, read at the first positions along dimensions of stride 0.

        All positions there are one place in memory; what is written counts at the first.
        """
        if 0 not in strides:
            return self
        moved = [
            (start, stop, step) if stride else (0, -(-(stop - start) // step), 1)
            for start, stop, step, stride in zip(
                self.starts, self.stops, self.steps, strides, strict=True
            )
        ]
        starts, stops, steps = zip(*moved, strict=True)
        return Region(starts, stops, steps, self.shape, self.axes, self.sizes)

    def slices(self) -> tuple[slice, ...]:
        """The region as an index of an array."""
        return tuple(map(slice, self.starts, self.stops, self.steps))

    def read(self, x: Node) -> Node:
        """The region of ``x``."""
        if self.sizes == x.shape:
            return at_once.reshaped(x, self.shape)
        found = at_once.read(x, self)
        if found is not None:
            return found
        return b.reshape(b.slice(x, self.starts, self.stops, self.steps), self.shape)

    def offset(self, shape: Shape) -> int | None:
        """Elements of a row-major tensor before the region; None if it is not all in one piece."""
        return offset_of(shape, self.starts, self.sizes, self.steps)

    def write(self, x: Node, value: Node) -> Node:
        """``x`` with the region replaced by ``value`` (shaped like the region)."""
        found = at_once.covered(x, self, value)
        if found is not None:
            return found
        return b.insert(x, b.reshape(value, self.sizes), self.starts, self.steps)


def region_of(view: Any) -> Region | None:
    """What part of its base a view shows, if that is a region."""
    region = getattr(view._write, "__self__", None)
    return region if isinstance(region, Region) else None


@functools.lru_cache(maxsize=4096)
def region_in(outer: Region, inner: Region) -> Region | None:
    """``inner``, a region of what ``outer`` shows, as a region of the tensor that this is one of.

    None if it takes nothing of a dimension that ``outer`` adds.
    """
    rank = len(outer.starts)
    starts, steps, sizes = [0] * rank, [1] * rank, [*outer.sizes]  # of what outer has one of, that
    for d, axis in enumerate(outer.axes):
        if axis >= 0:
            starts[axis], steps[axis], sizes[axis] = inner.starts[d], inner.steps[d], inner.sizes[d]
        elif not inner.sizes[d]:
            return None
    ends = (*outer.axes, ~rank)  # a new dimension behind all others, too, is in front of one
    axes = tuple([ends[d] if d >= 0 else min(ends[~d], ~ends[~d]) for d in inner.axes])
    taken = sliced_again((outer.starts, outer.steps), (starts, steps), sizes)
    return Region(*taken, inner.shape, axes, tuple(sizes))


def parse(shape: Shape, index: Any) -> Region:
    """Translate a Python index; of ints, slices, None and Ellipsis once for each shape.

    Raises IndexError (too many indices, out of range) and ValueError (a
    step that is not positive), in PyTorch's words where it has them.
    """
    key = []
    for item in index if type(index) is tuple else (index,):
        kind = type(item)
        if kind is slice:
            item = item.start, item.stop, item.step
            if not _WHOLE.issuperset(map(type, item)):
                return _parse(shape, index)
        elif not (kind is int or item is None or item is Ellipsis):
            return _parse(shape, index)
        key.append(item)
    return _parsed(shape, *key)


_WHOLE = frozenset((int, type(None)))


@functools.lru_cache(maxsize=4096)
def _parsed(shape: Shape, *key: Any) -> Region:
    return _parse(shape, tuple([slice(*x) if isinstance(x, tuple) else x for x in key]))


@functools.lru_cache(maxsize=1024)
def pieces(shape: Shape, axis: int, wanted: int | tuple[int, ...]) -> list[Region]:
    """Consecutive pieces of dimension ``axis``: of one size (the last smaller), or as listed."""
    found, start = [], 0
    for size in split_sizes(shape[axis], axis, wanted):
        found.append(_parse(shape, (*[slice(None)] * axis, slice(start, start + size))))
        start += size
    return found


def _parse(shape: Shape, index: Any) -> Region:
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used and not shape:
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python to convert a 0-dim "
            "tensor to a number"
        )
    if used > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    missing = len(shape) - used
    starts: list[int] = []
    stops: list[int] = []
    steps: list[int] = []
    out: list[int] = []
    axes: list[int] = []
    sizes: list[int] = []

    def whole(n: int) -> None:
        axes.append(len(starts))
        starts.append(0)
        stops.append(n)
        steps.append(1)
        out.append(n)
        sizes.append(n)

    expanded = False
    for item in items:
        if item is None:
            out.append(1)
            axes.append(~len(starts))
        elif item is Ellipsis:
            expanded = True
            for _ in range(missing):
                whole(shape[len(starts)])
        elif isinstance(item, slice):
            n = shape[len(starts)]
            if item.step is not None and operator.index(item.step) == 0:
                raise ValueError("slice step cannot be zero")
            if item.step is not None and operator.index(item.step) < 0:
                raise ValueError("step must be greater than zero")
            start, stop, step = item.indices(n)
            stop = max(start, stop)
            axes.append(len(starts))
            starts.append(start)
            stops.append(stop)
            steps.append(step)
            out.append(-(-(stop - start) // step))
            sizes.append(out[-1])
        else:
            n = shape[len(starts)]
            position = _integer(item)
            if not -n <= position < n:
                raise IndexError(
                    f"index {position} is out of bounds for dimension {len(starts)} with size {n}"
                )
            position %= n
            starts.append(position)
            stops.append(position + 1)
            steps.append(1)
            sizes.append(1)
    if not expanded:
        for _ in range(missing):
            whole(shape[len(starts)])
    return Region(*map(tuple, (starts, stops, steps, out, axes, sizes)))


def _integer(item: Any) -> int:
    try:
        return operator.index(item)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and tensors of integers are valid "
            f"indices (got {type(item).__name__})"
        ) from None
