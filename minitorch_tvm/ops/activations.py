"""Activation functions of one variable, each with a derivative of its own.

The gradient is the cotangent times a *slope* that only depends on x.  Differentiating the
expression of the value instead would make NaN where a branch that was not taken overflows, and
would keep more values for the backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ..core.record import record
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, intern
from . import build as b
from .composite import Expandable
from .elementary import elementary


@record(eq=False)
class Pointwise(Expandable, kind=Kind.COMPOSITE):
    """``value(x, *numbers)``, whose derivative is ``slope(x, *numbers)``."""

    title: str
    value: Callable[..., Node]
    slope: Callable[..., Node]
    numbers: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.title

    def __str__(self) -> str:
        return f"{self.title}({', '.join(map(str, self.numbers))})"

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def expand(self, *xs: Node) -> Node:
        return self.value(xs[0], *self.numbers)

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node:
        return b.mul(ct, self.slope(inputs[0], *self.numbers))


@functools.lru_cache(maxsize=1024, typed=True)
def _pointwise(
    title: str, value: Callable[..., Node], slope: Callable[..., Node], *numbers: float
) -> Pointwise:
    return intern(Pointwise(title, value, slope, numbers))


def _recorder(
    title: str, value: Callable[..., Node], slope: Callable[..., Node]
) -> Callable[..., Node]:
    def function(x: Node, *numbers: float) -> Node:
        # Numbers are of one type and sign of zero, so that equal calls are one op.
        exact = [float(n) + 0.0 for n in numbers]
        return apply(_pointwise(title, value, slope, *exact), x)

    return function


def number(x: Node, value: float) -> Node:
    """A constant of x's dtype."""
    return b.full_like(x, value)


def log1p(x: Node) -> Node:
    """log(1 + x), exact for small x."""
    return apply(elementary("log1p"), x)


def softplus_of(x: Node) -> Node:
    """log(1 + exp(x)) without overflow."""
    tail = log1p(b.exp(b.neg(apply(b.ABS, x))))
    return b.add(apply(b.RELU, x), tail)


def _positive(x: Node) -> Node:
    return b.lt(number(x, 0.0), x)


def _leaky_relu(x: Node, slope: float) -> Node:
    return b.where(_positive(x), x, b.mul(x, number(x, slope)))


def _leaky_relu_slope(x: Node, slope: float) -> Node:
    return b.where(_positive(x), number(x, 1.0), number(x, slope))


def _silu(x: Node) -> Node:
    return b.mul(x, apply(b.SIGMOID, x))


def _silu_slope(x: Node) -> Node:
    s, one = apply(b.SIGMOID, x), number(x, 1.0)
    return b.mul(s, b.add(one, b.mul(x, b.sub(one, s))))


def _elu(x: Node, alpha: float, scale: float, of_input: float) -> Node:
    zero = number(x, 0.0)
    inside = b.where(_positive(x), zero, x)  # above, the exponential would overflow
    inside = inside if of_input == 1.0 else b.mul(inside, number(x, of_input))
    right = x if scale == 1.0 else b.mul(x, number(x, scale))
    factor = alpha * scale
    left = apply(elementary("expm1"), inside)
    left = left if factor == 1.0 else b.mul(left, number(x, factor))
    return b.where(_positive(x), right, left)


def _elu_slope(x: Node, alpha: float, scale: float, of_input: float) -> Node:
    falling = b.le(x, number(x, 0.0))
    inside = b.where(falling, x, number(x, 0.0))
    if of_input != 1.0:
        inside = b.mul(inside, number(x, of_input))
    left = b.mul(b.exp(inside), number(x, alpha * scale * of_input))
    return b.where(falling, left, number(x, scale))


def _softplus(x: Node, beta: float, threshold: float) -> Node:
    z = b.mul(x, number(x, beta))
    return b.where(b.lt(number(x, threshold), z), x, b.div(softplus_of(z), number(x, beta)))


def _softplus_slope(x: Node, beta: float, threshold: float) -> Node:
    z, one = b.mul(x, number(x, beta)), number(x, 1.0)
    return b.where(b.lt(number(x, threshold), z), one, apply(b.SIGMOID, z))


def _log_sigmoid(x: Node) -> Node:
    tail = log1p(b.exp(b.neg(apply(b.ABS, x))))
    return b.sub(apply(b.MINIMUM, x, number(x, 0.0)), tail)


def _log_sigmoid_slope(x: Node) -> Node:
    return apply(b.SIGMOID, b.neg(x))


def _limited(x: Node, low: float, high: float) -> Node:
    return apply(b.MINIMUM, apply(b.MAXIMUM, x, number(x, low)), number(x, high))


def _outside(x: Node, low: float, high: float) -> Node:
    return b.logical_or(b.le(x, number(x, low)), b.le(number(x, high), x))


def _hardtanh_slope(x: Node, low: float, high: float) -> Node:
    return b.where(_outside(x, low, high), number(x, 0.0), number(x, 1.0))


def _hardsigmoid(x: Node) -> Node:
    return b.div(_limited(b.add(x, number(x, 3.0)), 0.0, 6.0), number(x, 6.0))


def _hardsigmoid_slope(x: Node) -> Node:
    inside = b.logical_and(b.lt(number(x, -3.0), x), b.lt(x, number(x, 3.0)))
    return b.where(inside, number(x, 1.0 / 6.0), number(x, 0.0))


def _hardswish(x: Node) -> Node:
    return b.div(b.mul(x, _limited(b.add(x, number(x, 3.0)), 0.0, 6.0)), number(x, 6.0))


def _hardswish_slope(x: Node) -> Node:
    middle = b.add(b.div(x, number(x, 3.0)), number(x, 0.5))
    right = b.where(b.lt(x, number(x, 3.0)), middle, number(x, 1.0))
    return b.where(b.le(x, number(x, -3.0)), number(x, 0.0), right)


def _mish_parts(x: Node) -> tuple[Node, Node]:
    """(e, n) with tanh(log(1 + exp(x))) = n / (n + 2), e = exp(x) and n = e (e + 2)."""
    # From 20 on the quotient is 1, and the square must not overflow.
    e = b.exp(apply(b.MINIMUM, x, number(x, 20.0)))
    return e, b.mul(e, b.add(e, number(x, 2.0)))


def _mish(x: Node) -> Node:
    _, n = _mish_parts(x)
    return b.mul(x, b.div(n, b.add(n, number(x, 2.0))))


def _mish_slope(x: Node) -> Node:
    e, n = _mish_parts(x)
    bottom = b.add(n, number(x, 2.0))
    # (1 - tanh**2) times the logistic function of x, without the difference.
    rise = b.div(b.mul(b.mul(number(x, 4.0), e), b.add(e, number(x, 1.0))), b.mul(bottom, bottom))
    slope = b.add(b.div(n, bottom), b.mul(x, rise))
    return b.where(b.lt(number(x, 20.0), x), number(x, 1.0), slope)


def _hardshrink(x: Node, edge: float) -> Node:
    return b.where(_within(x, edge), number(x, 0.0), x)


def _within(x: Node, edge: float) -> Node:
    return b.logical_and(b.le(number(x, -edge), x), b.le(x, number(x, edge)))


def _shrink_slope(x: Node, edge: float) -> Node:
    return b.where(_within(x, edge), number(x, 0.0), number(x, 1.0))


def _softshrink(x: Node, edge: float) -> Node:
    limit = number(x, edge)
    moved = b.where(_positive(x), b.sub(x, limit), b.add(x, limit))
    # Zero times x: NaN stays, and so does the sign of zero.
    return b.where(_within(x, edge), b.mul(x, number(x, 0.0)), moved)


def _at_least(x: Node, low: float) -> Node:
    return apply(b.MAXIMUM, x, number(x, low))


def _at_least_slope(x: Node, low: float) -> Node:
    return b.where(b.lt(x, number(x, low)), number(x, 0.0), number(x, 1.0))


def _smooth_l1(x: Node, beta: float) -> Node:
    size, half = apply(b.ABS, x), number(x, 0.5)
    # Divided before it is squared, so that the branch not taken is the only one to overflow.
    inner = b.mul(half, b.mul(b.div(size, number(x, beta)), size))
    return b.where(b.lt(size, number(x, beta)), inner, b.sub(size, number(x, 0.5 * beta)))


def _smooth_l1_slope(x: Node, beta: float) -> Node:
    return _limited(b.div(x, number(x, beta)), -1.0, 1.0)


def _huber(x: Node, delta: float) -> Node:
    size = apply(b.ABS, x)
    inner = b.mul(number(x, 0.5), b.mul(size, size))
    outer = b.mul(number(x, delta), b.sub(size, number(x, 0.5 * delta)))
    return b.where(b.le(size, number(x, delta)), inner, outer)


def _huber_slope(x: Node, delta: float) -> Node:
    return _limited(x, -delta, delta)


def _variance(x: Node, eps: float) -> Node:
    negative = b.lt(x, number(x, 0.0))
    return b.where(negative, number(x, float("nan")), _at_least(x, eps))


def _one(x: Node, *numbers: float) -> Node:
    return number(x, 1.0)


leaky_relu = _recorder("LeakyRelu", _leaky_relu, _leaky_relu_slope)
silu = _recorder("Silu", _silu, _silu_slope)
elu = _recorder("Elu", _elu, _elu_slope)
softplus = _recorder("Softplus", _softplus, _softplus_slope)
log_sigmoid = _recorder("LogSigmoid", _log_sigmoid, _log_sigmoid_slope)
hardtanh = _recorder("Hardtanh", _limited, _hardtanh_slope)
hardsigmoid = _recorder("Hardsigmoid", _hardsigmoid, _hardsigmoid_slope)
hardswish = _recorder("Hardswish", _hardswish, _hardswish_slope)
mish = _recorder("Mish", _mish, _mish_slope)
hardshrink = _recorder("Hardshrink", _hardshrink, _shrink_slope)
softshrink = _recorder("Softshrink", _softshrink, _shrink_slope)
at_least = _recorder("ClampMin", _at_least, _at_least_slope)
"""max(x, low); the gradient passes where x >= low."""


smooth_l1 = _recorder("SmoothL1", _smooth_l1, _smooth_l1_slope)
huber = _recorder("Huber", _huber, _huber_slope)
variance = _recorder("Variance", _variance, _one)
"""max(x, eps), and NaN of negative numbers; the gradient passes always."""


def prelu(x: Node, weight: Node) -> Node:
    """x where it is positive, else weight * x."""
    return apply(_PRELU, x, weight)


def _prelu(x: Node, weight: Node) -> Node:
    positive, zero = _positive(x), number(x, 0.0)
    # Of positive elements the weight's gradient is 0, not infinity times 0.
    return b.where(positive, x, b.mul(weight, b.where(positive, zero, x)))


@record(eq=False)
class Prelu(Expandable, kind=Kind.COMPOSITE):
    """prelu(x: f[*s], weight: f[*t]) -> f[*s]; weight broadcasts to x."""

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def expand(self, *xs: Node) -> Node:
        return _prelu(*xs)


_PRELU = intern(Prelu())


@record(eq=False)
class BinaryCrossEntropy(Expandable, kind=Kind.COMPOSITE):
    """binary_cross_entropy(x: f[*s], t: f[*s]) -> f[*s], with logarithms of at least -100."""

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def expand(self, *xs: Node) -> Node:
        x, t = xs
        yes, no = (_at_least(y, -100.0) for y in (b.log(x), log1p(b.neg(x))))
        return b.sub(b.mul(b.sub(t, number(t, 1.0)), no), b.mul(t, yes))

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node:
        x, t = inputs
        if index == 1:
            return b.mul(ct, b.sub(log1p(b.neg(x)), b.log(x)))
        spread = _at_least(b.mul(b.sub(number(x, 1.0), x), x), 1e-12)
        return b.div(b.mul(ct, b.sub(x, t)), spread)


_BINARY_CROSS_ENTROPY = intern(BinaryCrossEntropy())


def binary_cross_entropy(x: Node, target: Node) -> Node:
    """Records :class:`BinaryCrossEntropy`."""
    return apply(_BINARY_CROSS_ENTROPY, x, target)


SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
"""The fixed point of Klambauer et al. 2017, Self-Normalizing Neural Networks."""
