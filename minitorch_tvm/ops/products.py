"""Products of vectors and matrices, checked as PyTorch checks them; distances."""

from __future__ import annotations

import math

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.record import record
from ..core.shape import Shape, broadcast
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, op_of
from . import build as b
from . import derived as d
from .composite import Expandable
from .einsum import contracted
from .norms import vector_norm


def dot(x: Node, y: Node) -> Node:
    """Of two vectors."""
    if len(x.shape) != 1 or len(y.shape) != 1:
        raise RuntimeError(
            f"1D tensors expected, but got {len(x.shape)}D and {len(y.shape)}D tensors"
        )
    return d.matmul(x, y)


def outer(x: Node, y: Node) -> Node:
    """x[i] * y[j] of two vectors."""
    for name, node in (("self", x), ("vec2", y)):
        if len(node.shape) != 1:
            raise RuntimeError(f"outer: Expected 1-D argument {name}, but got {len(node.shape)}-D")
    return d.mul(b.reshape(x, (x.shape[0], 1)), y)


def mv(x: Node, y: Node) -> Node:
    """Of a matrix and a vector."""
    if len(x.shape) != 2 or len(y.shape) != 1:
        ranks = f"{len(y.shape)}, {len(x.shape)}, {len(y.shape)}"
        raise RuntimeError(f"vector + matrix @ vector expected, got {ranks}")
    return d.matmul(x, y)


def inner(x: Node, y: Node) -> Node:
    """Sums of products along the last dimensions; of a number, all products."""
    if not x.shape or not y.shape:
        return d.mul(x, y)
    if x.dtype is not y.dtype:
        raise RuntimeError("both inputs should have same dtype")
    if x.shape[-1] != y.shape[-1]:
        raise RuntimeError(
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(x.shape)} and {list(y.shape)}"
        )
    if x.dtype is dt.bool_:
        raise unsupported("dot" if len(x.shape) == len(y.shape) == 1 else "bmm", x.dtype)
    return contracted(x, y, (len(x.shape) - 1,), (len(y.shape) - 1,))


def tensordot(x: Node, y: Node, dims: tuple[int, ...], others: tuple[int, ...]) -> Node:
    """Sums of products over pairs of dimensions (not negative)."""
    if x.dtype is not y.dtype:
        raise RuntimeError("both inputs should have same dtype")
    for i, j in zip(dims, others, strict=True):
        n, m = x.shape[i], y.shape[j]
        if n != m and 1 not in (n, m):
            raise RuntimeError(
                f"contracted dimensions need to match, but first has size {n} in dim {i} and "
                f"second has size {m} in dim {j}"
            )
    return contracted(x, y, dims, others)


def _plus(x: Node, product: Node, beta: d.Number, alpha: d.Number) -> Node:
    """beta x + alpha times a product; of a beta of 0, x does not count, even where it is NaN."""
    _fits(x, product.shape)
    scaled = product if alpha == 1 else b.mul(product, d.lift(alpha, product.dtype))
    if beta == 0:
        return scaled
    return b.add(x if beta == 1 else b.mul(x, d.lift(beta, x.dtype)), scaled)


def _fits(x: Node, shape: Shape) -> None:
    """RuntimeError unless x expands to ``shape``."""
    if len(x.shape) > len(shape):
        raise RuntimeError(
            f"expand(torch.{x.dtype.torch_name}Tensor{{{list(x.shape)}}}, size={list(shape)}): the "
            f"number of sizes provided ({len(shape)}) must be greater or equal to the number of "
            f"dimensions in the tensor ({len(x.shape)})"
        )
    lead = len(shape) - len(x.shape)
    for i, n in enumerate(x.shape):
        if n not in (1, shape[lead + i]):
            raise RuntimeError(
                f"The expanded size of the tensor ({shape[lead + i]}) must match the existing size "
                f"({n}) at non-singleton dimension {lead + i}.  Target sizes: {list(shape)}.  "
                f"Tensor sizes: {list(x.shape)}"
            )


def addmm(x: Node, y: Node, z: Node, beta: d.Number, alpha: d.Number) -> Node:
    """beta x + alpha y @ z, of matrices y and z."""
    for name, node in (("mat1", y), ("mat2", z)):
        if len(node.shape) != 2:
            raise RuntimeError(f"{name} must be a matrix, got {len(node.shape)}-D tensor")
    if x.dtype is not z.dtype:
        raise RuntimeError(
            "self and mat2 must have the same dtype, but got "
            f"{x.dtype.torch_name} and {z.dtype.torch_name}"
        )
    return _plus(x, b.matmul(y, z, False, False), beta, alpha)


def addmv(x: Node, y: Node, z: Node, beta: d.Number, alpha: d.Number) -> Node:
    """beta x + alpha y @ z, of a matrix y and a vector z."""
    product = mv(y, z)
    if x.shape not in ((), (1,), product.shape):
        size = x.shape[0] if len(x.shape) == 1 else len(x.shape)
        raise RuntimeError(
            f"size mismatch, got input ({size}), mat ({y.shape[0]}x{y.shape[1]}), vec "
            f"({z.shape[0]})"
        )
    if x.dtype is not y.dtype:
        names = ", ".join(node.dtype.torch_name for node in (x, y))
        raise RuntimeError(
            "addmv input tensors must have the same dtype, but got "
            f"{names}, and {z.dtype.torch_name}"
        )
    return _plus(x, product, beta, alpha)


def baddbmm(x: Node, y: Node, z: Node, beta: d.Number, alpha: d.Number) -> Node:
    """beta x + alpha y @ z, of batches of matrices."""
    product = d.bmm(y, z) if y.dtype is not dt.bool_ else None
    if not x.dtype is y.dtype is z.dtype:
        raise RuntimeError(
            f"Input dtypes must be the same, got: input {x.dtype.scalar_name}, batch1: "
            f"{y.dtype.scalar_name}, batch2: {z.dtype.scalar_name}"
        )
    if product is None:
        raise unsupported("baddbmm", y.dtype)
    return _plus(x, product, beta, alpha)


# --- distances ----------------------------------------------------------------------------------


def cdist(x: Node, y: Node, power: float) -> Node:
    """Norms of the differences of each row of x and each row of y."""
    for name, node in (("X1", x), ("X2", y)):
        if not node.dtype.is_floating_point:
            raise RuntimeError(
                f"cdist only supports floating-point dtypes, {name} got: {node.dtype.torch_name}"
            )
        if len(node.shape) < 2:
            raise RuntimeError(
                f"cdist only supports at least 2D tensors, {name} got: {len(node.shape)}D"
            )
    if x.shape[-1] != y.shape[-1]:
        raise RuntimeError(
            f"X1 and X2 must have the same number of columns. X1: {x.shape[-1]} X2: {y.shape[-1]}"
        )
    if x.dtype is not y.dtype:
        raise RuntimeError(
            f"expected scalar type {x.dtype.torch_name} but found {y.dtype.torch_name}"
        )
    if not power >= 0:
        raise RuntimeError("cdist only supports non-negative p values")
    if not x.shape[-1]:  # zeros, which keep the history
        nothing = _differences(x, y)
        return b.sum(nothing, (len(nothing.shape) - 1,), False)
    if power == 2 and max(x.shape[-2], y.shape[-2]) > _FEW_ROWS:
        return apply(op_of(Distances), x, y)
    return vector_norm(_differences(x, y), power, -1, False)


_FEW_ROWS = 25
"""Up to so many PyTorch uses no products for distances, either."""


def _differences(x: Node, y: Node) -> Node:
    rows = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    others = b.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return b.sub(rows, others)


@record(eq=False)
class Distances(Expandable, kind=Kind.COMPOSITE):
    """distances(x: f[*b, m, k], y: f[*b, n, k]) -> f[*b, m, n]: Euclidean ones of rows.

    The gradient of row i of x, the sum over j of (x_i - y_j) ct_ij / d_ij, is made of two sums: of
    these weights, times x_i, and a product of weights and y.  Differences of all pairs take n times
    as long.  Both sums cancel where rows are far from 0 and near each other, so both are of what is
    left of rows less a mean.
    """

    def infer(self, *inputs: Spec) -> Spec:
        x, y = inputs
        lead = broadcast(x.shape[:-2], y.shape[:-2])
        return Spec((*lead, x.shape[-2], y.shape[-2]), x.dtype)

    def expand(self, *xs: Node) -> Node:
        return vector_norm(_differences(*xs), 2.0, -1, False)

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node:
        length = self.expand(*inputs)
        none = b.eq(length, b.full_like(length, 0.0))
        share = b.div(ct, b.where(none, b.full_like(length, 1.0), length))
        weights = b.where(none, b.full_like(share, 0.0), share)  # no gradient where rows are equal
        if index:
            weights = d.transpose(weights, -2, -1)
        mine, others = inputs[index], inputs[1 - index]
        mean = d.mean(others, (-2,), True)
        finite = b.lt(apply(b.ABS, mean), b.full_like(mean, math.inf))
        shift = apply(b.DETACH, b.where(finite, mean, b.full_like(mean, 0.0)))
        total = b.sum(weights, (len(weights.shape) - 1,), True)
        near, far = b.mul(total, b.sub(mine, shift)), d.matmul(weights, b.sub(others, shift))
        return b.unbroadcast(b.sub(near, far), mine.shape)


def cosine_similarity(x: Node, y: Node, dim: int, eps: float) -> Node:
    """Sums of products along ``dim`` of vectors divided by their norms, or by ``eps``."""
    dtype = d.result_dtype(x, y)
    if not dtype.is_floating_point:
        raise RuntimeError(
            f"expected common dtype to be floating point, yet common dtype is {dtype.torch_name}"
        )
    shape = broadcast(x.shape, y.shape)
    units = []
    for node in (x, y):
        v = b.expand(b.cast(node, dtype), shape)
        units.append(b.div(v, d.clamp(vector_norm(v, 2.0, dim, True), float(eps), None)))
    return d.sum(b.mul(*units), dim)
