"""Functions that make tensors."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import lazy
from ..core import arguments as arg
from ..core import dtype as dt
from ..core import errors
from ..core.device import require_cpu
from ..core.dtype import DType
from ..core.shape import Shape
from ..core.switches import check_format
from ..ir.node import Node, leaf
from ..ops import build as b
from ..ops import derived as d
from ..runtime.memory import Buffer
from .conversion import unpinned
from .core import Number, leaf_of, tensor_of
from .filling import filled, size_of
from .literals import kinds_of
from .tensor import Tensor


def _finish(node: Node, requires_grad: bool) -> Tensor:
    if requires_grad is True and not node.dtype.is_floating_point:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    t = Tensor._wrap(node)
    return t if requires_grad is False else t.requires_grad_(requires_grad)


def _place(function: str, device: Any, pin_memory: bool = False) -> None:
    """Raise unless memory is to be had there."""
    require_cpu(device, function)
    unpinned(pin_memory)


def _kind(dtype: Any) -> DType:
    return dt.float32 if dtype is None else dt.as_dtype(dtype)


def tensor(
    data: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A tensor with a copy of ``data``: a number, nested sequences, or an array.

    Python floats become float32, ints int64, bools bool; arrays keep their dtype.

    >>> tensor([[1, 2], [3, 4]]).shape
    torch.Size([2, 2])
    """
    _place("tensor", device, pin_memory)
    if isinstance(data, (list, tuple)) and any(issubclass(k, Tensor) for k in kinds_of(data)):
        data = [x.tolist() if isinstance(x, Tensor) else x for x in data]
    return _finish(leaf_of(data, None if dtype is None else dt.as_dtype(dtype)), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """``data`` itself if it is a tensor of that dtype; arrays are shared; else a copy."""
    _place("as_tensor", device)
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
    size: Sequence[int],
    fill_value: Number,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Every element ``fill_value``; its Python type decides the dtype unless given.

    Raises TypeError for a size that is no tuple of ints and a value that is no number.
    """
    _place("full", device, pin_memory)
    shape = arg.bounded(arg.several("full", "size", 1, size))
    kind = None if dtype is None else dt.as_dtype(dtype)
    return _finish(filled("full", shape, fill_value, kind), requires_grad)


def _constant(
    function: str,
    shape: Shape,
    value: int,
    dtype: Any,
    device: Any,
    requires_grad: bool,
    pin_memory: bool,
) -> Tensor:
    _place(function, device, pin_memory)
    return _finish(b.full(shape, value, _kind(dtype)), requires_grad)


def zeros(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Zeros (float32 unless ``dtype`` says otherwise)."""
    shape = size_of("zeros", sizes, size)
    return _constant("zeros", shape, 0, dtype, device, requires_grad, pin_memory)


def ones(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Ones (float32 unless ``dtype`` says otherwise)."""
    shape = size_of("ones", sizes, size)
    return _constant("ones", shape, 1, dtype, device, requires_grad, pin_memory)


def empty(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """As :func:`zeros`: memory is never handed out uninitialised."""
    shape = size_of("empty", sizes, size)
    return _constant("empty", shape, 0, dtype, device, requires_grad, pin_memory)


def zeros_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Zeros with the shape and dtype of ``input``."""
    x = tensor_of("zeros_like", "input", 1, input)
    check_format("zeros_like", memory_format, x.ndim)
    kind, name = dtype or x.dtype, "zeros_like"
    return _constant(name, x.shape, 0, kind, device, requires_grad, pin_memory)


def ones_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Ones with the shape and dtype of ``input``."""
    x = tensor_of("ones_like", "input", 1, input)
    check_format("ones_like", memory_format, x.ndim)
    kind, name = dtype or x.dtype, "ones_like"
    return _constant(name, x.shape, 1, kind, device, requires_grad, pin_memory)


def empty_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """As :func:`zeros_like`: memory is never handed out uninitialised."""
    x = tensor_of("empty_like", "input", 1, input)
    check_format("empty_like", memory_format, x.ndim)
    kind, name = dtype or x.dtype, "empty_like"
    return _constant(name, x.shape, 0, kind, device, requires_grad, pin_memory)


def full_like(
    input: Tensor,
    fill_value: Number,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """``fill_value`` with the shape and dtype of ``input``."""
    x = tensor_of("full_like", "input", 1, input)
    check_format("full_like", memory_format, x.ndim)
    _place("full_like", device, pin_memory)
    kind = dt.as_dtype(dtype or x.dtype)
    return _finish(filled("full_like", x.shape, fill_value, kind), requires_grad)


def _numbers(function: str, **given: Any) -> list[Any]:
    """The arguments, in the order of their positions, as numbers; TypeError if one is none.

    OverflowError for an int beyond 64 bits.
    """
    return [
        arg.number(function, name, i, value) for i, (name, value) in enumerate(given.items(), 1)
    ]


def arange(
    start: Number,
    end: Number | None = None,
    step: Number = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """start, start + step, ... below ``end``; int64 if all are ints, else float32.

    Integers step by integers: ``start`` and ``step`` are truncated, for int64 before the elements
    are counted.  Raises OverflowError for ints beyond 64 bits, NotImplementedError for bool, and
    RuntimeError for an endless or a wrong range and for one too large for memory.
    """
    _place("arange", device, pin_memory)
    if end is None:
        start, (end,) = 0, _numbers("arange", end=start)
    else:
        start, end, step = _numbers("arange", start=start, end=end, step=step)
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
    values = line
    if start != 0 or step != 1:
        values = b.add(b.mul(line, d.lift(step, work)), d.lift(start, work))
    return _finish(b.cast(values, kind), requires_grad)


def _line(function: str, start: Any, end: Any, steps: Any) -> tuple[float, float, int]:
    """The ends of a line and how many points it has."""
    start, end = _numbers(function, start=start, end=end)
    steps = arg.integer(function, "steps", 3, steps)
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    return start, end, steps


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    line = np.linspace(*_line("linspace", start, end, steps))
    return tensor(line, _kind(dtype), device, requires_grad, pin_memory)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """``steps`` numbers from base**start to base**end, whose exponents are evenly spaced.

    >>> logspace(0, 3, 4)
    tensor([   1.,   10.,  100., 1000.])
    """
    base = arg.number("logspace", "base", 4, base, "float")
    line = np.logspace(*_line("logspace", start, end, steps), base=base)
    return tensor(line, _kind(dtype), device, requires_grad, pin_memory)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    _place("eye", device, pin_memory)
    kind = _kind(dtype)
    rows = arg.integer("eye", "n", 1, n)
    columns = rows if m is None else arg.integer("eye", "m", 2, m)
    for name, size in (("n", rows), ("m", columns)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    shape = (rows, columns)
    hit = b.eq(b.iota(shape, 0, dt.int64), b.iota(shape, 1, dt.int64))
    return _finish(b.cast(hit, kind), requires_grad)


def scalar_tensor(
    s: Number,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """The number ``s`` as a 0-d tensor (float32 unless ``dtype`` says otherwise)."""
    value = arg.number("scalar_tensor", "s", 1, s)
    return tensor(value, _kind(dtype), device, requires_grad, pin_memory)


def asarray(
    obj: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    copy: bool | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """As :func:`as_tensor`, copied if ``copy`` is True.

    Raises ValueError if ``copy`` is False where that needs a copy.
    """
    _place("asarray", device)
    t = as_tensor(obj, dtype)
    shared = t is obj or (isinstance(obj, np.ndarray) and t.dtype is dt.of_numpy(obj.dtype))
    if copy is False and not shared:
        raise ValueError("can't alias arbitrary object; set copy to None or True")
    if copy and shared:
        t = t.detach().clone()
    return t.requires_grad_() if requires_grad else t
