"""Running sums and extremes along one dimension, and sorting: what needs elements in order."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern, op_of
from ..ir.te import TE, Tensor
from . import build as b
from .composite import composite
from .picking import gather


@record(eq=False)
class Scan(Op, kind=Kind.REDUCTION):
    """scan(x: t[*s], factor: t[*s] = 1) -> t[*s], y[k] = factor[k] * y[k - 1] + x[k] along ``dim``.

    What comes before the first is 0.  ``reverse``: from the end, y[k + 1] in place of y[k - 1].
    Floating point numbers are added in float64.
    """

    dim: int
    reverse: bool

    def infer(self, *inputs: Spec) -> Spec:
        if any(s != inputs[0] for s in inputs):
            raise TypeError(f"Scan expects equal operands, but got {inputs[0]} and {inputs[1]}")
        if inputs[0].dtype is dt.bool_:
            raise TypeError("Scan expects numbers; cast bool to an integer first")
        return inputs[0]

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        lines = [np.moveaxis(x, self.dim, 0) for x in xs]
        if self.reverse:
            lines = [x[::-1] for x in lines]
        wide = np.float64 if xs[0].dtype.kind == "f" else xs[0].dtype
        total = np.zeros(lines[0].shape[1:], wide)
        out = np.empty(lines[0].shape, xs[0].dtype)
        for k in range(len(out)):
            if len(lines) > 1:
                total = lines[1][k].astype(wide) * total
            total = total + lines[0][k].astype(wide)
            out[k] = total
        return np.moveaxis(out[::-1] if self.reverse else out, 0, self.dim)

    def _moved(self, f: Build, x: Node, ahead: bool) -> Node:
        """``x`` one place on: element k is x[k + 1], or x[k - 1] if not ``ahead``; 0 at the end."""
        zeros, ones = [0] * len(x.shape), [1] * len(x.shape)
        late, early = list(zeros), list(x.shape)
        late[self.dim] = 1
        early[self.dim] = max(0, early[self.dim] - 1)
        if not early[self.dim]:
            return f.full(x.shape, 0, x.dtype)
        part = f.slice(x, late, x.shape, ones) if ahead else f.slice(x, zeros, early, ones)
        return f.insert(f.full(x.shape, 0, x.dtype), part, zeros if ahead else late, ones)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        back = intern(Scan(self.dim, not self.reverse))
        if len(xs) == 1:
            return (apply(back, ct),)
        d_x = apply(back, ct, self._moved(f, xs[1], not self.reverse))
        if not xs[1].requires_grad:
            return d_x, None
        return d_x, f.mul(d_x, self._moved(f, y, self.reverse))


@record(eq=False)
class Leader(Op, kind=Kind.REDUCTION):
    """leader(x: t[*s]) -> int64[*s]: where the largest of the elements up to each is along ``dim``.

    Or the ``lowest``.  Of equal ones the last; NaN counts as larger, and as lower, than all.
    """

    dim: int
    lowest: bool
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        if inputs[0].dtype is dt.bool_:
            raise TypeError("Leader expects numbers; cast bool to an integer first")
        return Spec(inputs[0].shape, dt.int64)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        line = np.moveaxis(xs[0], self.dim, 0)
        out = np.zeros(line.shape, np.int64)
        for k in range(1, len(out)):
            best = np.take_along_axis(line, out[k - 1 : k], 0)[0]
            further = line[k] <= best if self.lowest else line[k] >= best
            leads = (line[k] != line[k]) | (further & (best == best))
            out[k] = np.where(leads, k, out[k - 1])
        return np.moveaxis(out, 0, self.dim)


@record(eq=False)
class ArgSort(Op, kind=Kind.OPAQUE):
    """argsort(x: t[*a, n, *c]) -> int64[*a, count, *c]: positions in ascending order of x.

    The first ``count`` along ``dim``.  Equal elements keep their order, also if ``descending``; NaN
    counts as the largest.
    """

    dim: int
    descending: bool
    count: int
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        shape = inputs[0].shape
        if not 0 <= self.count <= shape[self.dim]:
            raise RuntimeError(f"there are no {self.count} elements along a dimension of {shape}")
        return Spec((*shape[: self.dim], self.count, *shape[self.dim + 1 :]), dt.int64)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        if self.descending:
            # Read backwards twice, equal elements keep their order.
            backwards = np.argsort(np.flip(xs[0], self.dim), axis=self.dim, kind="stable")
            order = xs[0].shape[self.dim] - 1 - np.flip(backwards, self.dim)
        else:
            order = np.argsort(xs[0], axis=self.dim, kind="stable")
        return np.take(order, np.arange(self.count), self.dim)


def _first(shape: Shape, dim: int) -> Node:
    place = b.iota(shape, dim, dt.int32)
    return b.eq(place, b.full_like(place, 0))


def cumulative_sum(x: Node, dim: int) -> Node:
    """Running sums along ``dim``."""
    return apply(op_of(Scan, dim, False), x)


def cumulative_product(x: Node, dim: int) -> Node:
    """Running products along ``dim``."""
    # y[k] = x[k] * y[k - 1] + -0, which keeps a zero's sign; the first is -0 * 0 + x[0].
    first = _first(x.shape, dim)
    nothing = b.full((), -0.0 if x.dtype.is_floating_point else 0, x.dtype)
    terms, factors = b.where(first, x, nothing), b.where(first, nothing, x)
    return apply(op_of(Scan, dim, False), terms, factors)


def leader(x: Node, dim: int, lowest: bool) -> Node:
    """Where the largest (or lowest) element up to each is along ``dim``; of equal ones the last."""
    return apply(op_of(Leader, dim, lowest), b.cast(x, dt.uint8) if x.dtype is dt.bool_ else x)


def _cumulative_logsumexp(x: Node, top: Node, dim: int) -> Node:
    # s[k] = e**(top[k - 1] - top[k]) * s[k - 1] + e**(x[k] - top[k]), where nothing overflows.
    # The tops cancel from log(s) + top, so that no gradient goes to them.
    n = x.shape[dim]
    one = b.full_like(x, 1.0)
    first = b.narrow(top, dim, 0, 1)
    before = b.cat([first, b.narrow(top, dim, 0, n - 1)], dim) if n > 1 else first
    same = b.eq(before, top)
    factor = b.where(same, one, b.exp(b.where(same, b.full_like(x, 0.0), b.sub(before, top))))
    # An infinite element is its own top, from which it is not NaN away.
    infinite = b.logical_and(b.eq(x, top), b.eq(apply(b.ABS, x), b.full_like(x, math.inf)))
    terms = b.exp(b.where(infinite, b.full_like(x, 0.0), b.sub(x, top)))
    return b.add(b.log(apply(op_of(Scan, dim, False), terms, factor)), top)


def cumulative_logsumexp(x: Node, dim: int) -> Node:
    """log(e**x[0] + ... + e**x[k]) for each k along ``dim``, without overflow."""
    line = apply(b.DETACH, x)
    top = gather(line, leader(line, dim, False), dim)
    return apply(composite("Logcumsumexp", _cumulative_logsumexp, dim), x, top)


def argsort(x: Node, dim: int, descending: bool, count: int | None = None) -> Node:
    """Positions in sorted order (the first ``count``); equal elements keep theirs."""
    return apply(op_of(ArgSort, dim, descending, x.shape[dim] if count is None else count), x)
