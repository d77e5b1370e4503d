"""How the rows and columns of convolutions and of their gradients read their input, tap by tap."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from math import gcd

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import Expr, Stmt, bind, ceil_div, const, minimum
from .conv_layout import div, maximum, mod
from .conv_spec import Conv


@record
class Taps:
    """The taps of one residue class: kernel index ``first + t * step``, for ``t < count``.

    Tap t of output unit u reads input coordinate ``u * input_stride + base + t * advance``.
    """

    first: Expr
    count: Expr
    base: Expr


@record
class Axis:
    """One spatial axis of a correlation.

    Output coordinates are ``unit * stride + residue``; ``step`` and ``advance`` are the kernel and
    input distance between consecutive taps of a class.
    """

    outputs: int
    inputs: int
    kernel: int
    stride: int
    input_stride: int
    step: int
    advance: int
    taps: Callable[[Expr], Taps]

    @property
    def units(self) -> int:
        """Outputs per residue class, rounded up."""
        return ceil_div(self.outputs, self.stride)

    @cached_property
    def every_tap(self) -> int:
        """Taps of all residue classes together."""
        return sum(self.taps(r).count for r in range(self.stride))

    def border(self) -> tuple[int, int]:
        """Zeros needed before the input, and the extent with borders on both sides."""
        lowest, highest = 0, self.inputs - 1
        for residue in range(self.stride):
            taps = self.taps(residue)
            if taps.count <= 0:
                continue
            ends = (taps.base, taps.base + (taps.count - 1) * self.advance)
            lowest = min(lowest, *ends)
            highest = max(highest, *(e + (self.units - 1) * self.input_stride for e in ends))
        return -lowest, highest - lowest + 1

    def reached(self, taps: Taps, first: Expr, last: Expr) -> tuple[list[Stmt], Taps]:
        """Of the taps of a class, those with which a unit from ``first`` to ``last`` reads the
        input, and statements that find them out: the others would read zeros of the border."""
        low, extent = self.border()
        if low == 0 and extent == self.inputs:
            return [], taps
        # As ceilings: what the last unit reads is not before the input, what the first reads not
        # behind it.
        before = div(self.advance - 1 - taps.base - last * self.input_stride, self.advance)
        inside = div(self.inputs - 1 - taps.base - first * self.input_stride, self.advance) + 1
        skipped, know = bind("skipped", maximum(before, 0))
        count, know_count = bind("taps", maximum(minimum(inside, taps.count) - skipped, 0))
        base = taps.base + skipped * self.advance
        return [know, know_count], Taps(taps.first + skipped * self.step, count, base)

    def reading(self, first: Expr, last: Expr) -> tuple[Expr, Expr]:
        """Of a convolution's own axis, not a gradient's, the outputs that read the input with one
        of some taps: the first one, and the one behind the last, or before if there is none."""
        lowest, stride = self.taps(0).base, self.input_stride
        begin = maximum(div(stride - 1 - lowest - last * self.advance, stride), 0)
        end = div(self.inputs - 1 - lowest - first * self.advance, stride) + 1
        return begin, minimum(end, self.outputs)


@lru_cache(maxsize=256)
def share(axis: Axis, units: int) -> float:
    """Of the taps of all groups of ``units`` neighbouring units, those that one of them needs."""
    done = total = 0
    groups = ceil_div(axis.units, units)
    for residue in range(axis.stride):
        taps = axis.taps(residue)
        for tap in range(taps.count):
            at = taps.base + tap * axis.advance
            # The first and the last unit that read the input with it, if any does.
            first = max(0, ceil_div(-at, axis.input_stride))
            last = min(axis.units - 1, (axis.inputs - 1 - at) // axis.input_stride)
            done += last // units - first // units + 1 if first <= last else 0
        total += taps.count * groups
    return done / total if total else 1.0


def forward_axis(
    outputs: int, inputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> Axis:
    """Output y reads input ``y * stride - padding + i * dilation`` with tap i."""
    return Axis(
        outputs, inputs, kernel, 1, stride, 1, dilation, lambda r: Taps(0, kernel, -padding)
    )


def forward_axes(s: Conv) -> tuple[Axis, Axis]:
    """Rows and columns of a convolution."""
    return (
        forward_axis(s.oh, s.h, s.kh, s.stride[0], s.padding[0], s.dilation[0]),
        forward_axis(s.ow, s.w, s.kw, s.stride[1], s.padding[1], s.dilation[1]),
    )


def gradient_axis(
    outputs: int, inputs: int, kernel: int, stride: int, padding: int, dilation: int
) -> Axis:
    """Input coordinate y collects ct ``(y + padding - i * dilation) / stride`` where that is whole.

    With g = gcd(stride, dilation) this needs g to divide ``y + padding``; then the taps are those
    congruent to ``(y + padding) / g * inverse`` modulo ``stride / g``.
    """
    g = gcd(stride, dilation)
    step = stride // g
    inverse = pow(dilation // g, -1, step) if step > 1 else 0

    reach = dilation // g

    def ascending(first: Expr, count: Expr, base: Expr) -> Taps:
        # Input addresses that rise from tap to tap need one base register, not one per pixel.
        return Taps(first + (count - 1) * step, count, base - (count - 1) * reach)

    def taps(residue: Expr) -> Taps:
        shifted = residue + padding
        first = mod(div(shifted, g) * inverse, step)
        base = div(shifted - first * dilation, stride)
        if isinstance(residue, int):
            count = 0 if shifted % g else max(0, ceil_div(kernel - first, step))
            return ascending(first, count, base)
        count = maximum(div(kernel + (step - 1) - first, step), 0)
        if g > 1:
            t = tvm().tirx
            count = t.Select(t.EQ(mod(shifted, g), const(0)), count, const(0))
        return ascending(first, count, base)

    return Axis(outputs, inputs, kernel, stride, 1, -step, reach, taps)
