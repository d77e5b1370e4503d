"""Compositions that move, repeat and join elements."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import dtype as dt
from ..core.record import record
from ..core.shape import Shape, unsqueezed, wrap_dim
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, op_of
from . import build as b
from . import movement as mv
from .composite import Expandable


def flip(x: Node, dims: Sequence[int]) -> Node:
    """``x`` backwards along ``dims`` (wrapped)."""
    long = tuple(d for d in dims if x.shape[d] > 1)
    return apply(op_of(mv.Flip, long), x) if long else apply(b.CLONE, x)


def roll(x: Node, shifts: Sequence[int], dims: Sequence[int]) -> Node:
    """``x`` moved along dimensions (wrapped); what leaves at one end comes back at the other."""
    y = x
    for shift, dim in zip(shifts, dims, strict=True):
        n = y.shape[dim]
        shift = shift % n if n else 0
        if not shift:
            continue
        zeros, ones = [0] * len(y.shape), [1] * len(y.shape)
        cut, ends = list(zeros), list(y.shape)
        cut[dim] = ends[dim] = n - shift
        y = b.cat([b.slice(y, cut, y.shape, ones), b.slice(y, zeros, ends, ones)], dim)
    return apply(b.CLONE, x) if y is x else y


def repeat(x: Node, times: Sequence[int]) -> Node:
    """``x`` several times along each dimension (new ones in front)."""
    shape = (1,) * (len(times) - len(x.shape)) + x.shape
    apart: list[int] = []
    wide: list[int] = []
    for n, k in zip(shape, times, strict=True):
        if k != 1 and n != 1:
            apart += [1, n]
            wide += [k, n]
        else:
            apart.append(n)
            wide.append(n * k)
    result = tuple(n * k for n, k in zip(shape, times, strict=True))
    if result == x.shape:
        return apply(b.CLONE, x)
    return b.reshape(b.expand(b.reshape(x, tuple(apart)), tuple(wide)), result)


def repeat_each(x: Node, times: int, dim: int) -> Node:
    """Every entry of ``dim`` several times, one after the other."""
    lead, n, behind = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    if times == 1:
        return apply(b.CLONE, x)
    column = b.reshape(x, (*lead, n, 1, *behind))
    return b.reshape(b.expand(column, (*lead, n, times, *behind)), (*lead, n * times, *behind))


def _diagonal_square(shape: Shape, offset: int) -> tuple[int, int, int]:
    """(first row, first column, length) of a diagonal of the last two dimensions."""
    rows, columns = shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    return top, left, max(0, min(rows - top, columns - left))


def _square(x: Node, top: int, left: int, n: int) -> Node:
    """The square of that size which begins there in the last two dimensions."""
    lead = x.shape[:-2]
    starts, stops = (*(0,) * len(lead), top, left), (*lead, top + n, left + n)
    return b.slice(x, starts, stops, (1,) * len(x.shape))


def diagonal(x: Node, offset: int) -> Node:
    """The diagonals of the last two dimensions, as the last one."""
    lead = x.shape[:-2]
    top, left, n = _diagonal_square(x.shape, offset)
    if not n:
        top = left = 0
    zeros, ones = (0,) * len(lead), (1,) * len(lead)
    line = b.reshape(_square(x, top, left, n), (*lead, n * n))
    return b.slice(line, (*zeros, 0), (*lead, n * n), (*ones, n + 1))


def with_diagonal(x: Node, values: Node, offset: int) -> Node:
    """``x`` with the diagonals of its last two dimensions replaced by ``values``."""
    lead = x.shape[:-2]
    top, left, n = _diagonal_square(x.shape, offset)
    if not n:
        return x
    zeros, ones = (0,) * len(lead), (1,) * len(lead)
    square = _square(x, top, left, n)
    line = b.insert(b.reshape(square, (*lead, n * n)), values, (*zeros, 0), (*ones, n + 1))
    return b.insert(x, b.reshape(line, square.shape), (*zeros, top, left), (*ones, 1, 1))


def on_diagonal(x: Node, offset: int) -> Node:
    """Matrices with the last dimension of ``x`` on a diagonal, zero elsewhere."""
    size = x.shape[-1] + abs(offset)
    none = b.full((*x.shape[:-1], size, size), False if x.dtype is dt.bool_ else 0, x.dtype)
    if not x.shape[-1]:
        zeros, ones = (0,) * len(none.shape), (1,) * len(none.shape)
        return b.insert(none, b.reshape(x, (*x.shape, 0)), zeros, ones)
    return with_diagonal(none, x, offset)


def padded(x: Node, amounts: Sequence[int], value: Node | None = None) -> Node:
    """x with ``value``, an element, around it, or zeros; negative amounts crop.

    ``amounts`` are (before, after) of the last dimension, then of the one in front of it, and so
    on.  Raises RuntimeError where nothing would be left of a dimension, and less.
    """
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for number in range(len(amounts) // 2):
        axis = rank - 1 - number
        before[axis], after[axis] = amounts[2 * number], amounts[2 * number + 1]
    sizes = tuple(n + p + q for n, p, q in zip(x.shape, before, after, strict=True))
    if min(sizes) < 0:
        raise RuntimeError(
            f"The input size {list(x.shape)}, plus padding {list(amounts)}, resulted in a "
            "negative output size"
        )
    if min(*before, *after) < 0:
        starts = [max(-p, 0) for p in before]
        stops = [n - max(-q, 0) for n, q in zip(x.shape, after, strict=True)]
        x = b.slice(x, starts, [max(s, e) for s, e in zip(starts, stops, strict=True)], [1] * rank)
    if sizes == x.shape:
        return x
    base = b.full(sizes, 0, x.dtype) if value is None else b.expand(value, sizes)
    return b.insert(base, x, [max(p, 0) for p in before], [1] * rank)


def cat(xs: Sequence[Node], dim: int = 0) -> Node:
    """Join along ``dim`` with promotion; 1-d empty tensors are skipped, as in PyTorch."""
    if not xs:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    dtype = xs[0].dtype
    if any([x.dtype is not dtype for x in xs]):  # noqa: C419  a list is faster
        dtype = dt.result_type((x.dtype, 2) for x in xs)
    for number, x in enumerate(xs):
        if not x.shape:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {number}) cannot be concatenated"
            )
    kept = [x for x in xs if x.shape != (0,)] or list(xs[:1])
    axis = wrap_dim(dim, len(kept[0].shape))
    lifted = [b.cast(x, dtype) for x in kept]
    return apply(b.CLONE, lifted[0]) if len(lifted) == 1 else b.cat(lifted, axis)


def stack(xs: Sequence[Node], dim: int = 0) -> Node:
    """Join along a new dimension."""
    if not xs:
        raise RuntimeError("stack expects a non-empty TensorList")
    for number, x in enumerate(xs):
        if x.shape != xs[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(xs[0].shape)} at "
                f"entry 0 and {list(x.shape)} at entry {number}"
            )
    return apply(op_of(Stack, wrap_dim(dim, len(xs[0].shape) + 1)), *xs)


@record(eq=False)
class Stack(Expandable, kind=Kind.COMPOSITE):
    """stack(*xs: t[*s]) -> t[*s[:dim], n, *s[dim:]].

    Each cotangent has a rule of its own, not one that reads all inputs: for n of them, n squared.
    """

    dim: int

    def infer(self, *inputs: Spec) -> Spec:
        shape, axis = inputs[0].shape, self.dim
        dtype = dt.result_type((x.dtype, 2) for x in inputs)
        return Spec((*shape[:axis], len(inputs), *shape[axis:]), dtype)

    def expand(self, *xs: Node) -> Node:
        return cat([b.reshape(x, unsqueezed(x.shape, self.dim)) for x in xs], self.dim)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        entries = [b.narrow(ct, self.dim, i, i + 1) for i in range(len(xs))]
        return tuple(
            [b.cast(b.reshape(e, x.shape), x.dtype) for e, x in zip(entries, xs, strict=True)]
        )
