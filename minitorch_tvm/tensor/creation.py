"""Functions that make tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import random as rng
from ..core import dtype as dt
from ..core.shape import numel
from ..ir.node import Node, leaf
from ..ops import build as b
from ..ops import derived as d
from ..runtime.memory import Buffer
from .core import Number, leaf_of
from .tensor import Tensor, _sizes

_MOST_ELEMENTS = 1 << 60  # of 8 bytes: more than 64 bits can address


def _finish(node: Node, requires_grad: bool) -> Tensor:
    if requires_grad and not node.dtype.is_floating_point:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    t = Tensor._wrap(node)
    return t.requires_grad_() if requires_grad else t


def _device(device: Any) -> None:
    if device is not None and str(device) != "cpu":
        raise RuntimeError(f"only device 'cpu' is supported, but got {device!r}")


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of ``data``: a number, nested sequences, or an array.

    Python floats become float32, ints int64, bools bool; arrays keep their dtype.

    >>> tensor([[1, 2], [3, 4]]).shape
    torch.Size([2, 2])
    """
    _device(device)
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.tolist() if isinstance(x, Tensor) else x for x in data]
    return _finish(leaf_of(data, None if dtype is None else dt.as_dtype(dtype)), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """``data`` itself if it is a tensor of that dtype; arrays are shared; else a copy."""
    _device(device)
    kind = None if dtype is None else dt.as_dtype(dtype)
    if isinstance(data, Tensor):
        return data if kind is None else data.to(kind)
    if isinstance(data, np.ndarray) and (kind is None or kind.numpy == data.dtype):
        return from_numpy(data)
    return tensor(data, kind)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on the memory of ``array`` where that is possible without a copy.

    A C-contiguous, writable array is shared: in-place operations on the tensor write to it, and
    its elements are read when the tensor is evaluated, so do not change them in between.  Arrays
    that are read-only, strided or of foreign byte order are copied.  Raises TypeError for dtypes
    without a counterpart.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    dtype = dt.from_numpy(array.dtype.newbyteorder("="))
    if not (array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative):
        return Tensor._wrap(leaf_of(array, dtype))
    return Tensor._wrap(leaf(Buffer.around(array), array.shape, dtype))


def full(
    size: Sequence[int], fill_value: Number, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """Every element ``fill_value``; its Python type decides the dtype unless given.

    Raises TypeError for a size that is no sequence of ints and a value that is no number.
    """
    if not isinstance(size, Sequence):
        raise TypeError(
            f"full(): argument 'size' (position 1) must be tuple of ints, not {type(size).__name__}"
        )
    if isinstance(fill_value, Tensor) and not fill_value.ndim:
        fill_value = fill_value.item()
    if not isinstance(fill_value, (bool, int, float, np.generic)):
        raise TypeError(
            "full(): argument 'fill_value' (position 2) must be Number, not "
            f"{type(fill_value).__name__}"
        )
    kind = dt.of_number(fill_value) if dtype is None else dt.as_dtype(dtype)
    shape = _shape(tuple(size))
    return _finish(b.expand(d.lift(fill_value, kind), shape), requires_grad)


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    shape = _sizes(sizes)
    for n in shape:
        if n < 0:
            raise RuntimeError(
                f"Trying to create tensor with negative dimension {n}: {list(shape)}"
            )
    if numel(shape) >= _MOST_ELEMENTS:
        raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    return shape


def _constant(sizes: tuple[Any, ...], value: int, dtype: Any, requires_grad: bool) -> Tensor:
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return _finish(b.full(_shape(sizes), value, kind), requires_grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros (float32 unless ``dtype`` says otherwise)."""
    return _constant(size, 0, dtype, requires_grad)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones (float32 unless ``dtype`` says otherwise)."""
    return _constant(size, 1, dtype, requires_grad)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """As :func:`zeros`: memory is never handed out uninitialised."""
    return _constant(size, 0, dtype, requires_grad)


def zeros_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros with the shape and dtype of ``x``."""
    return zeros(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def ones_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones with the shape and dtype of ``x``."""
    return ones(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value: Number, *, dtype: Any = None) -> Tensor:
    """``fill_value`` with the shape and dtype of ``x``."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype)


def arange(
    start: Number,
    end: Number | None = None,
    step: Number = 1,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below ``end``; int64 if all are ints, else float32."""
    if end is None:
        start, end = 0, start
    for name, value in (("start", start), ("end", end), ("step", step)):
        if not isinstance(value, (int, float, np.number)):
            raise TypeError(
                f"arange(): argument '{name}' must be Number, not {type(value).__name__}"
            )
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    whole = all(isinstance(v, int) for v in (start, end, step))
    kind = (dt.int64 if whole else dt.float32) if dtype is None else dt.as_dtype(dtype)
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    work = dt.int64 if whole else dt.float64
    line = b.iota((int(count),), 0, work)
    values = b.add(b.mul(line, d.lift(step, work)), d.lift(start, work))
    return _finish(b.cast(values, kind), requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None) -> Tensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return tensor(np.linspace(start, end, steps), dtype=kind)


def eye(n: int, m: int | None = None, *, dtype: Any = None) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    shape = (n, n if m is None else m)
    hit = b.eq(b.iota(shape, 0, dt.int64), b.iota(shape, 1, dt.int64))
    return Tensor._wrap(b.cast(hit, kind))


def _random(
    draw: Any, size: tuple[Any, ...], dtype: Any, generator: Any, requires_grad: bool
) -> Tensor:
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return _finish(draw(_shape(size), kind, generator), requires_grad)


def rand(
    *size: Any,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2**-24."""
    return _random(rng.uniform, size, dtype, generator, requires_grad)


def randn(
    *size: Any,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers."""
    return _random(rng.normal, size, dtype, generator, requires_grad)


def randint(
    low: int,
    high: int | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
) -> Tensor:
    """Integers in [low, high) (int64 unless ``dtype`` says otherwise); drawn on the host."""
    if size is None:
        raise TypeError("randint() missing the argument: size")
    if high is None:
        low, high = 0, low
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    host = (generator or rng.default_generator).host_rng()
    return tensor(host.integers(low, high, _shape(tuple(size))), dtype=dtype)


def randperm(n: int, *, generator: rng.Generator | None = None) -> Tensor:
    """A random permutation of 0..n-1 (int64); drawn on the host."""
    return tensor((generator or rng.default_generator).host_rng().permutation(n))


def rand_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Uniform numbers in the shape of ``x``."""
    return rand(x.shape, dtype=dtype or x.dtype)


def randn_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Standard normal numbers in the shape of ``x``."""
    return randn(x.shape, dtype=dtype or x.dtype)
