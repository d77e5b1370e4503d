"""Packing of operands that lie in memory, in functions that all products of a program call.

What a product packs differs from another's only in sizes, which these functions take as numbers:
written out in every product, packing was more than half of the code that LLVM had to compile.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....core.tvm_api import tvm
from ...loops import Expr, Helper, Parts, Stmt, const, load, pointer_buffer, var
from .bfloat_parts import EDGE, HALVES, LANES, PARTS, Operand, Packed
from .matrix_unit import address

_ANY = 1 << 14  # more blocks or panels than any call has; sizes of addresses, not of memory


@dataclass(frozen=True)
class _Loose(Operand):
    """An operand whose numbers of lines and k are known at run time only."""

    def whole(self, panel: Expr, kb: Expr) -> Expr | bool:
        """Whether a block lies inside the operand."""
        return tvm().tirx.all((panel + 1) * EDGE <= self.lines, (kb + 1) * EDGE <= self.k)


def may_share(operand: Operand) -> bool:
    """True if the operand is plain memory, whose every element an int32 can number."""
    return operand.plain and operand.lines * operand.k < 1 << 31


def packer(operand: Operand) -> Helper:
    """The function that packs blocks of a panel of such operands."""
    is_row, natural = operand.is_row, operand.natural

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
        body = _Loose(is_row, lines, k, natural, True, element, 1).pack_blocks(
            Packed(tiles, magnitude), zero, panel, (first, count), (zero, zero), (zero, zero)
        )
        return Parts([m.raw for m in (source, tiles, magnitude)], numbers, body)

    side = "rows" if is_row else "columns"
    return Helper(f"pack_{side}_{'natural' if natural else 'turned'}", make)


def call_packer(
    operand: Operand, to: Packed, bt: Expr, source: tuple[Expr, Expr], place: Expr
) -> Stmt:
    """Pack the (panel, visit) ``source`` of an operand into the panel ``place`` of ``to``."""
    panel, visit = source
    zero = const(0)
    inner = operand.k if operand.is_row == operand.natural else operand.lines
    return packer(operand).call(
        tvm().tirx.address_of(operand.element(bt, zero, zero)),
        address(to.tiles, place, zero, zero, zero, zero),
        address(to.magnitude, place, zero, zero),
        inner,
        operand.lines,
        operand.k,
        panel,
        visit * operand.visit,
        operand.count(visit),
    )
