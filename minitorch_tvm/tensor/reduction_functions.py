"""Free functions that reduce, with PyTorch's names, beyond those of :mod:`.functions`."""

from __future__ import annotations

from typing import Any

from ..core import arguments as arg
from ..core.arguments import Dims
from ..core.dtype import DType
from ..core.spelling import numpy_names
from .core import input_of
from .tensor import Tensor


@numpy_names
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """True if any element over ``dim`` is nonzero."""
    return input_of("any", input).any(dim, keepdim)


@numpy_names
def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """True if every element over ``dim`` is nonzero."""
    return input_of("all", input).all(dim, keepdim)


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """(sum of |input|**p)**(1 / p) over ``dim``, see :meth:`Tensor.norm`.

    >>> import minitorch_tvm as mt
    >>> mt.norm(mt.tensor([3.0, -4.0])), mt.norm(mt.tensor([3.0, -4.0]), 1)
    (tensor(5.), tensor(7.))
    """
    return input_of("norm", input).norm(p, dim, keepdim, dtype)


@numpy_names
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Product along ``dim``, or of all elements."""
    return input_of("prod", input).prod(dim, keepdim, dtype=dtype)


@numpy_names
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """Logarithm of the sum of e ** input over ``dim``, without overflow.

    >>> import minitorch_tvm as mt
    >>> mt.logsumexp(mt.tensor([100.0, 100.0]), 0)
    tensor(100.6931)
    """
    return input_of("logsumexp", input).logsumexp(dim, keepdim)


@numpy_names
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """How many elements over ``dim`` are not zero, as int64."""
    return input_of("count_nonzero", input).count_nonzero(dim)


@numpy_names
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over ``dim`` of what is not NaN."""
    return input_of("nansum", input).nansum(dim, keepdim, dtype=dtype)


@numpy_names
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean over ``dim`` of what is not NaN."""
    return input_of("nanmean", input).nanmean(dim, keepdim, dtype=dtype)


@numpy_names
def var_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Variance and mean over ``dim``."""
    x = _floating("var_mean", input)
    over, correction = arg.spread("var_mean", dim, unbiased, correction, keepdim)
    return x.var(over, None, keepdim, correction=correction), x.mean(over, keepdim)


@numpy_names
def std_mean(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.std_mean(mt.tensor([1.0, 3.0]), correction=0)
    (tensor(1.), tensor(2.))
    """
    x = _floating("std_mean", input)
    over, correction = arg.spread("std_mean", dim, unbiased, correction, keepdim)
    return x.std(over, None, keepdim, correction=correction), x.mean(over, keepdim)


def _floating(function: str, input: Tensor) -> Tensor:
    x = input_of(function, input)
    if not x.is_floating_point():
        raise RuntimeError(f"{function} only support floating point and complex dtypes")
    return x
