"""Indexing with tensors of positions and with masks, beside slices, integers, None and Ellipsis."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import sites
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.errors import warn
from ..core.events import EVENTS
from ..core.record import record
from ..core.shape import Shape, broadcast, numel, without_leading
from ..ir.node import MODE, Node, leaf
from ..ops import build as b
from ..ops import derived as d
from ..ops import picking as pk
from ..runtime.memory import Buffer, buffer_of
from . import indexing
from .core import Number, TensorBase, leaf_of
from .gathering import checked, values_of

_POSITIONS = (dt.int32, dt.int64)
_ROWS: tuple[pk.Place, ...] = ((0, 1),)
_FEW = 32  # lists of so many elements are never taken for tuples, nor kept


def _is_advanced(item: Any) -> bool:
    kind = type(item)
    if kind is int or kind is slice or item is None or item is Ellipsis:
        return False
    if isinstance(item, TensorBase):
        return item.ndim > 0 or item.dtype is dt.bool_
    if isinstance(item, np.ndarray):
        return item.ndim > 0 or item.dtype.kind == "b"
    return isinstance(item, (bool, list, tuple, range))


def is_advanced(index: Any) -> bool:
    """True if ``index`` holds positions or masks: tensors, arrays, sequences, bools.

    0-d tensors of integers are plain integers.
    """
    return any(map(_is_advanced, index)) if type(index) is tuple else _is_advanced(index)


def _items(index: Any) -> list[Any]:
    """What is between the brackets; a short list that holds more than numbers is a tuple."""
    if isinstance(index, tuple):
        return list(index)
    if not isinstance(index, list) or len(index) >= _FEW:
        return [index]
    for item in index:
        nested = isinstance(item, (TensorBase, np.ndarray, list, tuple, range, slice))
        if nested or item is None or item is Ellipsis:
            warn(
                "a list that holds sequences, tensors or slices is an index for several "
                "dimensions, as a tuple is; newer versions of PyTorch take it for one tensor. "
                "Write a tuple, or mt.tensor(...)"
            )
            return list(index)
    return [index]


def _flat(mask: Node, *besides: Node) -> Any:
    """Where a mask holds, as an array of row-major numbers (evaluates the mask)."""
    # Of more dimensions numpy is told each position by itself, in ten times as long.
    return np.flatnonzero(values_of(mask, "a mask as an index", *besides))


def _take_apart(line: Any, shape: Shape, into: Sequence[Any]) -> None:
    """Write what row-major numbers are along each dimension."""
    # Twice as many in a vector, where they fit.
    rest = line.astype(np.uint32) if numel(shape) < 1 << 32 else line
    for dim in range(len(shape) - 1, 0, -1):
        n = rest.dtype.type(shape[dim])
        above = rest // n
        np.subtract(rest, above * n, out=into[dim])
        rest = above
    into[0][...] = rest


def nonzero(mask: Node) -> Node:
    """Where a mask holds, int64 [count, dimensions] (evaluates the mask)."""
    line, rank = _flat(mask), len(mask.shape)
    rows = Buffer(len(line) * rank * dt.int64.itemsize)
    shape = (len(line), rank)
    if rows.nbytes:
        _take_apart(line, mask.shape, rows.numpy(shape, dt.int64).T)
    return leaf(rows, shape, dt.int64)


def nonzero_along(mask: Node) -> list[Node]:
    """The same, a vector for each dimension; one of no dimensions counts as having one."""
    line, shape = _flat(mask), mask.shape or (1,)
    parts = [np.empty(line.shape, np.int64) for _ in shape]
    if len(line):
        _take_apart(line, shape, parts)
    return [_positions(part) for part in parts]


def _positions(array: Any) -> Node:
    return leaf(buffer_of(array, dt.int64), array.shape, dt.int64)


def flat_nonzero(mask: Node, *besides: Node) -> Node:
    """Where a mask holds, as row-major numbers (evaluates the mask, and what is needed besides)."""
    return _positions(_flat(mask, *besides))


@record
class _Entry:
    """One tensor of an index: where it applies to the region, and over how many dimensions."""

    node: Node  # positions, or a mask
    first: int
    span: int
    mask: bool


@record
class Parsed:
    """An index taken apart: the region of its slices and integers, then what applies to that."""

    region: indexing.Region
    entries: tuple[_Entry, ...]

    def places(self) -> tuple[pk.Place, ...]:
        """Where the entries apply."""
        return tuple((e.first, e.span) for e in self.entries)

    def indices(self) -> list[Node]:
        """The positions of all entries; masks are evaluated, positions checked.

        Raises IndexError where positions in memory are out of range, or shapes do not broadcast.
        """
        found = []
        for e in self.entries:
            found.append(flat_nonzero(e.node) if e.mask else e.node)
        together: Shape = ()
        try:
            for index in found:
                together = broadcast(together, index.shape)
        except RuntimeError:
            each = zip(found, self.entries, strict=True)
            shapes = ", ".join(str(list(i.shape)) for i, e in each for _ in range(e.span))
            raise IndexError(
                "shape mismatch: indexing tensors could not be broadcast together with shapes "
                f"{shapes}"
            ) from None
        number = 0
        for place, e in enumerate(self.entries):
            if not e.mask:
                size = self.region.shape[e.first]
                found[place] = checked(found[place], Bounds(-size, size, _error(number, size)))
            number += e.span
        return found


def _error(number: int, size: int) -> Any:
    # PyTorch counts the indexed dimensions only.
    def error(position: int) -> Exception:
        return IndexError(
            f"index {position} is out of bounds for dimension {number} with size {size}"
        )

    return error


@functools.lru_cache(maxsize=256)
def _listed(numbers: tuple[int, ...]) -> TensorBase:
    """A tensor for a list in an index: the same one each time, which ``mt.compile`` can repeat."""
    tensor = TensorBase.__new__(TensorBase)
    tensor._attach(leaf_of(list(numbers), dt.int64))
    return tensor


def _node(item: Any) -> Node:
    short = isinstance(item, (list, tuple, range)) and len(item) < _FEW
    if short and all(type(i) is int for i in item):
        node = _listed(tuple(item)).node
    elif isinstance(item, TensorBase):
        node = item.node
    elif isinstance(item, bool):
        node = b.full((), item, dt.bool_)
    elif isinstance(item, np.ndarray):
        node = leaf_of(item, None)
    else:
        node = leaf_of(list(item), None)
    if node.dtype is dt.uint8:
        warn(
            "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool "
            "instead."
        )
        return b.cast(node, dt.bool_)
    if node.dtype not in (dt.int32, dt.int64, dt.bool_):
        if 0 in node.shape and node.dtype is dt.float32:
            return b.cast(node, dt.int64)
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    return node


def parse(shape: Shape, index: Any) -> Parsed:
    """Translate an index of a tensor of this shape.

    Raises IndexError: too many indices, a mask of another shape, tensors of other dtypes.
    """
    items = _items(index)
    plain: list[Any] = []
    taken: list[tuple[int, Node]] = []  # where in plain
    for item in items:
        if not _is_advanced(item):
            plain.append(item)
            continue
        node = _node(item)
        taken.append((len(plain), node))
        if node.dtype is dt.bool_ and not node.shape:
            plain.append(None)
        else:
            span = len(node.shape) if node.dtype is dt.bool_ else 1
            plain.extend([slice(None)] * span)
    used = sum(item is not None and item is not Ellipsis for item in plain)
    if used > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    region = indexing.parse(shape, tuple(plain))
    spread = {i: len(shape) - used for i, item in enumerate(plain) if item is Ellipsis}
    entries = []
    for at, node in taken:
        before = [
            spread.get(i, 1)
            for i, item in enumerate(plain[:at])
            if item is None or item is Ellipsis or isinstance(item, slice)
        ]
        first, mask = sum(before), node.dtype is dt.bool_
        if mask:
            axis = sum(spread.get(i, 1) for i in range(at) if plain[i] is not None)
            for number, n in enumerate(node.shape):
                if region.shape[first + number] != n:
                    raise IndexError(
                        f"The shape of the mask {list(node.shape)} at index {number} does not "
                        f"match the shape of the indexed tensor {list(shape)} at index "
                        f"{axis + number}"
                    )
        span = max(1, len(node.shape)) if mask else 1
        entries.append(_Entry(node, first, span, mask))
    return Parsed(region, tuple(entries))


def read(x: Node, index: Any) -> Node:
    """``x[index]``: a copy."""
    if isinstance(index, TensorBase) and x.shape and index.dtype in _POSITIONS:
        # The most frequent, in two thirds of the time.
        size = x.shape[0]
        return pk.pick(x, [checked(index.node, Bounds(-size, size, _error(0, size)))], _ROWS)
    parsed = parse(x.shape, index)
    indices = parsed.indices()
    if all(e.mask for e in parsed.entries):
        found = _selected(x, parsed, tuple(i.shape for i in indices))
        if found is not None:
            return found
    return pk.pick(parsed.region.read(x), indices, parsed.places())


def _selected(x: Node, parsed: Parsed, counts: tuple[Shape, ...]) -> Node | None:
    """What masks select, at once, if that is another number of elements each time; else None.

    Each number would need a program, and so would what reads the result.
    """
    trace = MODE.trace
    if trace.capture is not None or trace.forbidden or (x.requires_grad and trace.grad_enabled):
        return None
    if not sites.varies(("mask", x.shape, parsed.region.shape, parsed.places()), counts):
        return None
    EVENTS.add("selected_at_once")
    array = values_of(x, "mask")[parsed.region.slices()].reshape(parsed.region.shape)
    if len(parsed.entries) == 1:
        (e,) = parsed.entries
        count = numel(array.shape[e.first : e.first + e.span])
        line = array.reshape(*array.shape[: e.first], count, *array.shape[e.first + e.span :])
        values = line.take(_flat(e.node), e.first)
    else:
        index: list[Any] = [slice(None)] * array.ndim
        for e in reversed(parsed.entries):
            mask = values_of(e.node, "mask").reshape(array.shape[e.first : e.first + e.span])
            index[e.first : e.first + e.span] = [mask]
        values = array[tuple(index)]
    return leaf(buffer_of(values, x.dtype), values.shape, x.dtype)


def fits(values: Shape, result: Shape) -> Shape:
    """The shape of values without leading ones; RuntimeError unless it broadcasts to ``result``."""
    shape = without_leading(values, len(result))
    try:
        fine = broadcast(shape, result) == result
    except RuntimeError:
        fine = False
    if not fine:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(shape)} cannot be broadcast to indexing "
            f"result of shape {list(result)}"
        )
    return shape


def _filled(part: Node, entry: _Entry, value: Node) -> Node | None:
    """``part`` with ``value`` where one mask holds, unevaluated; None if its count is needed."""
    before, rank = entry.first, len(part.shape) - entry.span + 1
    shape = without_leading(value.shape, rank)
    if len(shape) > rank:
        return None
    padded = (1,) * (rank - len(shape)) + shape
    if padded[before] != 1:
        return None
    # The mask's one dimension in the result is as many as it has in the tensor.
    spread = (*padded[:before], *(1,) * entry.span, *padded[before + 1 :])
    try:
        if broadcast(spread, part.shape) != part.shape:
            return None
    except RuntimeError:
        return None
    behind = len(part.shape) - before - entry.span
    mask = entry.node if entry.node.shape else b.reshape(entry.node, (1,))
    mask = b.reshape(mask, (*mask.shape, *(1,) * behind))
    return b.where(mask, b.reshape(value, spread), part)


def written(x: TensorBase, index: Any, source: Node | Number) -> tuple[indexing.Region, Node]:
    """(the region that is written to, what it is then) of ``x[index] = source``."""
    parsed = parse(x._node.shape, index)
    part = parsed.region.read(x.node)
    number = not isinstance(source, Node)
    value = d.lift(source, part.dtype)
    single = parsed.entries[0] if len(parsed.entries) == 1 else None
    if single is not None and single.mask:
        if isinstance(source, Node) and numel(source.shape) != 1:
            same_dtype(part, source)
        filled = _filled(part, single, value)
        if filled is not None:
            return parsed.region, filled
    indices = parsed.indices()
    result = pk.picked_shape(part.shape, [i.shape for i in indices], parsed.places())
    shape = fits(value.shape, result)
    if isinstance(source, Node) and not number:
        same_dtype(part, source)
    return parsed.region, pk.put(part, b.reshape(value, shape), indices, parsed.places(), False)


def same_dtype(x: Node, values: Node) -> None:
    """RuntimeError unless values have the dtype of what they are written to."""
    if x.dtype is not values.dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, got "
            f"{x.dtype.torch_name} for the destination and {values.dtype.torch_name} for the "
            "source."
        )


def index_put(x: Node, indices: Sequence[TensorBase], values: Node, accumulate: bool) -> Node:
    """``x`` with ``values`` written, or added, at ``indices`` of its first dimensions."""
    parsed = parse(x.shape, tuple(indices))
    found = parsed.indices()
    part = parsed.region.read(x)
    result = pk.picked_shape(part.shape, [i.shape for i in found], parsed.places())
    shape = fits(values.shape, result)
    same_dtype(x, values)
    new = pk.put(part, b.reshape(values, shape), found, parsed.places(), accumulate)
    return parsed.region.write(x, new)
