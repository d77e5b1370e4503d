"""Factors with orthonormal columns, and what singular values tell, checked in PyTorch's words."""

from __future__ import annotations

import math
from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.limits import finfo
from ..core.shape import broadcast, numel, reduced, wrap_dim
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import factors as fa
from ..ops import norms
from ..ops import orthogonal as og
from . import solving as so


def qr(x: Node, mode: str) -> tuple[Node, Node]:
    """q and r; of mode "r" an empty q."""
    if mode not in ("reduced", "r", "complete"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), "
            "'r', or 'complete'"
        )
    so.real("linalg.qr", x, square=False)
    q, r = og.qr(x, mode == "complete")
    return (b.full((0,), 0.0, x.dtype) if mode == "r" else q), r


def _upper(side: str) -> bool:
    if side not in ("L", "U", "l", "u"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {side}")
    return side in "Uu"


def _symmetric(x: Node) -> Node:
    so.matrices("linalg.eigh", x)
    arg.floating(x.dtype, "linalg_eigh_cpu")
    return x


def eigh(x: Node, side: str) -> tuple[Node, Node]:
    """Eigenvalues and eigenvectors of symmetric matrices, of which one triangle is read."""
    return og.eigh(_symmetric(x), _upper(side))


def eigvalsh(x: Node, side: str) -> Node:
    """Eigenvalues."""
    return og.eigvalsh(_symmetric(x), _upper(side))


def svd(x: Node, full: bool) -> tuple[Node, Node, Node]:
    """u, s and v.T; ``full``: as many orthonormal columns and rows as there can be."""
    so.real("linalg.svd", x, square=False)
    m, n = x.shape[-2:]
    u, s, v = og.svd(x)
    if full and m > n:
        u = og.completed(u)
    if full and n > m:
        v = fa.turned(og.completed(fa.turned(v)))
    return u, s, v


def singular_values(x: Node) -> Node:
    """Singular values in descending order."""
    so.real("linalg.svd", x, square=False)
    return og.svd(x)[1]


def _least(s: Node, sizes: tuple[int, ...], atol: Any, rtol: Any) -> Node:
    """Above which singular values count: the larger of ``atol`` and ``rtol`` times the largest."""
    shape = s.shape[:-1]
    small = float(finfo(s.dtype).eps) * max(*sizes, 1)

    def tolerance(given: Any) -> Node:
        node = given if isinstance(given, Node) else b.full((), float(given), s.dtype)
        return b.cast(node, s.dtype)

    if rtol is None:
        if isinstance(atol, Node):
            rtol = b.where(
                d.compare("gt", atol, 0.0), b.full((), 0.0, s.dtype), b.full((), small, s.dtype)
            )
        else:
            rtol = 0.0 if atol else small
    if not s.shape[-1]:
        return b.full(shape, 0.0, s.dtype)
    most = b.reshape(b.narrow(s, len(shape), 0, 1), shape)
    limits = b.mul(most, tolerance(rtol)), tolerance(0.0 if atol is None else atol)
    least = d.maximum(*limits)
    return b.expand(least, broadcast(least.shape, shape))


def _mirrored(x: Node) -> Node:
    """The symmetric matrices that have these lower triangles."""
    so.matrices("linalg.eigh", x)
    below = fa.triangle(x, False, 0.0)
    return b.add(fa.triangle(x, False), fa.turned(below))


def pinv(x: Node, atol: Any, rtol: Any, symmetric: bool) -> Node:
    """Pseudoinverses."""
    if not x.dtype.is_floating_point or len(x.shape) < 2:
        sizes = f"{x.dtype.torch_name}{{{list(x.shape)}}}"
        raise RuntimeError(
            f"linalg.pinv({sizes}): expected a tensor with 2 or more dimensions of float, double, "
            "cfloat or cdouble types"
        )
    if symmetric:
        x = _mirrored(x)
    if not numel(x.shape):
        return b.full((*x.shape[:-2], x.shape[-1], x.shape[-2]), 0.0, x.dtype)
    u, s, v = og.svd(apply(b.DETACH, x))
    least, lead = _least(s, x.shape[-2:], atol, rtol), len(x.shape) - 2
    x, u, s, v = (b.expand(y, (*least.shape, *y.shape[lead:])) for y in (x, u, s, v))
    return og.pseudoinverse(x, (u, s, v), least)


def matrix_rank(x: Node, atol: Any, rtol: Any, symmetric: bool) -> Node:
    """How many singular values count, int64[*b]."""
    so.matrices("torch.linalg.matrix_rank", x, "input", square=False)
    if not x.dtype.is_floating_point:
        raise RuntimeError("This function doesn't handle types other than float and double")
    x = apply(b.DETACH, _mirrored(x) if symmetric else x)
    s = og.svd(x)[1]
    return _counted(s, _least(s, x.shape[-2:], atol, rtol))


def _counted(s: Node, least: Node) -> Node:
    large = b.lt(b.reshape(least, (*least.shape, 1)), s)
    return b.sum(b.cast(large, dt.int64), (len(least.shape),), False)


def matrix_norm(x: Node, order: Any, dim: Any, keepdim: bool, dtype: DType | None) -> Node:
    """Norms of the matrices in two dimensions."""
    where = "linalg.matrix_norm"
    pair = arg.one_or_several("linalg_matrix_norm", "dim", 3, dim)
    so.matrices(where, x, square=False)
    x = norms.checked(x, dtype, f"{where}:")
    if isinstance(pair, int) or len(pair) != 2:
        shown = " ".join(map(str, pair)) if isinstance(pair, tuple) else pair
        raise RuntimeError(f"{where}: dim must be a 2-tuple. Got {shown}")
    row, column = (wrap_dim(axis, len(x.shape)) for axis in pair)
    if row == column:
        raise RuntimeError(f"{where}: dims must be different. Got ({row}, {column})")
    found = _spectral_norm if order in ("nuc", 2, -2) else norms.matrix_norm
    return found(x, order, (row, column), keepdim)


def _spectral_norm(x: Node, order: float | str, dims: tuple[int, int], keepdim: bool) -> Node:
    """The largest or lowest singular value of matrices in two dimensions, or the sum of all."""
    others = [axis for axis in range(len(x.shape)) if axis not in dims]
    s = singular_values(b.permute(x, [*others, *dims]))
    if order == "nuc" or (order == 2 and not s.shape[-1]):
        found = d.sum(s, -1)
    else:
        found = d.extremum(s, -1, False, order == -2, "amin" if order == -2 else "amax")
    return b.reshape(found, reduced(x.shape, dims, keepdim))


_SPECTRAL, _OTHERS = (None, 2, -2), ("fro", "nuc", 1, -1, math.inf, -math.inf)


def cond(x: Node, order: Any) -> Node:
    """How many times a relative error may grow when a system with these matrices is solved."""
    if len(x.shape) < 2:
        raise RuntimeError("linalg.cond: The input tensor must have at least 2 dimensions.")
    if order not in (*_SPECTRAL, *_OTHERS):
        raise RuntimeError(f"linalg.cond got an invalid norm type: {order}")
    if not numel(x.shape[-2:]):
        return b.full(x.shape[:-2], 0.0, x.dtype)
    if order in _SPECTRAL:
        s = singular_values(x)
        last = len(s.shape) - 1
        ends = [b.narrow(s, last, *at) for at in ((0, 1), (s.shape[-1] - 1, s.shape[-1]))]
        most, least = (b.reshape(end, s.shape[:-1]) for end in ends)
        return b.div(least, most) if order == -2 else b.div(most, least)
    so.matrices(f"linalg.cond(ord={order})", x)
    inverse, info = so.inverse(x)
    sizes = [matrix_norm(y, order, (-2, -1), False, None) for y in (x, inverse)]
    singular = b.lt(b.full((), 0, dt.int64), info)
    return b.where(singular, b.full((), math.inf, x.dtype), b.mul(*sizes))


def lstsq(x: Node, y: Node, rcond: float | None, driver: str) -> tuple[Node, Node, Node, Node]:
    """(the shortest z of those that make x z - y shortest, residuals, ranks, singular values)."""
    where = "torch.linalg.lstsq"
    for name, node, fewest in (("input", x, "2 dimensions"), ("other", y, "1 dimension")):
        if len(node.shape) < int(fewest[0]):
            raise RuntimeError(f"{where}: {name} must have at least {fewest}.")
    if x.dtype is not y.dtype:
        raise RuntimeError(
            f"{where}: Expected input and other to have the same dtype, but got input's dtype "
            f"{x.dtype.torch_name} and other's dtype {y.dtype.torch_name}"
        )
    if not x.dtype.is_floating_point:
        raise RuntimeError("This function doesn't handle types other than float and double")
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"{where}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)"
        )
    if driver in ("gelsd", "gelss"):
        raise NotImplementedError(
            f"{where}: driver {driver} is not supported; gelsy gives the same"
        )
    if len(x.shape) - len(y.shape) not in (0, 1):
        raise RuntimeError(
            f"{where}: input.dim() must be greater or equal to other.dim() and (input.dim() - "
            "other.dim()) <= 1"
        )
    line = y.shape == x.shape[:-1]
    right = b.reshape(y, (*y.shape, 1)) if line else y
    if right.shape[-2] != x.shape[-2]:
        size = "-1" if line else "-2"
        raise RuntimeError(f"{where}: input.size(-2) should match other.size({size})")
    m, n = x.shape[-2:]
    none = b.full((0,), 0.0, x.dtype)
    residuals, rank = none, b.full((0,), 0, dt.int64)
    if driver == "gels":
        z = _of_full_rank(x, right)
        if m > n:
            rest = b.sub(d.matmul(x, z), right)
            residuals = d.sum(b.mul(rest, rest), -2)
    else:
        parts = og.svd(apply(b.DETACH, x))
        least = _least(parts[1], (m, n), 0.0, rcond)
        z = d.matmul(og.pseudoinverse(x, parts, least), right)
        rank = _counted(parts[1], least)
    return (b.reshape(z, z.shape[:-1]) if line else z), residuals, rank, none


def _of_full_rank(x: Node, y: Node) -> Node:
    m, n = x.shape[-2:]
    if m >= n:
        q, r = og.qr(x, False)
        return fa.solve_triangular(r, d.matmul(fa.turned(q), y), upper=True)
    q, r = og.qr(fa.turned(x), False)
    return d.matmul(q, fa.solve_triangular(r, y, upper=True, transposed=True))
