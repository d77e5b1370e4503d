"""Vectors of length one and the angles between vectors (available as ``nn.functional``)."""

from __future__ import annotations

from ..core import arguments as arg
from ..core.spelling import numpy_names
from ..ops import derived as d
from ..ops import products as pr
from ..ops.norms import vector_norm
from ..tensor import Tensor
from ..tensor.core import node_of
from ..tensor.reductions import power_of


def normalize(
    input: Tensor, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12
) -> Tensor:
    """input / max(norm of order ``p`` along ``dim``, eps), of floating point numbers.

    >>> import minitorch_tvm as mt
    >>> normalize(mt.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    x = node_of("normalize", "input", 1, input)
    dims = arg.one_or_several("normalize", "dim", 3, dim)
    length = vector_norm(x, power_of(p), dims, True)
    return Tensor._wrap(d.div(x, d.clamp(length, arg.number("clamp_min", "min", 2, eps), None)))


@numpy_names
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between the vectors along ``dim``; both operands broadcast.

    Vectors shorter than ``eps`` are divided by that.  Raises RuntimeError if it is negative.

    >>> import minitorch_tvm as mt
    >>> cosine_similarity(mt.tensor([[1.0, 0.0]]), mt.tensor([[1.0, 1.0], [0.0, 2.0]]))
    tensor([0.7071, 0.0000])
    """
    x, y = node_of("cosine_similarity", "x1", 1, x1), node_of("cosine_similarity", "x2", 2, x2)
    axis = arg.integer("cosine_similarity", "dim", 3, dim)
    eps = arg.number("cosine_similarity", "eps", 4, eps, "float")
    if not eps >= 0:
        raise RuntimeError(f"eps must be non-negative, got: {eps:g}")
    return Tensor._wrap(pr.cosine_similarity(x, y, axis, eps))
