"""Elementwise kernels that read something transposed.

Pattern: injective ops over one shape, some of whose inputs are permuted memory, innermost in
another dimension than the result.  Strategy: a tile is a block of those two dimensions.  Squares of
a line's length are read along their memory, transposed in registers, in parts of a vector's length,
and used as rows, so every cache line is read once and written once; walking along the result alone
reads a line for each element, and at sizes that are powers of two all of them fall into the same
places of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ....core.shape import Shape, numel
from ....ops import movement as mv
from ...dialect import Scope
from ...loops import (
    LINE_BYTES,
    PAGE_BYTES,
    Expr,
    Stage,
    Stmt,
    alloc,
    ask,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    ramp,
    seq,
    serial,
    store,
    vectorized,
)
from ...lower import KernelCode, Reader
from ...streams import LINE, Around, far_bytes, far_results, streamed
from ...target import CpuTarget
from .conv_layout import transpose_tile
from .elementwise import GRAIN, unravel

_SQUARES = 4
"""Squares along each side of a tile."""


def transpose(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of an elementwise kernel with transposed reads."""
    graph, kernel = code.graph, code.kernel
    if kernel.anchor is not None or kernel.rows is not None:
        return None
    shape = graph.values[kernel.members[0]].shape
    flipped = _flipped(code, shape)
    # Squares may overlap: an element computed twice must not have overwritten what it reads.
    if not flipped or code.overwrites or numel(shape) < GRAIN:
        return None
    axes, sizes = set(flipped.values()), {graph.values[v].dtype.itemsize for v in flipped}
    if len(axes) != 1 or len(sizes) != 1:
        return None
    (axis,), (itemsize,), last = axes, sizes, len(shape) - 1
    lanes = cpu.lanes(itemsize)
    merged = _merged(code, list(flipped), shape, axis)
    # Dimensions that memory and result have in the same order count as one, in the last of them.
    shape = (
        *(1 if d in merged else n for d, n in enumerate(shape[:axis])),
        shape[axis] * numel(tuple(shape[d] for d in merged)),
        *shape[axis + 1 :],
    )
    if itemsize < 4 or lanes < 2 or min(shape[axis], shape[last]) < lanes:
        return None
    if lanes * itemsize < LINE_BYTES and _streams(
        shape[last], shape[axis] * itemsize, numel(shape) * itemsize, cpu
    ):
        return None
    # Whole lines where they fit: the part of one that a square leaves may be lost from the caches
    # before the next square, if lines lie in the same places.
    edge = max(lanes, LINE_BYTES // itemsize)
    if min(shape[axis], shape[last]) < edge:
        edge = lanes
    across = {d: min(_SQUARES, ceil_div(shape[d], edge)) for d in (axis, last)}
    blocks = [ceil_div(shape[d], across[d] * edge) for d in (axis, last)]
    rest = tuple(1 if d in (axis, last) else n for d, n in enumerate(shape))

    ends = {d: number(shape[d] - edge, "end") for d in (axis, last)}
    far = None
    if edge == LINE:
        computed = {*code.kernel.inlined, *code.kernel.members} - set(flipped)
        far = far_results(code, computed, cpu)

    def tile(t: Expr) -> Stmt:
        *head, i, j = unravel(t, (*rest, *blocks))

        def corner(d: int, block: Expr, square: Expr) -> Expr:
            return minimum((block * across[d] + square) * edge, ends[d])

        def square(q: Expr, p: Expr) -> Stmt:
            origin = list(head)
            origin[axis], origin[last] = corner(axis, i, p), corner(last, j, q)
            return _square(code, list(flipped), origin, axis, (lanes, edge), far)

        return grid((across[last], across[axis]), square)

    return [parallel_stage("transpose", numel(rest) * blocks[0] * blocks[1], tile)]


def _streams(rows: int, row_bytes: int, nbytes: int, cpu: CpuTarget) -> bool:
    """True if walking along the result beats squares of parts of lines: few streams from memory.

    A line of each stream stays in the first-level cache until it is used up, unless all fall into
    the same places, and processors fetch ahead along streams better than from square to square.
    """
    fits = rows * LINE_BYTES <= cpu.l1_bytes // 2 and row_bytes % PAGE_BYTES != 0
    return fits and 2 * nbytes > far_bytes(cpu)


def _flipped(code: KernelCode, shape: Shape) -> dict[int, int]:
    """Permuted reads and the dimension along which their memory lies; none if others move too."""
    values, kernel = code.graph.values, code.kernel
    found: dict[int, int] = {}
    moved: set[int] = set()
    for v in (*kernel.inlined, *kernel.members):
        value = values[v]
        if isinstance(value.op, mv.Permute) and code.is_memory(value.inputs[0]):
            axis = value.op.dims.index(len(value.op.dims) - 1)
            if value.shape != shape:
                return {}
            if axis != len(shape) - 1:
                found[v] = axis
        elif value.op.elementwise or isinstance(value.op, mv.Expand):
            if not value.op.elementwise or value.shape != shape:
                moved.update(value.inputs)
        elif not isinstance(value.op, mv.Full):
            return {}
    return {} if moved & set(found) else found


def _merged(code: KernelCode, flipped: Sequence[int], shape: Shape, axis: int) -> list[int]:
    """Dimensions right before ``axis`` that everything the kernel reads has right before it too."""
    values, kernel = code.graph.values, code.kernel
    sources = {values[v].inputs[0] for v in flipped}
    orders = [op.dims for v in flipped if isinstance(op := values[v].op, mv.Permute)]
    merged: list[int] = []
    for d in range(axis - 1, -1, -1):
        if any(dims[d] + 1 != dims[d + 1] for dims in orders):
            break
        covered = set()
        for v in {*kernel.reads, *kernel.inlined} - sources:
            own = (1,) * (len(shape) - len(values[v].shape)) + values[v].shape
            covered.add((own[d] == shape[d], own[d + 1] == shape[d + 1]))
        if any(a != b for a, b in covered):
            break
        merged.append(d)
    return merged


def _square(
    code: KernelCode,
    flipped: Sequence[int],
    origin: Sequence[Expr],
    axis: int,
    sides: tuple[int, int],
    far: Around | None,
) -> Stmt:
    """The elements of one square, those of ``flipped`` values by way of local memory.

    ``sides``: of what is transposed in registers, and of the square, a multiple.  ``far``: results
    whose rows go around the caches.
    """
    values = code.graph.values
    lanes, edge = sides
    tiles = {v: local_buffer((edge, edge), values[v].dtype.name, f"tile{v}") for v in flipped}

    def at(y: Expr, x: Expr) -> tuple[Expr, ...]:
        index = list(origin)
        index[axis], index[-1] = origin[axis] + y, origin[-1] + x
        return tuple(index)

    def turned(v: int) -> Stmt:
        op, (source,) = values[v].op, values[v].inputs
        assert isinstance(op, mv.Permute)
        inverse, memory = op.inverse, code.buffer(source)

        def part(i: Expr, j: Expr) -> Stmt:
            y0, x0 = i * lanes, j * lanes

            def read(x: Expr, y: Expr) -> Expr:
                index = at(y0 + y, x0 + x)
                return load(memory, *[index[d] for d in inverse])

            def write(y: Expr, vector: Expr) -> Stmt:
                return store(tiles[v], vector, y0 + y, ramp(x0, lanes))

            return transpose_tile(lanes, values[v].dtype.name, read, write)

        return grid((edge // lanes, edge // lanes), part)

    def element(y: Expr, x: Expr) -> Stmt:
        held = {v: load(tiles[v], y, x) for v in flipped}
        return Reader(code, Scope(), held).store_all(at(y, x))

    def vector(y: Expr, first: int) -> Stmt:
        return vectorized(lanes, lambda x: element(y, first + x), "x", wide=True)

    def row(y: Expr) -> Stmt:
        if far is None:
            # LLVM's own loop took vectors across rows; a loop of vectors takes 1.3 times as long.
            return seq([vector(y, first) for first in range(0, edge, lanes)])
        # What is read as it lies is asked for a square ahead, to its end (rows may start anywhere
        # in a line): its rows are short, and far apart.
        asks = ask(lambda: element(y, const(2 * edge - 1)), edge * edge, beyond=True)
        return seq(asks, streamed(partial(element, y), const(0), far))

    return seq(
        [alloc(b) for b in tiles.values()],
        [turned(v) for v in flipped],
        serial(edge, row, "y"),
    )
