"""Functions of neural networks on nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ..core import dtype as dt
from ..core.arguments import floating
from ..core.record import record
from ..core.shape import Shape, numel, wrap_dim
from ..ir.node import Node, apply
from ..ir.op import Kind, Op, Spec, intern, op_of
from . import build as b
from . import conv as cv
from . import pool as pl
from .composite import Expandable, composite
from .derived import add, mean_over
from .softmax import weights


def linear(x: Node, weight: Node, bias: Node | None) -> Node:
    """x @ weight.T + bias; the transpose is a flag of the product, never a copy."""
    return apply(_LINEAR, x, weight) if bias is None else apply(_LINEAR, x, weight, bias)


def _linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    if not x.shape or not weight.shape:
        raise RuntimeError(
            "both arguments to linear need to be at least 1D, but they are "
            f"{len(x.shape)}D and {len(weight.shape)}D"
        )
    if len(weight.shape) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(weight.shape)}D"
        )
    if len(weight.shape) == 1:
        raise RuntimeError(f"mat2 must be a matrix, got {len(weight.shape)}-D tensor")
    if bias is not None:
        _check_sum(x, weight, bias)
    lead: Shape = x.shape[:-1]
    flat = x if len(x.shape) == 2 else b.reshape(x, (numel(lead), x.shape[-1]))
    out = b.matmul(flat, weight, False, True)
    if bias is not None:
        out = add(out, bias)
    return b.reshape(out, (*lead, weight.shape[0]))


def _check_sum(x: Node, weight: Node, bias: Node) -> None:
    if bias.shape not in (weight.shape[:1], (), (1,)):
        raise RuntimeError(
            f"The expanded size of the tensor ({weight.shape[0]}) must match the existing size "
            f"({bias.shape[-1]}) at non-singleton dimension {len(x.shape) - 1}.  Target sizes: "
            f"{[*x.shape[:-1], weight.shape[0]]}.  Tensor sizes: {list(bias.shape)}"
        )
    names = [n.dtype.torch_name for n in (x, weight, bias)]
    if names[0] != names[1]:
        raise RuntimeError(
            f"mat1 and mat2 must have the same dtype, but got {names[0]} and {names[1]}"
        )
    if names[1] != names[2]:
        raise RuntimeError(
            f"self and mat2 must have the same dtype, but got {names[2]} and {names[1]}"
        )


_LINEAR = composite("Linear", _linear)


def _bilinear(x: Node, y: Node, weight: Node, bias: Node | None = None) -> Node:
    out, n, m = weight.shape
    lead = x.shape[:-1]
    count = numel(lead)
    columns = b.reshape(weight, (out * n, m))
    halves = b.matmul(b.reshape(y, (count, m)), columns, False, True)
    terms = b.mul(b.reshape(halves, (count, out, n)), b.reshape(x, (count, 1, n)))
    total = b.sum(terms, (2,), False)
    return b.reshape(total if bias is None else b.add(total, bias), (*lead, out))


def bilinear(x: Node, y: Node, weight: Node, bias: Node | None) -> Node:
    """x [..., n] times weight [out, n, m] times y [..., m], + bias [out]."""
    if len(x.shape) != len(y.shape):
        raise RuntimeError(
            f"bilinear(): input dimensions do not match: got {len(x.shape)} and {len(y.shape)}"
        )
    for k, (n, m) in enumerate(zip(x.shape[:-1], y.shape[:-1], strict=True)):
        if n != m:
            raise RuntimeError(
                f"bilinear(): input batch dimensions do not match at dim {k}: got {n} and {m}"
            )
    if len(weight.shape) != 3 or not x.shape:
        raise RuntimeError(
            "bilinear(): expected inputs with dimensions and a weight of three, but got "
            f"{list(x.shape)}, {list(y.shape)} and {list(weight.shape)}"
        )
    for name, node, size in (("input1", x, weight.shape[1]), ("input2", y, weight.shape[2])):
        if node.shape[-1] != size:
            raise RuntimeError(
                f"bilinear(): {name} size does not match weight size: got {node.shape[-1]} but "
                f"expected {size}"
            )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(
            f"bilinear(): bias size does not match weight size: got {numel(bias.shape)} but "
            f"expected {weight.shape[0]}"
        )
    given = [n for n in (x, y, weight, bias) if n is not None]
    for node in given:
        if node.dtype is not x.dtype:
            raise RuntimeError(
                f"expected scalar type {x.dtype.torch_name} but found {node.dtype.torch_name}"
            )
    return apply(composite("Bilinear", _bilinear), *given)


def softmax(x: Node, dim: int) -> Node:
    """exp(x - max) / sum of the same, along ``dim``; NotImplementedError for integers."""
    axis = _softmax_axis(x, dim, "softmax")
    return apply(composite("Softmax", _softmax, axis), x) if x.shape else b.div(x, x)


def _softmax(x: Node, axis: int) -> Node:
    return weights(b.exp(_shifted(x, axis)), x, axis)


def log_softmax(x: Node, dim: int) -> Node:
    """x - max - log(sum(exp(x - max))), along ``dim``; NotImplementedError for integers."""
    axis = _softmax_axis(x, dim, "log_softmax")
    return apply(composite("LogSoftmax", _log_softmax, axis), x) if x.shape else b.sub(x, x)


def _log_softmax(x: Node, axis: int) -> Node:
    shifted = _shifted(x, axis)
    return b.sub(shifted, b.log(b.sum(b.exp(shifted), (axis,), True)))


def _softmax_axis(x: Node, dim: int, name: str) -> int:
    axis = wrap_dim(dim, len(x.shape))
    last = "_lastdim" if axis >= len(x.shape) - 1 else ""
    floating(x.dtype, f"{name}{last}_kernel_impl")
    return axis


def _shifted(x: Node, axis: int) -> Node:
    if x.shape[axis] == 0:
        return x
    # Softmax does not change under shifts, so the maximum needs no gradient.
    return b.sub(x, apply(b.DETACH, b.extremum(x, (axis,), True)))


@record(eq=False)
class Gelu(Expandable, kind=Kind.COMPOSITE):
    """x times the normal distribution function of x ("none"), or its approximation by "tanh".

    The gradient is the cotangent times a *slope* that only depends on x: as one value it can be
    kept instead of x and of what of it took an elementary function.
    """

    approximate: str

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def expand(self, *xs: Node) -> Node:
        (x,) = xs
        if self.approximate == "none":
            return b.mul(x, apply(b.NORMAL_CDF, x))
        return b.mul(b.mul(x, b.full_like(x, 0.5)), b.add(b.full_like(x, 1.0), self._tanh(x)))

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node:
        (x,) = inputs
        if self.approximate == "none":
            below, density = apply(b.NORMAL_CDF, x), b.normal_density(x)
        else:
            # Half of the derivative of tanh(scale (x + 0.044715 x**3)).
            half, one, scale = b.full_like(x, 0.5), b.full_like(x, 1.0), math.sqrt(2.0 / math.pi)
            square, inner = b.mul(x, x), self._tanh(x)
            of_inner = b.add(
                b.full_like(x, scale), b.mul(square, b.full_like(x, 3.0 * 0.044715 * scale))
            )
            density = b.mul(half, b.mul(b.sub(one, b.mul(inner, inner)), of_inner))
            below = b.mul(half, b.add(one, inner))
        return b.mul(ct, b.add(below, b.mul(x, density)))

    def _tanh(self, x: Node) -> Node:
        """Twice the approximated distribution function, less 1."""
        cube = b.mul(b.mul(x, b.mul(x, x)), b.full_like(x, 0.044715))
        return apply(b.TANH, b.mul(b.add(x, cube), b.full_like(x, math.sqrt(2.0 / math.pi))))


def gelu(x: Node, approximate: str) -> Node:
    """Records :class:`Gelu`."""
    return apply(op_of(Gelu, approximate), x)


def conv2d(
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
) -> Node:
    """Cross-correlation of x [n, c, h, w] with weight [o, c / groups, kh, kw]."""
    y = apply(op_of(cv.Conv2d, stride, padding, dilation, groups), x, weight)
    if bias is None:
        return y
    return b.add(y, b.reshape(bias, (bias.shape[0], 1, 1)))


Window = tuple[Shape, ...]
"""(kernel, stride, padding, dilation)."""


@functools.lru_cache(maxsize=1024)
def _pool(
    cls: Callable[..., Op], shape: Shape, window: Window, ceil_mode: bool, *options: bool
) -> Op:
    """A pooling of [n, c, h, w] in ``shape``; RuntimeError if the window does not fit."""
    kernel, stride, padding, dilation = window
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise RuntimeError(
            "pad should be at most half of effective kernel size, but got "
            f"pad={max(padding)}, kernel_size={max(kernel)} and dilation={max(dilation)}"
        )
    out = pl.pooled_size(shape[2:], kernel, stride, padding, dilation, ceil_mode)
    if min(out) < 1:
        raise RuntimeError(
            f"Given input size: ({shape[1]}x{shape[2]}x{shape[3]}). Calculated output size: "
            f"({shape[1]}x{out[0]}x{out[1]}). Output size is too small"
        )
    return intern(cls(kernel, stride, padding, dilation, out, *options))


def max_pool2d(x: Node, window: Window, ceil_mode: bool, remembers: bool = False) -> Node:
    """Window maxima; see :class:`.pool.MaxPool`."""
    return apply(_pool(pl.MaxPool, x.shape, window, ceil_mode, remembers), x)


def avg_pool2d(
    x: Node, window: Window, ceil_mode: bool, count_include_pad: bool, divisor: int = 0
) -> Node:
    """Window means; positions outside the padded input never count.

    A ``divisor`` stands for the number of those that do.
    """
    options = window, ceil_mode, count_include_pad, divisor
    return apply(composite("AvgPool2d", _avg_pool2d, *options), x)


def _avg_pool2d(
    x: Node, window: Window, ceil_mode: bool, count_include_pad: bool, divisor: int
) -> Node:
    total = sum_pool2d(x, window, ceil_mode)
    return window_means(total, x, window, ceil_mode, count_include_pad, divisor)


def sum_pool2d(x: Node, window: Window, ceil_mode: bool) -> Node:
    """Window sums."""
    return apply(_pool(pl.SumPool, x.shape, window, ceil_mode), x)


def window_means(
    total: Node,
    x: Node,
    window: Window,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int,
) -> Node:
    """Means of the windows of x [n, c, ...], given their sums."""
    kernel, stride, padding, _ = window
    if divisor or (not ceil_mode and (count_include_pad or not any(padding))):
        return b.div(total, b.full_like(total, float(divisor or math.prod(kernel))))
    counts = None
    for k, axis in enumerate(range(2, len(x.shape))):
        n = x.shape[axis]
        low, high = (-padding[k], n + padding[k]) if count_include_pad else (0, n)
        line = [size if d == axis else 1 for d, size in enumerate(total.shape)][2:]
        start = b.sub(b.mul(b.iota(tuple(line), k, dt.int32), _int(stride[k])), _int(padding[k]))
        end = apply(b.MINIMUM, b.add(start, _int(kernel[k])), _int(high))
        own = b.cast(b.sub(end, apply(b.MAXIMUM, start, _int(low))), x.dtype)
        counts = own if counts is None else b.mul(counts, own)
    assert counts is not None
    return b.div(total, counts)


def _int(value: int) -> Node:
    return b.full((), value, dt.int32)


def adaptive_avg_pool2d(x: Node, out: tuple[int, int]) -> Node:
    """Means over an even grid of out[0] x out[1] windows; windows overlap where sizes do not fit.

    Window o of m over n positions covers floor(o n / m) up to ceil((o + 1) n / m).
    """
    return apply(composite("AdaptiveAvgPool2d", _adaptive_avg_pool2d, out), x)


def _adaptive_avg_pool2d(x: Node, out: tuple[int, int]) -> Node:
    if out == (1, 1):
        return mean_over(x, (2, 3), True)
    kernel = _even_window(x.shape[2:], out)
    if kernel is not None:
        return _avg_pool2d(x, kernel, False, True, 0)
    # Every window is a rectangle, so rows can be averaged first.
    mean = functools.partial(mean_over, keepdim=True)
    return _adaptive_line(_adaptive_line(x, 2, out[0], mean), 3, out[1], mean)


def adaptive_max_pool2d(x: Node, out: tuple[int, int]) -> Node:
    """Largest elements of the windows of :func:`adaptive_avg_pool2d`."""
    return apply(composite("AdaptiveMaxPool2d", _adaptive_max_pool2d, out), x)


def _adaptive_max_pool2d(x: Node, out: tuple[int, int]) -> Node:
    kernel = _even_window(x.shape[2:], out)
    if kernel is not None:
        return max_pool2d(x, kernel, False)
    # Of equal elements the first, row by row, gets the gradient: along the rows first, then down.
    return _adaptive_line(_adaptive_line(x, 3, out[1], _most), 2, out[0], _most)


def _even_window(size: Shape, out: tuple[int, int]) -> Window | None:
    """The window of a pooling to ``out``, if there is one."""
    if min(out) < 1 or any(n % m for n, m in zip(size, out, strict=True)):
        return None
    kernel = (size[0] // out[0], size[1] // out[1])
    return kernel, kernel, (0, 0), (1, 1)


def _most(x: Node, axes: tuple[int, ...]) -> Node:
    kernel = (x.shape[2] if 2 in axes else 1, x.shape[3] if 3 in axes else 1)
    return max_pool2d(x, (kernel, kernel, (0, 0), (1, 1)), False)


def _adaptive_line(
    x: Node, axis: int, out: int, pool: Callable[[Node, tuple[int, ...]], Node]
) -> Node:
    n = x.shape[axis]
    if out == n:
        return x
    if out == 0:  # nothing, but with x's history
        return b.narrow(x, axis, 0, 0)
    parts = []
    for o in range(out):
        window = b.narrow(x, axis, o * n // out, -(-(o + 1) * n // out))
        parts.append(pool(window, (axis,)))
    return parts[0] if out == 1 else b.cat(parts, axis)
