"""Layout changes between PyTorch's NCHW and the channel-last copies that convolutions read.

A convolution keeps channels in vector lanes, so its operands are copied with channels innermost and
with their zero border written out.  Transposing element by element costs about a cycle each, which
is a third of the time of a 16 -> 16 channel 3x3 convolution; the blocks here are transposed with
vector shuffles instead, at a quarter of a cycle per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.tvm_api import tvm
from ...loops import (
    Buffer,
    Builder,
    Expr,
    Stage,
    Stmt,
    bind,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    parallel_stage,
    ramp,
    seq,
    serial,
    splat,
    store,
)

Load4 = Callable[[Expr, Expr, Expr, Expr], Expr]


def stack(buffer: Buffer) -> Stmt:
    """Bring a local buffer to life on the stack.

    Left to itself, TVM asks its workspace pool at run time, which costs more than a small tile's
    arithmetic and keeps accumulators from being registers.
    """
    return tvm().tirx.AllocBuffer(buffer, {"disable_lower_builtin": const(1, "bool")})


def maximum(a: Expr, b: Expr) -> Expr:
    """Larger of two index expressions."""
    left, right = (const(v) if isinstance(v, int) else v for v in (a, b))
    return tvm().tirx.max(left, right)


def div(a: Expr, b: int) -> Expr:
    """Floor division of an index expression."""
    return a // b if isinstance(a, int) else tvm().tirx.floordiv(a, const(b))


def mod(a: Expr, b: int) -> Expr:
    """Floor modulus of an index expression."""
    return a % b if isinstance(a, int) else tvm().tirx.floormod(a, const(b))


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``."""
    return -(-a // b)


def split(index: Expr, *extents: int) -> tuple[Expr, ...]:
    """The coordinates of a row-major flat index; the first extent is not needed."""
    parts: list[Expr] = []
    for extent in reversed(extents):
        parts.append(mod(index, extent) if extent > 1 else const(0))
        index = div(index, extent) if extent > 1 else index
    return (index, *reversed(parts))


def transposed(rows: Sequence[Expr]) -> tuple[list[Stmt], list[Expr]]:
    """Transpose a square block held in vectors.

    ``rows`` are as many vectors as each has lanes, a power of two.  Returns the statements that
    compute the result and the vectors of the result.  Each step exchanges the off-diagonal halves
    of blocks of twice its distance (Eklundh's method), log2(lanes) steps in all.
    """
    shuffle = tvm().tirx.Shuffle
    lanes = len(rows)
    statements: list[Stmt] = []

    def named(value: Expr) -> Expr:
        v, statement = bind("t", value)
        statements.append(statement)
        return v

    current = [named(r) for r in rows]
    distance = lanes // 2
    while distance:
        low = [const(k if not k & distance else lanes + k - distance) for k in range(lanes)]
        high = [const(k + distance if not k & distance else lanes + k) for k in range(lanes)]
        following = list(current)
        for r in range(lanes):
            if not r & distance:
                pair = [current[r], current[r + distance]]
                following[r] = named(shuffle(pair, low))
                following[r + distance] = named(shuffle(pair, high))
        current = following
        distance //= 2
    return statements, current


def transpose_tile(
    lanes: int,
    dtype: str,
    read: Callable[[Expr, Expr], Expr],
    write: Callable[[Expr, Expr], Stmt],
) -> Stmt:
    """Transpose one block of ``lanes`` by ``lanes`` scalars.

    ``read(r, k)`` is the scalar in row r at position k (contiguous in k); ``write(k, vector)``
    stores the vector that holds position k of every row.
    """

    def fill(block: Buffer, r: Expr) -> Stmt:
        return serial(lanes, lambda k: store(block, read(r, k), r, k), "k")

    return transpose_rows(lanes, dtype, fill, write)


def transpose_rows(
    lanes: int,
    dtype: str,
    fill: Callable[[Buffer, Expr], Stmt],
    write: Callable[[Expr, Expr], Stmt],
) -> Stmt:
    """As :func:`transpose_tile`, with ``fill(block, r)`` the statement that stores row r."""
    block = local_buffer((lanes, lanes), dtype, "block")
    statements, columns = transposed([load(block, r, ramp(0, lanes)) for r in range(lanes)])
    return seq(
        stack(block),
        serial(lanes, lambda r: fill(block, r), "r"),
        *statements,
        *[write(const(k), v) for k, v in enumerate(columns)],
    )


def covering(extent: int, step: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Cover ``range(extent)`` by blocks of ``step <= extent``; the last one may overlap."""
    return serial(ceil_div(extent, step), lambda b: body(minimum(b * step, extent - step)), "b")


def channels_last(
    name: str,
    shape: tuple[int, int, int, int],
    low: tuple[int, int],
    extent: tuple[int, int],
    dtype: str,
    read: Load4,
    builder: Builder,
    lanes: int,
    padded: int = 0,
) -> tuple[list[Stage], Buffer]:
    """Copy ``read(n, c, y, x)`` of ``shape`` into a zero-bordered buffer ``[n][y][x][c]``.

    ``low`` is the border before the first row and column, ``extent`` the size with borders;
    channels are followed by zeros up to ``padded``.
    """
    n, c, h, w = shape
    rows, columns = extent
    padded = max(padded, c)
    buffer = builder.scratch_buffer((n, rows, columns, padded), dtype, name)
    zero = const(0.0, dtype)

    def border(image: Expr, c0: Expr, width: int) -> Stmt:
        def clear(y: Expr, x: Expr) -> Stmt:
            if width == lanes:
                return store(buffer, splat(zero, lanes), image, y, x, ramp(c0, lanes))
            return serial(width, lambda k: store(buffer, zero, image, y, x, c0 + k), "k")

        def area(y0: int, y1: int, x0: int, x1: int) -> list[Stmt]:
            if y1 <= y0 or x1 <= x0:
                return []
            return [
                serial(y1 - y0, lambda y: serial(x1 - x0, lambda x: clear(y + y0, x + x0), "x"))
            ]

        top, left = low
        return [
            *area(0, top, 0, columns),
            *area(top, top + h, 0, left),
            *area(top, top + h, left + w, columns),
            *area(top + h, rows, 0, columns),
        ]

    def scalar_copy(image: Expr, c0: Expr, width: int) -> Stmt:
        # The contiguous side is x when there is one channel, else either side is as good.
        return serial(
            h,
            lambda y: serial(
                width,
                lambda k: serial(
                    w,
                    lambda x: store(
                        buffer, read(image, c0 + k, y, x), image, y + low[0], x + low[1], c0 + k
                    ),
                    "x",
                ),
                "k",
            ),
            "y",
        )

    def shuffled_copy(image: Expr, c0: Expr) -> Stmt:
        def block(p0: Expr) -> Stmt:
            def put(k: Expr, vector: Expr) -> Stmt:
                y, x = split(p0 + k, w)
                return store(buffer, vector, image, y + low[0], x + low[1], ramp(c0, lanes))

            def get(r: Expr, k: Expr) -> Expr:
                y, x = split(p0 + k, w)
                return read(image, c0 + r, y, x)

            return transpose_tile(lanes, dtype, get, put)

        return covering(h * w, lanes, block)

    full = c // lanes if lanes > 1 and h * w >= lanes else 0
    stages = []
    if full:

        def slab(tile: Expr) -> Stmt:
            image, block = split(tile, full)
            return seq(*border(image, block * lanes, lanes), shuffled_copy(image, block * lanes))

        stages.append(parallel_stage(f"{name}_pack", n * full, slab))
    rest = c - full * lanes
    if rest or padded > c:

        def remainder(tile: Expr) -> Stmt:
            parts = []
            if rest:
                start = const(full * lanes)
                parts += [*border(tile, start, rest), scalar_copy(tile, start, rest)]
            if padded > c:
                parts.append(
                    grid(
                        (rows, columns, padded - c),
                        lambda y, x, k: store(buffer, zero, tile, y, x, k + c),
                    )
                )
            return seq(*parts)

        stages.append(parallel_stage(f"{name}_pack_rest", n, remainder))
    return stages, buffer
