"""Instructions of the matrix unit, and how products of parts are put together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ....core.tvm_api import tvm
from ...loops import Expr, Memory, Stmt, alloc, const, load, local_buffer, minimum, seq, store
from .bfloat_parts import HALVES, LANES

# The products of parts that are left if the row's elements have one part only, and if the column's
# do.
ROW_EXACT = ((0, 2), (0, 1), (0, 0))
COLUMN_EXACT = ((2, 0), (1, 0), (0, 0))
# Products of the smallest magnitudes of two operands: below, products of their parts would leave
# the range of normal numbers.  Of the largest: beyond, sums could.
_LEAST_PRODUCT, _MOST_PRODUCT = 2.0**-100, 2.0**100


def unit(name: str, *operands: Expr) -> Stmt:
    """One instruction of the matrix unit."""
    t = tvm().tirx
    return t.Evaluate(t.call_llvm_intrin("void", f"llvm.x86.{name}", *operands))


def tile(number: int) -> Expr:
    """One of the eight tile registers."""
    return const(number, "int8")


def address(memory: Memory, *index: Expr) -> Expr:
    """Where an element lies."""
    return tvm().tirx.address_of(load(memory, *index))


def configure(rows: Expr | None = None) -> Stmt:
    """Tell the unit that all eight tiles have 16 rows of 64 bytes.

    With ``rows``, the left operand of :func:`multiply`, and the sums, have so many only (1 to 32).
    The unit needs a cycle for each row of its left operand; what lies in others is undefined.
    """
    words: list[Expr] = [const(0)] * 16
    words[0] = const(1)
    words[4:8] = [const(0x00400040)] * 4
    words[12:14] = [const(0x10101010)] * 2
    if rows is not None:
        # Tiles 0, 1 and 4 are of the first half; of the second one row remains at least.
        first = minimum(rows, LANES)
        second = tvm().tirx.Select(rows > LANES, rows - LANES, const(1))
        words[12] = (first | (first << 8)) | ((second << 16) | (second << 24))
        words[13] = (first | (second << 8)) | const(0x10100000)
    layout = local_buffer((16,), "int32", "layout")
    return seq(
        alloc(layout),
        [store(layout, word, i) for i, word in enumerate(words)],
        unit("ldtilecfg", address(layout, 0)),
    )


def idle_memory() -> Memory:
    """Where :func:`stay_awake` stores."""
    return local_buffer((LANES * LANES,), "uint32", "idle")


def stay_awake(idle: Memory) -> Stmt:
    """Store a tile that nobody reads.

    What stores tiles goes to sleep when it has nothing to do for some 0.9 us, and the next store
    then takes 0.25 us longer (measured on Sapphire Rapids).  One store per block of k costs 2 ns.
    """
    return unit("tilestored64", tile(7), address(idle, 0), const(4 * LANES, "int64"))


def may_use(largest: tuple[Expr, Expr], smallest: tuple[Expr, Expr]) -> Expr:
    """Whether the unit multiplies operands with these magnitudes as float32 would.

    The magnitudes are those of :class:`.bfloat_parts.Packed`: NaN, which an irregular operand has,
    makes the comparison false.
    """
    return tvm().tirx.all(
        largest[0] * largest[1] < const(_MOST_PRODUCT, "float32"),
        smallest[0] * smallest[1] > const(_LEAST_PRODUCT, "float32"),
    )


# How three neighbouring tiles (two registers in turn) meet the parts of one: fetch (part, tile), or
# multiply (tile, part of the three, part of the one).  In this order no product waits for another.
_ROW_OF_THREE: tuple[tuple[int, ...], ...] = (
    *((2, 0), (2, 1), (0, 2, 0), (2, 2), (1, 2, 0), (1, 0), (2, 2, 0), (1, 1)),
    *((0, 1, 0), (1, 1, 0), (0, 1, 1), (1, 2), (1, 1, 1), (0, 0), (2, 1, 0), (0, 0, 1)),
    *((2, 1, 1), (0, 1), (0, 0, 2), (1, 0, 1), (0, 0, 0), (0, 2), (1, 0, 2), (2, 0, 1)),
    *((1, 0, 0), (2, 0, 2), (2, 0, 0)),
)
THREE = 3
THREE_CYCLES = 340  # measured, of a step of multiply_three


def multiply_three(fetch: Callable[[int, int, int, int], Stmt]) -> list[Stmt]:
    """Add a row of three blocks of 16 x 16 x 32 to tiles 0 to 2.

    ``fetch(side, part, number, register)`` loads a part of column ``number`` of the three (side 0)
    or of the row (side 1, number 0).
    """
    statements = [fetch(1, part, 0, 5 + part) for part in range(THREE)]
    held: dict[int, int] = {}
    turn = 0
    for event in _ROW_OF_THREE:
        if len(event) == 2:
            part, number = event
            held[number] = 3 + turn
            turn = 1 - turn
            statements.append(fetch(0, part, number, held[number]))
            continue
        number, _, other = event
        statements.append(unit("tdpbf16ps", *map(tile, (number, 5 + other, held[number]))))
    return statements


def multiply_column(
    count: int, fetch: Callable[[int, int, int, int], Stmt], products: Sequence[tuple[int, int]]
) -> list[Stmt]:
    """Add a column of three or four blocks of 16 x 16 x 32 to tiles 0 to 2, or 3.

    ``fetch(side, part, number, register)`` loads a part of row ``number`` of these (side 0) or of
    the column (side 1, number 0).  Rows are fetched again for every product: the unit has room for
    two loads beside one.
    """
    statements: list[Stmt] = []
    for i, (part, other) in enumerate(products):
        column = 4 + i % 2
        statements.append(fetch(1, other, 0, column))
        for number in range(count):
            register = 6 + number % 2
            statements.append(fetch(0, part, number, register))
            statements.append(unit("tdpbf16ps", *map(tile, (number, register, column))))
    return statements


def multiply(
    fetch: Callable[[int, Expr, int, int], Stmt], products: Sequence[tuple[Expr, Expr]]
) -> list[Stmt]:
    """Add a block of 32 x 32 x 32 to tiles 0 to 3.

    ``fetch(side, part, half, number)`` loads half of a part of the row (side 0) or column operand
    into tile ``number``.
    """

    def load_half(side: int, part: Expr, half: int) -> Stmt:
        return fetch(side, part, half, 4 + 2 * side + half)

    statements = [load_half(side, products[0][side], h) for side in (0, 1) for h in range(HALVES)]
    for now, then in itertools.zip_longest(products, products[1:]):
        # One operand changes: each of its halves is fetched as soon as it is free.
        changes = 2 if then is None else int(now[0] == then[0])
        for n in range(HALVES):
            for m in range(HALVES):
                i, j = (m, n) if changes == 1 else (n, m)
                numbers = tile(2 * i + j), tile(4 + i), tile(6 + j)
                statements.append(unit("tdpbf16ps", *numbers))
            if then is not None:
                statements.append(load_half(changes, then[changes], n))
    return statements
