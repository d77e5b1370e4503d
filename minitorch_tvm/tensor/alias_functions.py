"""Free functions under the other names that PyTorch has for them."""

from __future__ import annotations

from typing import Any

from ..ops import derived as d
from . import division
from .core import Number, input_of
from .elementwise import scale, wrong_keyword
from .elementwise_functions import operands, pair
from .tensor import Tensor

# --- arithmetic ---------------------------------------------------------------------------------


def subtract(input: Any, other: Any, *, alpha: Number = 1) -> Tensor:
    """input - alpha * other; one of them may be a number.

    >>> import minitorch_tvm as mt
    >>> mt.subtract(mt.tensor([3.0, 4.0]), 1, alpha=2)
    tensor([1., 2.])
    """
    x, _ = operands("subtract", input, other)
    forms = ["(Tensor input, Tensor other, *, Number alpha = 1)"]
    alpha = scale("subtract", alpha, forms, (input, other))
    if isinstance(input, Tensor):
        return input.subtract(other, alpha=alpha)
    return Tensor._wrap(d.sub(x, other._scaled("subtract", other, alpha).node))


def multiply(input: Any, other: Any) -> Tensor:
    """input * other; one of them may be a number."""
    return Tensor._wrap(d.mul(*operands("multiply", input, other)))


def divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, rounded down ("floor"), toward zero ("trunc") or not at all (None).

    >>> import minitorch_tvm as mt
    >>> mt.divide(mt.tensor([7.0, -7.0]), 2, rounding_mode="floor")
    tensor([ 3., -4.])
    """
    if not (rounding_mode is None or isinstance(rounding_mode, str)):
        forms = [f"(Tensor input, Tensor other{rest})" for rest in ("", ", *, str rounding_mode")]
        raise wrong_keyword("divide", "rounding_mode", rounding_mode, forms, (input, other))
    return Tensor._wrap(division.divide(*operands("divide", input, other), rounding_mode))


def true_divide(input: Any, other: Any) -> Tensor:
    """input / other; one of them may be a number."""
    return Tensor._wrap(d.div(*operands("true_divide", input, other)))


def negative(input: Tensor) -> Tensor:
    """-input."""
    return input_of("negative", input).negative()


def positive(input: Tensor) -> Tensor:
    """input itself; RuntimeError for bool."""
    return input_of("positive", input).positive()


def absolute(input: Tensor) -> Tensor:
    """|input|."""
    return input_of("absolute", input).absolute()


# --- comparisons --------------------------------------------------------------------------------


def greater(input: Tensor, other: Any) -> Tensor:
    """input > other, elementwise."""
    return pair("greater", input, other).greater(other)


def greater_equal(input: Tensor, other: Any) -> Tensor:
    """input >= other, elementwise."""
    return pair("greater_equal", input, other).greater_equal(other)


def less(input: Tensor, other: Any) -> Tensor:
    """input < other, elementwise."""
    return pair("less", input, other).less(other)


def less_equal(input: Tensor, other: Any) -> Tensor:
    """input <= other, elementwise."""
    return pair("less_equal", input, other).less_equal(other)


def not_equal(input: Tensor, other: Any) -> Tensor:
    """input != other, elementwise."""
    return pair("not_equal", input, other).not_equal(other)


# --- elementary functions -----------------------------------------------------------------------


def fix(input: Tensor) -> Tensor:
    """The integer part."""
    return input_of("fix", input).fix()


def arccos(input: Tensor) -> Tensor:
    """Arc cosine, in radians."""
    return input_of("arccos", input).arccos()


def arcsin(input: Tensor) -> Tensor:
    """Arc sine, in radians."""
    return input_of("arcsin", input).arcsin()


def arctan(input: Tensor) -> Tensor:
    """Arc tangent, in radians."""
    return input_of("arctan", input).arctan()
