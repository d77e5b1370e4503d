"""Recurrent layers: every step of a layer, or of its gradient, in one kernel.

Pattern: Recurrence and RecurrenceBackward.  A step is a product of the state [n, h] and the weight,
and what the cell makes of it; the next one needs the result.  Strategy: a thread owns rows of the
state, that is some sequences of the batch, and takes them through all steps, so that threads never
wait for each other.  Weights are packed once, in panels of all gates of some states: behind its
product, a cell has all that it needs.  Products are computed in register tiles as others are, put
down in a tile of memory and read from there, in vectors, by the cell.

The number of steps and that of sequences are told.  Rejected: a kernel per step and product (a
barrier for each takes as long as the product of a small batch, and hundreds of kernels are planned
for every length).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ....core.record import record
from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.movement import Permute
from ....ops.recurrent import GATES, KEPT, Layout, Recurrence, RecurrenceBackward
from ...dialect import Scope
from ...loops import (
    Expr,
    Helper,
    Memory,
    Parts,
    Stage,
    Stmt,
    alloc,
    below,
    bind,
    ceil_div,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    pointer_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
    var,
    vectorized,
    when,
)
from ...lower import KernelCode
from ...target import CpuTarget

_WIDEST = 4
"""Most vectors of a panel."""

Read = Callable[..., Expr]
Cell = Callable[[Scope, Expr, Expr, Expr, Read], list[Stmt]]


@record
class _Sizes:
    """How rows and columns are divided; ``told`` sizes are numbers of the stage."""

    cpu: CpuTarget
    dtype: str
    steps: int
    n: int
    h: int
    lanes: int
    blocks: int  # of a panel, so many states beside each other
    panels: int
    gates: int  # vectors of a block
    k: int  # terms of a product
    mr: int
    nv: int
    rows: int  # of a thread
    padded: int

    @classmethod
    def of(
        cls, cpu: CpuTarget, dtype: str, itemsize: int, sizes: tuple[int, int, int], gates: int, k: int
    ) -> _Sizes:
        """``gates``: vectors whose sums a cell needs at once; ``k``: terms of each."""
        steps, n, h = sizes
        lanes = cpu.lanes(itemsize)
        count = ceil_div(h, lanes)
        panels = ceil_div(count, max(1, _WIDEST // gates))
        blocks = ceil_div(count, panels)
        rows = ceil_div(n, min(cpu.workers, n))
        width = gates * blocks

        def most(nv: int) -> int:  # rows of a register tile
            return max(1, (cpu.vector_registers - nv - 1) // nv)

        nv = width
        if most(nv) < rows and width % 2 == 0:
            nv = 2  # the fewer columns, the more rows: what is packed is read less often
        tall = ceil_div(rows, most(nv))
        mr = ceil_div(rows, tall)
        return cls(
            cpu, dtype, steps, n, h, lanes, blocks, panels, gates, k, mr, nv, rows, tall * mr
        )

    @property
    def width(self) -> int:
        """Vectors of a panel."""
        return self.gates * self.blocks

    @property
    def parts(self) -> int:
        """Into how many a panel's columns are divided for register tiles."""
        return self.width // self.nv

    @property
    def tiles(self) -> int:
        return ceil_div(self.n, self.rows)


def _reader(code: KernelCode, v: int, shape: tuple[Expr, ...]) -> Read:
    """Elements of a value in a scope; in memory, by sizes that may be told."""
    value = code.graph.values[v]
    if code.is_memory(v):
        memory = replace(code.buffer(v), shape=shape)
        return lambda _, *index: load(memory, *index)
    if isinstance(value.op, Permute) and code.is_memory(value.inputs[0]):
        places = [value.op.dims.index(d) for d in range(len(shape))]
        turned = replace(code.buffer(value.inputs[0]), shape=tuple(shape[p] for p in places))
        return lambda _, *index: load(turned, *(index[p] for p in places))
    return lambda scope, *index: code.evaluator(scope).read(v, index)


def _multiply(z: _Sizes) -> Helper:
    """Takes addresses of rows of the state, a panel and sums, and the number of terms.

    A function of its own: beside a cell, LLVM keeps the cell's constants in registers, and sums in
    memory.
    """

    def make() -> Parts:
        state = pointer_buffer((z.mr, z.k), z.dtype, "state")
        panel = pointer_buffer((z.parts, z.k, z.nv * z.lanes), z.dtype, "panel")
        sums = pointer_buffer((z.mr, z.width * z.lanes), z.dtype, "sums")
        terms = var("terms")
        every, nothing = ramp(0, z.lanes), splat(const(0.0, z.dtype), z.lanes)
        tile = [(r, v) for r in range(z.mr) for v in range(z.nv)]

        def part(left: Expr) -> Stmt:
            acc = {at: local_buffer((z.lanes,), z.dtype, "acc") for at in tile}

            def columns(v: int) -> Expr:
                return ramp(v * z.lanes, z.lanes)

            def term(k: Expr) -> Stmt:
                vectors = [bind("column", load(panel, left, k, columns(v))) for v in range(z.nv)]
                updates = []
                for r in range(z.mr):
                    value = splat(load(state, r, k), z.lanes)
                    for v, (vector, _) in enumerate(vectors):
                        own = acc[r, v]
                        updates.append(store(own, load(own, every) + value * vector, every))
                return seq([known for _, known in vectors], updates)

            return seq(
                [alloc(m) for m in acc.values()],
                [store(m, nothing, every) for m in acc.values()],
                serial(terms, term, "k"),
                [
                    store(sums, load(m, every), r, ramp((left * z.nv + v) * z.lanes, z.lanes))
                    for (r, v), m in acc.items()
                ],
            )

        return Parts([state.raw, panel.raw, sums.raw], [terms], serial(z.parts, part, "part"))

    return Helper(f"recurrence_{z.dtype}_{z.mr}_{z.nv}_{z.width}_{z.k}", make)


class _Kernel:
    """What both directions share: packed weights, products, loops."""

    def __init__(self, code: KernelCode, z: _Sizes, layout: Callable[[Expr], Layout]) -> None:
        self.code, self.z = code, z
        self.steps, self.n = number(z.steps, "steps"), number(z.n, "batch")
        self.each = number(z.rows, "each")
        self.at = layout(self.steps)
        builder = code.builder
        shape = (z.panels, z.parts, z.k, z.nv * z.lanes)
        self.packed = builder.scratch_buffer(shape, z.dtype, "weight")
        # What products read, twice: a step makes the next while others still need the last.
        self.row = z.padded * z.k  # elements of a thread's
        shape = (2, z.tiles, z.padded, z.k)
        self.state = replace(
            builder.scratch_buffer(shape, z.dtype, "state"),
            shape=(2, number(z.tiles, "tiles"), number(z.padded, "padded"), z.k),
        )
        self.sums = local_buffer((z.mr, z.width * z.lanes), z.dtype, "sums")
        self.multiply = _multiply(z)

    def along(self, j0: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body(lane)`` for the states from ``j0`` on that a vector has, if there are any."""
        z = self.z
        wide = z.dtype == "float32" and z.lanes > 1

        def whole() -> Stmt:
            return vectorized(z.lanes, body) if wide else serial(z.lanes, body, "lane")

        rest = z.h % z.lanes
        if not rest and z.panels * z.blocks * z.lanes == z.h:
            return whole()
        some = serial(rest, body, "lane") if rest else None
        if z.h < z.lanes:
            return some if z.blocks == 1 else when(j0 < z.h, some)
        if some is not None:
            some = when(j0 < z.h, some) if z.panels * z.blocks > ceil_div(z.h, z.lanes) else some
        return when(j0 + z.lanes <= z.h, whole(), some)

    def product(self, tile: Expr, half: Expr, panel: Expr, first: Expr, terms: Expr) -> Stmt:
        """Sums of ``terms`` products of ``mr`` rows of the state from ``first`` on and a panel."""
        starts = [
            load(self.state, half, tile, first, 0),
            load(self.packed, panel, 0, 0, 0),
            load(self.sums, 0, 0),
        ]
        return self.multiply.call(*map(tvm().tirx.address_of, starts), terms)

    def cells(
        self,
        tile: Expr,
        rows: tuple[Expr, Expr],
        half: Expr,
        terms: Expr,
        cell: Cell | tuple[Cell, Expr, Cell],
    ) -> Stmt:
        """``cell(scope, row of the thread, row of the batch, state, sum)`` for each state.

        Behind the product of ``half`` of the memory for states.  ``rows``: of a thread, the first
        and how many.  Of two cells the first one is meant under a condition.
        """
        z = self.z
        start, count = rows

        def block(panel: Expr, tall: Expr) -> Stmt:
            first = tall * z.mr

            def row(cell: Cell, r: Expr) -> Stmt:
                own = first + r

                def some(b: Expr) -> Stmt:
                    j0 = (panel * z.blocks + b) * z.lanes

                    def lane(c: Expr) -> Stmt:
                        scope = Scope()

                        def total(gate: int) -> Expr:
                            return load(self.sums, r, (b + gate * z.blocks) * z.lanes + c)

                        return scope.body(*cell(scope, own, start + own, j0 + c, total))

                    return self.along(j0, lane)

                return serial(z.blocks, some, "b")

            def rows(cell: Cell) -> Stmt:
                return serial(minimum(z.mr, count - first), partial(row, cell), "r")

            if isinstance(cell, tuple):
                done = when(cell[1], rows(cell[0]), rows(cell[2]))
            else:
                done = rows(cell)
            return seq(self.product(tile, half, panel, first, terms), done)

        tall = number(z.padded // z.mr, "tall")
        return serial(
            z.panels, lambda p: serial(tall, lambda i: block(p, i), "tall"), "panel"
        )

    def stage(self, name: str, body: Callable[[Expr], Stmt]) -> Stage:
        """A stage that takes the rows of each thread through all steps."""
        return replace(parallel_stage(name, self.z.tiles, body), helpers=(self.multiply,))

    def put(self, p: Expr, v: Expr, k: Expr, c: Expr, value: Expr) -> Stmt:
        """Store a lane of a panel's vector ``v``."""
        z = self.z
        return store(self.packed, value, p, v // z.nv, k, v % z.nv * z.lanes + c)

    def rows_of(self, tile: Expr) -> tuple[Expr, Expr, list[Stmt]]:
        """(first row of a tile, how many, statements that find them)."""
        first, one = bind("first", below(tile * self.each, self.z.n))
        count, other = bind("count", minimum(self.each, self.n - first))
        return first, count, [one, other]

    def clear(self, tile: Expr) -> Stmt:
        """Zeros for rows that fill up register tiles."""
        z = self.z

        def one(half: Expr, r: Expr, k: Expr) -> Stmt:
            return store(self.state, const(0.0, z.dtype), half, tile, r, k)

        return grid((2, number(z.padded, "padded"), z.k), one, "z")


def _pack_columns(kernel: _Kernel, w: Read) -> Stage:
    """Panels of w [k, h] as it is."""
    z = kernel.z
    wide = z.panels * z.width * z.lanes

    def tile(t: Expr) -> Stmt:
        p, v = t // z.width, t % z.width

        def element(k: Expr, c: Expr) -> Stmt:
            scope = Scope()
            column = t * z.lanes + c
            if wide == z.h:
                return scope.body(kernel.put(p, v, k, c, w(scope, k, column)))
            inside = w(scope, k, minimum(column, z.h - 1))
            value = tvm().tirx.Select(column < z.h, inside, const(0.0, z.dtype))
            return scope.body(kernel.put(p, v, k, c, value))

        return grid((z.k, z.lanes), element, "k")

    return parallel_stage("recurrence_pack", z.panels * z.width, tile)


def _pack_gates(kernel: _Kernel, w: Read) -> Stage:
    """Panels of w.T, w: [gates h, h]: beside each other all gates of some states."""
    z = kernel.z
    vectors = z.panels * z.width

    def tile(t: Expr) -> Stmt:
        p, v = t // z.width, t % z.width
        gate, b = v // z.blocks, v % z.blocks

        def element(c: Expr, k: Expr) -> Stmt:
            j = (p * z.blocks + b) * z.lanes + c
            scope = Scope()
            inside = w(scope, gate * z.h + minimum(j, z.h - 1), k)
            value = tvm().tirx.Select(j < z.h, inside, const(0.0, z.dtype))
            return scope.body(kernel.put(p, v, k, c, value))

        return grid((z.lanes, z.k), element, "c")

    return parallel_stage("recurrence_pack", vectors, tile)


def _one(dtype: str) -> Expr:
    return const(1.0, dtype)


def _forward(code: KernelCode, cpu: CpuTarget, op: Recurrence) -> list[Stage]:
    values, anchor = code.graph.values, code.anchor
    x, w, h0, *last = anchor.inputs
    steps, n, _ = values[x].shape
    h, dtype = values[h0].shape[1], anchor.dtype
    gates = GATES[op.cell]
    z = _Sizes.of(cpu, dtype.name, dtype.itemsize, (steps, n, h), gates, h)
    kernel = _Kernel(code, z, op.layout)
    at = kernel.at
    result = replace(code.buffer(code.kernel.anchor), shape=(at.rows, kernel.n, h))
    inputs = _reader(code, x, (kernel.steps, kernel.n, gates * h))
    start = _reader(code, h0, (kernel.n, h))
    other = _reader(code, last[0], (kernel.n, h) if op.cell == "lstm" else (gates * h,)) if last else None

    def cell(step: Expr, after: Expr) -> Callable[..., list[Stmt]]:
        time = at.time(step)

        def of(scope: Scope, own: Expr, i: Expr, j: Expr, total: Read) -> list[Stmt]:
            def given(gate: int) -> Expr:
                return scope.keep(inputs(scope, time, i, gate * h + j))

            kept: list[Expr] = []
            stores: list[Stmt] = []
            if op.cell == "lstm":
                sums = [scope.keep(scope.add(total(g), given(g))) for g in range(4)]
                gi, f, o = (scope.keep(scope.sigmoid(sums[g])) for g in (0, 1, 3))
                g = scope.keep(scope.tanh(sums[2]))
                before = scope.keep(load(result, at.cell_row(at.before(step)), i, j))
                c = scope.keep(scope.add(scope.mul(f, before), scope.mul(gi, g)))
                new = scope.keep(scope.mul(o, scope.tanh(c)))
                kept = [gi, f, g, o]
                stores.append(store(result, c, at.cell_row(at.after(step)), i, j))
            elif op.cell == "gru":
                assert other is not None
                hidden = [
                    scope.keep(scope.add(total(g), other(scope, g * h + j))) for g in range(3)
                ]
                r, u = (
                    scope.keep(scope.sigmoid(scope.keep(scope.add(given(g), hidden[g]))))
                    for g in range(2)
                )
                m = scope.keep(
                    scope.tanh(scope.keep(scope.add(scope.mul(r, hidden[2]), given(2))))
                )
                before = scope.keep(load(result, at.before(step), i, j))
                new = scope.keep(scope.add(scope.mul(u, scope.sub(before, m)), m))
                kept = [r, u, m, hidden[2]]
            else:
                sums = [scope.keep(scope.add(total(0), given(0)))]
                zero = const(0.0, z.dtype)
                new = (
                    scope.tanh(sums[0]) if op.cell == "tanh" else scope.maximum(sums[0], zero)
                )
                new = scope.keep(new)
            stores += [
                store(result, new, at.after(step), i, j),
                store(kernel.state, new, after, tile_of[0], own, j),
            ]
            if op.keeps:
                stores += [
                    store(result, value, at.kept(plane, time), i, j)
                    for plane, value in enumerate(kept)
                ]
            return stores

        return of

    tile_of: list[Expr] = []

    def tile(t: Expr) -> Stmt:
        tile_of[:] = [t]
        first, count, known = kernel.rows_of(t)

        def begin(r: Expr, j: Expr) -> Stmt:
            scope = Scope()
            value = scope.keep(start(scope, first + r, j))
            stores = [
                store(result, value, at.before(0), first + r, j),
                store(kernel.state, value, 0, t, r, j),
            ]
            if op.cell == "lstm":
                assert other is not None
                c = scope.keep(other(scope, first + r, j))
                stores.append(store(result, c, at.cell_row(at.before(0)), first + r, j))
            return scope.body(*stores)

        def step(s: Expr) -> Stmt:
            half, after = s % 2, (s + 1) % 2
            return kernel.cells(t, (first, count), half, z.k, cell(s, after))

        return seq(
            known,
            alloc(kernel.sums),
            kernel.clear(t),
            grid((count, h), begin, "i"),
            serial(kernel.steps, step, "step"),
        )

    pack = _pack_gates(kernel, _reader(code, w, (gates * h, h)))
    return [pack, kernel.stage("recurrence", tile)]


def _backward(code: KernelCode, cpu: CpuTarget, op: RecurrenceBackward) -> list[Stage]:
    values, anchor = code.graph.values, code.anchor
    ct, w, y, *last = anchor.inputs
    steps, n, h = values[ct].shape
    dtype, width = anchor.dtype, anchor.shape[2]
    gates = GATES[op.cell]
    z = _Sizes.of(cpu, dtype.name, dtype.itemsize, (steps, n, h), 1, gates * h)
    kernel = _Kernel(code, z, op.layout)
    at = kernel.at
    result = replace(
        code.buffer(code.kernel.anchor), shape=(kernel.steps + 1, kernel.n, width)
    )
    given = _reader(code, ct, (kernel.steps, kernel.n, h))
    known = _reader(code, y, (at.rows, kernel.n, h))
    of_last = _reader(code, last[0], (kernel.n, h)) if last else None
    end = kernel.steps  # the result's row for what goes on from step to step
    tile_of: list[Expr] = []

    def cell(step: Expr, after: Expr) -> Callable[..., list[Stmt]]:
        time, one = at.time(step), _one(z.dtype)

        def of(scope: Scope, own: Expr, i: Expr, j: Expr, total: Read) -> list[Stmt]:
            def kept(plane: int) -> Expr:
                return scope.keep(known(scope, at.kept(plane, time), i, j))

            def product(*factors: Expr) -> Expr:
                value = factors[0]
                for factor in factors[1:]:
                    value = scope.keep(scope.mul(value, factor))
                return value

            def slope(v: Expr) -> Expr:  # of a logistic function, by its value
                return scope.keep(scope.mul(v, scope.keep(scope.sub(one, v))))

            def slope_of_tanh(v: Expr) -> Expr:
                return scope.keep(scope.sub(one, scope.keep(scope.mul(v, v))))

            dh = scope.keep(scope.add(given(scope, time, i, j), total(0)))
            stores: list[Stmt] = []
            if op.cell == "lstm":
                gi, f, g, o = (kept(p) for p in range(KEPT[op.cell]))
                c = scope.keep(known(scope, at.cell_row(at.after(step)), i, j))
                before = scope.keep(known(scope, at.cell_row(at.before(step)), i, j))
                bounded = scope.keep(scope.tanh(c))
                rest = scope.keep(load(result, end, i, h + j))
                dc = scope.keep(scope.add(product(dh, o, slope_of_tanh(bounded)), rest))
                parts = [
                    product(dc, g, slope(gi)),
                    product(dc, before, slope(f)),
                    product(dc, gi, slope_of_tanh(g)),
                    product(dh, bounded, slope(o)),
                ]
                stores.append(store(result, product(dc, f), end, i, h + j))
            elif op.cell == "gru":
                r, u, m, hm = (kept(p) for p in range(KEPT[op.cell]))
                dh = scope.keep(scope.add(dh, load(result, end, i, j)))
                before = scope.keep(known(scope, at.before(step), i, j))
                dm = product(dh, scope.keep(scope.sub(one, u)), slope_of_tanh(m))
                parts = [
                    product(dm, hm, slope(r)),
                    product(dh, scope.keep(scope.sub(before, m)), slope(u)),
                    product(dm, r),
                    dm,
                ]
                stores.append(store(result, product(dh, u), end, i, j))
            else:
                s = scope.keep(known(scope, at.after(step), i, j))
                zero = const(0.0, z.dtype)
                parts = [
                    product(dh, slope_of_tanh(s))
                    if op.cell == "tanh"
                    else scope.keep(scope.select(s <= zero, zero, dh))
                ]
            for gate, value in enumerate(parts):
                stores.append(store(result, value, time, i, gate * h + j))
                if gate < gates:
                    stores.append(
                        store(kernel.state, value, after, tile_of[0], own, gate * h + j)
                    )
            return stores

        return of

    def finish(scope: Scope, own: Expr, i: Expr, j: Expr, total: Read) -> list[Stmt]:
        value = total(0)
        if op.cell == "gru":
            value = scope.add(value, load(result, end, i, j))
        return [store(result, scope.keep(value), end, i, j)]

    def tile(t: Expr) -> Stmt:
        tile_of[:] = [t]
        first, count, found = kernel.rows_of(t)

        def begin(r: Expr, j: Expr) -> Stmt:
            scope = Scope()
            nothing = const(0.0, z.dtype)
            if of_last is not None:
                return scope.body(store(result, of_last(scope, first + r, j), end, first + r, h + j))
            return store(result, nothing, end, first + r, j)

        def turn(u: Expr) -> Stmt:
            half, after = u % 2, (u + 1) % 2
            terms = tvm().tirx.Select(u > 0, const(z.k), const(0))
            back = cell(kernel.steps - 1 - u, after)
            return kernel.cells(t, (first, count), half, terms, (back, u < kernel.steps, finish))

        # One turn more: behind the last product are the cotangents of h0.
        return seq(
            found,
            alloc(kernel.sums),
            kernel.clear(t),
            grid((count, h), begin, "i"),
            serial(kernel.steps + 1, turn, "turn"),
        )

    pack = _pack_columns(kernel, _reader(code, w, (gates * h, h)))
    return [pack, kernel.stage("recurrence_back", tile)]


def recurrence(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of all steps of a recurrent layer, or of its gradient."""
    if code.kernel.anchor is None:
        return None
    op = code.anchor.op
    if not isinstance(op, (Recurrence, RecurrenceBackward)):
        return None
    if numel(code.anchor.shape) == 0:
        return []
    return _forward(code, cpu, op) if isinstance(op, Recurrence) else _backward(code, cpu, op)
