"""Methods under the other names that PyTorch has for them, those of NumPy most of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

from ..ops import derived as d
from . import division
from .core import Number
from .elementwise import scale, wrong_keyword
from .inplace import InPlace

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


class Aliases(InPlace):
    """Other names of methods, of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([1.5, -2.5])
    >>> x.multiply(2), x.greater(0), x.fix()
    (tensor([ 3., -5.]), tensor([ True, False]), tensor([ 1., -2.]))
    """

    __slots__ = ()

    fix, fix_ = InPlace.trunc, InPlace.trunc_
    arccos, arccos_ = InPlace.acos, InPlace.acos_
    arcsin, arcsin_ = InPlace.asin, InPlace.asin_
    arctan, arctan_ = InPlace.atan, InPlace.atan_
    absolute_, negative_ = InPlace.abs_, InPlace.neg_

    def absolute(self) -> Tensor:
        """|self|."""
        return self._wrap(d.absolute(self.node))

    def negative(self) -> Tensor:
        """-self."""
        return self._wrap(d.neg(self.node))

    # --- arithmetic -------------------------------------------------------------------------

    def _less(self, function: str, other: Operand, alpha: Number) -> Tensor:
        self._other(function, other)
        forms = ["(Tensor other, *, Number alpha = 1)", "(Number other, Number alpha = 1)"]
        alpha = scale(function, alpha, forms, (other,))
        return cast("Tensor", self).sub(other, alpha=alpha)

    def subtract(self, other: Operand, *, alpha: Number = 1) -> Tensor:
        """self - alpha * other."""
        return self._less("subtract", other, alpha)

    def subtract_(self, other: Operand, *, alpha: Number = 1) -> Self:
        """self -= alpha * other."""
        return self._assign(self._less("subtract_", other, alpha).node, "subtract_")

    def multiply(self, other: Operand) -> Tensor:
        """self * other."""
        return self._wrap(d.mul(self.node, self._other("multiply", other)))

    def multiply_(self, other: Operand) -> Self:
        """self *= other."""
        return self._assign(d.mul(self.node, self._other("multiply_", other)), "multiply_")

    def _divided(self, function: str, other: Operand, how: str | None) -> Tensor:
        value = self._other(function, other)
        if not (how is None or isinstance(how, str)):
            forms = ["(Tensor other)", "(Tensor other, *, str rounding_mode)"]
            raise wrong_keyword(function, "rounding_mode", how, forms, (other,))
        return self._wrap(division.divide(self.node, value, how))

    def divide(self, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """self / other, rounded down ("floor"), toward zero ("trunc") or not at all (None)."""
        return self._divided("divide", other, rounding_mode)

    def divide_(self, other: Operand, *, rounding_mode: str | None = None) -> Self:
        """self /= other, rounded as that of :meth:`divide`."""
        return self._assign(self._divided("divide_", other, rounding_mode).node, "divide_")

    def true_divide(self, other: Operand) -> Tensor:
        """self / other."""
        return self._divided("true_divide", other, None)

    def true_divide_(self, other: Operand) -> Self:
        """self /= other."""
        return self._assign(self._divided("true_divide_", other, None).node, "true_divide_")

    # --- comparisons ------------------------------------------------------------------------

    def greater(self, other: Operand) -> Tensor:
        """self > other, elementwise."""
        return self._wrap(d.compare("gt", self.node, self._other("greater", other)))

    def greater_equal(self, other: Operand) -> Tensor:
        """self >= other, elementwise."""
        return self._wrap(d.compare("ge", self.node, self._other("greater_equal", other)))

    def less(self, other: Operand) -> Tensor:
        """self < other, elementwise."""
        return self._wrap(d.compare("lt", self.node, self._other("less", other)))

    def less_equal(self, other: Operand) -> Tensor:
        """self <= other, elementwise."""
        return self._wrap(d.compare("le", self.node, self._other("less_equal", other)))

    def not_equal(self, other: Operand) -> Tensor:
        """self != other, elementwise."""
        return self._wrap(d.compare("ne", self.node, self._other("not_equal", other)))

    def greater_(self, other: Operand) -> Self:
        """self > other, in place."""
        return self._told("gt", other, "greater_")

    def greater_equal_(self, other: Operand) -> Self:
        """self >= other, in place."""
        return self._told("ge", other, "greater_equal_")

    def less_(self, other: Operand) -> Self:
        """self < other, in place."""
        return self._told("lt", other, "less_")

    def less_equal_(self, other: Operand) -> Self:
        """self <= other, in place."""
        return self._told("le", other, "less_equal_")

    def not_equal_(self, other: Operand) -> Self:
        """self != other, in place."""
        return self._told("ne", other, "not_equal_")
