"""Divisions with a rest: promotion, and integers that must not be divided by zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.bounds import Bounds
from ..core.record import record
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import division
from .gathering import checked


def _by_zero(_: int) -> Exception:
    return RuntimeError("ZeroDivisionError")


@record
class _NotZero(Bounds):
    """The condition on integers by which others are divided.

    >>> import numpy as np
    >>> _DIVISORS.hold(np.array([3, -1])), _DIVISORS.hold(np.array([3, 0]))
    (True, False)
    """

    def hold(self, positions: Any) -> bool:
        return bool(np.all(positions))

    def covers(self, least: int, most: int) -> bool:
        return least > 0 or most < 0

    def _outside(self, positions: Any) -> Any:
        return positions == 0


_DIVISORS = _NotZero(0, 0, _by_zero)


def _nonzero(y: Node, _: Bounds) -> Node:
    return b.cast(y, dt.bool_)


def _divisor(y: Node) -> Node:
    """``y``, of which no integer may be 0: RuntimeError when that is known, see ``checked``."""
    return y if y.dtype.is_floating_point else checked(y, _DIVISORS, _nonzero)


def _operands(x: d.Operand, y: d.Operand, kernel: str) -> tuple[Node, Node]:
    dtype = d.result_dtype(x, y)
    if dtype is dt.bool_:
        raise unsupported(kernel, dtype)
    return d.term(x, dtype), _divisor(d.term(y, dtype))


def divide(x: d.Operand, y: d.Operand, how: str | None) -> Node:
    """x / y, rounded down ("floor"), toward zero ("trunc") or not at all (None)."""
    if how is None:
        return d.div(x, y)
    if how not in ("trunc", "floor"):
        raise RuntimeError(
            f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{how}'"
        )
    return division.quotient(*_operands(x, y, f"div_{how}_cpu"), how == "floor")


def remainder(x: d.Operand, y: d.Operand) -> Node:
    """What is left of x by y, with the sign of y."""
    return division.remainder(*_operands(x, y, "remainder_cpu"))


def fmod(x: d.Operand, y: d.Operand) -> Node:
    """What is left of x by y, with the sign of x."""
    return division.fmod(*_operands(x, y, "fmod_cpu"))
