"""Free functions with PyTorch's names: products of vectors and matrices, and distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core.shape import wrap_dim
from ..ops import products as pr
from ..ops.einsum import einsum as _einsum
from .core import Number, TensorBase, node_of
from .products import factors
from .tensor import Tensor

_wrap = Tensor._wrap


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Sum of products of two vectors of one dtype.

    >>> import minitorch_tvm as mt
    >>> mt.dot(mt.tensor([1.0, 2.0]), mt.tensor([3.0, 4.0]))
    tensor(11.)
    """
    x, y = node_of("dot", "input", 1, input), node_of("dot", "tensor", 2, tensor)
    return _wrap(pr.dot(x, y))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """input[i] * vec2[j] of two vectors."""
    x, y = node_of("outer", "input", 1, input), node_of("outer", "vec2", 2, vec2)
    return _wrap(pr.outer(x, y))


ger = outer


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Product of a matrix and a vector."""
    return _wrap(pr.mv(node_of("mv", "input", 1, input), node_of("mv", "vec", 2, vec)))


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sums of products along the last dimensions of both."""
    x, y = node_of("inner", "input", 1, input), node_of("inner", "other", 2, other)
    return _wrap(pr.inner(x, y))


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * input + alpha * mat1 @ mat2; of a beta of 0, ``input`` does not count.

    >>> import minitorch_tvm as mt
    >>> mt.addmm(mt.tensor([1.0, 2.0]), mt.ones(1, 3), mt.ones(3, 2), beta=10)
    tensor([[13., 23.]])
    """
    given = factors("addmm", ("mat1", "mat2"), mat1, mat2, beta, alpha, 2)
    return _wrap(pr.addmm(node_of("addmm", "input", 1, input), *given))


def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * input + alpha * mat @ vec; of a beta of 0, ``input`` does not count."""
    given = factors("addmv", ("mat", "vec"), mat, vec, beta, alpha, 2)
    return _wrap(pr.addmv(node_of("addmv", "input", 1, input), *given))


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """beta * input + alpha * batch1 @ batch2, a product per entry of the batches."""
    given = factors("baddbmm", ("batch1", "batch2"), batch1, batch2, beta, alpha, 2)
    return _wrap(pr.baddbmm(node_of("baddbmm", "input", 1, input), *given))


def einsum(equation: str, *operands: Any) -> Tensor:
    """Sums of products of the operands, whose dimensions the equation names by letters.

    Letters that the output lacks are summed over.  Without "->", the output has those that occur
    once, in alphabetical order.  A letter that is repeated in one operand means its diagonal, and
    "..." stands for dimensions that broadcast.  Operands are multiplied two at a time from left to
    right, as matrices where something is summed; results are never views.  Raises RuntimeError for
    equations that do not fit, TypeError for the form with lists of numbers instead of letters.

    >>> import minitorch_tvm as mt
    >>> a, b = mt.arange(6.0).reshape(2, 3), mt.ones(4, 3)
    >>> mt.einsum("ik,jk->ij", a, b).shape, mt.einsum("ij->", a)
    (torch.Size([2, 4]), tensor(15.))
    """
    if not isinstance(equation, str):
        if isinstance(equation, TensorBase):
            raise TypeError("einsum() with lists of numbers as subscripts is not supported")
        raise arg.wrong_kind("einsum", "equation", 1, "str", equation)
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    if not operands:
        raise ValueError(
            "einsum(): must specify the equation string and at least one operand, or at least one "
            "operand and its subscripts list"
        )
    for number, x in enumerate(operands):
        if not isinstance(x, TensorBase):
            kind = type(x).__name__
            raise TypeError(f"expected Tensor as element {number} in argument 1, but got {kind}")
    return _wrap(_einsum(equation, [x.node for x in operands]))


def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Sums of products over the last ``dims`` dimensions of ``a`` and the first ones of ``b``.

    ``dims`` may be two lists of dimensions instead.

    >>> import minitorch_tvm as mt
    >>> mt.tensordot(mt.ones(2, 3, 4), mt.ones(4, 3), ([2, 1], [0, 1]))
    tensor([12., 12.])
    """
    x, y = node_of("tensordot", "a", 1, a), node_of("tensordot", "b", 2, b)
    if isinstance(dims, (tuple, list)) and len(dims) == 2:
        first = arg.several("tensordot", "dims_self", 3, dims[0])
        second = arg.several("tensordot", "dims_other", 4, dims[1])
    elif isinstance(dims, int) and not isinstance(dims, bool):
        if dims < 0:
            raise RuntimeError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(len(x.shape), len(y.shape)):
            raise RuntimeError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        first, second = tuple(range(-dims, 0)), tuple(range(dims))
    else:
        raise RuntimeError(
            "tensordot expects dims to be int or tuple[list[int], list[int]] or list[list[int]] "
            f"containing two lists, but got dims={dims}"
        )
    if len(first) != len(second):
        raise RuntimeError("both dimension lists should have same length")
    pairs = _wrapped(first, len(x.shape)), _wrapped(second, len(y.shape))
    return _wrap(pr.tensordot(x, y, *pairs))


def _wrapped(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    wrapped = tuple(wrap_dim(axis, rank) for axis in dims)
    for axis in wrapped:
        if wrapped.count(axis) > 1:
            raise RuntimeError(f"dim {axis} appears multiple times in the list of dims")
    return wrapped


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0) -> Tensor:
    """Distances, by the norm of order ``p``, of each row of ``x1`` and each row of ``x2``.

    Floating point [..., m, k] and [..., n, k] give [..., m, n].  The differences themselves are
    squared and summed, which is more accurate and slower than a matrix product.

    >>> import minitorch_tvm as mt
    >>> mt.cdist(mt.tensor([[0.0, 0.0], [3.0, 0.0]]), mt.tensor([[3.0, 4.0]]))
    tensor([[5.],
            [4.]])
    """
    x, y = node_of("cdist", "x1", 1, x1), node_of("cdist", "x2", 2, x2)
    return _wrap(pr.cdist(x, y, arg.number("cdist", "p", 3, p, "float")))
