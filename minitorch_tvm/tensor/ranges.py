"""Bounds of integers that are still to be computed, where what was recorded tells them."""

from __future__ import annotations

import operator
from collections.abc import Callable

from ..core import dtype as dt
from ..ir.node import Node
from ..ir.op import Op
from ..ops import division as dv
from ..ops import elementary as el
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import moves as mo
from ..ops import picking as pk
from ..ops import reduction as rd
from ..ops import sampling as sa
from ..ops import scan as sc

Range = tuple[int, int]
"""The least and the largest."""

MOVES = (mv.Reshape, mv.Expand, mv.Permute, mv.Slice, ew.Clone, ew.Detach)
"""What makes nothing but elements of its input."""

_NARROW = {dt.bool_: (0, 1), dt.uint8: (0, 255)}
_WIDEST = 1 << 31
_MOST = 64  # values that are looked at


def known_range(x: Node) -> Range | None:
    """Bounds of integers, as of :func:`minitorch_tvm.arange`; None if they are not known.

    >>> import minitorch_tvm as mt
    >>> known_range((mt.arange(2, 10, 3) - 1).node)
    (1, 7)
    >>> known_range((mt.randn(3, 5).argmax(1) % 4).node)
    (0, 3)
    >>> known_range(mt.distributions.Categorical(logits=mt.ones(3, 5)).sample().node)
    (0, 4)
    """
    return _Search().range_of(x)


class _Search:
    def __init__(self) -> None:
        self._left = _MOST

    def range_of(self, x: Node) -> Range | None:
        if x.dtype in _NARROW:
            return _NARROW[x.dtype]
        if x.dtype not in (dt.int32, dt.int64) or not self._left:
            return None
        self._left -= 1
        found = self._number(x) if not x.pending else self._made(x.op, x)
        return None if found is None or max(map(abs, found)) >= _WIDEST else found

    @staticmethod
    def _number(x: Node) -> Range | None:
        return None if x.value is None else (int(x.value), int(x.value))

    def _made(self, op: Op, x: Node) -> Range | None:
        if isinstance(op, mv.Iota):
            return 0, x.shape[op.dim] - 1
        if isinstance(op, mv.Full):
            return int(op.value), int(op.value)
        if isinstance(op, rd.ArgMax):
            return 0, x.inputs[0].shape[op.dims[0]] - 1
        if isinstance(op, sc.ArgSort):
            return 0, x.inputs[0].shape[op.dim] - 1
        if sa.is_draw(op):
            return 0, x.inputs[0].shape[-1] - 1
        if isinstance(op, (*MOVES, ew.Cast)) or pk.is_pick(op):
            return self.range_of(x.inputs[0])
        if dv.is_remainder(op):  # of a negative number, too
            count = self._positive(x.inputs[1])
            return None if count is None else (0, count[1] - 1)
        if dv.is_floored(op):
            return self._divided(*x.inputs[1:])
        if isinstance(op, el.IntegerQuotient):
            found = self._divided(*x.inputs)
            return None if found is None else (found[0], found[1] + (found[1] < 0))
        if isinstance(op, (mv.Cat, mo.Stack)):
            return self._any(x.inputs)
        if isinstance(op, ew.Where):
            return self._any(x.inputs[1:])
        act = _ACTS.get(type(op))
        return None if act is None else self._acted(act, *x.inputs)

    def _positive(self, x: Node) -> Range | None:
        found = self.range_of(x)
        return found if found is not None and found[0] > 0 else None

    def _divided(self, x: Node, y: Node) -> Range | None:
        """Of quotients, rounded down."""
        divisor = self._positive(y)
        found = None if divisor is None else self.range_of(x)
        if found is None or divisor is None:
            return None
        ends = [a // c for a in found for c in divisor]
        return min(ends), max(ends)

    def _any(self, xs: tuple[Node, ...]) -> Range | None:
        found = [self.range_of(x) for x in xs]
        known = [r for r in found if r is not None]
        if len(known) < len(found):
            return None
        return min(r[0] for r in known), max(r[1] for r in known)

    def _acted(self, act: Callable[[int, int], int], left: Node, right: Node) -> Range | None:
        a = self.range_of(left)
        c = a if a is None or left is right else self.range_of(right)
        if a is None or c is None:
            return None
        ends = [act(p, q) for p in a for q in c]
        return min(ends), max(ends)


_ACTS: dict[type, Callable[[int, int], int]] = {
    ew.Add: operator.add,
    ew.Sub: operator.sub,
    ew.Mul: operator.mul,
    ew.Minimum: min,
    ew.Maximum: max,
}
