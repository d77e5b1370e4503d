"""Ops that combine many input elements into one."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape, reduced
from ..ir.build import Build
from ..ir.node import Node
from ..ir.op import Kind, Op, Spec
from ..ir.te import TE, Expr, Tensor


def _kept(shape: Shape, dims: tuple[int, ...]) -> Shape:
    return tuple(1 if i in dims else n for i, n in enumerate(shape))


def _scatter(
    rank: int,
    dims: tuple[int, ...],
    keepdim: bool,
    index: tuple[Expr, ...],
    reduced_index: tuple[Expr, ...],
) -> tuple[Expr, ...]:
    """Input index from an output index and the reduction index."""
    out: list[Expr] = []
    outer = iter(index)
    inner = dict(zip(dims, reduced_index, strict=True))
    for i in range(rank):
        if i in inner:
            out.append(inner[i])
            if keepdim:
                next(outer)
        else:
            out.append(next(outer))
    return tuple(out)


@record(eq=False)
class Reduction(Op):
    """Base: reduces over ``dims`` (sorted, non-negative)."""

    dims: tuple[int, ...]
    keepdim: bool
    combine: ClassVar[str]

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        return Spec(reduced(x.shape, self.dims, self.keepdim), x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        (x,) = xs
        spec = self.infer(Spec(x.shape, x.dtype))
        rank = len(x.shape)
        return te.reduce(
            self.combine,
            spec.shape,
            x.dtype,
            [x.shape[d] for d in self.dims],
            lambda i, r: x[_scatter(rank, self.dims, self.keepdim, i, r)],
        )


@record(eq=False)
class Sum(Reduction, kind=Kind.REDUCTION):
    """sum(x: t[*s]) -> t[*s without dims]."""

    combine: ClassVar[str] = "sum"

    def infer(self, *inputs: Spec) -> Spec:
        if inputs[0].dtype is dt.bool_:
            raise TypeError("Sum expects numbers; cast bool to an integer first")
        return super().infer(*inputs)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        (x,) = xs
        return np.sum(x, axis=self.dims, keepdims=self.keepdim, dtype=x.dtype)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        return (f.expand(f.reshape(ct, _kept(x.shape, self.dims)), x.shape),)


class _Extremum(Reduction):
    """Base of Max and Min.  Elements that tie share the gradient evenly."""

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        for d in self.dims:
            if x.shape[d] == 0:
                raise IndexError(
                    f"{self.combine}(): Expected reduction dim {d} to have non-zero size."
                )
        return super().infer(x)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        (x,) = xs
        kept = _kept(x.shape, self.dims)
        top = f.reshape(y, kept)
        both_nan = f.logical_and(f.ne(x, x), f.ne(top, top))
        hit = f.cast(f.logical_or(f.eq(x, top), both_nan), ct.dtype)
        share = f.div(f.reshape(ct, kept), f.sum(hit, self.dims, True))
        return (f.mul(hit, share),)


@record(eq=False)
class Max(_Extremum, kind=Kind.REDUCTION):
    """max(x: t[*s]) -> t[*s without dims].  NaN if any element is NaN."""

    combine: ClassVar[str] = "max"

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.max(xs[0], axis=self.dims, keepdims=self.keepdim)


@record(eq=False)
class Min(_Extremum, kind=Kind.REDUCTION):
    """min(x: t[*s]) -> t[*s without dims].  NaN if any element is NaN."""

    combine: ClassVar[str] = "min"

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.min(xs[0], axis=self.dims, keepdims=self.keepdim)


@record(eq=False)
class ArgMax(Reduction, kind=Kind.REDUCTION):
    """argmax(x: t[*s]) -> int64[*s without dims], over one dim; first on ties, NaN wins."""

    combine: ClassVar[str] = "argmax"
    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        (x,) = inputs
        if x.dtype is dt.bool_:
            raise TypeError(f"{self.combine} is not defined on bool tensors")
        for d in self.dims:
            if x.shape[d] == 0:
                raise IndexError(
                    f"{self.combine}(): Expected reduction dim {d} to have non-zero size."
                )
        return Spec(reduced(x.shape, self.dims, self.keepdim), dt.int64)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        find = np.argmax if self.combine == "argmax" else np.argmin
        return find(xs[0], axis=self.dims[0], keepdims=self.keepdim)


@record(eq=False)
class ArgMin(ArgMax, kind=Kind.REDUCTION):
    """argmin(x: t[*s]) -> int64[*s without dims], over one dim; first on ties, NaN wins."""

    combine: ClassVar[str] = "argmin"
