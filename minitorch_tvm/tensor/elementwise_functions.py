"""Free functions of each element with PyTorch's names, beyond those of :mod:`.functions`."""

from __future__ import annotations

from typing import Any

from ..core import arguments as arg
from ..ops import bits
from . import division
from .core import Number, TensorBase, input_of, tensor_of
from .elementwise import is_operand
from .tensor import Tensor


def pair(function: str, input: Any, other: Any, name: str = "other") -> Tensor:
    """``input``, which must be a tensor; TypeError if ``other`` is no operand."""
    if not (isinstance(input, TensorBase) and is_operand(other)):
        forms = [f"(Tensor input, {kind} {name})" for kind in ("Tensor", "Number")]
        raise arg.no_such_form(function, [input, other], forms)
    return tensor_of(function, "input", 1, input)


def operands(function: str, input: Any, other: Any) -> tuple[Any, Any]:
    """Both operands, of which one may be a number; TypeError if they are anything else."""
    tensors = [isinstance(x, TensorBase) for x in (input, other)]
    if not (any(tensors) and is_operand(input) and is_operand(other)):
        forms = ["(Tensor input, Tensor other)", "(Number self, Tensor other)"]
        raise arg.no_such_form(function, [input, other], [*forms, "(Tensor input, Number other)"])
    either = input if tensors[0] else other
    return either._operand(input), either._operand(other)


# --- bits ---------------------------------------------------------------------------------------


def bitwise_and(input: Any, other: Any) -> Tensor:
    """input & other, of integers or bools; one of them may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.bitwise_and(mt.tensor([6, -2]), 3)
    tensor([2, 2])
    """
    return Tensor._wrap(bits.bitwise("and", *operands("bitwise_and", input, other)))


def bitwise_or(input: Any, other: Any) -> Tensor:
    """input | other, of integers or bools; one of them may be a number."""
    return Tensor._wrap(bits.bitwise("or", *operands("bitwise_or", input, other)))


def bitwise_xor(input: Any, other: Any) -> Tensor:
    """input ^ other, of integers or bools; one of them may be a number."""
    return Tensor._wrap(bits.bitwise("xor", *operands("bitwise_xor", input, other)))


def bitwise_not(input: Tensor) -> Tensor:
    """Every bit of integers, or bools, turned."""
    return input_of("bitwise_not", input).bitwise_not()


def bitwise_left_shift(input: Any, other: Any) -> Tensor:
    """input << other, of integers; see :meth:`Tensor.bitwise_left_shift`.

    >>> import minitorch_tvm as mt
    >>> mt.bitwise_left_shift(1, mt.tensor([0, 4, 63, 64]))
    tensor([                   1,                   16, -9223372036854775808,
                               0])
    """
    return Tensor._wrap(bits.bitwise("left", *operands("bitwise_left_shift", input, other)))


def bitwise_right_shift(input: Any, other: Any) -> Tensor:
    """input >> other, of integers; see :meth:`Tensor.bitwise_right_shift`.

    >>> import minitorch_tvm as mt
    >>> mt.bitwise_right_shift(mt.tensor([7, -7]), 1)
    tensor([ 3, -4])
    """
    return Tensor._wrap(bits.bitwise("right", *operands("bitwise_right_shift", input, other)))


# --- whole quotients and comparisons ------------------------------------------------------------


def floor_divide(input: Tensor, other: Any) -> Tensor:
    """input // other, see :meth:`Tensor.floor_divide`.

    >>> import minitorch_tvm as mt
    >>> mt.floor_divide(mt.tensor([-7.0, 7.0]), 2)
    tensor([-4.,  3.])
    """
    return pair("floor_divide", input, other).floor_divide(other)


def remainder(input: Any, other: Any) -> Tensor:
    """input % other, with the sign of ``other``; one of them may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.remainder(mt.tensor([-7, 7]), 3)
    tensor([2, 1])
    """
    if isinstance(other, Tensor) and isinstance(input, (bool, int, float)):
        return Tensor._wrap(division.remainder(input, other.node))
    return pair("remainder", input, other).remainder(other)


def fmod(input: Tensor, other: Any) -> Tensor:
    """What is left of input / other, with the sign of ``input``."""
    return pair("fmod", input, other).fmod(other)


def eq(input: Tensor, other: Any) -> Tensor:
    """input == other, elementwise."""
    return pair("eq", input, other).eq(other)


def ne(input: Tensor, other: Any) -> Tensor:
    """input != other, elementwise."""
    return pair("ne", input, other).ne(other)


def lt(input: Tensor, other: Any) -> Tensor:
    """input < other, elementwise."""
    return pair("lt", input, other).lt(other)


def le(input: Tensor, other: Any) -> Tensor:
    """input <= other, elementwise."""
    return pair("le", input, other).le(other)


def gt(input: Tensor, other: Any) -> Tensor:
    """input > other, elementwise."""
    return pair("gt", input, other).gt(other)


def ge(input: Tensor, other: Any) -> Tensor:
    """input >= other, elementwise."""
    return pair("ge", input, other).ge(other)


# --- rounding and elementary functions ----------------------------------------------------------


def floor(input: Tensor) -> Tensor:
    """The largest integer that is not above."""
    return input_of("floor", input).floor()


def ceil(input: Tensor) -> Tensor:
    """The smallest integer that is not below."""
    return input_of("ceil", input).ceil()


def trunc(input: Tensor) -> Tensor:
    """The integer part."""
    return input_of("trunc", input).trunc()


def frac(input: Tensor) -> Tensor:
    """input - trunc(input), of floating point numbers."""
    return input_of("frac", input).frac()


def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1; 0 of NaN."""
    return input_of("sign", input).sign()


def square(input: Tensor) -> Tensor:
    """input * input."""
    return input_of("square", input).square()


def reciprocal(input: Tensor) -> Tensor:
    """1 / input."""
    return input_of("reciprocal", input).reciprocal()


def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input)."""
    return input_of("rsqrt", input).rsqrt()


def log1p(input: Tensor) -> Tensor:
    """Logarithm of 1 + input, accurate near 0."""
    return input_of("log1p", input).log1p()


def expm1(input: Tensor) -> Tensor:
    """e ** input - 1, accurate near 0."""
    return input_of("expm1", input).expm1()


def exp2(input: Tensor) -> Tensor:
    """2 ** input."""
    return input_of("exp2", input).exp2()


def log2(input: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return input_of("log2", input).log2()


def log10(input: Tensor) -> Tensor:
    """Logarithm to base 10."""
    return input_of("log10", input).log10()


def tan(input: Tensor) -> Tensor:
    """Tangent of radians."""
    return input_of("tan", input).tan()


def asin(input: Tensor) -> Tensor:
    """Arc sine, in radians."""
    return input_of("asin", input).asin()


def acos(input: Tensor) -> Tensor:
    """Arc cosine, in radians."""
    return input_of("acos", input).acos()


def atan(input: Tensor) -> Tensor:
    """Arc tangent, in radians."""
    return input_of("atan", input).atan()


def sinh(input: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return input_of("sinh", input).sinh()


def cosh(input: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return input_of("cosh", input).cosh()


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest number with so many ``decimals``; the even one of two that are as near.

    >>> import minitorch_tvm as mt
    >>> mt.round(mt.tensor([0.5, 1.5, -1.25])), mt.round(mt.tensor([1.234]), decimals=2)
    (tensor([ 0.,  2., -1.]), tensor([1.2300]))
    """
    return input_of("round", input).round(decimals=decimals)


# --- tests --------------------------------------------------------------------------------------


def isnan(input: Tensor) -> Tensor:
    """True where an element is NaN."""
    return input_of("isnan", input).isnan()


def isinf(input: Tensor) -> Tensor:
    """True where an element is infinite."""
    return input_of("isinf", input).isinf()


def isfinite(input: Tensor) -> Tensor:
    """True where an element is neither infinite nor NaN."""
    return input_of("isfinite", input).isfinite()


def logical_not(input: Tensor) -> Tensor:
    """True where an element is zero."""
    return input_of("logical_not", input).logical_not()


def logical_and(input: Tensor, other: Tensor) -> Tensor:
    """True where neither element is zero."""
    return input_of("logical_and", input).logical_and(other)


def logical_or(input: Tensor, other: Tensor) -> Tensor:
    """True where at least one element is not zero."""
    return input_of("logical_or", input).logical_or(other)


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """True where exactly one element is zero."""
    return input_of("logical_xor", input).logical_xor(other)


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """True where |input - other| <= atol + rtol * |other|; both have one dtype."""
    return input_of("isclose", input).isclose(other, rtol, atol, equal_nan)


# --- limits and blends --------------------------------------------------------------------------


def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Numbers instead of NaN (0) and the infinities (the ends of the type).

    >>> import minitorch_tvm as mt
    >>> mt.nan_to_num(mt.tensor([float("nan"), float("inf"), 1.0]), posinf=9.0)
    tensor([0., 9., 1.])
    """
    return input_of("nan_to_num", input).nan_to_num(nan, posinf, neginf)


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """The larger of ``input`` and ``min``; NaN stays NaN."""
    return pair("clamp_min", input, min, "min").clamp_min(min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """The smaller of ``input`` and ``max``; NaN stays NaN."""
    return pair("clamp_max", input, max, "max").clamp_max(max)


def clip(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Limit to [min, max]; either may be None."""
    return input_of("clip", input).clamp(min, max)


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), for a number or a tensor.

    >>> import minitorch_tvm as mt
    >>> mt.lerp(mt.zeros(2), mt.tensor([10.0, 20.0]), 0.25)
    tensor([2.5000, 5.0000])
    """
    if not (isinstance(input, TensorBase) and isinstance(end, TensorBase) and is_operand(weight)):
        forms = [f"(Tensor input, Tensor end, {kind} weight)" for kind in ("Tensor", "Number")]
        raise arg.no_such_form("lerp", [input, end, weight], forms)
    return input_of("lerp", input).lerp(end, weight)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    return input_of("addcmul", input).addcmul(tensor1, tensor2, value=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 / tensor2; raises RuntimeError for integers by integers."""
    return input_of("addcdiv", input).addcdiv(tensor1, tensor2, value=value)
