"""Ops that move elements, and ops that make them from nothing."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar

from ..core.dtype import DType
from ..core.record import record
from ..core.shape import Shape, contiguous_strides, numel
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec
from ..ir.te import TE, Expr, Tensor


def _flat(te: TE, shape: Shape, index: tuple[Expr, ...]) -> Expr:
    """Row-major number of ``index``."""
    total: Expr = 0
    for n, stride, i in zip(shape, contiguous_strides(shape), index, strict=True):
        if n != 1:
            total = total + (i if stride == 1 else i * stride)
    return total


def _unflatten(te: TE, flat: Expr, shape: Shape) -> tuple[Expr, ...]:
    """Inverse of :func:`_flat`."""
    out: list[Expr] = []
    leading = True  # the first real dimension needs no modulus
    for n, stride in zip(shape, contiguous_strides(shape), strict=True):
        if n == 1:
            out.append(0)
            continue
        i = flat if stride == 1 else te.floordiv(flat, stride)
        out.append(i if leading else te.floormod(i, n))
        leading = False
    return tuple(out)


@record(eq=False)
class Reshape(Op, kind=Kind.INJECTIVE):
    """reshape(x: t[*s]) -> t[*shape], same elements in row-major order."""

    shape: Shape

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        if numel(x.shape) != numel(self.shape):
            raise RuntimeError(
                f"shape '{list(self.shape)}' is invalid for input of size {numel(x.shape)}"
            )
        return Spec(self.shape, x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        # Dimensions of size one need no arithmetic; without this, broadcasting a reduction back
        # would cost divisions and hide from LLVM that the access is contiguous.
        ours = [k for k, n in enumerate(self.shape) if n != 1]
        theirs = [k for k, n in enumerate(x.shape) if n != 1]
        if [self.shape[k] for k in ours] == [x.shape[k] for k in theirs]:
            source = dict(zip(theirs, ours, strict=True))

            def squeeze(*i: Expr) -> Expr:
                return x[tuple(i[source[k]] if k in source else 0 for k in range(len(x.shape)))]

            return te.compute(self.shape, x.dtype, squeeze)
        return te.compute(
            self.shape, x.dtype, lambda *i: x[_unflatten(te, _flat(te, self.shape, i), x.shape)]
        )

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.reshape(xs[0], self.shape)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.reshape(ct, xs[0].shape),)


@record(eq=False)
class Permute(Op, kind=Kind.INJECTIVE):
    """permute(x: t[*s]) -> t[s[d] for d in dims]."""

    dims: tuple[int, ...]

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        return Spec(tuple(x.shape[d] for d in self.dims), x.dtype)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The permutation that undoes this one."""
        return tuple(self.dims.index(d) for d in range(len(self.dims)))

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        shape = tuple(x.shape[d] for d in self.dims)
        inverse = self.inverse
        return te.compute(shape, x.dtype, lambda *i: x[tuple(i[d] for d in inverse)])

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.transpose(xs[0], self.dims)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.permute(ct, self.inverse),)


@record(eq=False)
class Expand(Op, kind=Kind.INJECTIVE):
    """expand(x: t[*s]) -> t[*shape], repeating dimensions of size one (and new leading ones)."""

    shape: Shape

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        lead = len(self.shape) - len(x.shape)
        if lead < 0:
            raise RuntimeError(
                f"expand(torch.{x.dtype.torch_name}Tensor{{{list(x.shape)}}}, "
                f"size={list(self.shape)}): the number of sizes provided ({len(self.shape)}) must "
                f"be greater or equal to the number of dimensions in the tensor ({len(x.shape)})"
            )
        for d, (have, want) in enumerate(zip(x.shape, self.shape[lead:], strict=True)):
            if have not in (1, want):
                raise RuntimeError(
                    f"The expanded size of the tensor ({want}) must match the existing size "
                    f"({have}) at non-singleton dimension {d + lead}.  "
                    f"Target sizes: {list(self.shape)}.  Tensor sizes: {list(x.shape)}"
                )
        return Spec(self.shape, x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        lead = len(self.shape) - len(x.shape)

        def read(*i: Expr) -> Expr:
            return x[tuple(0 if n == 1 else k for n, k in zip(x.shape, i[lead:], strict=True))]

        return te.compute(self.shape, x.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.broadcast_to(xs[0], self.shape)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (f.unbroadcast(ct, xs[0].shape),)


@record(eq=False)
class Slice(Op, kind=Kind.INJECTIVE):
    """slice(x: t[*s]) -> t[ceil((stop - start) / step), ...], one triple per dimension."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        shape = tuple(
            max(0, math.ceil((stop - start) / step))
            for start, stop, step in zip(self.starts, self.stops, self.steps, strict=True)
        )
        return Spec(shape, x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        shape = self.infer(Spec(x.shape, x.dtype)).shape

        def read(*i: Expr) -> Expr:
            return x[
                tuple(
                    (k if step == 1 else k * step) + start if start else k * step
                    for k, start, step in zip(i, self.starts, self.steps, strict=True)
                )
            ]

        return te.compute(shape, x.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return xs[0][tuple(map(slice, self.starts, self.stops, self.steps))]

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        return (f.insert(f.full(x.shape, 0.0, ct.dtype), ct, self.starts, self.steps),)


@record(eq=False)
class Flip(Op, kind=Kind.INJECTIVE):
    """flip(x: t[*s]) -> t[*s], backwards along ``dims``."""

    dims: tuple[int, ...]

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs

        def read(*i: Expr) -> Expr:
            return x[tuple(x.shape[d] - 1 - k if d in self.dims else k for d, k in enumerate(i))]

        return te.compute(x.shape, x.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.flip(xs[0], self.dims)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (apply(self, ct),)


@record(eq=False)
class Insert(Op, kind=Kind.INJECTIVE):
    """insert(base: t[*s], x: t[*u]) -> t[*s]: base with x at start, start + step, ... per dim."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, *inputs: Spec) -> Spec:
        base, x = inputs
        if base.dtype is not x.dtype:
            raise TypeError(f"Insert expects one dtype, but got {base.dtype} and {x.dtype}")
        for n, m, start, step in zip(base.shape, x.shape, self.starts, self.steps, strict=True):
            if m and start + (m - 1) * step >= n:
                raise RuntimeError(
                    f"cannot insert a tensor of shape {list(x.shape)} into {list(base.shape)}"
                )
        return base

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        base, x = xs
        if numel(x.shape) == 0:
            return te.compute(base.shape, base.dtype, lambda *i: base[i])

        def read(*i: Expr) -> Expr:
            inside: list[Expr] = []
            index: list[Expr] = []
            for k, n, m, start, step in zip(
                i, base.shape, x.shape, self.starts, self.steps, strict=True
            ):
                if (start, step, m) == (0, 1, n):
                    index.append(k)
                    continue
                offset = k - start
                if start > 0:
                    inside.append(k >= start)
                if start + (m - 1) * step + 1 < n:
                    inside.append(k <= start + (m - 1) * step)
                if step > 1:
                    inside.append(te.equal(te.floormod(offset, step), 0))
                    offset = te.floordiv(offset, step)
                index.append(offset)
            if not inside:
                return x[tuple(index)]
            return te.guard(te.all(*inside), lambda: x[tuple(index)], base[i])

        return te.compute(base.shape, base.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        base, x = xs
        out = np.array(base)
        region = tuple(
            slice(start, start + max(m - 1, 0) * step + 1, step) if m else slice(0, 0)
            for start, step, m in zip(self.starts, self.steps, x.shape, strict=True)
        )
        out[region] = x
        return out

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        _, x = xs
        stops = [
            start + max(m - 1, 0) * step + (1 if m else 0)
            for start, step, m in zip(self.starts, self.steps, x.shape, strict=True)
        ]
        d_x = f.slice(ct, self.starts, stops, self.steps)
        d_base = f.insert(ct, f.full(x.shape, 0.0, ct.dtype), self.starts, self.steps)
        return d_base, d_x


@record(eq=False)
class Cat(Op, kind=Kind.INJECTIVE):
    """cat(x0: t[..., n0, ...], x1: t[..., n1, ...], ...) -> t[..., n0 + n1 + ..., ...]."""

    dim: int

    def infer(self, *inputs: Spec) -> Spec:
        first = inputs[0]
        total = 0
        for number, x in enumerate(inputs):
            if x.dtype is not first.dtype:
                raise TypeError(f"Cat expects one dtype, but got {first.dtype} and {x.dtype}")
            if len(x.shape) != len(first.shape):
                raise RuntimeError(
                    f"Tensors must have same number of dimensions: got {len(first.shape)} and "
                    f"{len(x.shape)}"
                )
            for d, (want, have) in enumerate(zip(first.shape, x.shape, strict=True)):
                if d != self.dim and want != have:
                    raise RuntimeError(
                        f"Sizes of tensors must match except in dimension {self.dim}. Expected "
                        f"size {want} but got size {have} for tensor number {number} in the list."
                    )
            total += x.shape[self.dim]
        shape = (*first.shape[: self.dim], total, *first.shape[self.dim + 1 :])
        return Spec(shape, first.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        spec = self.infer(*[Spec(x.shape, x.dtype) for x in xs])
        parts = [x for x in xs if x.shape[self.dim]]
        starts = [0]
        for x in parts:
            starts.append(starts[-1] + x.shape[self.dim])

        def read(*i: Expr) -> Expr:
            place = i[self.dim]

            def of(low: int, high: int) -> Expr:
                """An element of parts[low:high]; which it is of is found by halving."""
                if high - low == 1:
                    k = place - starts[low] if low else place
                    return parts[low][(*i[: self.dim], k, *i[self.dim + 1 :])]
                middle = (low + high) // 2
                return te.branch(
                    place < starts[middle], lambda: of(low, middle), lambda: of(middle, high)
                )

            return of(0, len(parts))

        return te.compute(spec.shape, spec.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.concatenate(xs, axis=self.dim)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        out: list[Node] = []
        start = 0
        for x in xs:
            starts = [0] * len(x.shape)
            stops = list(x.shape)
            starts[self.dim], stops[self.dim] = start, start + x.shape[self.dim]
            start = stops[self.dim]
            out.append(f.slice(ct, starts, stops, [1] * len(x.shape)))
        return tuple(out)


@record(eq=False)
class Full(Op, kind=Kind.INJECTIVE):
    """full() -> t[*shape], every element ``value``."""

    shape: Shape
    value: float | int | bool
    dtype: DType
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        return Spec(self.shape, self.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return te.compute(self.shape, self.dtype, lambda *i: te.const(self.value, self.dtype))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.full(self.shape, self.value, self.dtype.name)


@record(eq=False)
class Iota(Op, kind=Kind.INJECTIVE):
    """iota() -> t[*shape], each element its own index along ``dim``."""

    shape: Shape
    dim: int
    dtype: DType
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        return Spec(self.shape, self.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return te.compute(self.shape, self.dtype, lambda *i: te.cast(i[self.dim], self.dtype))

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        view = [1] * len(self.shape)
        view[self.dim] = self.shape[self.dim]
        line = np.arange(self.shape[self.dim], dtype=self.dtype.name).reshape(view)
        return np.broadcast_to(line, self.shape)
