"""Factors of matrices: triangular ones, and systems of equations that they solve.

Derivatives: M. Giles, "An extended collection of matrix derivative results for forward and reverse
mode algorithmic differentiation" (2008); I. Murray, "Differentiation of the Cholesky decomposition"
(2016).  They are recorded as products and solutions of triangular systems.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.limits import finfo
from ..core.record import record
from ..core.shape import Shape, broadcast, numel
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, op_of
from ..ir.te import TE, Tensor
from . import build as b
from . import derived as d
from .composite import Expandable, composite
from .elementary import stepwise
from .moves import diagonal
from .norms import prod
from .picking import gather, scatter


def require(op: str, given: tuple[Spec, ...], fits: bool) -> None:
    """RuntimeError unless operands fit, and are of floating point numbers."""
    if not fits or not all(s.dtype.is_floating_point for s in given):
        raise RuntimeError(f"{op} does not take {' and '.join(map(str, given))}")


def square(spec: Spec) -> bool:
    """Whether it is of square matrices."""
    return len(spec.shape) >= 2 and spec.shape[-1] == spec.shape[-2]


class Dense(Op, kind=Kind.OPAQUE):
    """An op on whole matrices, with a schedule of its own."""

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} has a schedule of its own")


def turned(x: Node) -> Node:
    """Matrices with rows and columns exchanged."""
    return d.transpose(x, -2, -1)


def _place(shape: Shape, axis: int) -> Node:
    return b.iota(shape, len(shape) + axis, dt.int64)


def triangle(x: Node, upper: bool, diagonal: float = 1.0) -> Node:
    """The elements on one side of the diagonal, and the diagonal times a number."""
    shape = x.shape[-2:]
    row, column = _place(shape, -2), _place(shape, -1)
    inside = b.lt(row, column) if upper else b.lt(column, row)
    zero = b.full((), 0.0, x.dtype)
    scaled = x if diagonal == 1 else b.mul(x, b.full((), diagonal, x.dtype))
    return b.where(inside, x, b.where(b.eq(row, column), scaled, zero))


def _solution(np: ModuleType, a: Any, x: Any, upper: bool, unit: bool) -> Any:
    """Of triangular systems, row by row."""
    n = a.shape[-1]
    lead = np.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    x = np.array(np.broadcast_to(x, (*lead, *x.shape[-2:])))
    for i in reversed(range(n)) if upper else range(n):
        known = slice(i + 1, n) if upper else slice(0, i)
        x[..., i, :] -= np.matmul(a[..., i : i + 1, known], x[..., known, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
    return x


@record(eq=False)
class TriangularSolve(Dense, kind=Kind.OPAQUE):
    """solve(a: f[*b, n, n], b: f[*b, n, m]) -> f[*b, n, m], x of a x = b.

    Of ``a`` one triangle is read, the ``upper`` or the lower one; of it ``transposed``, so that the
    system is of the other kind.  With ``unit`` its diagonal is taken for ones.  Leading dimensions
    broadcast.
    """

    upper: bool
    transposed: bool
    unit: bool

    def infer(self, *inputs: Spec) -> Spec:
        a, x = inputs
        fits = square(a) and len(x.shape) >= 2 and a.shape[-1] == x.shape[-2]
        require("TriangularSolve", inputs, fits and a.dtype is x.dtype)
        return Spec((*broadcast(a.shape[:-2], x.shape[:-2]), *x.shape[-2:]), x.dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        a, x = xs
        if self.transposed:
            a = np.swapaxes(a, -1, -2)
        with np.errstate(all="ignore"):
            return _solution(np, a, x, self.upper != self.transposed, self.unit)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, x = xs
        back = apply(op_of(TriangularSolve, self.upper, not self.transposed, self.unit), a, ct)
        d_a = None
        if a.requires_grad:
            pair = (y, back) if self.transposed else (back, y)
            product = f.neg(f.matmul(*pair, False, True))
            d_a = f.unbroadcast(triangle(product, self.upper, 0.0 if self.unit else 1.0), a.shape)
        return d_a, f.unbroadcast(back, x.shape)


def solve_triangular(
    a: Node, x: Node, *, upper: bool, transposed: bool = False, unit: bool = False
) -> Node:
    """See :class:`TriangularSolve`."""
    return apply(op_of(TriangularSolve, upper, transposed, unit), a, x)


@record(eq=False)
class Cholesky(Dense, kind=Kind.OPAQUE):
    """cholesky(a: f[*b, n, n]) -> f[*b, n, n], the triangle l of a = l l.T, or u of a = u.T u.

    Of ``a`` only that triangle is read.  Where it is not positive definite, the first diagonal
    element that has no root is left as it is, and so is what would come after it.
    """

    upper: bool

    def infer(self, *inputs: Spec) -> Spec:
        require("Cholesky", inputs, square(inputs[0]))
        return inputs[0]

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        a = np.swapaxes(xs[0], -1, -2) if self.upper else xs[0]
        n = a.shape[-1]
        low = np.tril(a).reshape(numel(a.shape[:-2]), n, n)
        for matrix in low:
            for k in range(n):
                matrix[k:, k] -= matrix[k:, :k] @ matrix[k, :k]
                if not matrix[k, k] > 0:
                    break
                matrix[k, k] = np.sqrt(matrix[k, k])
                matrix[k + 1 :, k] /= matrix[k, k]
        low = low.reshape(a.shape)
        return np.ascontiguousarray(np.swapaxes(low, -1, -2)) if self.upper else low

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        low, ct = (turned(y), turned(ct)) if self.upper else (y, ct)
        # The symmetric matrix that has half of everything but the diagonal.
        inner = triangle(f.matmul(low, ct, True, False), False, 0.5)
        inner = f.mul(f.add(inner, turned(inner)), f.full((), 0.5, y.dtype))
        left = solve_triangular(low, inner, upper=False, transposed=True)
        return (turned(solve_triangular(low, turned(left), upper=False, transposed=True)),)


def cholesky(x: Node, upper: bool) -> Node:
    """See :class:`Cholesky`."""
    return apply(op_of(Cholesky, upper), x)


@record(eq=False)
class LU(Dense, kind=Kind.OPAQUE):
    """lu(a: f[*b, m, n]) -> f[*b, m n + k + m], k the smaller of m and n: see :func:`parts`.

    Gaussian elimination with partial pivoting: rows of a in another order are l u.  A line holds
    both triangles (the ones of l's diagonal are not stored), then for each of k steps the row that
    was exchanged with it, counted from 0, then where each row of l u is in a.
    """

    def infer(self, *inputs: Spec) -> Spec:
        require("LU", inputs, len(inputs[0].shape) >= 2)
        *lead, m, n = inputs[0].shape
        return Spec((*lead, m * n + min(m, n) + m), inputs[0].dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        *lead, m, n = xs[0].shape
        k = min(m, n)
        out = np.empty((numel(tuple(lead)), m * n + k + m), xs[0].dtype)
        for line, matrix in zip(out, np.array(xs[0]).reshape(len(out), m, n), strict=True):
            order = np.arange(m)
            for i in range(k):
                p = i + int(np.argmax(np.abs(matrix[i:, i])))
                line[m * n + i] = p
                matrix[[i, p]], order[[i, p]] = matrix[[p, i]], order[[p, i]]
                if matrix[i, i] != 0:
                    matrix[i + 1 :, i] /= matrix[i, i]
                    matrix[i + 1 :, i + 1 :] -= np.outer(matrix[i + 1 :, i], matrix[i, i + 1 :])
            line[: m * n], line[m * n + k :] = matrix.ravel(), order
        return out.reshape(*lead, out.shape[-1])

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        *lead, m, n = xs[0].shape
        k = min(m, n)
        both, _, order = parts(y, m, n)
        d_both = b.reshape(b.narrow(ct, len(lead), 0, m * n), xs[0].shape)
        return (_rows(_lu_cotangent(f, both, d_both, k), positions_of(order)),)


def parts(y: Node, m: int, n: int) -> tuple[Node, Node, Node]:
    """Of :class:`LU`: both triangles f[*b, m, n], exchanged rows f[*b, k], order f[*b, m]."""
    last, k = len(y.shape) - 1, min(m, n)
    both = b.reshape(b.narrow(y, last, 0, m * n), (*y.shape[:-1], m, n))
    return both, b.narrow(y, last, m * n, m * n + k), b.narrow(y, last, m * n + k, y.shape[-1])


def positions_of(order: Node) -> Node:
    """Where each row of a matrix is in the ``order`` of rows, int64[*b, m]."""
    number = b.cast(order, dt.int64)
    rows = b.iota(number.shape, len(number.shape) - 1, dt.int64)
    return scatter(b.full(number.shape, 0, dt.int64), number, rows, len(number.shape) - 1, False)


def _rows(x: Node, place: Node) -> Node:
    """Rows of matrices f[*b, m, n] at places int64[*b, m]."""
    lead = broadcast(x.shape[:-2], place.shape[:-1])
    x = b.expand(x, (*lead, *x.shape[-2:]))
    index = b.expand(b.reshape(place, (*place.shape, 1)), (*lead, place.shape[-1], x.shape[-1]))
    return gather(x, index, len(x.shape) - 2)


def _inverse_behind(x: Node, a: Node) -> Node:
    """x u.T**-1, u the upper triangle of a."""
    return turned(solve_triangular(a, turned(x), upper=True))


def _lu_cotangent(f: Build, both: Node, ct: Node, k: int) -> Node:
    """That of l u, from that of what is stored of l and u; k is the smaller of their sizes."""
    rank, (m, n) = len(both.shape), both.shape[-2:]
    rows, columns = rank - 2, rank - 1

    def top(x: Node) -> Node:
        return b.narrow(b.narrow(x, rows, 0, k), columns, 0, k)

    a, d_a = top(both), top(ct)
    d_low = triangle(d_a, False, 0.0)
    of_low = f.add(f.matmul(triangle(a, False, 0.0), d_low, True, False), d_low)
    of_up = f.matmul(triangle(d_a, True), triangle(a, True), False, True)
    if m > n:  # further rows of l are those of a u**-1
        low, d_more = b.narrow(both, rows, k, m), b.narrow(ct, rows, k, m)
        of_up = f.sub(of_up, f.matmul(low, d_more, True, False))
        d_more = _inverse_behind(d_more, a)
    if n > m:  # further columns of u are those of l**-1 a
        up, d_more = b.narrow(both, columns, k, n), b.narrow(ct, columns, k, n)
        of_low = f.sub(of_low, f.matmul(d_more, up, False, True))
        d_more = solve_triangular(a, d_more, upper=False, transposed=True, unit=True)
    inner = f.add(triangle(of_low, False, 0.0), triangle(of_up, True))
    left = solve_triangular(a, inner, upper=False, transposed=True, unit=True)
    found = _inverse_behind(left, a)
    return found if m == n else b.cat([found, d_more], rows if m > n else columns)


FACTORS = (Cholesky, TriangularSolve, LU)
"""Ops whose kernels make factors."""


# --- made of them -------------------------------------------------------------------------------


def identity(n: int, like: Node) -> Node:
    """The identity of n rows, of the dtype of ``like``."""
    return b.cast(b.eq(_place((n, n), -2), _place((n, n), -1)), like.dtype)


def _first(x: Node, zero: bool) -> Node:
    n = x.shape[-1]
    own = diagonal(x, 0)
    number = b.iota(own.shape, len(own.shape) - 1, dt.int64)
    none, nothing = b.full((), n, dt.int64), b.full((), 0.0, x.dtype)
    fine = b.ne(own, nothing) if zero else b.lt(nothing, own)
    found = b.extremum(b.where(fine, none, number), (len(own.shape) - 1,), False, lowest=True)
    one = b.full((), 1, dt.int64)
    return b.where(b.eq(found, none), b.full((), 0, dt.int64), b.add(found, one))


def first_wrong(x: Node, zero: bool) -> Node:
    """The number of the first diagonal element that is not positive, or is ``zero``: int64[*b].

    Counted from 1; 0 if there is none.
    """
    if not x.shape[-1]:
        return b.full(x.shape[:-2], 0, dt.int64)
    return apply(composite("FirstWrong", _first, zero), apply(b.DETACH, x))


def _scaled(ct: Node, x: Node) -> Node:
    """Matrices times a number each."""
    return b.mul(b.reshape(ct, (*ct.shape, 1, 1)), x)


@record(eq=False)
class Solve(Expandable, kind=Kind.COMPOSITE):
    """solve(a: f[*b, n, n], lu(a), b: f[*b, n, m]) -> f[*b, n, m], x of a x = b, or of a.T x = b.

    All that is read of ``a`` is its :class:`LU`, of which the gradient takes no notice.
    """

    transposed: bool

    def infer(self, *inputs: Spec) -> Spec:
        a, _, x = inputs
        return Spec((*broadcast(a.shape[:-2], x.shape[:-2]), *x.shape[-2:]), x.dtype)

    def expand(self, *xs: Node) -> Node:
        a, y, x = xs
        n = a.shape[-1]
        both, _, order = parts(y, n, n)
        if self.transposed:
            x = solve_triangular(both, x, upper=True, transposed=True)
            x = solve_triangular(both, x, upper=False, transposed=True, unit=True)
            return _rows(x, positions_of(order))
        x = solve_triangular(both, _rows(x, b.cast(order, dt.int64)), upper=False, unit=True)
        return solve_triangular(both, x, upper=True)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, found, x = xs
        back = apply(op_of(Solve, not self.transposed), a, found, ct)
        d_a = None
        if a.requires_grad:
            pair = (y, back) if self.transposed else (back, y)
            d_a = f.unbroadcast(f.neg(f.matmul(*pair, False, True)), a.shape)
        return d_a, None, f.unbroadcast(back, x.shape)


def lu(x: Node) -> Node:
    """See :class:`LU`."""
    return apply(op_of(LU), x)


def solve(a: Node, factors: Node, x: Node) -> Node:
    """x of a x = b, by what :func:`lu` has found of a."""
    return apply(op_of(Solve, False), a, factors, x)


def _parity(swapped: Node) -> Node:
    """1, or -1 of an odd number of exchanges."""
    last = len(swapped.shape) - 1
    place = b.iota(swapped.shape, last, swapped.dtype)
    one, minus = b.full((), 1.0, swapped.dtype), b.full((), -1.0, swapped.dtype)
    return prod(b.where(b.eq(swapped, place), one, minus), last, False)


@record(eq=False)
class Determinant(Expandable, kind=Kind.COMPOSITE):
    """det(a: f[*b, n, n], lu(a)) -> f[*b].  The gradient is det(a) a**-T."""

    def infer(self, *inputs: Spec) -> Spec:
        return Spec(inputs[0].shape[:-2], inputs[0].dtype)

    def expand(self, *xs: Node) -> Node:
        a, y = xs
        both, swapped, _ = parts(y, a.shape[-1], a.shape[-1])
        return b.mul(prod(diagonal(both, 0), len(a.shape) - 2, False), _parity(swapped))

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, found = xs
        found = apply(composite("Regular", _regular, a.shape[-1]), found)
        inverse = apply(op_of(Solve, True), a, found, identity(a.shape[-1], a))
        return _scaled(f.mul(ct, apply(self, a, found)), inverse), None


def _regular(y: Node, n: int) -> Node:
    """Factors whose diagonal has no zeros: those are a rounding error of the largest.

    The gradient of a determinant, made of minors, is what it is there but for rounding errors.
    """
    both, *_ = parts(y, n, n)
    size = apply(b.ABS, both)
    dims = (len(size.shape) - 2, len(size.shape) - 1)
    zero, most = b.full((), 0.0, y.dtype), b.extremum(size, dims, True)
    most = b.where(b.lt(zero, most), most, b.full((), 1.0, y.dtype))
    least = b.mul(most, b.full((), float(finfo(y.dtype).eps), y.dtype))
    inside = b.eq(_place((n, n), -2), _place((n, n), -1))
    new = b.where(b.logical_and(inside, b.eq(both, zero)), least, both)
    last = len(y.shape) - 1
    line = b.reshape(new, (*y.shape[:-1], n * n))
    return b.cat([line, b.narrow(y, last, n * n, y.shape[-1])], last)


@record(eq=False)
class LogDeterminant(Expandable, kind=Kind.COMPOSITE):
    """logabsdet(a: f[*b, n, n], lu(a)) -> f[*b].  The gradient is a**-T."""

    def infer(self, *inputs: Spec) -> Spec:
        return Spec(inputs[0].shape[:-2], inputs[0].dtype)

    def expand(self, *xs: Node) -> Node:
        a, y = xs
        both, *_ = parts(y, a.shape[-1], a.shape[-1])
        size = b.log(apply(b.ABS, diagonal(both, 0)))
        return b.sum(size, (len(size.shape) - 1,), False)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, found = xs
        return _scaled(ct, apply(op_of(Solve, True), a, found, identity(a.shape[-1], a))), None


def _sign(y: Node, n: int) -> Node:
    both, swapped, _ = parts(y, n, n)
    signs = apply(stepwise("sign"), diagonal(both, 0))
    return b.mul(prod(signs, len(signs.shape) - 1, False), _parity(swapped))


def determinant(a: Node, factors: Node) -> Node:
    """Of square matrices, by what :func:`lu` has found."""
    return apply(op_of(Determinant), a, factors)


def sign_and_log(a: Node, factors: Node) -> tuple[Node, Node]:
    """Of determinants: their signs, and logarithms of their sizes."""
    sign = apply(composite("SignOfDet", _sign, a.shape[-1]), factors)
    return sign, apply(op_of(LogDeterminant), a, factors)


def permutation(order: Node, dtype: dt.DType) -> Node:
    """The matrix p of p l u = a, of where rows of l u are in a."""
    m = order.shape[-1]
    number = b.reshape(b.cast(order, dt.int64), (*order.shape[:-1], 1, m))
    return b.cast(b.eq(_place((m, m), -2), number), dtype)
