"""Accumulators of reductions: how they start, take one more element, and merge."""

from __future__ import annotations

from ....core import dtype as dt
from ....core.dtype import Category, DType
from ....core.record import record
from ....core.tvm_api import tvm
from ...dialect import Scope
from ...loops import Expr, const
from ...scalars import is_nan


@record
class Combine:
    """One of sum, max, min, argmax, argmin, arglastmax on elements of ``dtype``.

    An accumulator is a tuple: (value,) or, for the last three, (value, index).
    """

    kind: str
    dtype: DType

    @property
    def indexed(self) -> bool:
        """True if the position of the winner is tracked."""
        return self.kind.startswith("arg")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types of the accumulator's parts."""
        return (self.dtype.name, "int64") if self.indexed else (self.dtype.name,)

    def start(self) -> tuple[Expr, ...]:
        """The accumulator of no elements."""
        if self.kind == "sum":
            return (const(0, self.dtype.name),)
        lowest = self.kind.endswith("max")
        t = tvm().tirx
        if self.dtype.category is Category.FLOAT:
            limit = t.infinity(self.dtype.name)
            value = -limit if lowest else limit
        else:
            value = (t.min_value if lowest else t.max_value)(self.dtype.name)
        return (value, const(0, "int64")) if self.indexed else (value,)

    def take(
        self,
        acc: tuple[Expr, ...],
        value: Expr,
        position: Expr | None = None,
        scope: Scope | None = None,
    ) -> tuple[Expr, ...]:
        """The accumulator after one more element (at ``position`` for indexed ones).

        ``scope`` holds the element, if it is computed.
        """
        if self.kind == "sum":
            return ((scope or Scope()).add_to_sum(acc[0], value),)
        select = tvm().tirx.Select
        if not self.indexed:
            return (self._extreme(acc[0], value),)
        assert position is not None
        wins = self._wins(acc[0], value)
        where = Scope().cast(position, dt.int64)
        return select(wins, value, acc[0]), select(wins, where, acc[1])

    def merge(self, mine: tuple[Expr, ...], other: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The accumulator of the elements of two, in either order (vectors, if not indexed)."""
        if not self.indexed:
            return self.take(mine, other[0])
        t = tvm().tirx
        tie = t.EQ(mine[0], other[0])
        if self.dtype.category is Category.FLOAT:
            tie = t.any(tie, t.all(is_nan(mine[0]), is_nan(other[0])))
        wins = t.any(self._wins(mine[0], other[0]), t.all(tie, other[1] < mine[1]))
        return t.Select(wins, other[0], mine[0]), t.Select(wins, other[1], mine[1])

    def _extreme(self, held: Expr, value: Expr) -> Expr:
        t = tvm().tirx
        # One instruction, which gives the second of two where one is NaN: what is held stays so.
        better = (t.max if self.kind == "max" else t.min)(value, held)
        if self.dtype.category is not Category.FLOAT:
            return better
        # Whether a new one is NaN is known early.  Of one that is held, it would have to be waited
        # for, also by the load of the next, which would be by mask.
        return t.Select(t.Not(is_nan(value)), better, value)

    def _wins(self, held: Expr, value: Expr) -> Expr:
        better = value > held if self.kind.endswith("max") else value < held
        if self.dtype.category is not Category.FLOAT:
            return better
        t = tvm().tirx
        if self.kind == "arglastmax":
            return t.any(better, is_nan(value))
        # A NaN replaces anything but an earlier NaN.
        return t.any(better, t.all(is_nan(value), t.Not(is_nan(held))))
