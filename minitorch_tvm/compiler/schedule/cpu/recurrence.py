"""Recurrent layers: every step of a layer, or of its gradient, in one kernel.

Pattern: Recurrence and RecurrenceBackward.  A step is a product of the state [n, h] and the weight,
and what the cell makes of it; the next one needs the result.  Strategy: a thread owns rows of the
state, that is some sequences of the batch, and takes them through all steps, so that threads never
wait for each other.  Where the weight is more than a core's cache holds, or there is one sequence,
a thread owns panels of the weight instead, and every step is a stage.  Weights are packed once, in
panels of all gates of some states: behind its product, a cell has all that it needs.  Products are
computed in register tiles as others are, put down in a tile of memory and read from there, in
vectors, by the cell.

The number of steps and that of sequences are told.  Rejected: a kernel for each product and each
cell (a barrier takes as long as the product of a small batch, and hundreds of kernels are planned
for every length).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....core.record import record
from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.movement import Permute
from ....ops.recurrent import GATES, KEPT, WIDTH, Recurrence, RecurrenceBackward
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    ask,
    below,
    bind,
    ceil_div,
    const,
    grid,
    load,
    minimum,
    number,
    parallel_stage,
    ramp,
    seq,
    serial,
    store,
    vectorized,
    when,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .conv_layout import transpose_rows
from .gemm_problem import SQUARE
from .recurrence_sizes import Sizes, multiply

Read = Callable[..., Expr]


@record
class _Place:
    """What a thread computes of a step: some rows of the batch, some panels."""

    tile: Expr  # whose memory for states it uses
    start: Expr
    count: Expr
    panels: tuple[Expr, Expr]  # the first and how many


@record(frozen=False)
class _Here:
    """One state of one sequence behind the product of a step, and what is computed there.

    Without ``sums``, to find out what else is read.
    """

    scope: Scope
    dtype: str
    sums: Memory | None
    own: Expr  # the row of the tile
    i: Expr  # of the batch
    j: Expr
    places: Sequence[tuple[Expr, ...]]  # of the sum of each gate

    def sum(self, gate: int = 0) -> Expr:
        """The product's sum for a gate, or what was put in its place."""
        if self.sums is None:
            return const(0.0, self.dtype)
        return self.scope.keep(load(self.sums, *self.places[gate]))

    def hold(self, gate: int, value: Expr) -> Stmt:
        """Put a value in the place of a sum."""
        return seq() if self.sums is None else store(self.sums, value, *self.places[gate])

    def add(self, a: Expr, b: Expr) -> Expr:
        return self.scope.keep(self.scope.add(a, b))

    def sub(self, a: Expr, b: Expr) -> Expr:
        return self.scope.keep(self.scope.sub(a, b))

    def mul(self, *factors: Expr) -> Expr:
        """Their product, from the left."""
        value = factors[0]
        for factor in factors[1:]:
            value = self.scope.keep(self.scope.mul(value, factor))
        return value

    def sigmoid(self, x: Expr) -> Expr:
        return self.scope.keep(self.scope.sigmoid(x))

    def tanh(self, x: Expr) -> Expr:
        return self.scope.keep(self.scope.tanh(x))

    def complement(self, x: Expr) -> Expr:
        """1 - x."""
        return self.sub(const(1.0, self.dtype), x)


Cell = Callable[[_Here], Sequence[Stmt]]
Walk = Callable[[Cell], Stmt]


class _Kernel(ABC):
    """What both directions share: packed weights, products, loops."""

    name: str
    more = 0
    """Turns behind the last step."""

    def __init__(self, code: KernelCode, z: Sizes, op: Recurrence | RecurrenceBackward) -> None:
        self.code, self.z, self.cell = code, z, op.cell
        self.steps, self.n = number(z.steps, "steps"), number(z.n, "batch")
        self.each, self.padded = number(z.rows, "each"), number(z.padded, "padded")
        self.at = op.layout(self.steps)
        assert code.kernel.anchor is not None
        width = code.anchor.shape[2]
        self.result = replace(code.buffer(code.kernel.anchor), shape=(self.rows, self.n, width))
        builder = code.builder
        shape: tuple[int, ...] = (z.panels, z.parts, z.k, z.nv * z.lanes)
        self.packed = builder.scratch_buffer(shape, z.dtype, "weight")
        # What products read, twice: a step makes the next while others still need the last.
        shape = (2, z.tiles, z.padded, z.k)
        self.state = replace(
            builder.scratch_buffer(shape, z.dtype, "state"),
            shape=(2, number(z.tiles, "tiles"), self.padded, z.k),
        )
        shape = (z.tiles, z.panels, z.padded, z.width * z.lanes)
        self.sums = replace(
            builder.scratch_buffer(shape, z.dtype, "sums"),
            shape=(z.tiles, z.panels, self.padded, z.width * z.lanes),
        )
        self.multiply = multiply(z)

    @property
    @abstractmethod
    def rows(self) -> Expr:
        """How many rows the result has."""

    @abstractmethod
    def weight(self, k: Expr, p: Expr, v: Expr, c: Expr, scope: Scope) -> Expr:
        """Term ``k`` of lane ``c`` of a panel's vector, 0 behind the last state."""

    @abstractmethod
    def start(self, place: _Place) -> Stmt:
        """What comes before the first step."""

    @abstractmethod
    def turn(self, place: _Place, turn: Expr) -> Stmt:
        """One step."""

    def reader(self, v: int, *shape: Expr) -> Read:
        """Elements of a value in a scope; in memory, by sizes that may be told."""
        code = self.code
        value = code.graph.values[v]
        if code.is_memory(v):
            memory = replace(code.buffer(v), shape=shape)
            return lambda _, *index: load(memory, *index)
        if isinstance(value.op, Permute) and code.is_memory(value.inputs[0]):
            places = [value.op.dims.index(d) for d in range(len(shape))]
            turned = replace(code.buffer(value.inputs[0]), shape=tuple(shape[p] for p in places))
            return lambda _, *index: load(turned, *(index[p] for p in places))
        return lambda scope, *index: code.evaluator(scope).read(v, index)

    def pack(self, p: Expr, v: Expr) -> Stmt:
        """Fill a panel's vector ``v``, for all terms."""
        z = self.z

        def lane(k: Expr, c: Expr) -> Stmt:
            scope = Scope()
            value = self.weight(k, p, v, c, scope)
            return scope.body(store(self.packed, value, *self.place(p, v, k, c)))

        return grid((z.k, z.lanes), lane, "k")

    def place(self, p: Expr, v: Expr, k: Expr, c: Expr) -> tuple[Expr, ...]:
        """Where a lane of a panel's vector is in the packed weight."""
        z = self.z
        return p, v // z.nv, k, v % z.nv * z.lanes + c

    def stages(self) -> list[Stage]:
        """Pack the weight, then take each thread's rows through all steps."""
        z = self.z

        def pack(t: Expr) -> Stmt:
            return self.pack(t // z.width, t % z.width)

        def start(place: _Place) -> Stmt:
            def clear(half: Expr, r: Expr, k: Expr) -> Stmt:
                return store(self.state, const(0.0, z.dtype), half, place.tile, r, k)

            return seq(grid((2, self.padded, z.k), clear, "z"), self.start(place))

        def rows(t: Expr) -> Stmt:
            first, one = bind("first", below(t * self.each, z.n))
            count, other = bind("count", minimum(self.each, self.n - first))
            place = _Place(t, first, count, (const(0), z.panels))
            turns = serial(self.steps + self.more, lambda turn: self.turn(place, turn), "turn")
            return seq([one, other], start(place), turns)

        packing = parallel_stage("recurrence_pack", z.panels * z.width, pack)
        if not z.by_columns:
            return [packing, parallel_stage(self.name, z.tiles, rows)]
        turns = z.steps + self.more
        turn = number(turns - 1, "turn")
        every = _Place(const(0), const(0), self.n, (const(0), z.panels))
        share = ceil_div(z.panels, z.workers)

        def columns(t: Expr) -> Stmt:
            some = (t * share, minimum(share, z.panels - t * share))
            return self.turn(replace(every, panels=some), turn)

        return [
            packing,
            parallel_stage("recurrence_start", 1, lambda _: start(every)),
            replace(
                parallel_stage(f"{self.name}_step", ceil_div(z.panels, share), columns),
                turn=turn,
                turns=turns,
            ),
        ]

    def _along(self, j0: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body(lane)`` for the states from ``j0`` on that a vector has, if there are any."""
        z = self.z
        spare = z.panels * z.blocks > ceil_div(z.h, z.lanes)  # vectors behind the last state
        rest = z.h % z.lanes
        parts: list[tuple[Expr, Stmt]] = []
        if z.h >= z.lanes:
            # In float64, elementary functions are calls, one for each element.
            loop = vectorized if z.dtype == "float32" and z.lanes > 1 else serial
            parts.append((j0 + z.lanes <= z.h, loop(z.lanes, body, "lane")))
        if rest:
            parts.append((j0 < z.h, serial(rest, body, "lane")))
        *others, (condition, last) = parts
        if spare:
            last = when(condition, last)
        for condition, part in others:
            last = when(condition, part, last)
        return last

    def step(
        self,
        at: _Place,
        half: Expr,
        terms: Expr,
        cells: Sequence[Cell],
        done: Callable[[Stmt, Walk], Stmt] = lambda walks, _: walks,
    ) -> Stmt:
        """Products of ``half`` of the memory for states, and what cells make of them.

        ``done(statements, walk)``: what is behind a product, of the cells' walks over its states;
        ``walk(cell)`` is another.
        """
        z, (p0, panels) = self.z, at.panels

        def product(p: Expr, tall: Expr) -> Stmt:
            first = tall * z.mr
            starts = [
                load(self.state, half, at.tile, first, 0),
                load(self.packed, p0 + p, 0, 0, 0),
                load(self.sums, at.tile, p0 + p, first, 0),
            ]
            return self.multiply.call(*map(tvm().tirx.address_of, starts), terms)

        def here(sums: Memory | None, r: Expr, p: Expr, b: Expr, c: Expr) -> _Here:
            columns = [(b + g * z.blocks) * z.lanes + c for g in range(z.gates)]
            places = [(at.tile, p0 + p, r, column) for column in columns]
            j = ((p0 + p) * z.blocks + b) * z.lanes + c
            return _Here(Scope(), z.dtype, sums, r, at.start + r, j, places)

        def asks(r: Expr, p: Expr, b: Expr) -> list[Stmt]:
            """For what a row's cells will read."""

            def make() -> None:
                for cell in cells:
                    cell(here(None, minimum(r, at.count - 1), p, b, const(0)))

            return ask(make, nearest=False)

        def walk(cell: Cell) -> Stmt:
            def vector(r: Expr, p: Expr, b: Expr) -> Stmt:
                def lane(c: Expr) -> Stmt:
                    state = here(self.sums, r, p, b, c)
                    return state.scope.body(*cell(state))

                ahead = asks(r + 1, p, b) if cell is cells[0] else []
                return seq(ahead, self._along(((p0 + p) * z.blocks + b) * z.lanes, lane))

            return grid((at.count, panels, z.blocks), vector, "r")

        return seq(
            grid((panels, z.blocks), lambda p, b: seq(asks(const(0), p, b)), "a"),
            grid((panels, number(z.padded // z.mr, "tall")), product, "p"),
            done(seq(*map(walk, cells)), walk),
        )


class _Forward(_Kernel):
    """States of all steps."""

    name = "recurrence"

    def __init__(self, code: KernelCode, cpu: CpuTarget, op: Recurrence) -> None:
        x, w, h0, *other = code.anchor.inputs
        steps, n, _ = code.graph.values[x].shape
        h, gates = code.anchor.shape[2], GATES[op.cell]
        self.keeps = op.keeps
        super().__init__(code, Sizes.of(cpu, code.anchor.dtype, (steps, n, h), gates, h), op)
        self.inputs = self.reader(x, self.steps, self.n, gates * h)
        self.w = self.reader(w, gates * h, h)
        # Of full panels in memory: lines are turned in registers, not gathered.
        full = self.z.panels * self.z.blocks * self.z.lanes == h
        self.squares = full and self.z.lanes % SQUARE == 0 and code.is_memory(w)
        self.h0 = self.reader(h0, self.n, h)
        if op.cell == "lstm":
            self.c0 = self.reader(other[0], self.n, h)
        if op.cell == "gru":
            self.offset = self.reader(other[0], gates * h)

    @property
    def rows(self) -> Expr:
        return self.at.rows

    def weight(self, k: Expr, p: Expr, v: Expr, c: Expr, scope: Scope) -> Expr:
        z = self.z
        j = (p * z.blocks + v % z.blocks) * z.lanes + c
        inside = self.w(scope, v // z.blocks * z.h + minimum(j, z.h - 1), k)
        return tvm().tirx.Select(j < z.h, inside, const(0.0, z.dtype))

    def pack(self, p: Expr, v: Expr) -> Stmt:
        z = self.z
        if not self.squares:
            return super().pack(p, v)
        first = v // z.blocks * z.h + (p * z.blocks + v % z.blocks) * z.lanes

        def square(j: Expr, k: Expr) -> Stmt:
            def fill(block: Memory, r: Expr) -> Stmt:
                line = self.w(Scope(), first + j * SQUARE + r, ramp(k * SQUARE, SQUARE))
                return store(block, line, r, ramp(0, SQUARE))

            def put(c: Expr, line: Expr) -> Stmt:
                *where, column = self.place(p, v, k * SQUARE + c, j * SQUARE)
                return store(self.packed, line, *where, ramp(column, SQUARE))

            return transpose_rows(SQUARE, z.dtype, fill, put)

        across = z.lanes // SQUARE
        # One loop: LLVM would copy the body of a short inner one as often as that runs.
        return serial(across * (z.k // SQUARE), lambda n: square(n % across, n // across), "n")

    def start(self, place: _Place) -> Stmt:
        def one(r: Expr, j: Expr) -> Stmt:
            scope, i = Scope(), place.start + r
            value = scope.keep(self.h0(scope, i, j))
            stores = [
                store(self.result, value, self.at.before(0), i, j),
                store(self.state, value, 0, place.tile, r, j),
            ]
            if self.cell == "lstm":
                c = scope.keep(self.c0(scope, i, j))
                stores.append(store(self.result, c, self.at.cell_row(self.at.before(0)), i, j))
            return scope.body(*stores)

        return grid((place.count, self.z.h), one, "i")

    def turn(self, place: _Place, turn: Expr) -> Stmt:
        at, result, h = self.at, self.result, self.z.h
        time, before, after = at.time(turn), at.before(turn), at.after(turn)

        def given(here: _Here, gate: int) -> Expr:
            return here.scope.keep(self.inputs(here.scope, time, here.i, gate * h + here.j))

        def put(here: _Here, value: Expr) -> list[Stmt]:
            return [
                store(result, value, after, here.i, here.j),
                store(self.state, value, (turn + 1) % 2, place.tile, here.own, here.j),
            ]

        def keep(here: _Here, values: dict[int, Expr]) -> list[Stmt]:
            kept = [(at.kept(plane, time), value) for plane, value in values.items()]
            return [store(result, v, row, here.i, here.j) for row, v in kept if self.keeps]

        def lstm_gates(here: _Here) -> list[Stmt]:
            sums = [here.add(here.sum(g), given(here, g)) for g in range(4)]
            i, f, o = (here.sigmoid(sums[g]) for g in (0, 1, 3))
            g = here.tanh(sums[2])
            c = here.scope.keep(load(result, at.cell_row(before), here.i, here.j))
            new = here.add(here.scope.mul(f, c), here.scope.mul(i, g))
            cell = store(result, new, at.cell_row(after), here.i, here.j)
            kept = keep(here, {0: i, 1: f, 2: g, 3: o})
            return [cell, *kept, here.hold(0, new), here.hold(1, o)]

        def lstm_state(here: _Here) -> list[Stmt]:
            return put(here, here.mul(here.sum(1), here.tanh(here.sum(0))))

        def gru_gates(here: _Here) -> list[Stmt]:
            hidden = [
                here.add(here.sum(g), self.offset(here.scope, g * h + here.j)) for g in range(3)
            ]
            r, u = (here.sigmoid(here.add(given(here, g), hidden[g])) for g in range(2))
            new = here.add(here.scope.mul(r, hidden[2]), given(here, 2))
            kept = keep(here, {0: r, 1: u, 3: hidden[2]})
            return [*kept, here.hold(0, new), here.hold(1, u)]

        def gru_state(here: _Here) -> list[Stmt]:
            n = here.tanh(here.sum(0))
            h = here.scope.keep(load(result, before, here.i, here.j))
            new = here.add(here.scope.mul(here.sum(1), here.sub(h, n)), n)
            return [*keep(here, {2: n}), *put(here, new)]

        def plain(here: _Here) -> list[Stmt]:
            total = here.add(here.sum(), given(here, 0))
            if self.cell == "tanh":
                return put(here, here.tanh(total))
            zero = const(0.0, self.z.dtype)
            return put(here, here.scope.keep(here.scope.maximum(total, zero)))

        # In two walks where elementary functions follow each other: a core looks ahead far enough
        # to compute several of one, but not of both.
        cells: dict[str, list[Cell]] = {
            "lstm": [lstm_gates, lstm_state],
            "gru": [gru_gates, gru_state],
        }
        walks = cells.get(self.cell, [plain])
        terms = const(self.z.k)
        return self.step(place, turn % 2, terms, walks)


class _Backward(_Kernel):
    """Cotangents of all steps, from the last to the first.

    A product here is that of a later step's, so there is one more, for those of h0.
    """

    name, more = "recurrence_back", 1

    def __init__(self, code: KernelCode, cpu: CpuTarget, op: RecurrenceBackward) -> None:
        ct, w, y, *last = code.anchor.inputs
        steps, n, h = code.graph.values[ct].shape
        self.gates = GATES[op.cell]
        sizes = Sizes.of(cpu, code.anchor.dtype, (steps, n, h), 1, self.gates * h)
        super().__init__(code, sizes, op)
        self.ct = self.reader(ct, self.steps, self.n, h)
        self.w = self.reader(w, self.gates * h, h)
        self.known = self.reader(y, self.at.rows, self.n, h)
        self.last = self.reader(last[0], self.n, h) if last else None

    @property
    def rows(self) -> Expr:
        return self.steps + 1

    def weight(self, k: Expr, p: Expr, v: Expr, c: Expr, scope: Scope) -> Expr:
        z = self.z
        j = (p * z.width + v) * z.lanes + c
        inside = self.w(scope, k, minimum(j, z.h - 1))
        return tvm().tirx.Select(j < z.h, inside, const(0.0, z.dtype))

    def start(self, place: _Place) -> Stmt:
        # In the last row of the result goes on from step to step what adds to cotangents of c, or
        # of h beside the product.
        def one(r: Expr, j: Expr) -> Stmt:
            scope, i, h = Scope(), place.start + r, self.z.h
            parts = [const(0.0, self.z.dtype)] * WIDTH[self.cell]
            if self.last is not None:
                parts[1] = scope.keep(self.last(scope, i, j))
            stores = [
                store(self.result, value, self.steps, i, part * h + j)
                for part, value in enumerate(parts)
            ]
            return scope.body(*stores)

        return grid((place.count, self.z.h), one, "i")

    def turn(self, place: _Place, turn: Expr) -> Stmt:
        at, result, h, end = self.at, self.result, self.z.h, self.steps
        step = self.steps - 1 - turn
        time, before, after = at.time(step), at.before(step), at.after(step)

        def known(here: _Here, row: Expr) -> Expr:
            return here.scope.keep(self.known(here.scope, row, here.i, here.j))

        def kept(here: _Here) -> list[Expr]:
            return [known(here, at.kept(plane, time)) for plane in range(KEPT[self.cell])]

        def of_sigmoid(here: _Here, y: Expr) -> Expr:
            return here.mul(y, here.complement(y))

        def of_tanh(here: _Here, y: Expr) -> Expr:
            return here.complement(here.mul(y, y))

        def of_state(here: _Here) -> Expr:
            return here.add(here.sum(), self.ct(here.scope, time, here.i, here.j))

        def put(here: _Here, parts: Sequence[Expr]) -> list[Stmt]:
            stores = []
            for gate, value in enumerate(parts):
                column = gate * h + here.j
                stores.append(store(result, value, time, here.i, column))
                if gate < self.gates:
                    half = (turn + 1) % 2
                    stores.append(store(self.state, value, half, place.tile, here.own, column))
            return stores

        def lstm(here: _Here) -> list[Stmt]:
            dh, (i, f, g, o) = of_state(here), kept(here)
            bounded = here.tanh(known(here, at.cell_row(after)))
            rest = here.scope.keep(load(result, end, here.i, h + here.j))
            dc = here.add(here.mul(dh, o, of_tanh(here, bounded)), rest)
            parts = [
                here.mul(dc, g, of_sigmoid(here, i)),
                here.mul(dc, known(here, at.cell_row(before)), of_sigmoid(here, f)),
                here.mul(dc, i, of_tanh(here, g)),
                here.mul(dh, bounded, of_sigmoid(here, o)),
            ]
            on = store(result, here.mul(dc, f), end, here.i, h + here.j)
            return [on, *put(here, parts)]

        def gru(here: _Here) -> list[Stmt]:
            beside = here.scope.keep(load(result, end, here.i, here.j))
            dh, (r, u, n, hn) = here.add(of_state(here), beside), kept(here)
            dn = here.mul(dh, here.complement(u), of_tanh(here, n))
            change = here.sub(known(here, before), n)
            parts = [
                here.mul(dn, hn, of_sigmoid(here, r)),
                here.mul(dh, change, of_sigmoid(here, u)),
                here.mul(dn, r),
                dn,
            ]
            on = store(result, here.mul(dh, u), end, here.i, here.j)
            return [on, *put(here, parts)]

        def plain(here: _Here) -> list[Stmt]:
            dh, y = of_state(here), known(here, after)
            if self.cell == "tanh":
                return put(here, [here.mul(dh, of_tanh(here, y))])
            zero = const(0.0, self.z.dtype)
            return put(here, [here.scope.keep(here.scope.select(y <= zero, zero, dh))])

        def finish(here: _Here) -> list[Stmt]:
            value = here.sum()
            if self.cell == "gru":
                value = here.add(value, load(result, end, here.i, here.j))
            return [store(result, value, end, here.i, here.j)]

        def done(walks: Stmt, walk: Walk) -> Stmt:
            return when(turn < self.steps, walks, walk(finish))

        cells: dict[str, Cell] = {"lstm": lstm, "gru": gru}
        terms = tvm().tirx.Select(turn > 0, const(self.z.k), const(0))
        return self.step(place, turn % 2, terms, [cells.get(self.cell, plain)], done)


def recurrence(code: KernelCode, cpu: CpuTarget) -> list[Stage]:
    """Stages of all steps of a recurrent layer, or of its gradient."""
    op = code.anchor.op
    assert isinstance(op, (Recurrence, RecurrenceBackward))
    if numel(code.anchor.shape) == 0:
        return []
    kernel = _Forward(code, cpu, op) if isinstance(op, Recurrence) else _Backward(code, cpu, op)
    return kernel.stages()
