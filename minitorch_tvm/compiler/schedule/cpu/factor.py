"""Triangular factors of matrices, and systems of equations with them.

Patterns: Cholesky, TriangularSolve, LU.  Strategy: rows are taken in panels.  From a panel's rows
all that earlier panels give is subtracted at once, in register tiles; then row after row, what
earlier rows of the panel give.  So every sum is along rows, in memory that is read in vectors.
Cholesky works on u of u.T u, a row of which is a column of l.  With pivots a panel is some columns,
in which rows are found and exchanged first; what it gives is subtracted from all that is behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.factors import Cholesky, TriangularSolve
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    bind,
    ceil_div,
    const,
    load,
    local_buffer,
    minimum,
    seq,
    serial,
    store,
    when,
)
from ...lower import KernelCode, accessor
from ...target import CpuTarget
from .matrices import PANEL, Factor, Range, Work, batch_of, by_matrix, copied, reader, zero

_COLUMNS = 128
"""Columns of a system's right side that are worked on together."""


def factor(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of such a kernel."""
    if numel(code.anchor.shape) == 0:
        return []
    op = code.anchor.op
    if isinstance(op, Cholesky):
        return [_cholesky(code, cpu, op.upper)]
    if isinstance(op, TriangularSolve):
        return [_triangular(code, cpu, op)]
    return [_lu(code, cpu)]


def _panels(n: int, body: Callable[[Expr, Expr], Stmt], *, last_first: bool = False) -> Stmt:
    """``body(first, count)`` for panels of n rows."""

    def panel(p: Expr) -> Stmt:
        first, known = bind("first", (ceil_div(n, PANEL) - 1 - p if last_first else p) * PANEL)
        return seq(known, body(first, minimum(PANEL, n - first)))

    return serial(ceil_div(n, PANEL), panel, "p")


def _cholesky(code: KernelCode, cpu: CpuTarget, upper: bool) -> Stage:
    *lead, n, _ = code.anchor.shape
    work = Work(code, cpu, batch_of(code.anchor.shape), (n, n), code.anchor.dtype)
    read = reader(code, 0)

    def matrix(number: Expr, index: tuple[Expr, ...]) -> Stmt:
        w, cleared = work.of(number)
        failed = local_buffer((1,), "int32", "failed")
        going_on = load(failed, 0) < 1

        def copy(i: Expr) -> Stmt:
            def one(j: Expr) -> Stmt:
                at = (j, i) if upper else (i, j)
                return read(lambda x: store(w, x, j, i), *index, *at)

            return serial(i + 1, one, "j")

        left = Factor(lambda i, k: load(w, k, i), 1, work.width)

        def row(first: Expr, q: Expr) -> Stmt:
            k, known = bind("k", first + q)
            behind = work.behind(k)
            root, taken = bind("root", tvm().tirx.sqrt(load(w, k, k)))

            def scale(at: Expr) -> Stmt:
                return store(w, load(w, k, at) / work.vectors.of(root), k, at)

            scaled = seq(taken, work.along(behind, scale), store(w, root, k, k))
            positive = load(w, k, k) > zero(work.dtype)
            step = seq(
                work.subtract(w, (k, 1), behind, (first, q), left),
                when(positive, scaled, store(failed, const(1), 0)),
            )
            return seq(known, when(going_on, step))

        def panel(first: Expr, count: Expr) -> Stmt:
            before = work.subtract(w, (first, count), work.behind(first), (0, first), left)
            rows = serial(count, lambda q: row(first, q), "q")
            return seq(when(going_on, before), rows) if n > PANEL else rows

        def put(i: Expr, j: Expr) -> Stmt:
            own, inside = (load(w, i, j), i <= j) if upper else (load(w, j, i), j <= i)
            value = tvm().tirx.Select(inside, own, zero(work.dtype))
            return code.finish((*index, i, j), value)

        return seq(
            cleared,
            alloc(failed),
            store(failed, const(0), 0),
            serial(n, copy, "i"),
            _panels(n, panel),
            serial(n, lambda i: serial(n, lambda j: put(i, j), "j"), "i"),
        )

    return by_matrix("cholesky", tuple(lead), n * n * n // 8, matrix)


def _triangular(code: KernelCode, cpu: CpuTarget, op: TriangularSolve) -> Stage:
    *lead, n, m = code.anchor.shape
    columns = min(m, _COLUMNS)
    blocks = ceil_div(m, columns)
    batch = batch_of(code.anchor.shape) * blocks
    work = Work(code, cpu, batch, (n, columns), code.anchor.dtype)
    read = reader(code, 1)
    triangle = code.anchor.inputs[0]
    element, shape = accessor(code, triangle), code.graph.values[triangle].shape
    strides = code.strides(triangle)
    # What is computed, not in memory, is computed once for all columns.
    held = Work(code, cpu, batch, (n, n), code.anchor.dtype) if strides is None else None
    backwards = op.upper != op.transposed

    def system(number: Expr, place: tuple[Expr, ...]) -> Stmt:
        *index, block = place
        w, cleared = work.of(number)
        start = block * columns
        span = minimum(columns, m - start) if m % columns else columns
        every = (0, work.count)

        def of_triangle(i: Expr, k: Expr) -> Expr:
            own = index[len(index) - len(shape) + 2 :]
            head = [0 if size == 1 else at for size, at in zip(shape[:-2], own, strict=True)]
            return element(*head, i, k)

        begin: list[Stmt] = []
        if held is None:
            assert strides is not None
            at, down, along = of_triangle, strides[-2], strides[-1]
        else:
            a, made = held.of(number)

            def at(i: Expr, k: Expr) -> Expr:
                return load(a, i, k)

            down, along = held.width, 1
            fill = serial(n, lambda i: serial(n, lambda k: store(a, of_triangle(i, k), i, k), "k"))
            begin = [*made, fill]
        left = Factor(at, down, along)
        if op.transposed:
            left = Factor(lambda i, k: at(k, i), along, down)

        def row(k: Expr, terms: Range) -> Stmt:
            by, taken = bind("by", left.at(k, k))

            def divide(at: Expr) -> Stmt:
                return store(w, load(w, k, at) / work.vectors.of(by), k, at)

            known = work.subtract(w, (k, 1), every, terms, left)
            return known if op.unit else seq(known, taken, work.along(every, divide))

        def panel(first: Expr, count: Expr) -> Stmt:
            end = first + count

            def one(q: Expr) -> Stmt:
                k, known = bind("k", end - 1 - q if backwards else first + q)
                return seq(known, row(k, (k + 1, q) if backwards else (first, q)))

            known = (end, n - end) if backwards else (0, first)
            before = work.subtract(w, (first, count), every, known, left)
            rows = serial(count, one, "q")
            return seq(before, rows) if n > PANEL else rows

        def put(i: Expr, j: Expr) -> Stmt:
            return code.finish((*index, i, start + j), load(w, i, j))

        return seq(
            *begin,
            *cleared,
            copied(read, w, index, (n, span), start),
            _panels(n, panel, last_first=backwards),
            serial(n, lambda i: serial(span, lambda j: put(i, j), "j"), "i"),
        )

    return by_matrix("triangular", (*lead, blocks), n * n * columns // 8, system)


def _lu(code: KernelCode, cpu: CpuTarget) -> Stage:
    (source,) = code.anchor.inputs
    *lead, m, n = code.graph.values[source].shape
    most = min(m, n)
    work = Work(code, cpu, numel(tuple(lead)), (m, n), code.anchor.dtype)
    read, t = reader(code, 0), tvm().tirx
    panel_vectors = max(1, PANEL // work.lanes)

    def matrix(number: Expr, index: tuple[Expr, ...]) -> Stmt:
        w, cleared = work.of(number)
        order = local_buffer((m,), "int32", "order")
        swapped = local_buffer((max(1, most),), "int32", "swapped")
        best = local_buffer((1,), work.dtype, "best")
        place = local_buffer((1,), "int32", "place")
        top = local_buffer((panel_vectors * work.lanes,), work.dtype, "top")

        left = Factor(lambda i, k: load(w, i, k), work.width, 1)

        def search(k: Expr) -> Stmt:
            """The largest element of a column, from row k on, is put on the diagonal."""

            def look(q: Expr) -> Stmt:
                size, known = bind("size", t.abs(load(w, k + 1 + q, k)))
                here = seq(store(best, size, 0), store(place, k + 1 + q, 0))
                return seq(known, when(load(best, 0) < size, here))

            other, found = bind("other", load(place, 0))

            def exchange(memory: Memory, one: tuple[Expr, ...], two: tuple[Expr, ...]) -> Stmt:
                held, taken = bind("held", load(memory, *one))
                back = seq(store(memory, load(memory, *two), *one), store(memory, held, *two))
                return seq(taken, back)

            rows = work.along((0, work.count), lambda at: exchange(w, (k, at), (other, at)))
            return seq(
                store(best, t.abs(load(w, k, k)), 0),
                store(place, k, 0),
                serial(m - 1 - k, look, "q"),
                found,
                store(swapped, other, k),
                when(k < other, seq(rows, exchange(order, (k,), (other,)))),
            )

        def column(first: Expr, q: Expr) -> Stmt:
            k, known = bind("k", first + q)
            near, count = work.vector(first), minimum(panel_vectors, work.behind(first)[1])
            by, taken = bind("by", load(w, k, k))

            def keep(j: Expr) -> Stmt:
                """Of row k what is behind column k: the others hold l already."""
                return store(top, t.Select(q < j, load(w, k, first + j), zero(work.dtype)), j)

            def below(r: Expr) -> Stmt:
                i, at_row = bind("i", k + 1 + r)
                factor, divided = bind("factor", load(w, i, k) / by)

                def less(v: Expr) -> Stmt:
                    at = work.at(near + v)
                    step = work.vectors.of(factor) * load(top, work.at(v))
                    return store(w, load(w, i, at) - step, i, at)

                return seq(at_row, divided, store(w, factor, i, k), serial(count, less, "v"))

            # Below a zero there are only zeros.
            rest = seq(serial(count * work.lanes, keep, "j"), serial(m - 1 - k, below, "r"))
            return seq(known, search(k), taken, when(t.NE(by, zero(work.dtype)), rest))

        def panel(first: Expr, count: Expr) -> Stmt:
            columns = serial(count, lambda q: column(first, q), "q")
            if n <= PANEL:
                return columns
            end = first + PANEL
            behind = (work.vector(end), t.max(work.count - work.vector(end), const(0)))

            def row(q: Expr) -> Stmt:
                return work.subtract(w, (first + q, 1), behind, (first, q), left)

            below = (first + count, m - first - count)
            rest = work.subtract(w, below, behind, (first, count), left)
            return seq(columns, serial(count, row, "q"), rest)

        def put(at: Expr, value: Expr) -> Stmt:
            return code.finish((*index, at), value)

        return seq(
            cleared,
            [alloc(memory) for memory in (order, swapped, best, place, top)],
            serial(m, lambda i: store(order, i, i), "i"),
            copied(read, w, index, (m, n)),
            _panels(most, panel),
            serial(m, lambda i: serial(n, lambda j: put(i * n + j, load(w, i, j)), "j"), "i"),
            serial(most, lambda i: put(m * n + i, load(swapped, i).astype(work.dtype)), "i"),
            serial(m, lambda i: put(m * n + most + i, load(order, i).astype(work.dtype)), "i"),
        )

    return by_matrix("lu", tuple(lead), m * n * most // 8, matrix)
