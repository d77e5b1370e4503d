"""Pixels in vectors (:mod:`.conv_pixels`): sizes of a problem, and which register tile suits it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property, lru_cache

from ....core.record import record
from ...loops import ceil_div
from ...target import CpuTarget
from .conv_axes import Axis, share
from .conv_correlate import broadcast_cycles

# That a convolution is cut into, if it can be; of fewer than the least some cores would have none.
_TILES, _LEAST_TILES = 16, 4
# Measured cycles: of a vector of an image that is copied with its border, or to the places of taps.
_BORDER_CYCLES, _COPY_CYCLES = 2.3, 3.0
# Of a vector of results, if it stays as it is, if it is merged with others, if rows are cut from
# vectors, and what comes to that if results are more bytes.
_LINE_CYCLES, _MERGE_CYCLES, _APART_CYCLES, _FAR_CYCLES, _NEAR_BYTES = 0.5, 4.3, 6.0, 2.0, 4096
# Beside multiply-adds, of what they read, of a tap, of one of a residue class, whose number is not
# known beforehand, and, in a tile, of where a vector is.
_READ_CYCLES, _TAP_CYCLES, _RESIDUE_CYCLES, _ADDRESS_CYCLES = 0.1, 0.5, 3.0, 10.0
_SIZES = 16  # of groups that are tried, and some larger ones
# Of registers for results: fewer wait for themselves, unless there are no more outputs; tiles whose
# vectors need an address each are worth while with many.
_LEAST, _MANY = 0.4, 0.75


@record
class _Reach:
    """What the taps of an axis read: ``count`` places from ``lowest`` on, ``step`` apart."""

    lowest: int
    step: int
    count: int


@lru_cache(maxsize=64)
def _reach(axis: Axis) -> _Reach:
    ends = []
    for residue in range(axis.stride):
        taps = axis.taps(residue)
        if taps.count > 0:
            ends += [taps.base, taps.base + (taps.count - 1) * axis.advance]
    lowest, highest = min(ends, default=0), max(ends, default=0)
    step = axis.advance if all((end - lowest) % axis.advance == 0 for end in ends) else 1
    return _Reach(lowest, step, (highest - lowest) // step + 1)


@record
class PixelCorrelation:
    """A correlation with pixels in vectors of ``lanes``; a tile is ``outputs`` by ``vectors``."""

    images: int
    reduced: int  # channels summed over
    channels: int  # output channels
    y: Axis
    x: Axis
    dtype: str
    itemsize: int
    lanes: int
    outputs: int
    vectors: int
    units: int  # rows, of each residue class, that are finished together
    flat: bool  # vectors go on in the next row
    near: int  # bytes of a core's cache
    beside: int  # such correlations are computed at the same time

    @cached_property
    def down(self) -> _Reach:
        """Rows that taps read."""
        return _reach(self.y)

    @cached_property
    def across(self) -> _Reach:
        """Columns that taps read."""
        return _reach(self.x)

    @property
    def blocks(self) -> int:
        """Register tiles' outputs; there may be some behind the last channel."""
        return ceil_div(self.channels, self.outputs)

    @property
    def groups(self) -> int:
        """Of rows, in an image; the last may overlap the one before."""
        return ceil_div(self.y.units, self.units)

    @property
    def lines(self) -> int:
        """Vectors of pixels of a group and residue class."""
        return ceil_div(self.units * self.row, self.lanes)

    @property
    def regular(self) -> bool:
        """Whether the vectors of all tiles are equally far apart: parts of rows, or whole ones."""
        return self.flat or _equally_apart(self.vectors, self.row // self.lanes)

    @property
    def row(self) -> int:
        """Places of a row of results, in vectors of them."""
        return self.x.units if self.flat else self._whole(self.x.units)

    @property
    def origin(self) -> int:
        """The column that a copied row begins with."""
        return min(self.across.lowest, 0)

    @property
    def pitch(self) -> int:
        """Places from a row to the next, in the copy."""
        if self.flat:
            return self.x.units
        x, across = self.x, self.across
        last = (across.lowest - self.origin + (across.count - 1) * across.step) // x.input_stride
        return max(last + x.units, ceil_div(x.inputs - self.origin, x.input_stride))

    @cached_property
    def per_band(self) -> int:
        """Groups that one tile computes, from a copy of what they read."""
        most = ceil_div(self.groups, ceil_div(_TILES, max(self.images * self.beside, 1)))
        far = bisect_left(range(2, most + 1), True, key=lambda n: self._copy_bytes(n) > self.near)
        bands = ceil_div(self.groups, far + 1)
        return ceil_div(self.groups, bands)

    @property
    def bands(self) -> int:
        """Tiles of an image."""
        return ceil_div(self.groups, self.per_band)

    def band_units(self, groups: int) -> int:
        """Rows of a residue class in so many groups."""
        return min(groups * self.units, self.y.units)

    def rows(self, groups: int) -> int:
        """Input rows that so many groups read, up to a multiple of the stride."""
        stride, down = self.y.input_stride, self.down
        count = (self.band_units(groups) - 1) * stride + (down.count - 1) * down.step + 1
        return ceil_div(count, stride) * stride

    def copy_shape(self, groups: int) -> tuple[int, int, int, int]:
        """Of a copy: channel, place of taps or residue of columns, residue of rows, pixel.

        Vectors may go on behind the last pixel.
        """
        stride = self.y.input_stride
        pixels = self.rows(groups) // stride * self.pitch
        places = self.across.count if self.flat else self.x.input_stride
        return self.reduced, places, stride, self._whole(pixels) + self.lanes

    def _copy_bytes(self, groups: int) -> int:
        return math.prod(self.copy_shape(groups)) * self.itemsize

    @property
    def copied_bytes(self) -> int:
        """Of the copy that a tile reads."""
        return self._copy_bytes(self.per_band)

    @property
    def width(self) -> int:
        """Of a row with its border, from which copies are made."""
        x, across = self.x, self.across
        read = self._whole(self.pitch) * x.input_stride
        if self.flat:
            read += across.lowest - self.origin + (across.count - 1) * across.step
        return self._whole(max(x.inputs - self.origin, read + x.input_stride - 1))

    def _whole(self, elements: int) -> int:
        return ceil_div(elements, self.lanes) * self.lanes

    @property
    def bytes(self) -> int:
        """Of the memory of a thread."""
        classes = self.y.stride * self.x.stride
        done = 2 * self.outputs * classes * self.lines * self.lanes
        plane = self.rows(self.per_band) * self.width
        return self.copied_bytes + (done + plane) * self.itemsize

    @property
    def cycles(self) -> float:
        """Estimated cycles, all cores together."""
        tiles = self.images * self.groups * self.blocks * ceil_div(self.lines, self.vectors)
        each = self.outputs * self.vectors * self._finish_cycles
        if not self.regular:
            each += self.vectors * _ADDRESS_CYCLES
        each *= self.y.stride * self.x.stride
        copied = self.images * self.bands * math.prod(self.copy_shape(self.per_band)) / self.lanes
        copy = _COPY_CYCLES if self.flat or self.x.input_stride > 1 else _BORDER_CYCLES
        rows = max(1, self.vectors * self.lanes // self.row)
        taps = self.y.every_tap * self.x.every_tap * self.reduced * share(self.y, rows)
        step = _step_cycles(self.outputs, self.vectors)
        broadcast = broadcast_cycles(self.lanes * self.itemsize)
        step += self.outputs * broadcast
        if broadcast and self.x.stride > 1 and self.x.kernel > 1:  # measured with AVX2 only
            step += _RESIDUE_CYCLES
        work = tiles * (taps * step + each) + copied * copy
        return work * max(1.0, _LEAST_TILES / (self.images * self.beside * self.bands))

    @property
    def _finish_cycles(self) -> float:
        """Of a vector of results."""
        size = self.outputs * self.lines * self.lanes * self.itemsize
        far = _FAR_CYCLES if size > _NEAR_BYTES else 0.0
        if self.x.stride > 1:
            return far + _MERGE_CYCLES
        return far + (_LINE_CYCLES if self.in_lines or not self.flat else _APART_CYCLES)

    @property
    def in_lines(self) -> bool:
        """Whether the results of a group are one line in memory."""
        even = self.y.units % self.units == 0 and self.row == self.x.units
        return even and self.x.stride == self.y.stride == 1


def _step_cycles(outputs: int, vectors: int) -> float:
    """Of the multiply-adds of a tap, of which each has to wait for one four cycles before, or of
    what they read: most vectors lie in two lines."""
    reads = outputs + 2 * vectors
    return (max(outputs * vectors, reads, 8) + _READ_CYCLES * reads + _TAP_CYCLES) / 2


def plan(
    images: int,
    reduced: int,
    channels: int,
    y: Axis,
    x: Axis,
    dtype: str,
    itemsize: int,
    cpu: CpuTarget,
    beside: int = 1,
) -> PixelCorrelation | None:
    """The problem, if what a thread holds fits its caches, and a tile's weights the first level's.

    That is so for few channels.  Of rows with more weights outputs in vectors were as fast or
    faster; flat copies are read again for every block of outputs, so there has to be room for other
    things beside them.
    """
    lanes = cpu.lanes(itemsize)
    if x.stride > 2 or x.input_stride > 2 or lanes < 4:
        return None
    weights = reduced * y.kernel * x.kernel * itemsize
    across = ceil_div(x.units, lanes)

    def fits(outputs: int, vectors: int, units: int, flat: bool) -> bool:
        if outputs * weights > cpu.l1_bytes // (2 if flat else 4):
            return False
        if flat:
            fuller = x.units % lanes > 0 or x.input_stride > 1
            return fuller and units * x.units > (vectors - 1) * lanes
        many = outputs * vectors >= _MANY * cpu.vector_registers
        return vectors <= units * across and (many or _equally_apart(vectors, across))

    ways = [
        (outputs, vectors, units, flat)
        for outputs in range(1, min(channels, 16) + 1)
        for vectors in range(1, 9)
        if outputs * vectors + vectors + 1 <= cpu.vector_registers
        if _LEAST * cpu.vector_registers <= outputs * vectors or outputs == channels
        for units in _group_sizes(y, x, outputs, itemsize, cpu)
        for flat in (False, True)
        if fits(outputs, vectors, units, flat)
    ]
    problems = [
        PixelCorrelation(
            images, reduced, channels, y, x, dtype, itemsize, lanes, *way, cpu.l2_bytes // 2, beside
        )
        for way in ways
    ]
    room = cpu.l2_bytes * 3 // 8
    problems = [p for p in problems if not p.flat or p.copied_bytes <= room]
    return _fastest([p for p in problems if p.bytes <= cpu.l2_bytes])


def _fastest(problems: Sequence[PixelCorrelation]) -> PixelCorrelation | None:
    return min(problems, key=lambda p: p.cycles, default=None)


def _equally_apart(vectors: int, across: int) -> bool:
    """Whether so many vectors are part of a row of ``across``, or some whole rows, in any tile."""
    return across % vectors == 0 or vectors % across == 0


def _group_sizes(y: Axis, x: Axis, outputs: int, itemsize: int, cpu: CpuTarget) -> list[int]:
    """Rows of a group whose results stay in the first-level cache."""
    row = outputs * x.outputs * y.stride * itemsize
    most = max(1, min(y.units, cpu.l1_bytes // 2 // row))
    sizes = [*range(1, min(most, _SIZES) + 1), *(most >> n for n in range(most.bit_length()))]
    return sorted({ceil_div(y.units, ceil_div(y.units, units)) for units in sizes if units})
