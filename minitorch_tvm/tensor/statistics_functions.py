"""Free functions with PyTorch's names: integrals, distances, and statistics of vectors."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.shape import wrap_dim
from ..core.spelling import numpy_names
from ..ops import build as b
from ..ops import norms
from ..ops import products as pr
from ..ops.gather import take
from .core import Number, input_of, leaf_of, node_of, tensor_of
from .elementwise import wrong_keyword
from .tensor import Tensor


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Sum of products of two vectors of one dtype."""
    x, y = node_of("vdot", "input", 1, input), node_of("vdot", "other", 2, other)
    return Tensor._wrap(pr.dot(x, y))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """Each element of ``input`` times all of ``other``, in its place (the Kronecker product).

    >>> import minitorch_tvm as mt
    >>> mt.kron(mt.tensor([1, 2]), mt.tensor([1, 10]))
    tensor([ 1, 10,  2, 20])
    """
    return input_of("kron", input).kron(other)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """Norm of order ``p`` of input - other, which broadcast."""
    return input_of("dist", input).dist(other, p)


def pdist(input: Tensor, p: float = 2) -> Tensor:
    """Distances of order ``p`` between all rows of a matrix: of the first to those behind it first.

    >>> import minitorch_tvm as mt
    >>> mt.pdist(mt.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]))
    tensor([5., 3., 4.])
    """
    x, power = node_of("pdist", "input", 1, input), arg.number("pdist", "p", 2, p, "float")
    if len(x.shape) != 2:
        raise RuntimeError(f"pdist only supports 2D tensors, got: {len(x.shape)}D")
    if not x.dtype.is_floating_point:
        raise RuntimeError("pdist only supports floating-point dtypes")
    if not power >= 0:
        raise RuntimeError("pdist only supports non-negative p values")
    n = x.shape[0]
    if not x.shape[1]:
        return Tensor._wrap(b.full((n * (n - 1) // 2,), 0.0, x.dtype))
    first, second = (leaf_of(part, dt.int64) for part in _pairs(n))
    distance = b.sub(take(x, first, 0), take(x, second, 0))
    return Tensor._wrap(norms.vector_norm(distance, power, 1, False))


@functools.lru_cache(maxsize=16)
def _pairs(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.triu_indices(n, 1)


def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Covariances of the rows of a matrix, of which columns are observations; or of a vector.

    ``fweights`` (integers) say how often each observation was made, ``aweights`` how important it
    is.  They are evaluated, as RuntimeError is raised for negative ones.

    >>> import minitorch_tvm as mt
    >>> mt.cov(mt.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    x = input_of("cov", input)
    return x.cov(correction=correction, fweights=fweights, aweights=aweights)


def corrcoef(input: Tensor) -> Tensor:
    """Correlation coefficients of the rows of a matrix, of which columns are observations."""
    return input_of("corrcoef", input).corrcoef()


def _sides(
    function: str, y: Tensor, x: Tensor | None, dx: Number | None, dim: int
) -> tuple[Tensor, Any]:
    """(sums of neighbours along ``dim``, which is last; their distances)."""
    if x is not None and dx is not None:
        forms = [
            "(Tensor y, Tensor x, *, int dim = -1)",
            "(Tensor y, *, Number dx = 1, int dim = -1)",
        ]
        raise wrong_keyword(function, "dx", dx, forms, (y, x))
    values = tensor_of(function, "y", 1, y)
    axis = wrap_dim(arg.integer(function, "dim", 3, dim), values.ndim)
    if not values.ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    places = None if x is None else tensor_of(function, "x", 2, x)
    if values.dtype is dt.bool_ or (places is not None and places.dtype is dt.bool_):
        which = "`y`" if places is None else "`x` or `y`"
        raise RuntimeError(
            f"{function}: received a bool input for {which}, but bool is not supported"
        )
    n = values.shape[axis]
    line = values.movedim(axis, -1)
    if not n:
        return line * 1.0, 1.0
    pairs = line[..., 1:] + line[..., :-1]
    if places is None:
        return pairs, 1.0 if dx is None else arg.number(function, "dx", 2, dx)
    if places.ndim == 1:
        if places.numel() != n:
            raise RuntimeError(f"{function}: There must be one `x` value for each sample point")
        return pairs, places.diff()
    return pairs, places.diff(1, axis - values.ndim).movedim(axis - values.ndim, -1)


@numpy_names
def trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Number | None = None, dim: int = -1
) -> Tensor:
    """Integrals of ``y`` along ``dim`` by the trapezoidal rule: at places ``x``, or ``dx`` apart.

    >>> import minitorch_tvm as mt
    >>> mt.trapezoid(mt.tensor([1.0, 5.0, 10.0]), dx=2)
    tensor(21.)
    """
    pairs, widths = _sides("trapezoid", y, x, dx, dim)
    return ((pairs * widths).sum(-1)) / 2


@numpy_names
def trapz(y: Tensor, x: Tensor | None = None, *, dx: Number | None = None, dim: int = -1) -> Tensor:
    """As :func:`trapezoid`."""
    return trapezoid(y, x, dx=dx, dim=dim)


@numpy_names
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Number | None = None, dim: int = -1
) -> Tensor:
    """Integrals from the first element to each of the others, as of :func:`trapezoid`.

    >>> import minitorch_tvm as mt
    >>> mt.cumulative_trapezoid(mt.tensor([1.0, 5.0, 10.0]))
    tensor([ 3.0000, 10.5000])
    """
    if tensor_of("cumulative_trapezoid", "y", 1, y).ndim == 0:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    pairs, widths = _sides("cumulative_trapezoid", y, x, dx, dim)
    return ((pairs * widths).cumsum(-1) / 2).movedim(-1, wrap_dim(dim, y.ndim))
