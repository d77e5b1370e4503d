"""Kernels that work row by row: reductions of rows and whatever elements are computed with them.

Pattern: members are values over all elements of a space, or one per row, and reductions along rows
(softmax, losses, norms, plain sums of rows).  Strategy: a tile is a set of rows.  A row is walked
as often as reductions depend on each other (softmax: maximum; exponentials and their sum;
quotient); what a later walk needs again is kept in local memory, unless it is stored anyway.

Long rows are walked along, neighbouring elements in vector lanes.  Rows shorter than a vector are
walked side by side, a row to a lane; they are read and written as squares that are transposed in
registers, once, because vectors across rows are gathered element by element.  Either way the last
vector overlaps the one before, so no element is left over: elements are computed twice, but enter a
sum once.

Partial sums are merged as a tree within a row.  Nothing depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from ....core.record import record
from ....core.shape import numel
from ....ir.graph import Value
from ....ir.kernel import Place, Rows
from ....ops import movement as mv
from ....ops import reduction as rd
from ...dialect import Scope
from ...loops import (
    LINE_BYTES,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    const,
    load,
    local_buffer,
    minimum,
    number,
    prefetch,
    quotient,
    ramp,
    seq,
    serial,
    store,
    vectorized,
)
from ...lower import KernelCode, Reader
from ...rowspace import sources, whole
from ...streams import LARGER, Around, far_results
from ...target import CpuTarget
from .accumulate import Walk
from .combine import Combine
from .conv_layout import transpose_rows
from .elementwise import GRAIN, tiled, unravel

_SQUARE, _LEAST_SQUARE = 8, 4
"""Largest and smallest edge of squares that are transposed: larger ones compile slowly."""
_WORTH = 4096
"""Elements for which compiling that pays."""
_LONG = 2048
"""Bytes of a row from which on memory is asked for ahead."""
_ITEM_BYTES = 4
"""Bytes of the elements that are worth transposing: of longer ones, vectors hold too few."""


@record(frozen=False)
class _Plan:
    """What is computed when."""

    code: KernelCode
    space: Rows
    level: dict[int, int] = field(default_factory=dict)  # walks that must be over before a value

    def __post_init__(self) -> None:
        values, kernel = self.code.graph.values, self.code.kernel
        for v in sorted({*kernel.inlined, *kernel.members}):
            after = [self.level.get(x, 0) for x in values[v].inputs]
            self.level[v] = max(after, default=0) + (1 if self.reduces(v) else 0)

    def reduces(self, v: int) -> bool:
        return isinstance(self.code.graph.values[v].op, rd.Reduction)

    def spread(self, v: int) -> bool:
        """True for a member with an element per element of the space."""
        return self.space.spread(self.space.places[v])

    @property
    def members(self) -> tuple[int, ...]:
        return self.code.kernel.members

    @property
    def computes(self) -> bool:
        """True if anything but reductions is computed for each element."""
        plain = {self.code.graph.values[m].inputs[0] for m in self.members if self.reduces(m)}
        return any(map(self.spread, self.members)) or not plain <= set(self.code.kernel.reads)

    @property
    def walks(self) -> range:
        return range(max(self.level[m] for m in self.members) + 1)

    def elements(self, level: int) -> list[int]:
        """Members computed for each element during a walk."""
        return [m for m in self.members if self.spread(m) and self.level[m] == level]

    def reductions(self, level: int) -> list[int]:
        """Reductions that a walk completes."""
        return [m for m in self.members if self.reduces(m) and self.level[m] == level + 1]

    def at(self, level: int) -> list[int]:
        """Values that a walk, or what comes before it, may compute, but for reductions."""
        return [v for v, own in self.level.items() if own == level and not self.reduces(v)]

    def singles(self, level: int) -> list[int]:
        """Members computed once per row before a walk."""
        return [
            m
            for m in self.members
            if not self.spread(m) and not self.reduces(m) and self.level[m] == level
        ]

    def kept(self) -> list[int]:
        """Members over all elements that walks after their own read."""
        last: dict[int, int] = {}  # by value: the last walk that computes it
        for v in sorted(self.level, reverse=True):
            at = self.level[v] - (1 if self.reduces(v) else 0)
            if v not in self.space.places:
                at = last.get(v, at)
            for x in self.code.graph.values[v].inputs:
                last[x] = max(last.get(x, 0), at)
        return [m for m in self.members if self.spread(m) and last.get(m, 0) > self.level[m]]


def _merged(code: KernelCode, space: Rows) -> list[tuple[int, ...]]:
    """The space's dimensions in groups that every value covers contiguously or not at all."""
    dims = [d for d, n in enumerate(space.shape) if n != 1]
    apart: list[tuple[int, ...]] = [(d,) for d in dims]
    found: set[Place] = set()
    values = code.graph.values
    stack: list[tuple[int, Place]] = [(m, space.places[m]) for m in code.kernel.members]
    seen = set(stack)
    while stack:
        v, place = stack.pop()
        found.add(tuple(p for p in place if p >= 0))
        if code.is_memory(v) or not values[v].inputs:
            if not code.is_memory(v) and not isinstance(values[v].op, mv.Full):
                return apart
            continue
        if isinstance(values[v].op, mv.Permute):
            return apart
        for x, at in zip(values[v].inputs, sources(code.graph, v, place, space), strict=True):
            if at is None:
                return apart
            if (x, at) not in seen:
                seen.add((x, at))
                stack.append((x, at))
    groups: list[tuple[int, ...]] = []
    for d in dims:
        previous = groups[-1][-1] if groups else -1
        joins = bool(groups) and (d in space.reduced) == (previous in space.reduced)
        if joins and all(_adjacent(p, previous, d) for p in found):
            groups[-1] = (*groups[-1], d)
        else:
            groups.append((d,))
    return groups


def _adjacent(place: Place, a: int, b: int) -> bool:
    if a not in place and b not in place:
        return True
    return a in place and b in place and place.index(b) == place.index(a) + 1


def _memory_places(code: KernelCode, space: Rows) -> dict[int, set[Place | None]]:
    """Where in the space the kernel reads each value in memory (None: elsewhere)."""
    found: dict[int, set[Place | None]] = {}
    stack: list[tuple[int, Place | None]] = [(m, space.places[m]) for m in code.kernel.members]
    seen = set(stack)
    while stack:
        v, place = stack.pop()
        if code.is_memory(v):
            found.setdefault(v, set()).add(place)
            continue
        inputs = code.graph.values[v].inputs
        places = sources(code.graph, v, place, space) if place is not None else [None] * len(inputs)
        new = [read for read in zip(inputs, places, strict=True) if read not in seen]
        seen.update(new)
        stack += new
    return found


class _Block:
    """Code for one row, or for several side by side."""

    def __init__(self, plan: _Plan, cpu: CpuTarget) -> None:
        self.plan = plan
        self.code = plan.code
        self.space = plan.space
        groups = _merged(plan.code, plan.space)
        shape = plan.space.shape
        self.row_dims = [g for g in groups if g[0] not in plan.space.reduced]
        self.inner_dims = [g for g in groups if g[0] in plan.space.reduced]
        self.row_shape = tuple(numel(tuple(shape[d] for d in g)) for g in self.row_dims)
        extents = tuple(numel(tuple(shape[d] for d in g)) for g in self.inner_dims)
        self.extents = extents or (1,)
        sizes = [plan.code.graph.values[m].dtype.itemsize for m in plan.members]
        self.lanes = cpu.lanes(max(sizes))
        # A row to a lane, if a row does not fill a vector and there is more to it than loads, which
        # are slow across rows.  Blocks overlap, so rows must bear being computed twice.
        short = self.extents[-1] < self.lanes and plan.computes
        short = short and not plan.code.overwrites
        self.rows = min(self.lanes, self.space.count) if short else 1
        self.side = self.rows if self.rows > 1 else 0
        values, stores = plan.code.graph.values, plan.code.kernel.stores
        lanes = (self.side,) if self.side else ()
        self.cells = {
            m: local_buffer((self.rows,), values[m].dtype.name, f"row{m}")
            for m in plan.members
            if not plan.spread(m)
        }
        # What is stored anyway can be read back, but not in the order of lanes.
        self.local = {
            m: local_buffer((*self.extents, *lanes), values[m].dtype.name, f"kept{m}")
            for m in plan.kept()
            if self.side or m not in stores
        }
        self.square = self._square()
        self.read, self.written = self._turned() if self.square else ({}, [])
        # Results that the last walk writes around the caches.
        self.far: Around | None = None
        last = plan.walks[-1]
        if not plan.reductions(last) and len(self.extents) == 1 and not self.side:
            self.far = far_results(plan.code, plan.at(last), cpu)

    def _square(self) -> int:
        """Edge of the squares that cover a block of short rows, 0 if there is none."""
        if not self.side or len(self.extents) > 1:
            return 0
        if self.space.count * self.extents[0] < _WORTH:
            return 0
        edge = 1 << (min(self.extents[0], _SQUARE).bit_length() - 1)
        return edge if edge >= _LEAST_SQUARE and self.side % edge == 0 else 0

    def _turned(self) -> tuple[dict[int, Memory], list[int]]:
        """What is transposed: copies ``[element, row]`` of values in memory, and stored members."""
        everywhere, values = whole(self.space.shape), self.code.graph.values
        # Rows must be the last dimension of memory.
        if not everywhere or everywhere[-1] not in self.space.reduced:
            return {}, []

        def fits(v: int) -> bool:
            return values[v].shape == self.space.shape and values[v].dtype.itemsize == _ITEM_BYTES

        shape = (*self.extents, self.side)
        read = {
            v: local_buffer(shape, values[v].dtype.name, f"turned{v}")
            for v, places in _memory_places(self.code, self.space).items()
            if places == {everywhere} and fits(v)
        }
        written = [
            m for m in self.plan.members if m in self.code.kernel.stores and self.plan.spread(m)
        ]
        written = [m for m in written if self.space.places[m] == everywhere and fits(m)]
        for m in written:
            if m not in self.local:
                self.local[m] = local_buffer(shape, values[m].dtype.name, f"kept{m}")
        return read, written

    def index(self, place: Place, row: Expr, inner: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Index of a value at ``place``; merged dimensions count in their last one."""
        at: dict[int, Expr] = dict.fromkeys(range(len(self.space.shape)), 0)
        at.update(zip((g[-1] for g in self.row_dims), unravel(row, self.row_shape), strict=True))
        at.update(zip((g[-1] for g in self.inner_dims), inner, strict=False))
        return tuple(at[p] if p >= 0 else 0 for p in place)

    def statements(self, first: Expr) -> Stmt:
        """Everything for the rows from ``first`` on."""
        plan = self.plan
        buffers = (*self.cells.values(), *self.local.values(), *self.read.values())
        out: list[Stmt] = [*map(alloc, buffers), *(self._fetch(v, first) for v in self.read)]
        for level in plan.walks:
            if plan.singles(level):
                out.append(self._singles(level, first))
            if plan.elements(level) or plan.reductions(level):
                out.append(self._walk(level, first))
        return seq(out, [self._put(m, first) for m in self.written])

    def _squares(self, first: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``body(element, row)`` for the first ones of every square; the last squares overlap."""
        edge, last = self.square, self.extents[0] - self.square
        across, down = -(-self.extents[0] // edge), self.side // edge

        def square(n: Expr) -> Stmt:
            return body(minimum(n // down * edge, last), n % down * edge)

        # As many, which LLVM does not know: it would write out each, and compile all of them.
        return serial(minimum(across * down, first + across * down), square)

    def _fetch(self, v: int, first: Expr) -> Stmt:
        """Copy a block of a value in memory, transposed."""
        place, memory, edge = whole(self.space.shape), self.code.buffer(v), self.square

        def square(element: Expr, row: Expr) -> Stmt:
            def fill(block: Memory, r: Expr) -> Stmt:
                at = self.index(place, first + row + r, (ramp(element, edge),))
                return store(block, load(memory, *at), r, ramp(0, edge))

            def put(k: Expr, line: Expr) -> Stmt:
                return store(self.read[v], line, element + k, ramp(row, edge))

            return transpose_rows(edge, memory.dtype, fill, put)

        return self._squares(first, square)

    def _put(self, m: int, first: Expr) -> Stmt:
        """Store a block of a member that is kept transposed."""
        place, memory, edge = whole(self.space.shape), self.code.buffer(m), self.square

        def square(element: Expr, row: Expr) -> Stmt:
            def fill(block: Memory, r: Expr) -> Stmt:
                line = load(self.local[m], element + r, ramp(row, edge))
                return store(block, line, r, ramp(0, edge))

            def put(k: Expr, line: Expr) -> Stmt:
                at = self.index(place, first + row + k, (ramp(element, edge),))
                return store(memory, line, *at)

            return transpose_rows(edge, memory.dtype, fill, put)

        return self._squares(first, square)

    def _reader(
        self, scope: Scope, level: int, row: Expr, lane: Expr, inner: tuple[Expr, ...]
    ) -> Reader:
        """Reads at one element of a walk, or (no ``inner``) at a row before it."""
        plan = self.plan
        held: dict[int, Expr] = {}
        for m in plan.members:
            before = plan.level[m] < level
            if not plan.spread(m):
                if before or (plan.level[m] == level and (inner or plan.reduces(m))):
                    held[m] = load(self.cells[m], lane)
            elif before and inner and m in self.local:
                held[m] = load(self.local[m], *inner, *((lane,) if self.side else ()))
            elif before and inner:
                held[m] = load(self.code.buffer(m), *self.index(plan.space.places[m], row, inner))
        if inner:
            held |= {v: load(memory, *inner, lane) for v, memory in self.read.items()}
        return Reader(self.code, scope, held)

    def _set(self, m: int, element: Expr, row: Expr, lane: Expr, inner: Expr) -> list[Stmt]:
        """Store an element of member ``m`` wherever it is wanted."""
        out = []
        if m in self.cells:
            out.append(store(self.cells[m], element, lane))
        if m in self.local:
            out.append(store(self.local[m], element, *inner, *((lane,) if self.side else ())))
        if m in self.code.kernel.stores and m not in self.written:
            index = self.index(self.plan.space.places[m], row, inner)
            out.append(store(self.code.buffer(m), element, *index))
        return out

    def _per_row(self, first: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """``body(row, lane)`` for every row of the block."""
        if not self.side:
            return body(first, 0)
        return vectorized(self.side, lambda x: body(first + x, x), wide=True)

    def _singles(self, level: int, first: Expr) -> Stmt:
        def one(row: Expr, lane: Expr) -> Stmt:
            scope = Scope()
            reader = self._reader(scope, level, row, lane, ())
            writes = []
            for m in self.plan.singles(level):
                element = reader.read(m, self.index(self.plan.space.places[m], row, ()))
                writes += self._set(m, element, row, lane, ())
            return scope.body(*writes)

        return self._per_row(first, one)

    def _walk(self, level: int, first: Expr) -> Stmt:
        plan, values = self.plan, self.code.graph.values
        found = plan.reductions(level)
        read = [values[m].inputs[0] for m in found]
        kinds = [_combine(values[m], values[x]) for m, x in zip(found, read, strict=True)]
        walk = Walk(
            kinds,
            self.extents,
            self.lanes,
            side=self.side,
            beside=self._ahead(level, first),
            far=self.far if level == plan.walks[-1] else None,
            seen=self._seen(first),
            hide=self._hide(level, first),
        )
        everywhere = whole(self.space.shape)

        def body(inner: tuple[Expr, ...], lane: Expr, fresh: Expr | None) -> Stmt:
            scope = Scope()
            row, cell = (first + lane, lane) if self.side else (first, 0)
            reader = self._reader(scope, level, row, cell, inner)
            writes = []
            for m in plan.elements(level):
                element = reader.read(m, self.index(plan.space.places[m], row, inner))
                writes += self._set(m, element, row, cell, inner)
            for x, partial in zip(read, walk.partials, strict=True):
                value = scope.keep(reader.read(x, self.index(everywhere, row, inner)))
                writes += partial.take(scope, lane, value, self._position(inner), fresh)
            return scope.body(*writes)

        def finish(row: Expr, lane: Expr) -> Stmt:
            pairs = zip(found, walk.partials, strict=True)
            return seq([s for m, p in pairs for s in self._set(m, p.result(lane), row, lane, ())])

        done = [self._per_row(first, finish)] if found else []
        return seq(walk.statements(body), *done)

    def _seen(self, row: Expr) -> Expr | None:
        """How many elements of a row take part in anything, if that depends on the row."""
        if not self.space.hidden or self.side or len(self.extents) > 1:
            return None
        height = self.space.shape[-2]
        return row - quotient(row, height) * height + 1

    def _hide(self, level: int, row: Expr) -> Callable[[Expr], Stmt] | None:
        """Stores what a walk is known to give for an element that takes part in nothing."""
        walked = set(self.plan.elements(level))
        hidden = [(m, value) for m, value in self.space.hidden if m in walked]
        if not hidden:
            return None

        def hide(element: Expr) -> Stmt:
            out = []
            for m, value in hidden:
                memory = self.code.buffer(m)
                at = self.index(self.space.places[m], row, (element,))
                out.append(store(memory, const(value, memory.dtype), *at))
            return seq(out)

        return hide

    def _ahead(self, level: int, first: Expr) -> Callable[[Expr, int], list[Stmt]] | None:
        """What a walk over a long row asks for: what the last one writes, then the next row.

        Memory would have nothing to do but for the first walk and the last, and the hardware
        foresees neither the beginning of the next row nor where results go.
        """
        last, values = self.plan.walks[-1], self.code.graph.values
        if last == 0 or len(self.extents) > 1 or self.side:
            return None
        everywhere, stores = whole(self.space.shape), self.code.kernel.stores
        row, write, asks = first, level == last - 1, []
        if write and not self.code.overwrites and self.far is None:
            written = (m for m in self.plan.elements(last) if m in stores)
            asks = [m for m in written if self.space.places[m] == everywhere]
        elif level == last:
            row, places = first + 1, _memory_places(self.code, self.space).items()
            asks = [v for v, found in places if found == {everywhere}]
        asks = [v for v in asks if self.extents[0] * values[v].dtype.itemsize >= _LONG]

        def lines(element: Expr, count: int) -> list[Stmt]:
            found = []
            for v in asks:
                memory, step = self.code.buffer(v), LINE_BYTES // values[v].dtype.itemsize
                for at in range(0, count, step):
                    index = self.index(everywhere, row, (element + at,))
                    found.append(prefetch(load(memory, *index), write=write))
            return found

        return lines if asks else None

    def _position(self, inner: tuple[Expr, ...]) -> Expr:
        """Row-major number of an element in its row."""
        flat: Expr = inner[0]
        for n, i in zip(self.extents[1:], inner[1:], strict=True):
            flat = flat * n + i
        return flat


def _combine(reduction: Value, x: Value) -> Combine:
    assert isinstance(reduction.op, rd.Reduction)
    return Combine(reduction.op.combine, x.dtype)


def rows(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a kernel that works row by row."""
    if code.kernel.rows is None:
        return None
    return row_stages(code, code.kernel.rows, cpu)


def row_stages(code: KernelCode, space: Rows, cpu: CpuTarget) -> list[Stage]:
    """One stage: blocks of rows, several to a tile."""
    block = _Block(_Plan(code, space), cpu)
    grain = GRAIN * (1 if block.far is None else LARGER)
    per_tile = max(1, grain // (space.length * block.rows))
    if not block.side:
        return [tiled("rows", space.count, per_tile, block.statements)]
    count = -(-space.count // block.rows)
    # The last block overlaps the one before: whatever both compute is the same.
    last = number(space.count - block.rows, "last")

    def statements(i: Expr) -> Stmt:
        return block.statements(minimum(i * block.rows, last))

    return [tiled("rows", count, per_tile, statements)]
