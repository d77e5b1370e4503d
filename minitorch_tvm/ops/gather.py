"""Reading at computed positions along one dimension, and its transpose."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape, numel
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern, op_of
from ..ir.te import TE, Expr, Tensor
from . import build as b
from .composite import composite


def clamped(te: TE, position: Expr, size: int) -> Expr:
    """``position`` as an int32 inside [0, size).

    Who records a gather also records a check of its positions, and that runs first.  Should the
    positions of one check themselves be gathered, this still keeps every read inside memory.
    """
    zero, last = te.const(0, dt.int64), te.const(size - 1, dt.int64)
    wide = te.keep(te.cast(position, dt.int64))
    return te.cast(te.maximum(te.minimum(wide, last), zero), dt.int32)


def _integers(op: Op, index: Spec) -> None:
    if index.dtype not in (dt.int32, dt.int64):
        raise TypeError(f"{op.name} expects an int32 or int64 index, but got {index.dtype}")


@record(eq=False)
class Take(Op, kind=Kind.INJECTIVE):
    """take(x: t[*a, n, *c], index: int[*i]) -> t[*a, *i, *c], n being dimension ``dim``.

    Positions outside [0, n) read the nearest one inside.
    """

    dim: int

    def infer(self, *inputs: Spec) -> Spec:
        x, index = inputs
        _integers(self, index)
        if not x.shape[self.dim] and numel(index.shape):
            raise IndexError("index out of range in self")
        return Spec((*x.shape[: self.dim], *index.shape, *x.shape[self.dim + 1 :]), x.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        x, index = xs
        shape = (*x.shape[: self.dim], *index.shape, *x.shape[self.dim + 1 :])
        end = self.dim + len(index.shape)

        def read(*i: Expr) -> Expr:
            row = clamped(te, index[i[self.dim : end]], x.shape[self.dim])
            return x[(*i[: self.dim], row, *i[end:])]

        return te.compute(shape, x.dtype, read)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        return np.take(xs[0], xs[1], axis=self.dim, mode="clip")

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        x, index = xs
        return apply(intern(ScatterAdd(self.dim, x.shape[self.dim])), ct, index), None


@record(eq=False)
class ScatterAdd(Op, kind=Kind.REDUCTION):
    """scatter_add(ct: t[*a, *i, *c], index: int[*i]) -> t[*a, size, *c]: the transpose of Take.

    Row r of dimension ``dim`` is the sum of ct where index is r, added in row-major order of i.
    """

    dim: int
    size: int

    def split(self, ct: Shape, index: Shape) -> tuple[Shape, Shape]:
        """(a, c): the dimensions of ct before and behind those of the index."""
        return ct[: self.dim], ct[self.dim + len(index) :]

    def infer(self, *inputs: Spec) -> Spec:
        ct, index = inputs
        _integers(self, index)
        if ct.dtype is dt.bool_:
            raise TypeError("ScatterAdd expects numbers; cast bool to an integer first")
        before, behind = self.split(ct.shape, index.shape)
        if ct.shape != (*before, *index.shape, *behind):
            raise RuntimeError(
                f"ScatterAdd expects the index {list(index.shape)} at dimension {self.dim} of "
                f"{list(ct.shape)}"
            )
        if not self.size and numel(index.shape):
            raise IndexError("index out of range in self")
        return Spec((*before, self.size, *behind), ct.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        ct, index = xs
        before, behind = self.split(ct.shape, index.shape)
        zero = te.const(0, ct.dtype)

        def term(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            row = clamped(te, index[r], self.size)
            value = ct[(*i[: self.dim], *r, *i[self.dim + 1 :])]
            return te.select(te.equal(row, i[self.dim]), value, zero)

        return te.reduce("sum", (*before, self.size, *behind), ct.dtype, index.shape, term)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        ct, index = xs
        before, behind = self.split(ct.shape, index.shape)
        out = np.zeros((self.size, *before, *behind), ct.dtype)
        lead = range(self.dim, self.dim + len(index.shape))
        rows = np.moveaxis(ct, lead, range(len(index.shape)))
        if index.size:
            np.add.at(out, np.clip(index, 0, self.size - 1), rows)
        return np.moveaxis(out, 0, self.dim)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        return apply(intern(Take(self.dim)), ct, xs[1]), None


def take(x: Node, index: Node, dim: int) -> Node:
    """x at the positions ``index`` (in range, see :func:`clamped`) of dimension ``dim``."""
    return apply(op_of(Take, dim), x, index)


def embedding(table: Node, index: Node, padding: int | None) -> Node:
    """Rows of ``table`` [n, d]; row ``padding`` gets no gradient."""
    if padding is None:
        return take(table, index, 0)
    return apply(composite("Embedding", _embedding, padding), table, index)


def _embedding(table: Node, index: Node, padding: int) -> Node:
    rows = take(table, index, 0)
    padded = b.eq(index, b.full_like(index, padding))
    column = b.reshape(padded, (*index.shape, 1))
    return b.where(column, apply(b.DETACH, rows), rows)
