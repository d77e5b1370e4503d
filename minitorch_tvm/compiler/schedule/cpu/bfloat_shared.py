"""What products of operands that lie in memory have in common, in functions that all of them call.

Packing, and the arithmetic for what the unit would compute wrongly, differ from product to product
only in sizes, which these functions take as numbers: written out in every product, they were two
thirds of the code that LLVM had to compile.
"""

from __future__ import annotations

from ....core.record import record
from ....core.tvm_api import tvm
from ...loops import (
    Expr,
    Helper,
    Parts,
    Stmt,
    alloc,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    pointer_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
    var,
    when,
)
from .bfloat_parts import EDGE, HALVES, LANES, PARTS, Operand, Packed
from .conv_layout import div, mod
from .matrix_unit import address
from .plain_sums import plain_sums

_ANY = 1 << 14  # more blocks or panels than any call has; sizes of addresses, not of memory


@record
class _Loose(Operand):
    """An operand whose numbers of lines and k are known at run time only."""

    @property
    def lines_end(self) -> bool:
        """Whether a panel may have fewer lines than others."""
        return True

    def whole(self, panel: Expr | None, kb: Expr) -> Expr | bool:
        """Whether a block lies inside the operand; without ``panel``, whether its k do."""
        t, inside = tvm().tirx, (kb + 1) * EDGE <= self.k
        return inside if panel is None else t.all((panel + 1) * EDGE <= self.lines, inside)

    def _is_folded(self, kb: Expr) -> Expr | bool:
        """Whether a block is the last one, and folded."""
        t = tvm().tirx
        if not self.folds:
            return False
        return t.all(t.EQ(kb, div(self.k, EDGE)), mod(self.k, EDGE) <= LANES)


def may_share(operand: Operand) -> bool:
    """True if the operand is plain memory, whose every element an int32 can number."""
    if operand.pitch is None:
        return False
    stored = operand.lines if operand.is_row == operand.natural else operand.k
    return stored * int(operand.pitch) < 1 << 31


def strides(operand: Operand) -> tuple[int, int]:
    """Elements between neighbouring lines and between neighbouring k of a plain operand."""
    assert operand.pitch is not None
    pitch = int(operand.pitch)
    return (pitch, 1) if operand.is_row == operand.natural else (1, pitch)


def packer(operand: Operand) -> Helper:
    """The function that packs blocks of a panel of such operands."""
    is_row, natural, folds = operand.is_row, operand.natural, operand.folded > 0

    def make() -> Parts:
        source = pointer_buffer((1 << 30,), "float32", "source")
        tiles = pointer_buffer((1, _ANY, PARTS, HALVES, LANES * LANES), "uint32", "tiles")
        magnitude = pointer_buffer((1, 1, 3), "float32", "magnitude")
        names = ("pitch", "lines", "k", "panel", "first", "count")
        numbers = [var(name) for name in names]
        pitch, lines, k, panel, first, count = numbers

        def element(_: Expr, line: Expr, at: Expr) -> Expr:
            place = line * pitch + at if is_row == natural else at * pitch + line
            return load(source, place)

        zero = const(0)
        body = _Loose(is_row, lines, k, natural, pitch, element, 1, folds).pack_blocks(
            Packed(tiles, magnitude), zero, panel, (first, count), (zero, zero), (zero, zero)
        )
        return Parts([m.raw for m in (source, tiles, magnitude)], numbers, body)

    side = "rows" if is_row else "columns"
    order, last = "natural" if natural else "turned", "_folded" if folds else ""
    return Helper(f"pack_{side}_{order}{last}", make)


def call_packer(
    operand: Operand, to: Packed, bt: Expr, source: tuple[Expr, Expr], place: Expr
) -> Stmt:
    """Pack the (panel, visit) ``source`` of an operand into the panel ``place`` of ``to``."""
    panel, visit = source
    zero = const(0)
    return packer(operand).call(
        tvm().tirx.address_of(operand.element(bt, zero, zero)),
        address(to.tiles, place, zero, zero, zero, zero),
        address(to.magnitude, place, zero, zero),
        operand.pitch,
        operand.lines,
        operand.k,
        panel,
        visit * operand.visit,
        operand.count(visit),
    )


_DEPTH = 64  # of k whose columns are gathered at once
_ROWS = 8  # computed at once


def _block_in_float32() -> Parts:
    left, right, sums = (
        pointer_buffer((1 << 30,), "float32", name) for name in ("left", "right", "sums")
    )
    names = [
        *("m", "left_i", "left_k", "n", "right_j", "right_k"),
        *("i0", "j0", "k0", "count", "pitch", "clear"),
    ]
    numbers = [var(name) for name in names]
    m, left_i, left_k, n, right_j, right_k, i0, j0, k0, count, pitch, clear = numbers
    lines = local_buffer((_DEPTH, EDGE), "float32", "lines")
    nothing = splat(const(0.0, "float32"), LANES)

    def place(row: Expr, half: Expr) -> Expr:
        return ramp(row * pitch + half * LANES, LANES)

    def chunk(c: Expr) -> Stmt:
        first = k0 + c * _DEPTH
        depth = minimum(_DEPTH, count - c * _DEPTH)

        def copy(k: Expr, j: Expr) -> Stmt:
            element = load(right, minimum(j0 + j, n - 1) * right_j + (first + k) * right_k)
            return store(lines, element, k, j)

        def rows(g: Expr) -> Stmt:
            def value(r: int, k: Expr) -> Expr:
                i = minimum(i0 + g * _ROWS + r, m - 1)
                return splat(load(left, i * left_i + (first + k) * left_k), LANES)

            return plain_sums(
                (_ROWS, HALVES),
                value,
                lambda half, k: load(lines, k, ramp(half * LANES, LANES)),
                lambda step: serial(depth, step, "k"),
                lambda r, half, value: store(sums, value, place(g * _ROWS + r, half)),
                lambda r, half: load(sums, place(g * _ROWS + r, half)),
            )

        return seq(
            serial(depth, lambda k: serial(EDGE, lambda j: copy(k, j), "j"), "k"),
            serial(EDGE // _ROWS, rows, "g"),
        )

    body = seq(
        alloc(lines),
        when(clear != 0, grid((EDGE, HALVES), lambda r, h: store(sums, nothing, place(r, h)))),
        serial((count + (_DEPTH - 1)) // _DEPTH, chunk, "c"),
    )
    return Parts([memory.raw for memory in (left, right, sums)], numbers, body)


BLOCK_IN_FLOAT32 = Helper("block_in_float32", _block_in_float32)
"""A block of 32 x 32 sums by fused multiply-adds; rows and columns behind the last repeat it.

Addresses of the operands and of the sums; the lines of each operand and its strides; the block's
first row, column and k; how many k; the sums' pitch; whether they start at zero.
"""
