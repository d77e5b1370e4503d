"""Householder's factors q r of matrices, with orthonormal columns and a triangle.

Pattern: QR.  Strategy: a panel of columns is reduced, a reflection at a time; what these do
together, I - v t v.T (C. Bischof and C. Van Loan, "The WY representation for products of
Householder matrices"; R. Schreiber and C. Van Loan), is then applied to all columns behind as two
products, in register tiles, and in the end, last panel first, to the columns of the identity.
"""

from __future__ import annotations

from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.orthogonal import QR
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
from ...lower import KernelCode
from ...target import CpuTarget
from .matrices import PANEL, Factor, Work, by_matrix, copied, reader, zero


def orthogonal(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of such a kernel."""
    op = code.anchor.op
    assert isinstance(op, QR)
    if numel(code.anchor.shape) == 0:
        return []
    return [_qr(code, cpu, op)]


def _qr(code: KernelCode, cpu: CpuTarget, op: QR) -> Stage:
    (source,) = code.anchor.inputs
    *lead, m, n = code.graph.values[source].shape
    dtype, t = code.anchor.dtype, tvm().tirx
    columns = op.count(m, n)
    most = min(m, n)
    batch = numel(tuple(lead))
    widest = max(n, columns, 1)
    size = min(PANEL, 1 << (most - 1).bit_length()) if most else 1
    size = max(size, min(cpu.lanes(dtype.itemsize), 1 << (widest - 1).bit_length()))
    panels = max(1, ceil_div(most, size))
    width = max(widest, size)
    work = Work(code, cpu, batch, (m, width), dtype)
    formed = Work(code, cpu, batch, (m, width), dtype)
    sums = Work(code, cpu, batch, (2 * size, width), dtype)
    basis = Work(code, cpu, batch, (m, size), dtype)
    read, none = reader(code, 0), zero(dtype.name)
    one = const(1.0, dtype.name)

    def matrix(number: Expr, index: tuple[Expr, ...]) -> Stmt:
        w, cleared = work.of(number)
        q, made = formed.of(number)
        y, fresh = sums.of(number)
        v, clean = basis.of(number)
        t_memory = local_buffer((panels * size, size), dtype.name, "t")
        scales = local_buffer((max(1, most),), dtype.name, "scales")
        cell = local_buffer((1,), dtype.name, "cell")

        def reflect(first: Expr, c: Expr) -> Stmt:
            """Make a column's reflection, and apply it to the rest of the panel."""
            k, known = bind("k", first + c)
            below = m - 1 - k

            def largest(r: Expr) -> Stmt:
                return store(cell, t.max(load(cell, 0), t.abs(load(w, k + r, k))), 0)

            def square(r: Expr) -> Stmt:
                part = load(w, k + 1 + r, k) / scale
                return store(cell, load(cell, 0) + part * part, 0)

            scale, scaled = bind("scale", load(cell, 0))
            rest, summed = bind("rest", load(cell, 0))
            alpha, first_one = bind("alpha", load(w, k, k) / scale)
            length, measured = bind("length", t.sqrt(alpha * alpha + rest))
            beta, signed = bind("beta", t.Select(alpha > none, none - length, length))
            tau, weighed = bind("tau", (beta - alpha) / beta)
            by, divisor = bind("by", alpha - beta)

            def divide(r: Expr) -> Stmt:
                # Twice: what is next to the smallest number would lose its digits as by * scale.
                return store(w, load(w, k + 1 + r, k) / scale / by, k + 1 + r, k)

            near, count = work.vector(first), size // work.lanes
            span = minimum(count, work.count - near)

            def of_row(i: Expr, at: Expr) -> Expr:
                return load(w, i, work.at(near + at))

            def start(at: Expr) -> Stmt:
                return store(y, of_row(k, at), 0, work.at(at))

            def sum_up() -> Stmt:
                # The row's sums of v times each column: subtracted, so of the negative.
                return work.subtract(
                    y,
                    (0, 1),
                    (0, span),
                    (k + 1, below),
                    Factor(lambda i, r: load(w, r, k), 0, work.width, minus=True),
                    (w, 0, near),
                )

            def mask(j: Expr) -> Stmt:
                held = load(y, 0, j) * tau
                return store(y, t.Select(c < j, held, none), 0, j)

            def less(r: Expr) -> Stmt:
                i, at_row = bind("i", k + r)
                own = t.Select(r < 1, one, load(w, i, k))
                factor, taken = bind("factor", own)

                def part(at: Expr) -> Stmt:
                    to = work.at(near + at)
                    step = work.vectors.of(factor) * load(y, 0, work.at(at))
                    return store(w, load(w, i, to) - step, i, to)

                return seq(at_row, taken, serial(span, part, "v"))

            applied = seq(
                serial(span, start, "v"),
                sum_up(),
                serial(span * work.lanes, mask, "j"),
                serial(below + 1, less, "r"),
            )
            turn = seq(
                *(first_one, measured, signed, weighed, divisor),
                serial(below, divide, "r"),
                store(scales, tau, k),
                applied,
                store(w, beta * scale, k, k),
            )
            straight = store(scales, none, k)
            return seq(
                known,
                store(cell, none, 0),
                serial(below + 1, largest, "r"),
                scaled,
                store(cell, none, 0),
                when(scale > none, serial(below, square, "r")),
                summed,
                # A column of zeros stays as it is; one of NaN becomes NaN.
                when(t.EQ(rest, none), straight, turn),
            )

        def gather(first: Expr, count: Expr) -> Stmt:
            """The panel's reflections, one a column, with ones on the diagonal, zeros above."""

            def element(i: Expr, j: Expr) -> Stmt:
                k = first + j
                own = t.Select(t.EQ(i, k), one, load(w, i, k))
                inside = t.And(k <= i, j < count)
                return store(v, t.Select(inside, own, none), i, j)

            return serial(m, lambda i: serial(size, lambda j: element(i, j), "j"), "i")

        def together(first: Expr, count: Expr, slot: Expr) -> Stmt:
            """The triangle t of this panel: t[:j, j] = -scale[j] t[:j, :j] (v.T v)[:j, j]."""
            every = (0, basis.count)

            def clear(i: Expr) -> Stmt:
                return serial(size, lambda j: store(y, none, i, j), "j")

            products = basis.subtract(
                y,
                (0, size),
                every,
                (first, m - first),
                Factor(lambda i, r: load(v, r, i), 1, basis.width, minus=True),
                (v, 0, 0),
            )

            def column(j: Expr) -> Stmt:
                scale, taken = bind("scale", load(scales, first + j))

                def row(i: Expr) -> Stmt:
                    def term(r: Expr) -> Stmt:
                        more = load(t_memory, slot + i, i + r) * load(y, i + r, j)
                        return store(cell, load(cell, 0) + more, 0)

                    return seq(
                        store(cell, none, 0),
                        serial(j - i, term, "r"),
                        store(t_memory, none - scale * load(cell, 0), slot + i, j),
                    )

                return seq(taken, serial(j, row, "i"), store(t_memory, scale, slot + j, j))

            return seq(
                serial(size, clear, "i"),
                serial(
                    size,
                    lambda i: serial(size, lambda j: store(t_memory, none, slot + i, j)),
                    "i",
                ),
                products,
                serial(count, column, "j"),
            )

        def apply(
            memory: Memory, first: Expr, begin: Expr, count: Expr, slot: Expr, back: bool
        ) -> Stmt:
            """Subtract v t v.T memory (``back``), or v t.T v.T memory, of vectors from one on."""
            vectors = (begin, count)

            def clear(i: Expr) -> Stmt:
                return work.along(vectors, lambda at: store(y, work.vectors.zero, i, at))

            def weight(i: Expr, r: Expr) -> Expr:
                at = i - size
                return load(t_memory, slot + (at if back else r), r if back else at)

            inner = work.subtract(
                y,
                (0, size),
                vectors,
                (first, m - first),
                Factor(lambda i, r: load(v, r, i), 1, basis.width, minus=True),
                (memory, 0, 0),
            )
            scaled = work.subtract(
                y,
                (size, size),
                vectors,
                (0, size),
                Factor(weight, *((size, 1) if back else (1, size)), minus=True),
                (y, 0, 0),
            )
            outer = work.subtract(
                memory,
                (first, m - first),
                vectors,
                (0, size),
                Factor(lambda i, r: load(v, i, r), basis.width, 1),
                (y, size, 0),
            )
            return seq(serial(2 * size, clear, "i"), inner, scaled, outer)

        def panel(p: Expr) -> Stmt:
            first, known = bind("first", p * size)
            count = minimum(size, most - first)
            begin = work.vector(first + size)
            behind = t.max(ceil_div(n, work.lanes) - begin, const(0))
            return seq(
                known,
                serial(count, lambda c: reflect(first, c), "c"),
                gather(first, count),
                together(first, count, first),
                apply(w, first, begin, behind, first, False) if n > size else seq(),
            )

        def again(p: Expr) -> Stmt:
            first, known = bind("first", (panels - 1 - p) * size)
            every = ceil_div(columns, work.lanes)
            start = work.vector(first)
            return seq(
                known,
                gather(first, minimum(size, most - first)),
                apply(q, first, start, every - start, first, True),
            )

        def put(at: Expr, value: Expr) -> Stmt:
            return code.finish((*index, at), value)

        def of_r(i: Expr, j: Expr) -> Stmt:
            return put(m * columns + i * n + j, t.Select(i <= j, load(w, i, j), none))

        formed_q = [
            *made,
            serial(min(m, columns), lambda i: store(q, one, i, i), "i"),
            serial(panels, again, "p"),
            serial(
                m,
                lambda i: serial(columns, lambda j: put(i * columns + j, load(q, i, j)), "j"),
                "i",
            ),
        ]
        return seq(
            cleared,
            fresh,
            clean,
            [alloc(memory) for memory in (t_memory, scales, cell)],
            copied(read, w, index, (m, n)),
            serial(panels, panel, "p"),
            formed_q if columns else [],
            serial(columns, lambda i: serial(n, lambda j: of_r(i, j), "j"), "i"),
        )

    return by_matrix("qr", tuple(lead), m * n * most // 4, matrix)
