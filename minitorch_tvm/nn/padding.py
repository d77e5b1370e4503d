"""Padding as modules; see :func:`functional.pad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..tensor import Tensor
from . import functional as F
from .module import Module

Amounts = int | Sequence[int]


class _Pad(Module):
    """Base: ``padding`` (left, right[, top, bottom[, front, back]]), or one number for all."""

    _mode: ClassVar[str] = "constant"
    _sides: ClassVar[int] = 4
    padding: tuple[int, ...]

    def __init__(self, padding: Amounts) -> None:
        super().__init__()
        sides = (padding,) * self._sides if isinstance(padding, int) else tuple(padding)
        self.padding = sides

    def forward(self, input: Tensor) -> Tensor:
        """``input`` with more around it."""
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Amounts, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """``input`` with ``value`` around it."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """``value`` at both ends of [..., l]: ``padding`` is (left, right), or one number for both."""

    _sides = 2


class ConstantPad2d(_ConstantPad):
    """``value`` around [..., h, w]: (left, right, top, bottom), or one number; negative ones crop.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ConstantPad2d((1, 0, 0, 1), 7.0)(mt.zeros(1, 1, 1))
    tensor([[[7., 0.],
             [7., 7.]]])
    """


class ConstantPad3d(_ConstantPad):
    """``value`` around [..., d, h, w]: (left, right, top, bottom, front, back), or one number."""

    _sides = 6


class ZeroPad1d(_Pad):
    """Zeros at both ends of [..., l]: ``padding`` is (left, right), or one number for both."""

    _sides = 2


class ZeroPad2d(_Pad):
    """Zeros around [..., h, w]: (left, right, top, bottom), or one number; negative ones crop."""


class ZeroPad3d(_Pad):
    """Zeros around [..., d, h, w]: (left, right, top, bottom, front, back), or one number; negative
    ones crop.
    """

    _sides = 6


class ReflectionPad1d(_Pad):
    """The mirror image at both ends of [n, c, l] (or [c, l])."""

    _mode, _sides = "reflect", 2


class ReflectionPad2d(_Pad):
    """The mirror image around [n, c, h, w] (or [c, h, w])."""

    _mode = "reflect"


class ReflectionPad3d(_Pad):
    """The mirror image around [n, c, d, h, w] (or [c, d, h, w])."""

    _mode, _sides = "reflect", 6


class ReplicationPad1d(_Pad):
    """The first and last elements again, at both ends of [n, c, l] (or [c, l])."""

    _mode, _sides = "replicate", 2


class ReplicationPad2d(_Pad):
    """The outermost elements again, around [n, c, h, w] (or [c, h, w])."""

    _mode = "replicate"


class ReplicationPad3d(_Pad):
    """The outermost elements again, around [n, c, d, h, w] (or [c, d, h, w])."""

    _mode, _sides = "replicate", 6


class CircularPad1d(_Pad):
    """What is at the other end, at both ends of [n, c, l] (or [c, l])."""

    _mode, _sides = "circular", 2


class CircularPad2d(_Pad):
    """What is at the other end, around [n, c, h, w] (or [c, h, w])."""

    _mode = "circular"


class CircularPad3d(_Pad):
    """What is at the other end, around [n, c, d, h, w] (or [c, d, h, w])."""

    _mode, _sides = "circular", 6
