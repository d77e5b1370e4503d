"""Padding (available as ``nn.functional``)."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import arguments as arg
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import moves
from ..ops.composite import composite
from ..tensor import Tensor
from ..tensor.core import node_of


def _outside(x: Node, axis: int, before: int, after: int, mode: str) -> Node:
    """x with elements of its own added along one dimension.

    They are joined to it: looked up by position, each element would be read by itself, and its
    gradient added to by itself.
    """
    n = x.shape[axis]

    def end(start: int, stop: int, place: int, count: int) -> list[Node]:
        """``count`` elements: those from start to stop, backwards, or that of one place."""
        if not count:
            return []
        if mode == "circular":
            return [b.narrow(x, axis, start, stop)]
        if mode == "reflect":
            return [moves.flip(b.narrow(x, axis, start, stop), [axis])]
        shape = [*x.shape]
        shape[axis] = count
        return [b.expand(b.narrow(x, axis, place, place + 1), tuple(shape))]

    if mode == "reflect":
        left, right = (1, before + 1), (n - 1 - after, n - 1)
    else:
        left, right = (n - before, n), (0, after)
    return b.cat([*end(*left, 0, before), x, *end(*right, n - 1, after)], axis)


def _all_outside(x: Node, amounts: tuple[int, ...], mode: str) -> Node:
    axis = len(x.shape)
    for before, after in zip(amounts[::2], amounts[1::2], strict=True):
        axis -= 1
        if before or after:
            x = _outside(x, axis, before, after, mode)
    return x


_COMBINATIONS = (
    "\nSupported combinations for non-constant padding:"
    "\n  - 2D or 3D input: padding size = 2 (pads last dimension)"
    "\n  - 3D or 4D input: padding size = 4 (pads last 2 dimensions)"
    "\n  - 4D or 5D input: padding size = 6 (pads last 3 dimensions)"
)


def _own_elements(x: Node, amounts: Sequence[int], mode: str) -> Node:
    rank, count = len(x.shape), len(amounts) // 2
    if count not in (1, 2, 3) or rank not in (count + 1, count + 2):
        raise NotImplementedError(
            f"Padding size {len(amounts)} is not supported for {rank}D input tensor."
            + _COMBINATIONS
        )
    if min(amounts) < 0:
        raise NotImplementedError(f"pad: negative numbers are not supported in mode={mode!r}")
    if mode != "circular" and 0 in x.shape[-count - 1 :]:
        raise RuntimeError(
            f"Expected {count + 1}D or {count + 2}D (batch mode) tensor with possibly 0 batch size "
            f"and other non-zero dimensions for input, but got: {list(x.shape)}"
        )
    for number in range(count):
        axis = rank - 1 - number
        before, after = amounts[2 * number : 2 * number + 2]
        n = x.shape[axis]
        if mode == "reflect" and max(before, after) >= n:
            raise RuntimeError(
                f"Argument #{2 * (number + 2)}: Padding size should be less than the corresponding "
                f"input dimension, but got: padding ({before}, {after}) at dimension {axis} of "
                f"input {list(x.shape)}"
            )
        if mode == "circular" and max(before, after) > n:
            raise RuntimeError("Padding value causes wrapping around more than once.")
    return apply(composite("Pad", _all_outside, tuple(amounts), mode), x) if any(amounts) else x


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Add elements around ``input``: pad = (last left, last right, second last left, ...).

    In mode "constant" they are ``value`` (0), and negative numbers crop.  "reflect" mirrors at the
    first and the last element, "replicate" repeats them, "circular" goes on from the other end;
    these take two numbers for 2 or 3 dimensions, four for 3 or 4, six for 4 or 5, none negative
    (NotImplementedError).

    >>> import minitorch_tvm as mt
    >>> import minitorch_tvm.nn.functional as F
    >>> F.pad(mt.ones(2), (1, 2))
    tensor([0., 1., 1., 0., 0.])
    >>> F.pad(mt.tensor([[1.0, 2.0, 3.0]]), (1, 1), mode="reflect")
    tensor([[2., 1., 2., 3., 2.]])
    """
    x = node_of("pad", "input", 1, input)
    pad = arg.several("pad", "pad", 2, pad)
    if value is not None:
        value = arg.number("pad", "value", 4, value, "float")
    arg.text("pad", "mode", 3, mode)
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) > 2 * len(x.shape):
        raise RuntimeError(
            f"Padding length should be less than or equal to two times the input dimension but "
            f"got padding length {len(pad)} and input of dimension {len(x.shape)}"
        )
    if mode == "constant":
        fill = d.lift(0 if value is None else value, x.dtype)
        return Tensor._wrap(moves.padded(x, pad, fill) if x.shape else x)
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    return Tensor._wrap(_own_elements(x, pad, mode))
