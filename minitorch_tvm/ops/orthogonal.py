"""Factors of matrices with orthonormal columns: q r, eigenvectors, singular vectors.

Derivatives: M. Giles, "An extended collection of matrix derivative results for forward and reverse
mode algorithmic differentiation" (2008); H.-J. Liao et al., "Differentiable programming tensor
networks" (2019), of q r.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

from ..core.record import record
from ..core.shape import numel
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, intern, op_of
from . import build as b
from .composite import Expandable
from .factors import Dense, require, solve_triangular, square, triangle, turned
from .moves import diagonal, on_diagonal


@record(eq=False)
class QR(Dense, kind=Kind.OPAQUE):
    """qr(a: f[*b, m, n]) -> f[*b, m k + k n], q [m, k] and r [k, n] of a = q r, in a line.

    k is m if ``complete``, else the smaller of m and n.
    """

    complete: bool

    def count(self, m: int, n: int) -> int:
        """Columns of q, and rows of r."""
        return m if self.complete else min(m, n)

    def infer(self, *inputs: Spec) -> Spec:
        require("QR", inputs, len(inputs[0].shape) >= 2)
        *lead, m, n = inputs[0].shape
        return Spec((*lead, self.count(m, n) * (m + n)), inputs[0].dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        *lead, m, n = xs[0].shape
        count = self.count(m, n)
        out = np.empty((numel(tuple(lead)), count * (m + n)), xs[0].dtype)
        for line, a in zip(out, np.array(xs[0]).reshape(len(out), m, n), strict=True):
            q = np.eye(m, dtype=a.dtype)
            for k in range(min(m, n)):
                x = a[k:, k]
                if not x[1:].any():
                    continue
                v = x.copy()
                length = np.hypot.reduce(x)
                v[0] -= -length if x[0] > 0 else length
                v /= np.hypot.reduce(v)
                a[k:] -= 2 * np.outer(v, v @ a[k:])
                q[:, k:] -= 2 * np.outer(q[:, k:] @ v, v)
            line[: m * count] = q[:, :count].ravel()
            line[m * count :] = np.triu(a[:count]).ravel()
        return out.reshape(*lead, out.shape[-1])

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        m, n = xs[0].shape[-2:]
        if self.complete and m > n:
            raise RuntimeError(
                "The QR decomposition is not differentiable when mode='complete' and nrows > ncols."
            )
        (q, r), (d_q, d_r) = (self.parts(x, m, n) for x in (y, ct))
        rank = len(q.shape)
        if m >= n:
            return (_qr_cotangent(f, q, r, d_q, triangle(d_r, True)),)
        # Columns behind the square are q.T y: both have a part in the gradient.
        square, d_square = (b.narrow(x, rank - 1, 0, m) for x in (r, d_r))
        rest, d_rest = b.narrow(xs[0], rank - 1, m, n), b.narrow(d_r, rank - 1, m, n)
        d_q = f.add(d_q, f.matmul(rest, d_rest, False, True))
        left = _qr_cotangent(f, q, square, d_q, triangle(d_square, True))
        return (b.cat([left, f.matmul(q, d_rest, False, False)], rank - 1),)

    def parts(self, y: Node, m: int, n: int) -> tuple[Node, Node]:
        """q and r of a line."""
        last, lead, count = len(y.shape) - 1, y.shape[:-1], self.count(m, n)
        q = b.reshape(b.narrow(y, last, 0, m * count), (*lead, m, count))
        r = b.reshape(b.narrow(y, last, m * count, y.shape[-1]), (*lead, count, n))
        return q, r


def _qr_cotangent(f: Build, q: Node, r: Node, d_q: Node, d_r: Node) -> Node:
    """Of a tall a: (dq + q s) r.T**-1, s symmetric with the lower half of r dr.T - dq.T q."""
    half = f.sub(f.matmul(r, d_r, False, True), f.matmul(d_q, q, True, False))
    low = triangle(half, False, 0.0)
    both = f.add(triangle(half, False), turned(low))
    inner = f.add(d_q, f.matmul(q, both, False, False))
    return turned(solve_triangular(r, turned(inner), upper=True))


def qr(x: Node, complete: bool) -> tuple[Node, Node]:
    """See :class:`QR`."""
    op = op_of(QR, complete)
    assert isinstance(op, QR)
    return op.parts(apply(op, x), *x.shape[-2:])


@record(eq=False)
class Eigh(Dense, kind=Kind.OPAQUE):
    """eigh(a: f[*b, n, n]) -> f[*b, n + n n]: ascending eigenvalues w, then v of a = v w v.T.

    The ``upper`` triangle of a is read, or the lower one.  Without ``vectors`` there is no v.
    """

    upper: bool
    vectors: bool

    def infer(self, *inputs: Spec) -> Spec:
        require("Eigh", inputs, square(inputs[0]))
        *lead, n, _ = inputs[0].shape
        return Spec((*lead, n + n * n * self.vectors), inputs[0].dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        *lead, n, _ = xs[0].shape
        w, v = np.linalg.eigh(xs[0], "U" if self.upper else "L")
        return np.concatenate([w, v.reshape(*lead, n * n)], -1) if self.vectors else w

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        n = xs[0].shape[-1]
        if not self.vectors:
            y = apply(op_of(Eigh, self.upper, True), xs[0])
            none = b.full((*ct.shape[:-1], n * n), 0.0, ct.dtype)
            ct = b.cat([ct, none], len(ct.shape) - 1)
        (w, v), (d_w, d_v) = (values_and_vectors(x, n) for x in (y, ct))
        gap = f.sub(b.reshape(w, (*w.shape[:-1], 1, n)), b.reshape(w, (*w.shape, 1)))
        turning = f.matmul(v, d_v, True, False)
        turning = f.mul(f.sub(turning, turned(turning)), b.full((), 0.5, ct.dtype))
        inner = f.add(_over(turning, gap), on_diagonal(d_w, 0))
        return (f.matmul(f.matmul(v, inner, False, False), v, False, True),)


def _over(x: Node, y: Node) -> Node:
    """x / y, but 0 where both are."""
    none = b.full((), 0.0, x.dtype)
    nothing = b.logical_and(b.eq(x, none), b.eq(y, none))
    return b.where(nothing, none, b.div(x, b.where(nothing, b.full((), 1.0, x.dtype), y)))


def values_and_vectors(y: Node, n: int) -> tuple[Node, Node]:
    """Of :class:`Eigh`."""
    last = len(y.shape) - 1
    v = b.reshape(b.narrow(y, last, n, n + n * n), (*y.shape[:-1], n, n))
    return b.narrow(y, last, 0, n), v


def eigh(x: Node, upper: bool) -> tuple[Node, Node]:
    """Eigenvalues and eigenvectors of symmetric matrices."""
    return values_and_vectors(apply(op_of(Eigh, upper, True), x), x.shape[-1])


def eigvalsh(x: Node, upper: bool) -> Node:
    """Eigenvalues; their gradient needs the vectors."""
    if x.requires_grad:
        return eigh(x, upper)[0]
    return apply(op_of(Eigh, upper, False), x)


@record(eq=False)
class Jacobi(Dense, kind=Kind.OPAQUE):
    """jacobi(a: f[*b, n, n]) -> f[*b, n n + n + n n]: u, singular values and v.T of a = u s v.T.

    Values are in descending order.  Where one is 0, so is the row of v.T.
    """

    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: Spec) -> Spec:
        require("Jacobi", inputs, square(inputs[0]))
        *lead, n, _ = inputs[0].shape
        return Spec((*lead, n + 2 * n * n), inputs[0].dtype)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        *lead, n, _ = xs[0].shape
        u, s, v = np.linalg.svd(xs[0])
        u, v = (x.reshape(*lead, n * n) for x in (u, v))
        return np.concatenate([u, s, v], -1)


JACOBI = intern(Jacobi())


def singular_parts(y: Node, m: int, n: int) -> tuple[Node, Node, Node]:
    """u [m, k], s [k] and v.T [k, n] of a line."""
    last, lead, k = len(y.shape) - 1, y.shape[:-1], min(m, n)
    ends = (0, m * k, m * k + k, m * k + k + k * n)
    u, s, v = (b.narrow(y, last, *ends[i : i + 2]) for i in range(3))
    return b.reshape(u, (*lead, m, k)), s, b.reshape(v, (*lead, k, n))


def _orthonormal(v: Node) -> Node:
    """Columns of which the last may be 0 made orthonormal: those that are not stay as they are."""
    q, r = qr(v, False)
    signs = diagonal(r, 0)
    none = b.full((), 0.0, v.dtype)
    one, minus = b.full((), 1.0, v.dtype), b.full((), -1.0, v.dtype)
    signs = b.where(b.lt(signs, none), minus, one)
    return b.mul(q, b.reshape(signs, (*signs.shape[:-1], 1, signs.shape[-1])))


@record(eq=False)
class SVD(Expandable, kind=Kind.COMPOSITE):
    """svd(a: f[*b, m, n]) -> f[*b, m k + k + k n], see :func:`singular_parts`; a = u s v.T.

    A triangle of a is what pairs of rows are turned of: that takes fewer turns, of shorter rows.
    """

    def infer(self, *inputs: Spec) -> Spec:
        *lead, m, n = inputs[0].shape
        k = min(m, n)
        return Spec((*lead, (m + 1 + n) * k), inputs[0].dtype)

    def expand(self, *xs: Node) -> Node:
        (x,) = xs
        m, n = x.shape[-2:]
        wide = m < n
        q, r = qr(turned(x) if wide else x, False)
        u, s, v = singular_parts(apply(JACOBI, r), min(m, n), min(m, n))
        left, right = b.matmul(q, u, False, False), _orthonormal(turned(v))
        if wide:
            left, right = right, left
        lead = x.shape[:-2]
        lines = [left, s, turned(right)]
        return b.cat(
            [b.reshape(part, (*lead, numel(part.shape[len(lead) :]))) for part in lines], len(lead)
        )

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        m, n = xs[0].shape[-2:]
        k = min(m, n)
        (u, s, v), (d_u, d_s, d_v) = (singular_parts(x, m, n) for x in (y, ct))
        row = b.reshape(s, (*s.shape[:-1], 1, k))
        column = b.reshape(s, (*s.shape, 1))
        gap = f.mul(f.sub(row, column), f.add(row, column))

        def turning(a: Node) -> Node:
            return _over(f.sub(a, turned(a)), gap)

        of_u, of_v = f.matmul(u, d_u, True, False), f.matmul(v, d_v, False, True)
        inner = f.add(f.mul(turning(of_u), row), f.mul(column, turning(of_v)))
        inner = f.add(inner, on_diagonal(d_s, 0))
        left = f.matmul(u, inner, False, False)
        if m > k:
            left = f.add(left, _over(f.sub(d_u, f.matmul(u, of_u, False, False)), row))
        found = f.matmul(left, v, False, False)
        if n > k:
            rest = f.sub(d_v, f.matmul(turned(of_v), v, False, False))
            found = f.add(found, f.matmul(u, _over(rest, column), False, False))
        return (found,)


def svd(x: Node) -> tuple[Node, Node, Node]:
    """u, s and v.T, of as many columns and rows as there are singular values."""
    return singular_parts(apply(op_of(SVD), x), *x.shape[-2:])


def completed(u: Node) -> Node:
    """Orthonormal columns, and more of them, so that there are as many as rows."""
    m, k = u.shape[-2:]
    q, _ = qr(apply(b.DETACH, u), True)
    return b.cat([u, b.narrow(q, len(q.shape) - 1, k, m)], len(u.shape) - 1)


@record(eq=False)
class Pseudoinverse(Expandable, kind=Kind.COMPOSITE):
    """pinv(a: f[*b, m, n], u, s, v.T of a, least: f[*b]) -> f[*b, n, m], of s above ``least``.

    Derivative: G. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least
    squares problems whose variables separate" (1973).
    """

    def infer(self, *inputs: Spec) -> Spec:
        *lead, m, n = inputs[0].shape
        return Spec((*lead, n, m), inputs[0].dtype)

    def expand(self, *xs: Node) -> Node:
        _, u, s, v, least = xs
        one, none = (b.full((), number, s.dtype) for number in (1.0, 0.0))
        large = b.lt(b.reshape(least, (*least.shape, 1)), s)
        inverse = b.where(large, b.div(one, b.where(large, s, one)), none)
        scaled = b.mul(v, b.reshape(inverse, (*inverse.shape, 1)))
        return b.matmul(scaled, u, True, True)

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a = xs[0]

        def product(*factors: tuple[Node, bool]) -> Node:
            (found, across), *rest = factors
            for other, turn in rest:
                found, across = f.matmul(found, other, across, turn), False
            return found

        found = f.neg(product((y, True), (ct, False), (y, True)))
        # What is in no range of a: (1 - a y) ct.T y y.T and y.T y ct.T (1 - y a).
        left = product((ct, True), (y, False), (y, True))
        right = product((y, True), (y, False), (ct, True))
        left = f.sub(left, product((a, False), (y, False), (left, False)))
        right = f.sub(right, product((right, False), (y, False), (a, False)))
        return f.add(found, f.add(left, right)), None, None, None, None


def pseudoinverse(x: Node, parts: tuple[Node, Node, Node], least: Node) -> Node:
    """By the :func:`svd` of what has no history, of singular values above ``least``."""
    return apply(op_of(Pseudoinverse), x, *parts, least)


SPECTRA = (Eigh, Jacobi)
"""Ops whose kernels look for eigenvalues or singular values."""

ORTHOGONAL = (QR,)
"""Ops whose kernels reflect columns."""
