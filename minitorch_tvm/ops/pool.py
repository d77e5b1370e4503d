"""Pooling windows: sums, maxima, and the linear maps that carry their gradients."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any, ClassVar

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Expr, Tensor

Pair = tuple[int, int]
_NOT_SHORT = 8  # columns, from which on two rows are worth taking apart


def pooled_size(
    size: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil_mode: bool
) -> Shape:
    """Sizes of what a pooling makes of ``size`` (PyTorch's rule, ceil_mode included)."""
    out = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1  # a window that starts in the right padding is dropped
        out.append(count)
    return tuple(out)


@record(eq=False)
class PoolBase(Op):
    """Attributes shared by the pooling ops (NCHW)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    out: Pair

    @property
    def _window(self) -> tuple[Pair, Pair, Pair, Pair, Pair]:
        return self.kernel, self.stride, self.padding, self.dilation, self.out

    def _corner(self, oy: Expr, ox: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        return (
            oy * self.stride[0] + a * self.dilation[0] - self.padding[0],
            ox * self.stride[1] + b * self.dilation[1] - self.padding[1],
        )

    def _inside(self, te: TE, shape: Shape, y: Expr, x: Expr) -> Expr:
        """Condition under which an input position exists (constant true where it always does)."""
        return te.all(y >= 0, y < shape[2], x >= 0, x < shape[3])

    def halves(self, size: Shape) -> bool:
        """Whether windows of two by two cover an image exactly, in rows that are not short."""
        plain = self.kernel == self.stride == (2, 2) and self.dilation == (1, 1)
        exact = self.padding == (0, 0) and size == (2 * self.out[0], 2 * self.out[1])
        return plain and exact and size[1] >= _NOT_SHORT

    def infer(self, *inputs: Spec) -> Spec:
        return Spec((*inputs[0].shape[:2], *self.out), inputs[0].dtype)

    def _reduced(self, te: TE, how: str, x: Tensor, beyond: float) -> Tensor:
        """What each window of ``x`` is reduced to, with a number for what is not there."""
        outside, guarded = te.const(beyond, x.dtype), self._needs_guard(x.shape)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            y, z = self._corner(i[2], i[3], *r)
            if not guarded:
                return x[i[0], i[1], y, z]
            return te.guard(self._inside(te, x.shape, y, z), lambda: x[i[0], i[1], y, z], outside)

        return te.reduce(how, (*x.shape[:2], *self.out), x.dtype, self.kernel, term)

    def _needs_guard(self, shape: Shape) -> bool:
        ends = [
            (o - 1) * s + d * (k - 1) - p
            for o, s, d, k, p in zip(
                self.out, self.stride, self.dilation, self.kernel, self.padding, strict=True
            )
        ]
        return any(self.padding) or ends[0] >= shape[2] or ends[1] >= shape[3]

    def _views(self, np: ModuleType, x: Any, fill: float) -> list[tuple[int, int, Any]]:
        """(a, b, x at window element (a, b) for every output), with ``fill`` outside."""
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        oh, ow = self.out
        need_h = (oh - 1) * sh + dh * (self.kernel[0] - 1) + 1
        need_w = (ow - 1) * sw + dw * (self.kernel[1] - 1) + 1
        h, w = x.shape[2:]
        right = (max(0, need_h - ph - h), max(0, need_w - pw - w))
        padded = np.pad(x, ((0, 0), (0, 0), (ph, right[0]), (pw, right[1])), constant_values=fill)
        return [
            (
                a,
                b,
                padded[
                    :,
                    :,
                    a * dh : a * dh + (oh - 1) * sh + 1 : sh,
                    b * dw : b * dw + (ow - 1) * sw + 1 : sw,
                ],
            )
            for a in range(self.kernel[0])
            for b in range(self.kernel[1])
        ]


@record(eq=False)
class SumPool(PoolBase, kind=Kind.REDUCTION):
    """sum_pool(x: f[n, c, h, w]) -> f[n, c, *out]: sums over windows, zeros outside."""

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return self._reduced(te, "sum", xs[0], 0)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (x,) = xs
        return sum(v for _, _, v in self._views(np, x, 0.0)).astype(x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        return (apply(intern(SumPoolGrad(*self._window, x.shape[2:])), ct),)


@record(eq=False)
class BackToInput(PoolBase):
    """What the ops that carry windows' values back to the input elements share."""

    size: Shape

    def infer(self, *inputs: Spec) -> Spec:
        return Spec((*inputs[0].shape[:2], *self.size), inputs[0].dtype)

    def share(self, te: TE, xs: tuple[Tensor, ...], window: tuple[Expr, ...], r: Any) -> Expr:
        """What element ``r`` of a window gets from it."""
        raise NotImplementedError

    def taps(self, axis: int, phase: int) -> list[tuple[int, int]]:
        """Along an axis, what inputs at ``stride * i + phase`` get: elements of the windows i + ..

        Pairs (element, what is added to i).
        """
        stride, ahead = self.stride[axis], phase + self.padding[axis]
        spread = [(r, ahead - r * self.dilation[axis]) for r in range(self.kernel[axis])]
        return [(r, t // stride) for r, t in spread if t % stride == 0]

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        ct = xs[0]
        zero = te.const(0, ct.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            places, conditions = [], []
            for axis in (0, 1):
                stride = self.stride[axis]
                t = i[2 + axis] + self.padding[axis] - r[axis] * self.dilation[axis]
                q = te.floordiv(t, stride) if stride > 1 else t
                conditions += [t >= 0, q < self.out[axis]]
                if stride > 1:
                    conditions.append(te.equal(te.floormod(t, stride), 0))
                places.append(q)
            window = (i[0], i[1], *places)
            return te.guard(te.all(*conditions), lambda: self.share(te, xs, window, r), zero)

        return te.reduce("sum", (*ct.shape[:2], *self.size), ct.dtype, self.kernel, term)


@record(eq=False)
class SumPoolGrad(BackToInput, kind=Kind.REDUCTION):
    """sum_pool_grad(ct: f[n, c, *out]) -> f[n, c, *size]: the transpose of SumPool."""

    def share(self, te: TE, xs: tuple[Tensor, ...], window: tuple[Expr, ...], r: Any) -> Expr:
        return xs[0][window]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (ct,) = xs
        out = np.zeros((*ct.shape[:2], *self.size), ct.dtype)
        _add_back(self, np, out, lambda a, b: ct)
        return out

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (apply(intern(SumPool(*self._window)), ct),)


@record(eq=False)
class MaxPool(PoolBase, kind=Kind.REDUCTION):
    """max_pool(x: f[n, c, h, w]) -> f[n, c, *out]: window maxima, -inf outside; NaN wins."""

    remembers: bool = False
    """Gradients are told which elements won, whatever the sizes; else they may look for them."""

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return self._reduced(te, "max", xs[0], xs[0].dtype.lowest)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        views = [v for _, _, v in self._views(np, xs[0], dt.from_numpy(xs[0].dtype).lowest)]
        return np.max(np.stack(views), axis=0)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        if not self.remembers and self.halves(x.shape[2:]):
            # Looking for the winners when their gradient is there costs less than keeping them.
            return (apply(intern(MaxPoolGrad(*self._window, x.shape[2:])), ct, x),)
        where = apply(intern(MaxPoolIndex(*self._window)), x)
        if self.kernel[0] * self.kernel[1] <= 1 << 8:
            where = f.cast(where, dt.uint8)  # an eighth of the memory until backward reads it
        return (apply(intern(PoolScatter(*self._window, x.shape[2:])), ct, where),)


@record(eq=False)
class MaxPoolGrad(BackToInput, kind=Kind.REDUCTION):
    """max_pool_grad(ct: f[n, c, *out], x: f[n, c, *size]) -> f[n, c, *size].

    Each window's value for the element of x that :class:`MaxPoolIndex` names, which is looked for
    again; no window may reach outside.
    """

    def share(self, te: TE, xs: tuple[Tensor, ...], window: tuple[Expr, ...], r: Any) -> Expr:
        ct, x = xs
        own, number = x[self._place(window, *r)], r[0] * self.kernel[1] + r[1]
        wins: list[Expr] = []
        for k, place in enumerate(itertools.product(*map(range, self.kernel))):
            other = x[self._place(window, *place)]
            # More than what is before it, no less than what is behind, or the last NaN.
            last = te.all(te.is_nan(own), te.invert(te.is_nan(other)))
            wins.append(te.any(number <= k, own > other, te.is_nan(own)))
            wins.append(te.any(number >= k, own >= other, last))
        return te.select(te.all(*wins), ct[window], te.const(0, ct.dtype))

    def _place(self, window: tuple[Expr, ...], a: Expr, b: Expr) -> tuple[Expr, ...]:
        return *window[:2], *self._corner(window[2], window[3], a, b)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, x = xs
        where = intern(MaxPoolIndex(*self._window)).reference(np, x)
        return intern(PoolScatter(*self._window, self.size)).reference(np, ct, where)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x = xs[1]
        where = apply(intern(MaxPoolIndex(*self._window)), x)
        # Which element wins does not change with small changes of x.
        nothing = f.full(x.shape, 0.0, x.dtype) if x.requires_grad else None
        return apply(intern(PoolGather(*self._window)), ct, where), nothing


@record(eq=False)
class MaxPoolIndex(PoolBase, kind=Kind.REDUCTION):
    """max_pool_index(x: f[n, c, h, w]) -> int64[n, c, *out]: the winning element's number
    a * kw + b inside its window (first on ties; the last NaN wins, as in PyTorch)."""

    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        return Spec((*x.shape[:2], *self.out), dt.int64)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        lowest, least = (te.const(v, x.dtype) for v in (x.dtype.lowest, x.dtype.least))
        guarded = self._needs_guard(x.shape)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            y, z = self._corner(i[2], i[3], *r)
            if not guarded:
                return x[i[0], i[1], y, z]

            def element() -> Expr:
                own = x[i[0], i[1], y, z]
                # Minus infinity wins against the border, too.
                return te.maximum(own, least) if x.dtype.is_floating_point else own

            return te.guard(self._inside(te, x.shape, y, z), element, lowest)

        return te.reduce("arglastmax", (*x.shape[:2], *self.out), x.dtype, self.kernel, term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        dtype = dt.from_numpy(xs[0].dtype)
        x = np.maximum(xs[0], xs[0].dtype.type(dtype.least))
        views = [v for _, _, v in self._views(np, x, dtype.lowest)]
        found = np.stack(views)
        last = len(views) - 1 - np.argmax(np.isnan(found)[::-1], axis=0)
        where = np.where(np.isnan(found).any(axis=0), last, np.argmax(found, axis=0))
        return where.astype("int64")


@record(eq=False)
class PoolScatter(BackToInput, kind=Kind.REDUCTION):
    """pool_scatter(ct: f[n, c, *out], where: i[n, c, *out]) -> f[n, c, *size].

    Adds each window's value to the one input element that ``where`` names.
    """

    def share(self, te: TE, xs: tuple[Tensor, ...], window: tuple[Expr, ...], r: Any) -> Expr:
        ct, where = xs
        number = te.cast(r[0] * self.kernel[1] + r[1], where.dtype)
        return te.select(te.equal(where[window], number), ct[window], te.const(0, ct.dtype))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, where = xs
        out = np.zeros((*ct.shape[:2], *self.size), ct.dtype)
        zero = np.zeros((), ct.dtype)
        _add_back(self, np, out, lambda a, b: np.where(where == a * self.kernel[1] + b, ct, zero))
        return out

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return apply(intern(PoolGather(*self._window)), ct, xs[1]), None


@record(eq=False)
class PoolGather(PoolBase, kind=Kind.REDUCTION):
    """pool_gather(x: f[n, c, h, w], where: i[n, c, *out]) -> f[n, c, *out].

    Reads the input element that ``where`` names in each window: the transpose of PoolScatter.
    """

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        x, where = xs
        zero = te.const(0, x.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            y, z = self._corner(i[2], i[3], *r)
            number = te.cast(r[0] * self.kernel[1] + r[1], xs[1].dtype)
            mine = te.all(self._inside(te, x.shape, y, z), te.equal(where[i], number))
            return te.guard(mine, lambda: x[i[0], i[1], y, z], zero)

        return te.reduce("sum", (*x.shape[:2], *self.out), x.dtype, self.kernel, term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        x, where = xs
        zero = np.zeros((), x.dtype)
        views = self._views(np, x, 0.0)
        return sum(np.where(where == a * self.kernel[1] + b, v, zero) for a, b, v in views)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, where = xs
        return apply(intern(PoolScatter(*self._window, x.shape[2:])), ct, where), None


def _add_back(op: PoolBase, np: ModuleType, out: Any, part: Any) -> None:
    """Add ``part(a, b)``, shaped like the outputs, to the input elements it belongs to."""
    h, w = out.shape[2:]
    for a in range(op.kernel[0]):
        for b in range(op.kernel[1]):
            ys = np.arange(op.out[0]) * op.stride[0] + a * op.dilation[0] - op.padding[0]
            xs = np.arange(op.out[1]) * op.stride[1] + b * op.dilation[1] - op.padding[1]
            yk, xk = (ys >= 0) & (ys < h), (xs >= 0) & (xs < w)
            values = part(a, b)[:, :, yk][..., xk]
            out[np.ix_(range(out.shape[0]), range(out.shape[1]), ys[yk], xs[xk])] += values
