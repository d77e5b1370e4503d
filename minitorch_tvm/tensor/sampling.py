"""Functions that make tensors of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import random as rng
from ..core import arguments as arg
from ..core import dtype as dt
from ..core.device import require_cpu
from ..core.shape import Shape
from ..core.switches import check_format
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from .conversion import unpinned
from .core import TensorBase, tensor_of
from .creation import tensor
from .draws import check_std, scaled_normal
from .filling import size_of
from .tensor import Tensor


def _finish(
    function: str, node: Node, device: Any, requires_grad: bool, pin_memory: bool
) -> Tensor:
    require_cpu(device, function)
    unpinned(pin_memory)
    if requires_grad and not node.dtype.is_floating_point:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    t = Tensor._wrap(node)
    return t.requires_grad_() if requires_grad else t


def rand(
    *sizes: Any,
    size: Any = None,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2**-24."""
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    node = rng.uniform(size_of("rand", sizes, size), kind, generator)
    return _finish("rand", node, device, requires_grad, pin_memory)


def randn(
    *sizes: Any,
    size: Any = None,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Standard normal numbers."""
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    node = rng.normal(size_of("randn", sizes, size), kind, generator)
    return _finish("randn", node, device, requires_grad, pin_memory)


def rand_like(
    input: Tensor,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Uniform numbers in the shape of ``input``."""
    x = tensor_of("rand_like", "input", 1, input)
    check_format("rand_like", memory_format, x.ndim)
    node = rng.uniform(x.shape, dt.as_dtype(dtype or x.dtype), generator)
    return _finish("rand_like", node, device, requires_grad, pin_memory)


def randn_like(
    input: Tensor,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Standard normal numbers in the shape of ``input``."""
    x = tensor_of("randn_like", "input", 1, input)
    check_format("randn_like", memory_format, x.ndim)
    node = rng.normal(x.shape, dt.as_dtype(dtype or x.dtype), generator)
    return _finish("randn_like", node, device, requires_grad, pin_memory)


def _integers(function: str, low: Any, high: Any) -> tuple[int, int]:
    if high is None:
        return 0, arg.integer(function, "high", 1, low)
    return arg.integer(function, "low", 1, low), arg.integer(function, "high", 2, high)


def _not_empty(low: int, high: int) -> None:
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )


def randint(
    low: int = 0,
    high: int | Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Integers in [low, high) (int64 unless ``dtype`` says otherwise); drawn on the host."""
    if size is None and isinstance(high, (tuple, list)):  # randint(5, (2, 3))
        high, size = None, high
    if size is None:
        raise TypeError('randint() missing 1 required positional arguments: "size"')
    low, high = _integers("randint", low, high)
    shape = arg.bounded(arg.several("randint", "size", 3, size))
    _not_empty(low, high)
    require_cpu(device, "randint")
    host = (generator or rng.default_generator).host_rng()
    kind = None if dtype is None else dt.as_dtype(dtype)
    return tensor(host.integers(low, high, shape), kind, None, requires_grad, pin_memory)


def randint_like(
    input: Tensor,
    low: int,
    high: int | None = None,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Integers in [low, high), or in [0, low), with the shape and dtype of ``input``.

    Raises NotImplementedError for a range of more than 2**32 integers.
    """
    x = tensor_of("randint_like", "input", 1, input)
    check_format("randint_like", memory_format, x.ndim)
    first, end = _integers("randint_like", low, high)
    _not_empty(first, end)
    node = rng.integers(x.shape, first, end, dt.as_dtype(dtype or x.dtype), generator)
    return _finish("randint_like", node, device, requires_grad, pin_memory)


def randperm(
    n: int,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A random permutation of 0..n-1 (int64 unless ``dtype`` says otherwise); drawn on the host."""
    require_cpu(device, "randperm")
    (count,) = arg.bounded((arg.integer("randperm", "n", 1, n),))
    order = (generator or rng.default_generator).host_rng().permutation(count)
    kind = dt.int64 if dtype is None else dt.as_dtype(dtype)
    return tensor(order, kind, None, requires_grad, pin_memory)


_NORMAL_FORMS = (
    "(Tensor mean, Tensor std, *, torch.Generator generator = None)",
    "(Tensor mean, float std = 1, *, torch.Generator generator = None)",
    "(float mean, Tensor std, *, torch.Generator generator = None)",
    "(float mean, float std, tuple of ints size, *, torch.Generator generator = None, "
    "torch.dtype dtype = None, torch.device device = None, bool requires_grad = False)",
)


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Normally distributed numbers of the given means and standard deviations.

    ``mean`` and ``std`` are tensors, which broadcast, or numbers; for two numbers ``size`` tells
    the shape, and ``dtype`` (float32 by default) and ``requires_grad`` apply.  Raises RuntimeError
    for a negative number as ``std``, NotImplementedError for integers; a tensor's negative elements
    give NaN.

    >>> import minitorch_tvm as mt
    >>> mt.normal(mt.zeros(2, 1), mt.ones(3)).shape
    torch.Size([2, 3])
    """
    given = [t for t in (mean, std) if isinstance(t, TensorBase)]
    numbers = [x for x in (mean, std) if isinstance(x, (int, float))]
    if len(given) + len(numbers) < 2 or (size is None) is not bool(given):
        listed = [mean, std] if size is None else [mean, std, size]
        raise arg.no_such_form("normal", listed, _NORMAL_FORMS)
    if not isinstance(std, TensorBase):
        check_std(std)
    if not given:
        shape: Shape = arg.bounded(arg.several("normal", "size", 3, size))
        kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
        node = scaled_normal(shape, kind, mean, std, generator)
        return _finish("normal", node, device, requires_grad, pin_memory)
    kind = given[0].dtype
    arg.floating(kind, "normal_kernel_cpu")
    spread: Any = std
    if isinstance(std, TensorBase):
        arg.floating(std.dtype, "normal_kernel_cpu")
        x = b.cast(std.node, kind)
        nothing = b.full((), float("nan"), kind)
        spread = b.where(b.lt(x, b.full((), 0.0, kind)), nothing, x)
    center = mean.node if isinstance(mean, TensorBase) else mean
    shape = d.add(center, spread).shape
    return Tensor._wrap(d.add(d.mul(rng.normal(shape, kind, generator), spread), center))


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: rng.Generator | None = None
) -> Tensor:
    """1 with the probability that each element of ``input`` (or ``p``) says, else 0.

    Raises NotImplementedError for probabilities that are not floating point, RuntimeError for a
    ``p`` outside [0, 1]; elements outside give NaN.
    """
    return tensor_of("bernoulli", "input", 1, input).bernoulli(p, generator=generator)
