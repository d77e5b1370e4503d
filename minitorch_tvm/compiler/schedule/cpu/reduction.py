"""Reductions over whole dimensions.

Pattern: Sum, Max, Min, ArgMax, ArgMin of a value that may be computed on the fly.  After merging
dimensions the innermost one is either reduced (rows: partial results in vector lanes, merged as a
tree) or kept (columns: a vector of neighbouring results, reduced dimensions outside).  When there
are too few results to share out, the outermost reduced dimension is cut into parts of a size that
depends on the shape alone, and the parts are merged in order: the result never depends on the
number of threads.

Long sums are sums of sums (:mod:`.accumulate`).  Kernels of more than one reduction are of
:mod:`.rows`, which also makes the loops of rows that need not be cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from ....core import dtype as dt
from ....core.record import record
from ....core.shape import numel
from ....ir.kernel import Rows
from ....ops import reduction as rd
from ...dialect import Scope
from ...loops import (
    NEAR,
    PAGE_BYTES,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    below,
    const,
    grid,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    seq,
    serial,
    store,
)
from ...lower import Collapse, KernelCode, collapse
from ...rowspace import place_of
from ...target import CpuTarget
from .accumulate import FEW, FOLD, Range, Walk, in_folds, told_fold
from .combine import Combine
from .conv_layout import div
from .elementwise import GRAIN, tiled, unravel
from .rows import row_stages

_SPLIT = 4 * GRAIN
"""Elements of one result above which a reduction with few results is cut into parts."""

_MERGED = 4
"""Vectors of results whose parts are merged together."""

_COLUMNS = 8
"""Vectors of neighbouring results that are computed together: registers hold them."""

_SHORT, _FEW = 128, 4096
"""Rows, and elements of all columns, up to which stages are told how many columns there are."""

_FAR, _FAR_APART = 12, 2
"""Second-level caches from which on what is read comes from memory, and from which on rows that are
a page or more apart are no longer foreseen."""

_TILES = 16
"""Tiles that leave no thread idle for long."""

_ROWS = 8
"""Rows of that which are read at a time: of several streams memory gives more."""


@record(frozen=False)
class _Work:
    """A reduction with merged dimensions: extents, and which of them are reduced."""

    code: KernelCode
    source: int
    shapes: Collapse
    combine: Combine
    reduced: tuple[bool, ...]
    lanes: int
    near: int  # bytes of a first-level cache
    far: bool  # what is read comes from memory, or as slowly

    @property
    def extents(self) -> tuple[int, ...]:
        return self.shapes.shape

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(n for n, r in zip(self.extents, self.reduced, strict=True) if not r)

    @property
    def summed(self) -> tuple[int, ...]:
        return tuple(n for n, r in zip(self.extents, self.reduced, strict=True) if r)

    @property
    def wide(self) -> bool:
        """Whether columns are reduced by long pieces of rows, with the results so far in memory.

        As many columns as registers have results for are short pieces of rows, of which memory
        gives half as much.
        """
        columns = self.far and len(self.summed) == 1 and not self.reduced[-1]
        return columns and self.extents[-1] > _COLUMNS * self.lanes

    def rows(self) -> Rows:
        """The reduction as a space of rows."""
        op, values = self.code.anchor.op, self.code.graph.values
        assert isinstance(op, rd.Reduction)
        shape = values[self.source].shape
        rows = Rows(shape, tuple(d for d in op.dims if shape[d] != 1))
        for m in self.code.kernel.members:
            place = place_of(values[m].shape, rows)
            assert place is not None
            rows.places[m] = place
        return rows

    @cached_property
    def sizes(self) -> tuple[Expr, ...]:
        """Extents as stages know them: how many results there are they may be told."""
        every = zip(self.extents, self.reduced, strict=True)
        return tuple(number(n, "size") if self.tells and n > 1 and not r else n for n, r in every)

    @property
    def tells(self) -> bool:
        """Whether they are."""
        return not self.shapes.identity and (self.reduced[-1] or self.short)

    @property
    def short(self) -> bool:
        """Whether columns are so short that sums need not stay in registers."""
        few = numel(self.summed) <= _SHORT and numel(self.extents) <= _FEW
        return not self.reduced[-1] and few

    @property
    def told(self) -> tuple[Expr, ...]:
        """The same of those that are kept."""
        return tuple(n for n, r in zip(self.sizes, self.reduced, strict=True) if not r)

    def index(self, kept: tuple[Expr, ...], summed: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Input index from the two kinds of coordinates."""
        a, b = iter(kept), iter(summed)
        return tuple(next(b) if r else next(a) for r in self.reduced)

    def position(self, summed: tuple[Expr, ...]) -> Expr:
        """Row-major number of the reduced coordinates."""
        flat: Expr = 0
        for n, i in zip(self.summed, summed, strict=True):
            flat = flat * n + i if not isinstance(flat, int) or flat else i
        return flat

    def take(
        self,
        acc: list[Memory],
        at: tuple[Expr, ...],
        kept: tuple[Expr, ...],
        *several: tuple[Expr, ...],
    ) -> Stmt:
        """Fold an element, or some after each other, into the accumulators at ``at``."""
        scope = Scope()
        e = self.code.evaluator(scope, self.shapes)
        held = tuple(scope.keep(load(b, *at)) for b in acc)
        for summed in several:
            value = scope.keep(e.read(self.source, self.index(kept, summed)))
            where = self.position(summed) if self.combine.indexed else None
            held = tuple(map(scope.keep, self.combine.take(held, value, where, scope)))
        return scope.body(*[store(b, v, *at) for b, v in zip(acc, held, strict=True)])

    def finish(self, kept: tuple[Expr, ...], acc: tuple[Expr, ...]) -> Stmt:
        """Store the result at merged coordinates ``kept``."""
        index: list[Expr] = []
        for group, i in zip(self._kept_groups(), kept, strict=True):
            index.extend(unravel(i, tuple(self.shapes.full[d] for d in group)))
        return self.code.finish(self._output_index(index), acc[-1])

    def _kept_groups(self) -> list[tuple[int, ...]]:
        return [g for g, r in zip(self.shapes.groups, self.reduced, strict=True) if not r]

    def _output_index(self, kept: list[Expr]) -> tuple[Expr, ...]:
        op = self.code.anchor.op
        assert isinstance(op, rd.Reduction)
        if not op.keepdim:
            return tuple(kept)
        rest = iter(kept)
        return tuple(0 if d in op.dims else next(rest) for d in range(len(self.shapes.full)))


def _accumulators(w: _Work, size: int) -> list[Memory]:
    return [local_buffer((size,), d, f"acc{i}") for i, d in enumerate(w.combine.dtypes)]


def _reset(w: _Work, acc: list[Memory], size: Expr) -> list[Stmt]:
    def fill(b: Memory, value: Expr) -> Stmt:
        return serial(size, lambda i: store(b, value, i))

    return [fill(b, v) for b, v in zip(acc, w.combine.start(), strict=True)]


def _folds(w: _Work, additions: int) -> bool:
    """True if so many additions to one accumulator are worth a total beside it."""
    return w.combine.kind == "sum" and w.combine.dtype.is_floating_point and additions > 2 * FOLD


def _folded(w: _Work, acc: list[Memory], total: list[Memory], size: Expr, taken: Stmt) -> Stmt:
    """Sum what ``taken`` takes from zero, and add it to the total."""
    (a,), (t,) = acc, total
    fold = serial(size, lambda x: store(t, load(t, x) + load(a, x), x))
    return seq(_reset(w, acc, size), taken, fold)


def _rows(
    w: _Work, kept: tuple[Expr, ...], outer: Range, done: Callable[[tuple[Expr, ...]], Stmt]
) -> Stmt:
    """One result whose innermost reduced dimension is contiguous."""
    walk = Walk([w.combine], w.summed, w.lanes, outer)
    (partial,) = walk.partials

    def body(summed: tuple[Expr, ...], lane: Expr, fresh: Expr | None) -> Stmt:
        scope = Scope()
        value = w.code.evaluator(scope, w.shapes).read(w.source, w.index(kept, summed))
        return scope.body(*partial.take(scope, lane, value, w.position(summed), fresh))

    return seq(walk.statements(body), done((partial.result(),)))


def _columns(
    w: _Work,
    head: tuple[Expr, ...],
    first: Expr,
    several: tuple[Expr, int],
    outer: Range,
    done: Callable[[Expr, tuple[Expr, ...]], Stmt],
) -> Stmt:
    """Several neighbouring results (how many, and the most), ``done`` called for each."""
    width, most = several
    acc = _accumulators(w, most)
    start, length, extent = outer
    terms = numel(w.summed[1:])  # of one result, per entry of the outermost dimension
    additions = extent * terms
    long = _folds(w, additions)
    total = _accumulators(w, most) if long else acc

    def folded(taken: Stmt) -> Stmt:
        return _folded(w, acc, total, width, taken)

    def rows(i: Expr, count: int) -> Stmt:
        def row(*rest: Expr) -> Stmt:
            several = [(start + i + n, *rest) for n in range(count)]
            return serial(width, lambda x: w.take(acc, (x,), (*head, first + x), *several), "x")

        return grid(w.summed[1:], row)

    def some(begin: Expr, count: Expr) -> Stmt:
        if not w.wide:
            return serial(count, lambda i: rows(begin + i, 1))
        whole = div(count, _ROWS)
        rest = begin + whole * _ROWS
        return seq(
            serial(whole, lambda q: rows(begin + q * _ROWS, _ROWS)),
            serial(count - whole * _ROWS, lambda i: rows(rest + i, 1)),
        )

    return seq(
        [alloc(b) for b in (acc + total if long else acc)],
        _reset(w, total, width),
        in_folds(length, told_fold(length, additions, terms), some, folded)
        if long
        else some(const(0), length),
        serial(width, lambda x: done(first + x, tuple(load(b, x) for b in total))),
    )


def reduction(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a reduction over whole dimensions."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, rd.Reduction):
        return None
    op = code.anchor.op
    source = code.anchor.inputs[0]
    x = code.graph.values[source]
    if numel(code.anchor.shape) == 0:
        return []
    if numel(x.shape) == 0 or not op.dims:
        return None
    shapes = collapse(code, x.shape, (source,), op.dims)
    reduced = tuple(group[0] in op.dims for group in shapes.groups)
    # Position numbers of argmax count along its one dimension; merged neighbours of size one
    # do not change them.
    nbytes, pitch = (n * x.dtype.itemsize for n in (numel(x.shape), shapes.shape[-1]))
    w = _Work(
        code,
        source,
        shapes,
        Combine(op.combine, x.dtype),
        reduced,
        cpu.lanes(x.dtype.itemsize),
        near=cpu.l1_bytes,
        far=nbytes >= (_FAR if pitch < PAGE_BYTES else _FAR_APART) * cpu.l2_bytes,
    )
    if w.tells:
        code.tell(code.below(source), shapes, w.sizes)
    results = numel(w.kept)
    terms = numel(w.summed)
    parts = 1
    # Rows are long streams as they are.  Columns are not, and parts of a few dozen terms suffice.
    widest = terms // 4 if reduced[-1] else 4 * terms
    if not w.combine.indexed and results * terms >= 2 * _SPLIT and results <= widest:
        parts = min(w.summed[0], -(-results * terms // _SPLIT), 64)
    if parts <= 1:
        return _direct(w, cpu)
    return _parted(w, results, parts)


def _direct(w: _Work, cpu: CpuTarget) -> list[Stage]:
    if w.reduced[-1]:
        return row_stages(w.code, w.rows(), cpu)
    terms = w.summed[0]
    told = w.reduced[0] and terms >= FEW  # else it is a distance in memory
    return _column_stages(w, (0, number(terms, "terms") if told else terms, terms))


_Block = tuple[int, int, int, bool]


def _blocks(w: _Work, shares: int = 1) -> list[_Block]:
    """(first column, block width, number of blocks, whether the last may lack some).

    Full blocks, then the remainder.  If blocks are tiles, there are ``shares`` of them at least.
    Of short columns stages are told how many there are.
    """
    columns, width = w.kept[-1], _COLUMNS * w.lanes
    if w.short:
        return [(0, width, -(-columns // width), True)]
    if w.wide:
        near = w.near // 2 // sum(dt.by_name(d).itemsize for d in w.combine.dtypes)
        even = -(-numel(w.kept) // (shares * width)) * width
        width = max(width, min(near // width * width, even))
    width = min(columns, width)
    full, rest = divmod(columns, width)
    last = [(full * width, rest, 1, False)] if rest else []
    return [(0, width, full, False), *last]


def _column_stages(w: _Work, whole: Range) -> list[Stage]:
    heads = w.kept[:-1]
    stages = []
    for some in _blocks(w, _TILES):

        def tile(t: Expr, some: _Block = some) -> Stmt:
            return _block(w, t, some, whole, lambda head, j, acc: w.finish((*head, j), acc))

        stages.append(parallel_stage("reduce_columns", numel(heads) * some[2], tile))
    return stages


def _block(
    w: _Work,
    t: Expr,
    some: _Block,
    outer: Range,
    done: Callable[[tuple[Expr, ...], Expr, tuple[Expr, ...]], Stmt],
) -> Stmt:
    """One of some blocks of columns, of one of the places that results lie at."""
    first, width, blocks, lacks = some
    *heads, columns = w.told
    told = lacks or (heads and blocks > 1)
    *head, block = unravel(t, (*heads, number(blocks, "blocks") if told else blocks))
    begin = first + block * width
    count = minimum(width, columns - begin) if lacks else width

    def one(j: Expr, acc: tuple[Expr, ...]) -> Stmt:
        return done(tuple(head), j, acc)

    return _columns(w, tuple(head), begin, (count, width), outer, one)


def _parted(w: _Work, results: int, parts: int) -> list[Stage]:
    """Cut the outermost reduced dimension; each tile reduces one part, a last stage merges."""
    extent = w.summed[0]
    size = -(-extent // parts)
    together = _MERGED * w.lanes
    blocks = -(-results // together)
    pitch = blocks * together
    partial = [
        replace(
            w.code.builder.scratch_buffer((parts, pitch), d, "partial"),
            shape=(parts, number(pitch, "pitch")),
        )
        for d in w.combine.dtypes
    ]
    every = number(results, "results")
    single = len(w.summed) == 1 and w.reduced[-1]  # the cut dimension is the contiguous one
    # Lanes need constant trip counts, so the last part gets a stage of its own.
    full, rest = (extent // size, extent % size) if single else (-(-extent // size), 0)
    far = single and extent > NEAR  # positions do not fit into 32 bits
    kind = "int64" if far else "int32"
    each, whole = (size, extent) if single else (number(size, "each"), number(extent, "whole"))

    def part(p: Expr, start: Expr, length: Expr) -> Stmt:
        def keep(flat: Expr, acc: tuple[Expr, ...]) -> Stmt:
            return seq(*[store(b, v, p, flat) for b, v in zip(partial, acc, strict=True)])

        if w.reduced[-1]:
            return serial(
                every,
                lambda r: _rows(
                    w, unravel(r, w.told), (start, length, size), lambda acc: keep(r, acc)
                ),
                "r",
            )
        *heads, columns = w.told

        def put(head: tuple[Expr, ...], j: Expr, acc: tuple[Expr, ...]) -> Stmt:
            row: Expr = 0
            for n, i in zip(heads, head, strict=True):
                row = row * n + i
            return keep(row * columns + j, acc)

        statements = []
        for some in _blocks(w):

            def block(t: Expr, some: _Block = some) -> Stmt:
                return _block(w, t, some, (start, length, size), put)

            count = numel(w.kept[:-1]) * some[2]
            statements.append(serial(number(count, "count") if heads else count, block))
        return seq(*statements)

    used = full + (1 if rest else 0)
    stages = []
    if full:

        def tile(t: Expr) -> Stmt:
            if single:
                return part(t, (t.astype("int64") if far else t) * size, size)
            start = below(t * each, extent)
            return part(t, start, minimum(each, whole - start))

        stages.append(parallel_stage("reduce_parts", full, tile))
    if rest:
        stages.append(
            parallel_stage(
                "reduce_parts", 1, lambda t: part(t + full, const(full * size, kind), rest)
            )
        )

    def merge(block: Expr) -> Stmt:
        # Neighbours together: of one result after the other, each would fetch the same lines.
        acc, first = _accumulators(w, together), block * together

        def take(p: Expr, x: Expr) -> Stmt:
            scope = Scope()
            value = scope.keep(load(partial[0], p, first + x))
            held = scope.keep(load(acc[0], x))
            (new,) = w.combine.take((held,), value)
            return scope.body(store(acc[0], new, x))

        def finish(x: Expr) -> Stmt:
            return w.finish(unravel(first + x, w.told), tuple(load(b, x) for b in acc))

        count = together if results % together == 0 else minimum(together, every - first)
        return seq(
            [alloc(b) for b in acc],
            _reset(w, acc, together),
            grid((every_part, count), take),
            serial(count, finish),
        )

    every_part = number(used, "parts")
    per_tile = max(1, GRAIN // (used * together))
    stages.append(tiled("reduce_merge", blocks, per_tile, merge))
    return stages
