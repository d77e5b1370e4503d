"""Which terms of a product count where an operand is triangular, or only a triangle is wanted.

Tiles leave out the steps of k whose terms are all zeros, and begin and end at whole steps: what
they take beside the triangle are zeros, so results are the same bits.
"""

from __future__ import annotations

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import Expr, ceil_div, const, maximum, minimum, quotient

Steps = tuple[Expr, Expr]
"""The first of some, and the one behind the last, which may be less."""

_LINE = 16
"""Elements of a line of memory, at most."""

_OTHER = {"": "", "lower": "upper", "upper": "lower"}


@record
class Triangles:
    """Of ``out[i, j] = sum of rows[i, k] * columns[k, j]``, where elements are not all zeros.

    ``"lower"``: at and left of the diagonal, ``"upper"``: at and right of it, ``""``: anywhere;
    of the result, where it is wanted: elsewhere it may be any finite number.
    """

    rows: str = ""
    columns: str = ""
    result: str = ""

    def swap(self) -> Triangles:
        """Those of the transposed product."""
        return Triangles(_OTHER[self.columns], _OTHER[self.rows], _OTHER[self.result])

    def steps(
        self,
        rows: tuple[Expr, int],
        columns: tuple[Expr, int] | None,
        block: tuple[Expr, Expr],
    ) -> Steps | None:
        """Those of a block of k (its first, how many) that count; None if all do.

        ``rows`` and ``columns`` are a tile's: the first, and how many; without columns, of any.
        """
        (i0, height), (k0, count) = rows, block
        first: Expr | None = None
        behind: Expr | None = None
        if self.rows == "upper":
            first = i0
        elif self.rows == "lower":
            behind = i0 + height
        wanted: Expr | None = None
        if columns is not None:
            j0, width = columns
            if self.columns == "lower":
                first = j0 if first is None else maximum(first, j0)
            elif self.columns == "upper":
                end = j0 + width
                behind = end if behind is None else minimum(behind, end)
            if self.result == "lower" and not (isinstance(j0, int) and j0 == 0):
                wanted = tvm().tirx.LT(j0, i0 + height)
            elif self.result == "upper":
                wanted = tvm().tirx.LT(i0, j0 + width)
        if first is None and behind is None and wanted is None:
            return None
        begin = const(0) if first is None else maximum(first - k0, 0)
        stop = count if behind is None else minimum(maximum(behind - k0, 0), count)
        if wanted is not None:
            stop = tvm().tirx.Select(wanted, stop + const(0), const(0))
        return begin, stop

    def share(self, sizes: tuple[int, int, int], tile: tuple[int, int]) -> float:
        """About which part of all steps tiles of so many rows and columns take, of m, n and k."""
        (m, n, k), (height, width) = sizes, tile
        steps = _share(self.rows, m, k, height) * _share(_OTHER[self.columns], n, k, width)
        lower, upper = (m, n, height, width), (n, m, width, height)
        if not self.result:
            return steps
        lines, others, size, each = lower if self.result == "lower" else upper
        ends = [min(first + size, others) for first in range(0, lines, size)]
        tiles = sum(ceil_div(end, each) for end in ends) / (len(ends) * ceil_div(others, each))
        return steps * tiles

    def blocks(self, some: tuple[Expr, Expr], height: int, behind: Expr) -> Expr:
        """How many blocks of rows, of so many from the first on, need any k before ``behind``.

        What loops reach beside the triangle counts, and the last block may start early.
        """
        first, count = some
        if self.rows != "upper":
            return count
        needed = quotient(behind + _LINE, height) + 2
        return minimum(maximum(needed - first, 0), count)


ALL = Triangles()


def _share(triangle: str, lines: int, k: int, size: int) -> float:
    """Of rows' steps, which part blocks of ``size`` rows take."""
    if not triangle:
        return 1.0
    firsts = range(0, lines, size)
    if triangle == "lower":
        taken = sum(min(first + size, k) for first in firsts)
    else:
        taken = sum(max(k - first, 0) for first in firsts)
    return taken / (k * len(firsts))


def in_turns(steps: Steps | None, turns: Expr, each: int) -> tuple[Expr, Expr]:
    """Of so many turns, of ``each`` steps, the first that takes any of these, and how many do."""
    if steps is None:
        return 0, turns
    begin, stop = steps
    first = quotient(begin, each)
    behind = minimum(quotient(stop + (each - 1), each), turns)
    return first, maximum(behind - first, 0)


def reaches(steps: Steps, step: Expr) -> Expr:
    """Whether that is one of the steps: others need not be in memory."""
    begin, stop = steps
    return tvm().tirx.And(tvm().tirx.LE(begin, step), tvm().tirx.LT(step, stop))


def in_lines(steps: Steps | None, count: Expr) -> tuple[Expr, Expr]:
    """The first of ``count`` steps that loops over any of these reach, and how many these are.

    Loops may go in whole lines of memory.
    """
    if steps is None:
        return 0, count
    begin, stop = steps
    first = quotient(begin, _LINE) * _LINE
    behind = minimum(quotient(stop + (_LINE - 1), _LINE) * _LINE, count)
    return first, maximum(behind - first, 0)
