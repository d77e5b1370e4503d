"""Functions that make tensors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import lazy
from .. import random as rng
from ..core import arguments as arg
from ..core import dtype as dt
from ..core import errors
from ..ir.node import Node, leaf
from ..ops import build as b
from ..ops import derived as d
from ..runtime.memory import Buffer
from .core import Number, leaf_of, tensor_of
from .tensor import Tensor


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
    its elements are read when the tensor is evaluated, so do not change them in between (where one
    array is filled again and again before that, a warning says so).  That holds for several tensors
    on one array, too: what has been done to one of them in place, the others show once it is
    evaluated (``mt.eval``).  Arrays that are read-only, strided or of foreign byte order are
    copied.  Raises TypeError for dtypes without a counterpart.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    given, flags = array.dtype, array.flags
    known = dt.of_numpy(given)
    if known is not None and flags.carray:  # aligned, writeable, C-contiguous
        buffer = Buffer.around(array, True)
        node = leaf(buffer, array.shape, known)
        # Every batch passes here: _note_given() is called where it has something to do.
        before = _GIVEN.get(buffer.address)
        if before is None or before[0]() is not None:
            _note_given(node)
        else:
            _GIVEN[buffer.address] = _reference(node), None
        return Tensor._wrap(node)
    native = given.isnative
    dtype = dt.from_numpy(given if native else given.newbyteorder("="))
    if not (flags.c_contiguous and flags.writeable and native):
        return Tensor._wrap(leaf_of(array, dtype))
    node = leaf(Buffer.around(array, flags.aligned), array.shape, dtype)
    _note_given(node)
    return Tensor._wrap(node)


_reference = weakref.ref
_GIVEN: dict[int, tuple[weakref.ref[Node], bytes | None]] = {}
"""The last value on memory of the user's that begins there, and what some of its elements were if
the one before had not been read yet."""
_MOST_GIVEN = 1024
_SAMPLE = 1024


def _note_given(node: Node) -> None:
    """Warn if memory has been given and changed while what was recorded had yet to read it.

    Somebody who fills one array with a batch after the other would train on the last one only.
    """
    address = node.buffer.address
    reference, known = _GIVEN.get(address, (None, None))
    before = None if reference is None else reference()
    sample = None
    if before is not None and lazy.awaited(before):
        array = node.buffer.array.reshape(-1)
        sample = array[:: max(1, array.size // _SAMPLE)].tobytes()
        if known is not None and known != sample:
            errors.warn(
                "from_numpy() was given memory that has been written to before operations recorded "
                "earlier have read it, so they will compute with the new numbers: evaluate them "
                "first (mt.eval, optimizer.step(), .item()), or let mt.tensor(array) copy it"
            )
    if len(_GIVEN) >= _MOST_GIVEN:
        _GIVEN.clear()
    _GIVEN[address] = _reference(node), sample


def full(
    size: Sequence[int], fill_value: Number, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """Every element ``fill_value``; its Python type decides the dtype unless given.

    Raises TypeError for a size that is no tuple of ints and a value that is no number.
    """
    shape = arg.bounded(arg.several("full", "size", 1, size))
    return _filled("full", shape, fill_value, dtype, requires_grad)


def _filled(
    function: str, shape: tuple[int, ...], value: Any, dtype: Any, requires_grad: bool
) -> Tensor:
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and not value.ndim):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise arg.wrong_kind(function, "fill_value", 2, "Number", value)
    kind = dt.of_number(value) if dtype is None else dt.as_dtype(dtype)
    return _finish(b.expand(d.lift(value, kind), shape), requires_grad)


def _shape(function: str, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes that ``function`` was given; TypeError and RuntimeError in PyTorch's words."""
    shape = arg.sizes(function, "size", sizes)
    if function == "zeros" and min(shape, default=0) < 0:
        raise RuntimeError("zeros: Dimension size must be non-negative.")
    return arg.bounded(shape)


def _constant(
    function: str, sizes: tuple[Any, ...], value: int, dtype: Any, requires_grad: bool
) -> Tensor:
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return _finish(b.full(_shape(function, sizes), value, kind), requires_grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros (float32 unless ``dtype`` says otherwise)."""
    return _constant("zeros", size, 0, dtype, requires_grad)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones (float32 unless ``dtype`` says otherwise)."""
    return _constant("ones", size, 1, dtype, requires_grad)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """As :func:`zeros`: memory is never handed out uninitialised."""
    return _constant("empty", size, 0, dtype, requires_grad)


def zeros_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros with the shape and dtype of ``x``."""
    tensor_of("zeros_like", "input", 1, x)
    return zeros(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def ones_like(x: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones with the shape and dtype of ``x``."""
    tensor_of("ones_like", "input", 1, x)
    return ones(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value: Number, *, dtype: Any = None) -> Tensor:
    """``fill_value`` with the shape and dtype of ``x``."""
    tensor_of("full_like", "input", 1, x)
    return _filled("full_like", x.shape, fill_value, dtype or x.dtype, False)


def _numbers(function: str, **given: Any) -> None:
    """TypeError unless every argument, in the order of their positions, is a number.

    OverflowError for an int beyond 64 bits.
    """
    for position, (name, value) in enumerate(given.items(), 1):
        if not isinstance(value, (int, float, np.number)):
            raise arg.wrong_kind(function, name, position, "Number", value)
        if isinstance(value, int):
            arg.in_64_bits(value)


def arange(
    start: Number,
    end: Number | None = None,
    step: Number = 1,
    *,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below ``end``; int64 if all are ints, else float32.

    Integers step by integers: ``start`` and ``step`` are truncated, for int64 before the elements
    are counted.  Raises OverflowError for ints beyond 64 bits, NotImplementedError for bool, and
    RuntimeError for an endless or a wrong range and for one too large for memory.
    """
    if end is None:
        _numbers("arange", end=start)
        start, end = 0, start
    else:
        _numbers("arange", start=start, end=end, step=step)
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {start} -> {end}")
    if step == 0 or math.isnan(step):
        raise RuntimeError("step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    whole = all(isinstance(v, int) for v in (start, end, step))
    kind = (dt.int64 if whole else dt.float32) if dtype is None else dt.as_dtype(dtype)
    if kind is dt.bool_:
        raise arg.unsupported("arange_cpu", kind)
    if kind is dt.int64:
        for value in (start, end, step):
            if not -(1 << 63) <= value < 1 << 63:
                raise RuntimeError("value cannot be converted to type int64_t without overflow")
        start, end, step, whole = int(start), int(end), int(step), True
        if step == 0:
            raise ValueError("step must be nonzero")
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if count >= 1 << 63:
        raise RuntimeError("invalid size, possible overflow?")
    shape = arg.bounded((int(count),))
    work = dt.float64
    if kind.category is dt.Category.INT:
        start, step, work = int(start), int(step), dt.int64
    line = b.iota(shape, 0, work)
    values = b.add(b.mul(line, d.lift(step, work)), d.lift(start, work))
    return _finish(b.cast(values, kind), requires_grad)


def linspace(start: float, end: float, steps: int, *, dtype: Any = None) -> Tensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    _numbers("linspace", start=start, end=end)
    steps = arg.integer("linspace", "steps", 3, steps)
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return tensor(np.linspace(start, end, steps), dtype=kind)


def eye(n: int, m: int | None = None, *, dtype: Any = None) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    rows = arg.integer("eye", "n", 1, n)
    columns = rows if m is None else arg.integer("eye", "m", 2, m)
    for name, size in (("n", rows), ("m", columns)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    shape = (rows, columns)
    hit = b.eq(b.iota(shape, 0, dt.int64), b.iota(shape, 1, dt.int64))
    return Tensor._wrap(b.cast(hit, kind))


def _random(
    function: str, draw: Any, size: tuple[Any, ...], dtype: Any, generator: Any, requires_grad: bool
) -> Tensor:
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return _finish(draw(_shape(function, size), kind, generator), requires_grad)


def rand(
    *size: Any,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2**-24."""
    return _random("rand", rng.uniform, size, dtype, generator, requires_grad)


def randn(
    *size: Any,
    generator: rng.Generator | None = None,
    dtype: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Standard normal numbers."""
    return _random("randn", rng.normal, size, dtype, generator, requires_grad)


def randint(
    low: int,
    high: int | Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    generator: rng.Generator | None = None,
    dtype: Any = None,
) -> Tensor:
    """Integers in [low, high) (int64 unless ``dtype`` says otherwise); drawn on the host."""
    if size is None and isinstance(high, (tuple, list)):  # randint(5, (2, 3))
        high, size = None, high
    if size is None:
        raise TypeError('randint() missing 1 required positional arguments: "size"')
    if high is None:
        low, high = 0, arg.integer("randint", "high", 1, low)
    else:
        low, high = arg.integer("randint", "low", 1, low), arg.integer("randint", "high", 2, high)
    shape = arg.bounded(arg.several("randint", "size", 3, size))
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    host = (generator or rng.default_generator).host_rng()
    return tensor(host.integers(low, high, shape), dtype=dtype)


def randperm(n: int, *, generator: rng.Generator | None = None) -> Tensor:
    """A random permutation of 0..n-1 (int64); drawn on the host."""
    (count,) = arg.bounded((arg.integer("randperm", "n", 1, n),))
    return tensor((generator or rng.default_generator).host_rng().permutation(count))


def rand_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Uniform numbers in the shape of ``x``."""
    tensor_of("rand_like", "input", 1, x)
    return rand(x.shape, dtype=dtype or x.dtype)


def randn_like(x: Tensor, *, dtype: Any = None) -> Tensor:
    """Standard normal numbers in the shape of ``x``."""
    tensor_of("randn_like", "input", 1, x)
    return randn(x.shape, dtype=dtype or x.dtype)
