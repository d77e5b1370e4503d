"""Elementwise methods beyond arithmetic: whole quotients, rounding, tests, elementary functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import arguments as arg
from ..ir.node import Node
from ..ops import derived as d
from ..ops import pointwise as pw
from . import division
from .core import Number, TensorBase, node_of

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


def accepts(other: Any) -> bool:
    """True for an operand of arithmetic: a tensor, a number or what is like an array."""
    return isinstance(other, (TensorBase, bool, int, float)) or hasattr(other, "__array__")


def tolerances(function: str, rtol: Any, atol: Any, equal_nan: Any) -> tuple[float, float, bool]:
    """What ``isclose`` and the like are told, checked."""
    return (
        arg.number(function, "rtol", 2, rtol, "float"),
        arg.number(function, "atol", 3, atol, "float"),
        arg.flag(function, "equal_nan", 4, equal_nan),
    )


def is_operand(other: Any) -> bool:
    """True for what functions take, where operators take arrays as well: a tensor or a number."""
    return isinstance(other, (TensorBase, bool, int, float, np.generic))


class Elementwise(TensorBase):
    """Functions of each element, of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([-7, 7])
    >>> x // 2, x % 3, x.div(2, rounding_mode="trunc")
    (tensor([-4,  3]), tensor([2, 1]), tensor([-3,  3]))
    """

    __slots__ = ()

    def _other(self, function: str, other: Any) -> Node | Number:
        """``other`` as an operand; TypeError if it is none."""
        if not is_operand(other):
            forms = ["(Tensor other)", "(Number other)"]
            raise arg.no_such_form(function, [other], forms)
        return self._operand(other)

    # --- whole quotients --------------------------------------------------------------------

    def __floordiv__(self, other: Operand) -> Tensor:
        if not accepts(other):
            return NotImplemented
        return self._wrap(division.divide(self.node, self._operand(other), "floor"))

    def __rfloordiv__(self, other: Operand) -> Tensor:
        if not accepts(other):
            return NotImplemented
        return self._wrap(division.divide(self._operand(other), self.node, "floor"))

    def __mod__(self, other: Operand) -> Tensor:
        if not accepts(other):
            return NotImplemented
        return self._wrap(division.remainder(self.node, self._operand(other)))

    def __rmod__(self, other: Operand) -> Tensor:
        if not accepts(other):
            return NotImplemented
        return self._wrap(division.remainder(self._operand(other), self.node))

    def floor_divide(self, other: Operand) -> Tensor:
        """self // other: the quotient rounded down; its gradient is zero.

        Raises RuntimeError for integers divided by 0, at the next evaluation where ``other`` is
        itself still to be computed.
        """
        other = self._other("floor_divide", other)
        return self._wrap(division.divide(self.node, other, "floor"))

    def remainder(self, other: Operand) -> Tensor:
        """self % other: what is left of the division, with the sign of ``other``.

        Raises RuntimeError as :meth:`floor_divide`.
        """
        return self._wrap(division.remainder(self.node, self._other("remainder", other)))

    def fmod(self, other: Operand) -> Tensor:
        """What is left of self / other, with the sign of self; raises as :meth:`floor_divide`."""
        return self._wrap(division.fmod(self.node, self._other("fmod", other)))

    # --- rounding ---------------------------------------------------------------------------

    def floor(self) -> Tensor:
        """The largest integer that is not above."""
        return self._wrap(pw.rounded("floor", self.node))

    def ceil(self) -> Tensor:
        """The smallest integer that is not below."""
        return self._wrap(pw.rounded("ceil", self.node))

    def trunc(self) -> Tensor:
        """The integer part."""
        return self._wrap(pw.rounded("trunc", self.node))

    def round(self, *, decimals: int = 0) -> Tensor:
        """The nearest number with so many ``decimals``; the even one of two that are as near."""
        return self._wrap(pw.round_to(self.node, _whole(decimals)))

    def frac(self) -> Tensor:
        """self - self.trunc(), of floating point numbers."""
        return self._wrap(pw.frac(self.node))

    def sign(self) -> Tensor:
        """-1, 0 or 1; 0 of NaN."""
        return self._wrap(pw.sign(self.node))

    # --- elementary functions ---------------------------------------------------------------

    def reciprocal(self) -> Tensor:
        """1 / self."""
        return self._wrap(pw.reciprocal(self.node))

    def rsqrt(self) -> Tensor:
        """1 / sqrt(self)."""
        return self._wrap(pw.rsqrt(self.node))

    def log1p(self) -> Tensor:
        """Logarithm of 1 + self, accurate near 0."""
        return self._wrap(pw.of_library("log1p", self.node))

    def expm1(self) -> Tensor:
        """e ** self - 1, accurate near 0."""
        return self._wrap(pw.of_library("expm1", self.node))

    def exp2(self) -> Tensor:
        """2 ** self."""
        return self._wrap(pw.of_library("exp2", self.node))

    def log2(self) -> Tensor:
        """Logarithm to base 2."""
        return self._wrap(pw.of_library("log2", self.node))

    def log10(self) -> Tensor:
        """Logarithm to base 10."""
        return self._wrap(pw.of_library("log10", self.node))

    def tan(self) -> Tensor:
        """Tangent of radians."""
        return self._wrap(pw.of_library("tan", self.node))

    def asin(self) -> Tensor:
        """Arc sine, in radians; NaN outside of [-1, 1]."""
        return self._wrap(pw.of_library("asin", self.node))

    def acos(self) -> Tensor:
        """Arc cosine, in radians; NaN outside of [-1, 1]."""
        return self._wrap(pw.of_library("acos", self.node))

    def atan(self) -> Tensor:
        """Arc tangent, in radians."""
        return self._wrap(pw.of_library("atan", self.node))

    def sinh(self) -> Tensor:
        """Hyperbolic sine."""
        return self._wrap(pw.of_library("sinh", self.node))

    def cosh(self) -> Tensor:
        """Hyperbolic cosine."""
        return self._wrap(pw.of_library("cosh", self.node))

    # --- tests ------------------------------------------------------------------------------

    def isnan(self) -> Tensor:
        """True where an element is NaN."""
        return self._wrap(pw.is_nan(self.node))

    def isinf(self) -> Tensor:
        """True where an element is infinite, of either sign."""
        return self._wrap(pw.is_infinite(self.node))

    def isfinite(self) -> Tensor:
        """True where an element is neither infinite nor NaN."""
        return self._wrap(pw.is_finite(self.node))

    def isclose(
        self, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """True where |self - other| <= atol + rtol * |other|; both have one dtype."""
        node = node_of("isclose", "other", 1, other)
        return self._wrap(
            pw.is_close(self.node, node, *tolerances("isclose", rtol, atol, equal_nan))
        )

    def logical_and(self, other: Tensor) -> Tensor:
        """True where neither element is zero."""
        node = node_of("logical_and", "other", 1, other)
        return self._wrap(pw.logical_and(self.node, node))

    def logical_or(self, other: Tensor) -> Tensor:
        """True where at least one element is not zero."""
        return self._wrap(pw.logical_or(self.node, node_of("logical_or", "other", 1, other)))

    def logical_xor(self, other: Tensor) -> Tensor:
        """True where exactly one element is zero."""
        node = node_of("logical_xor", "other", 1, other)
        return self._wrap(pw.logical_xor(self.node, node))

    # --- limits and blends ------------------------------------------------------------------

    def nan_to_num(
        self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """Numbers instead of NaN (0) and the infinities (the ends of the type)."""
        given = {"nan": nan, "posinf": posinf, "neginf": neginf}
        numbers = [
            None if value is None else arg.number("nan_to_num", name, None, value, "float")
            for name, value in given.items()
        ]
        return self._wrap(pw.nan_to_num(self.node, *numbers))

    def clamp_min(self, min: Operand) -> Tensor:
        """The larger of self and ``min``; NaN stays NaN."""
        return self._wrap(d.clamp(self.node, self._bound("clamp_min", "min", min), None))

    def clamp_max(self, max: Operand) -> Tensor:
        """The smaller of self and ``max``; NaN stays NaN."""
        return self._wrap(d.clamp(self.node, None, self._bound("clamp_max", "max", max)))

    def _bound(self, function: str, name: str, value: Any) -> Node | Number:
        if not is_operand(value):
            forms = [f"(Tensor {name})", f"(Number {name})"]
            raise arg.no_such_form(function, [value], forms)
        return self._operand(value)

    def lerp(self, end: Tensor, weight: Operand) -> Tensor:
        """self + weight * (end - self), for a number or a tensor; floating point of one dtype."""
        if not (isinstance(end, TensorBase) and is_operand(weight)):
            forms = ["(Tensor end, Tensor weight)", "(Tensor end, Number weight)"]
            raise arg.no_such_form("lerp", [end, weight], forms)
        return self._wrap(pw.lerp(self.node, end.node, self._operand(weight)))

    def addcmul(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
        """self + value * tensor1 * tensor2."""
        return self._wrap(pw.addcmul(self.node, *_two_tensors("addcmul", tensor1, tensor2, value)))

    def addcdiv(self, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
        """self + value * tensor1 / tensor2; raises RuntimeError for integers by integers."""
        return self._wrap(pw.addcdiv(self.node, *_two_tensors("addcdiv", tensor1, tensor2, value)))


def _whole(decimals: Any) -> int:
    return arg.integer("round", "decimals", None, decimals)


def wrong_keyword(
    function: str, keyword: str, value: object, forms: list[str], given: tuple[object, ...] = ()
) -> TypeError:
    """The error for a keyword argument of a type that fits none of a function's forms.

    >>> print(wrong_keyword("f", "x", 1.5, ["(int x)"]))
    f() received an invalid combination of arguments - got (x=float), but expected one of:
     * (int x)
    """
    got = ", ".join([*map(arg.kind_of, given), f"{keyword}={arg.kind_of(value)}"])
    return TypeError(
        f"{function}() received an invalid combination of arguments - got ({got}), but expected "
        "one of:" + "".join(f"\n * {form}" for form in forms)
    )


def scale(function: str, alpha: Any, forms: list[str], given: tuple[object, ...] = ()) -> Number:
    """The number ``alpha`` of a function that answers a wrong one with its forms."""
    try:
        return arg.number(function, "alpha", None, alpha)
    except TypeError:
        raise wrong_keyword(function, "alpha", alpha, forms, given) from None


def _two_tensors(function: str, first: Any, second: Any, value: Any) -> tuple[Node, Node, Number]:
    return (
        node_of(function, "tensor1", 1, first),
        node_of(function, "tensor2", 2, second),
        arg.number(function, "value", None, value),
    )
