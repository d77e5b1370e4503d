"""Norms of vectors and matrices, and cross products, as ``torch.linalg`` has them.

>>> import minitorch_tvm as mt
>>> mt.linalg.norm(mt.tensor([[3.0, 4.0], [0.0, 0.0]]))
tensor(5.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .core import arguments as arg
from .core.arguments import Dims
from .core.dtype import DType
from .core.spelling import numpy_names
from .ops import norms
from .tensor import Tensor
from .tensor.core import node_of, tensor_of
from .tensor.reductions import power_of

__all__ = ["cross", "matrix_norm", "norm", "vector_norm"]


@numpy_names
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Cross products of vectors of three elements along ``dim``; other dimensions broadcast.

    Raises RuntimeError unless both have three elements there.
    """
    x = tensor_of("linalg_cross", "input", 1, input)
    y = tensor_of("linalg_cross", "other", 2, other)
    return x._cross(y, arg.integer("linalg_cross", "dim", 3, dim))


@numpy_names
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum of |x|**ord)**(1 / ord) over ``dim`` (all if None); of 0, inf and -inf the limit.

    Raises RuntimeError for integers, and for negative orders and inf of no elements.
    """
    node = node_of("linalg_vector_norm", "input", 1, x)
    dims = arg.dims("linalg_vector_norm", dim, 3)
    return Tensor._wrap(norms.vector_norm(node, power_of(ord), dims, keepdim, dtype))


@numpy_names
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Norm of the matrices in two dimensions: "fro", or 1, -1, inf, -inf of sums.

    Raises NotImplementedError for "nuc", 2 and -2, which need singular values.
    """
    node = node_of("linalg_matrix_norm", "input", 1, A)
    pair = arg.one_or_several("linalg_matrix_norm", "dim", 3, dim)
    if isinstance(pair, int) or len(pair) != 2:
        shown = " ".join(map(str, pair)) if isinstance(pair, tuple) else pair
        raise RuntimeError(f"linalg.matrix_norm: dim must be a 2-tuple. Got {shown}")
    if len(node.shape) < 2:
        raise RuntimeError(
            "linalg.matrix_norm: The input tensor A must have at least 2 dimensions."
        )
    return Tensor._wrap(norms.matrix_norm(node, ord, (pair[0], pair[1]), keepdim, dtype))


@numpy_names
def norm(
    A: Tensor,
    ord: Any = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Norm of a vector, or with ``ord`` and two dimensions of matrices; of all elements by default.

    Raises what :func:`vector_norm` and :func:`matrix_norm` raise.
    """
    node = node_of("linalg_norm", "input", 1, A)
    dims = arg.dims("linalg_norm", dim, 3)
    if isinstance(dims, tuple) and len(dims) not in (1, 2):
        raise RuntimeError(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}"
        )
    if ord is None:
        return vector_norm(A, 2, dims, keepdim, dtype=dtype)
    rank = len(node.shape)
    if dims is None and rank not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{rank}D."
        )
    pair: Any = (-2, -1) if dims is None else dims
    two = rank == 2 if dims is None else isinstance(dims, tuple) and len(dims) == 2
    if two or isinstance(ord, str):
        return matrix_norm(A, ord, pair, keepdim, dtype=dtype)
    return vector_norm(A, ord, dims, keepdim, dtype=dtype)
