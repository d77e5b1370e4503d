"""What functions of lines, images and volumes share; a line is an image of height one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.arguments import one_or_several
from ..ir.node import Node
from ..ops import build as b
from ..tensor import Tensor

Numbers = int | Sequence[int]


def several(function: str, argument: str, position: int, value: Any, count: int) -> tuple[int, ...]:
    """A parameter as ``count`` ints, of which one may stand for all; TypeError if one is no int.

    Another number of them is returned as it is, for whoever asks to refuse in his own words.
    """
    if type(value) is int:  # the usual cases first
        return (value,) * count
    if type(value) is tuple and tuple(map(type, value)) == (int,) * count:
        return value
    numbers = one_or_several(function, argument, position, value)
    if isinstance(numbers, int):
        return (numbers,) * count
    return numbers * count if len(numbers) == 1 else numbers


def has_stride(stride: Any) -> bool:
    """Whether the stride of a pooling is given; without, it is the size of the window."""
    return stride is not None and not (isinstance(stride, (tuple, list)) and not stride)


def image_numbers(numbers: Sequence[int], usual: int) -> tuple[int, ...]:
    """One number of a line as two of an image of height one."""
    return (usual, *numbers) if len(numbers) == 1 else tuple(numbers)


def batched(x: Node, count: int) -> Node:
    """x [c, ...] as [1, c, ...], and a line as an image; ``count`` dimensions are behind c."""
    if len(x.shape) == count + 2 > 3:
        return x
    shape = x.shape if len(x.shape) == count + 2 else (1, *x.shape)
    return b.reshape(x, (*shape[:2], *image_numbers(shape[2:], 1)))


def like(y: Node, x: Node, count: int) -> Tensor:
    """y [n, c, ...] as the input x was: with or without n, a line or an image."""
    if len(x.shape) == len(y.shape):
        return Tensor._wrap(y)
    lead = y.shape[:2] if len(x.shape) == count + 2 else y.shape[1:2]
    return Tensor._wrap(b.reshape(y, (*lead, *y.shape[-count:])))


def same_totals(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """What ``padding="same"`` adds to each dimension."""
    return [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
