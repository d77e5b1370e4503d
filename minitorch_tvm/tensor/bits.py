"""Methods and operators on the bits of integers, and on bools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ..core import arguments as arg
from ..ops import bits
from ..ops import derived as d
from .elementwise import Elementwise, accepts

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


class Bits(Elementwise):
    """Operations on each bit, of :class:`minitorch_tvm.Tensor`.

    They raise NotImplementedError for floating point operands.

    >>> import minitorch_tvm as mt
    >>> x = mt.tensor([6, -2])
    >>> x & 3, ~x, x << 2
    (tensor([2, 2]), tensor([-7,  1]), tensor([24, -8]))
    """

    __slots__ = ()

    def bitwise_and(self, other: Operand) -> Tensor:
        """self & other."""
        other = self._other("bitwise_and", other)
        return self._wrap(bits.bitwise("and", self.node, other))

    def bitwise_or(self, other: Operand) -> Tensor:
        """self | other."""
        return self._wrap(bits.bitwise("or", self.node, self._other("bitwise_or", other)))

    def bitwise_xor(self, other: Operand) -> Tensor:
        """self ^ other."""
        other = self._other("bitwise_xor", other)
        return self._wrap(bits.bitwise("xor", self.node, other))

    def bitwise_not(self) -> Tensor:
        """~self."""
        return self._wrap(bits.invert(self.node))

    def bitwise_left_shift(self, other: Operand) -> Tensor:
        """self << other; 0 where ``other`` is negative or not below the number of bits."""
        other = self._other("bitwise_left_shift", other)
        return self._wrap(bits.bitwise("left", self.node, other))

    def bitwise_right_shift(self, other: Operand) -> Tensor:
        """self >> other, which keeps the sign.

        Where ``other`` is negative or not below the number of bits: 0, or -1 of negative numbers.
        """
        other = self._other("bitwise_right_shift", other)
        return self._wrap(bits.bitwise("right", self.node, other))

    def _replaced(self, how: str, other: Operand, name: str) -> Self:
        other = self._other(name, other)
        dtype = d.result_dtype(self.node, other)
        if dtype.category > self.dtype.category:
            raise arg.uncastable(dtype, self.dtype)
        return self._assign(bits.bitwise(how, self.node, other), name)

    def bitwise_and_(self, other: Operand) -> Self:
        """self &= other."""
        return self._replaced("and", other, "bitwise_and_")

    def bitwise_or_(self, other: Operand) -> Self:
        """self |= other."""
        return self._replaced("or", other, "bitwise_or_")

    def bitwise_xor_(self, other: Operand) -> Self:
        """self ^= other."""
        return self._replaced("xor", other, "bitwise_xor_")

    def bitwise_not_(self) -> Self:
        """~self, in place."""
        return self._assign(bits.invert(self.node), "bitwise_not_")

    def bitwise_left_shift_(self, other: Operand) -> Self:
        """self <<= other."""
        return self._replaced("left", other, "bitwise_left_shift_")

    def bitwise_right_shift_(self, other: Operand) -> Self:
        """self >>= other."""
        return self._replaced("right", other, "bitwise_right_shift_")

    def __invert__(self) -> Tensor:
        if self.dtype.is_floating_point:
            raise TypeError(
                "~ (operator.invert) is only implemented on integer and Boolean-type tensors"
            )
        return self._wrap(bits.invert(self.node))

    def _bits(self, how: str, other: Operand, turned: bool = False) -> Tensor:
        if not accepts(other):
            return NotImplemented
        x, y = self.node, self._operand(other)
        return self._wrap(bits.bitwise(how, y, x) if turned else bits.bitwise(how, x, y))

    def __and__(self, other: Operand) -> Tensor:
        return self._bits("and", other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> Tensor:
        return self._bits("or", other)

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Tensor:
        return self._bits("xor", other)

    __rxor__ = __xor__

    def __lshift__(self, other: Operand) -> Tensor:
        return self._bits("left", other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return self._bits("left", other, turned=True)

    def __rshift__(self, other: Operand) -> Tensor:
        return self._bits("right", other)

    def __rrshift__(self, other: Operand) -> Tensor:
        return self._bits("right", other, turned=True)

    def __iand__(self, other: Operand) -> Self:
        return self.bitwise_and_(other) if accepts(other) else NotImplemented

    def __ior__(self, other: Operand) -> Self:
        return self.bitwise_or_(other) if accepts(other) else NotImplemented

    def __ixor__(self, other: Operand) -> Self:
        return self.bitwise_xor_(other) if accepts(other) else NotImplemented

    def __ilshift__(self, other: Operand) -> Self:
        return self.bitwise_left_shift_(other) if accepts(other) else NotImplemented

    def __irshift__(self, other: Operand) -> Self:
        return self.bitwise_right_shift_(other) if accepts(other) else NotImplemented
