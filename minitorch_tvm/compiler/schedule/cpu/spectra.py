"""Eigenvalues of symmetric matrices, and singular values.

Patterns: Eigh and Jacobi.  Eigenvalues: reflections make the matrix tridiagonal, rotations of
neighbours then take away what is beside the diagonal (the implicit QL method of A. Dubrulle, R.
Martin and J. Wilkinson, 1968); rows of eigenvectors, which lie in memory as rows, follow them.
Singular values: all pairs of rows are made orthogonal in turn, until all are (M. Hestenes, 1958),
which finds small ones as accurately as large ones.  Decisions are made in float64.  Both scale the
matrix first, so that no square overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....core.limits import finfo
from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.orthogonal import Eigh
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    bind,
    cell,
    const,
    lanes_of,
    load,
    local_buffer,
    ramp,
    seq,
    serial,
    store,
    when,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .matrices import Factor, Work, by_matrix, copied, reader, zero

_WIDE = "float64"
_TURNS = 40
"""Steps for each eigenvalue at most: two or three do, as a rule."""
_SWEEPS = 40
"""Times that all pairs are turned at most: six to ten do."""


def spectra(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of such a kernel."""
    op = code.anchor.op
    if numel(code.anchor.shape) == 0:
        return []
    return [_eigh(code, cpu, op) if isinstance(op, Eigh) else _jacobi(code, cpu)]


class _Scale:
    """The largest element of a matrix in memory, by which it is divided.

    By what results are multiplied is NaN, if an element is not finite.
    """

    def __init__(self, work: Work, memory: Memory, n: int) -> None:
        t = tvm().tirx
        largest = const(finfo(work.kind).max, work.dtype)
        most = local_buffer((1,), work.dtype, "most")
        wrong = local_buffer((1,), "int32", "wrong")

        def look(i: Expr, j: Expr) -> Stmt:
            size, known = bind("size", t.abs(load(memory, i, j)))
            larger = store(most, t.max(load(most, 0), size), 0)
            return seq(known, when(size <= largest, larger, store(wrong, const(1), 0)))

        own = load(most, 0)
        value = t.Select(own > zero(work.dtype), own, const(1.0, work.dtype))
        self._value, known = bind("scale", value)
        told = t.Select(load(wrong, 0) > 0, const(math.nan, _WIDE), self._value.astype(_WIDE))
        self.back, known_back = bind("back", told)

        def divide(i: Expr, at: Expr) -> Stmt:
            return store(memory, load(memory, i, at) / work.vectors.of(self._value), i, at)

        every = (0, work.count)
        self.statements = [
            alloc(most),
            alloc(wrong),
            store(most, zero(work.dtype), 0),
            store(wrong, const(0), 0),
            serial(n, lambda i: serial(n, lambda j: look(i, j), "j"), "i"),
            known,
            known_back,
            serial(n, lambda i: work.along(every, lambda at: divide(i, at)), "i"),
        ]


def _turned(work: Work, memory: Memory, one: Expr, two: Expr, c: Expr, s: Expr) -> Stmt:
    """Rows one and two become c one - s two and s one + c two."""
    cosine, sine = (work.vectors.of(x.astype(work.dtype)) for x in (c, s))

    def vector(at: Expr) -> Stmt:
        (a, first), (b, second) = (bind("row", load(memory, row, at)) for row in (one, two))
        return seq(
            *(first, second),
            store(memory, cosine * a - sine * b, one, at),
            store(memory, sine * a + cosine * b, two, at),
        )

    return work.along((0, work.count), vector)


def _ordered(
    values: Memory, order: Memory, n: int, before: Callable[[Expr, Expr], Expr]
) -> list[Stmt]:
    """Put numbers, and in ``order`` where they were, in the order that ``before`` tells."""
    place = local_buffer((1,), "int32", "place")

    def one(i: Expr) -> Stmt:
        def look(r: Expr) -> Stmt:
            j = i + 1 + r
            first = before(load(values, j), load(values, load(place, 0)))
            return when(first, store(place, j, 0))

        def exchange(memory: Memory) -> list[Stmt]:
            held, taken = bind("held", load(memory, i))
            other = load(place, 0)
            return [taken, store(memory, load(memory, other), i), store(memory, held, other)]

        found = serial(n - 1 - i, look, "r")
        return seq(store(place, i, 0), found, *exchange(values), *exchange(order))

    return [alloc(place), serial(n, lambda i: store(order, i, i)), serial(n, one, "i")]


def _eigh(code: KernelCode, cpu: CpuTarget, op: Eigh) -> Stage:
    (source,) = code.anchor.inputs
    *lead, n, _ = code.graph.values[source].shape
    dtype, t = code.anchor.dtype, tvm().tirx
    batch = numel(tuple(lead))
    work = Work(code, cpu, batch, (n, n), dtype)
    rows = Work(code, cpu, batch, (n, n), dtype)
    near = Work(code, cpu, batch, (2, n), dtype)
    read, none, one = reader(code, 0), zero(dtype.name), const(1.0, dtype.name)
    wide_none, wide_one = zero(_WIDE), const(1.0, _WIDE)

    def matrix(number: Expr, index: tuple[Expr, ...]) -> Stmt:
        w, cleared = work.of(number)
        z, made = rows.of(number)
        y, fresh = near.of(number)  # v, and what becomes of it
        d, e = (local_buffer((n,), _WIDE, name) for name in ("d", "e"))
        scales = local_buffer((n,), dtype.name, "scales")
        total = local_buffer((1,), dtype.name, "total")
        state = local_buffer((4,), "int32", "state")  # which eigenvalue, end of block, two flags
        order = local_buffer((n,), "int32", "order")
        scale = _Scale(work, w, n)

        def copy(i: Expr) -> Stmt:
            def element(j: Expr) -> Stmt:
                at = (j, i) if op.upper else (i, j)

                def both(x: Expr) -> Stmt:
                    return seq(store(w, x, i, j), store(w, x, j, i))

                return read(both, *index, *at)

            return serial(i + 1, element, "j")

        def product(memory: Memory, k: Expr) -> Stmt:
            """In y's second row, - v.T memory, of rows behind k."""
            behind = work.behind(k + 1)

            def clear(at: Expr) -> Stmt:
                return store(y, work.vectors.zero, 1, at)

            return seq(
                work.along((0, work.count), clear),
                work.subtract(
                    y,
                    (1, 1),
                    behind,
                    (k + 1, n - 1 - k),
                    Factor(lambda i, r: load(y, 0, r), 0, 1),
                    (memory, 0, 0),
                ),
            )

        def add(value: Expr) -> Stmt:
            return store(total, load(total, 0) + value, 0)

        def reduce(k: Expr) -> Stmt:
            """Reflect what is behind the diagonal of row k onto its first element."""
            rest, summed = bind("rest", load(total, 0))
            alpha, first = bind("alpha", load(w, k, k + 1))
            length, measured = bind("length", t.sqrt(alpha * alpha + rest))
            beta, signed = bind("beta", t.Select(alpha > none, none - length, length))
            tau, weighed = bind("tau", (beta - alpha) / beta)
            half, halved = bind("half", tau * load(total, 0) / const(2.0, dtype.name))

            def square(r: Expr) -> Stmt:
                x = load(w, k, k + 2 + r)
                return add(x * x)

            def direct(j: Expr) -> Stmt:
                by = load(w, k, j) / (alpha - beta)
                value = t.Select(j <= k, none, t.Select(t.EQ(j, k + 1), one, by))
                return seq(store(y, value, 0, j), store(w, value, k, j))

            def meet(r: Expr) -> Stmt:
                return add(load(y, 0, k + 1 + r) * load(y, 1, k + 1 + r))

            def share(j: Expr) -> Stmt:
                # With the sign of the product, which was subtracted.
                value = none - tau * load(y, 1, j) - tau * load(y, 0, j) * (none - half)
                return store(y, t.Select(j <= k, none, value), 1, j)

            def less(r: Expr) -> Stmt:
                i, known = bind("i", k + 1 + r)
                factors = [work.vectors.of(load(y, row, i)) for row in (0, 1)]

                def part(at: Expr) -> Stmt:
                    step = factors[0] * load(y, 1, at) + factors[1] * load(y, 0, at)
                    return store(w, load(w, i, at) - step, i, at)

                return seq(known, work.along(work.behind(k + 1), part))

            turn = seq(
                *(measured, signed, weighed),
                store(e, beta.astype(_WIDE), k),
                store(scales, tau, k),
                serial(n, direct, "j"),
                product(w, k),
                store(total, none, 0),
                serial(n - 1 - k, meet, "r"),
                halved,
                serial(n, share, "j"),
                serial(n - 1 - k, less, "r"),
            )
            straight = seq(store(e, alpha.astype(_WIDE), k), store(scales, none, k))
            return seq(
                store(d, load(w, k, k).astype(_WIDE), k),
                store(total, none, 0),
                serial(n - 2 - k, square, "r"),
                *(summed, first),
                when(t.EQ(rest, none), straight, turn),
            )

        def form(q: Expr) -> Stmt:
            """Apply a reflection to what those behind it have made of the identity."""
            k, known = bind("k", n - 2 - q)
            tau, taken = bind("tau", load(scales, k))

            def direct(j: Expr) -> Stmt:
                return store(y, t.Select(j <= k, none, load(w, k, j)), 0, j)

            def less(r: Expr) -> Stmt:
                i, at_row = bind("i", k + 1 + r)
                factor = work.vectors.of(load(y, 0, i) * tau)

                def part(at: Expr) -> Stmt:
                    return store(z, load(z, i, at) + factor * load(y, 1, at), i, at)

                return seq(at_row, work.along(work.behind(k + 1), part))

            work_on = seq(serial(n, direct, "j"), product(z, k), serial(n - 1 - k, less, "r"))
            return seq(known, taken, when(t.NE(tau, none), work_on))

        def turn_over(i: Expr) -> Stmt:
            def exchange(j: Expr) -> Stmt:
                (a, first), (b, second) = (bind("x", load(z, *at)) for at in ((i, j), (j, i)))
                return seq(first, second, store(z, b, i, j), store(z, a, j, i))

            return serial(i, exchange, "j")

        numbers = local_buffer((4,), _WIDE, "numbers")

        def s() -> Expr:
            return load(numbers, 0)

        def c() -> Expr:
            return load(numbers, 1)

        def p() -> Expr:
            return load(numbers, 2)

        def g() -> Expr:
            return load(numbers, 3)

        def step(_: Expr) -> Stmt:
            """Split off what is done with, or take a step with the block behind it."""
            low, known = bind("low", load(state, 0))
            small = const(finfo(dtype).eps / 2, _WIDE)

            def look(r: Expr) -> Stmt:
                j = low + r
                sizes = t.abs(load(d, j)) + t.abs(load(d, j + 1))
                large = t.abs(load(e, j)) > small * sizes
                further = when(large, store(state, j + 1, 1), store(state, const(1), 2))
                return when(load(state, 2) < 1, further)

            found = seq(
                store(state, low, 1), store(state, const(0), 2), serial(n - 1 - low, look, "r")
            )
            end, ended = bind("end", load(state, 1))
            done = store(state, low + 1, 0)
            return seq(
                known, when(low < n, seq(found, ended, when(end > low, sweep(low, end), done)))
            )

        def sweep(low: Expr, end: Expr) -> Stmt:
            ratio, known = bind(
                "ratio", (load(d, low + 1) - load(d, low)) / (const(2.0, _WIDE) * load(e, low))
            )
            size = t.sqrt(ratio * ratio + wide_one)
            signed = t.Select(ratio < wide_none, ratio - size, ratio + size)
            start = load(d, end) - load(d, low) + load(e, low) / signed

            def rotate(q: Expr) -> Stmt:
                i, at_row = bind("i", end - 1 - q)
                f, first = bind("f", s() * load(e, i))
                b, second = bind("b", c() * load(e, i))
                r, measured = bind("r", t.sqrt(f * f + g() * g()))
                gone = seq(
                    store(d, load(d, i + 1) - p(), i + 1),
                    store(e, wide_none, end),
                    store(state, const(1), 3),
                )
                sine, by_sine = bind("sine", f / r)
                cosine, by_cosine = bind("cosine", g() / r)
                rest, left = bind("rest", load(d, i + 1) - p())
                twice = const(2.0, _WIDE) * cosine * b
                double, doubled = bind("double", (load(d, i) - rest) * sine + twice)
                # The rows i and i + 1: c z[i] - s z[i + 1] and s z[i] + c z[i + 1].
                vectors = _turned(rows, z, i, i + 1, cosine, sine) if op.vectors else seq()
                go_on = seq(
                    *(by_sine, by_cosine, left, doubled),
                    store(numbers, sine, 0),
                    store(numbers, cosine, 1),
                    store(numbers, sine * double, 2),
                    store(d, rest + sine * double, i + 1),
                    store(numbers, cosine * double - b, 3),
                    vectors,
                )
                around = seq(first, second, measured, store(e, r, i + 1))
                work_on = seq(at_row, around, when(t.EQ(r, wide_none), gone, go_on))
                return when(load(state, 3) < 1, work_on)

            finish = seq(
                store(d, load(d, low) - p(), low), store(e, g(), low), store(e, wide_none, end)
            )
            return seq(
                known,
                store(numbers, start, 3),
                store(numbers, wide_one, 0),
                store(numbers, wide_one, 1),
                store(numbers, wide_none, 2),
                store(state, const(0), 3),
                serial(end - low, rotate, "q"),
                when(load(state, 3) < 1, finish),
            )

        def put(at: Expr, value: Expr) -> Stmt:
            return code.finish((*index, at), value)

        def value(i: Expr) -> Stmt:
            return put(i, (load(d, i) * scale.back).astype(dtype.name))

        def vector(i: Expr, j: Expr) -> Stmt:
            # Of a matrix that is not finite, vectors are not numbers either.
            known = scale.back <= t.infinity(_WIDE)
            own = load(z, load(order, j), i)
            return put(n + i * n + j, t.Select(known, own, const(math.nan, dtype.name)))

        eigenvectors = [
            *made,
            serial(n, lambda i: store(z, one, i, i), "i"),
            serial(n - 1, form, "q") if n > 1 else seq(),
            serial(n, turn_over, "i"),
        ]
        return seq(
            *cleared,
            *fresh,
            [alloc(memory) for memory in (d, e, scales, total, state, order, numbers)],
            serial(n, copy, "i"),
            *scale.statements,
            serial(n, lambda i: store(e, wide_none, i), "i"),
            serial(n - 1, reduce, "k") if n > 1 else seq(),
            store(d, load(w, n - 1, n - 1).astype(_WIDE), n - 1),
            *(eigenvectors if op.vectors else []),
            store(state, const(0), 0),
            serial(_TURNS * n, step, "turn"),
            *_ordered(d, order, n, lambda a, b: a < b),
            serial(n, value, "i"),
            serial(n, lambda i: serial(n, lambda j: vector(i, j), "j"), "i")
            if op.vectors
            else seq(),
        )

    return by_matrix("eigh", tuple(lead), 2 * n * n * n, matrix)


def _sum(vector: Memory, lanes: int) -> tuple[Expr, list[Stmt]]:
    """The sum of a vector's lanes, in float64."""
    statements: list[Stmt] = []
    if lanes == 1:
        return load(vector, 0).astype(_WIDE), statements
    found: Expr = load(vector, ramp(0, lanes))
    while lanes > 1:
        lanes //= 2
        found, more = cell("sum", lanes_of(found, 0, lanes) + lanes_of(found, lanes, lanes))
        statements += more
    return found.astype(_WIDE), statements


def _products(
    work: Work, memory: Memory, pairs: Sequence[tuple[Expr, Expr]]
) -> tuple[list[Expr], list[Stmt]]:
    """Sums of products of pairs of rows, in one walk along them."""
    sums = [local_buffer((work.lanes,), work.dtype, "sum") for _ in pairs]
    whole = work.vectors.at(0)

    def vector(at: Expr) -> Stmt:
        return seq(
            [
                store(own, load(own, whole) + load(memory, a, at) * load(memory, b, at), whole)
                for own, (a, b) in zip(sums, pairs, strict=True)
            ]
        )

    statements = [*map(alloc, sums), *[store(own, work.vectors.zero, whole) for own in sums]]
    statements.append(work.along((0, work.count), vector))
    found = []
    for own in sums:
        value, more = _sum(own, work.lanes)
        name, known = bind("product", value)
        statements += [*more, known]
        found.append(name)
    return found, statements


def _jacobi(code: KernelCode, cpu: CpuTarget) -> Stage:
    (source,) = code.anchor.inputs
    *lead, n, _ = code.graph.values[source].shape
    dtype, t = code.anchor.dtype, tvm().tirx
    batch = numel(tuple(lead))
    work = Work(code, cpu, batch, (n, n), dtype)
    turns = Work(code, cpu, batch, (n, n), dtype)
    read, none, one = reader(code, 0), zero(dtype.name), const(1.0, dtype.name)
    wide_none, wide_one = zero(_WIDE), const(1.0, _WIDE)
    tolerance = const(finfo(dtype).eps * math.sqrt(n), _WIDE)

    def matrix(number: Expr, index: tuple[Expr, ...]) -> Stmt:
        w, cleared = work.of(number)
        z, made = turns.of(number)
        scale = _Scale(work, w, n)
        state = local_buffer((1,), "int32", "state")  # whether a pair was turned
        lengths = local_buffer((n,), _WIDE, "lengths")
        order = local_buffer((n,), "int32", "order")

        def pair(i: Expr, r: Expr) -> Stmt:
            j, known = bind("j", i + 1 + r)
            (a, b, both), summed = _products(work, w, [(i, i), (j, j), (i, j)])
            ratio, compared = bind("ratio", (b - a) / (const(2.0, _WIDE) * both))
            size = t.sqrt(ratio * ratio + wide_one)
            tangent, found = bind(
                "tangent",
                t.Select(ratio < wide_none, wide_one / (ratio - size), wide_one / (ratio + size)),
            )
            cosine, by_cosine = bind("cosine", wide_one / t.sqrt(tangent * tangent + wide_one))
            sine, by_sine = bind("sine", cosine * tangent)
            turn = seq(
                *(compared, found, by_cosine, by_sine),
                store(state, const(1), 0),
                _turned(work, w, i, j, cosine, sine),
                _turned(turns, z, i, j, cosine, sine),
            )
            return seq(known, *summed, when(t.abs(both) > tolerance * t.sqrt(a) * t.sqrt(b), turn))

        def sweep(_: Expr) -> Stmt:
            pairs = serial(n - 1, lambda i: serial(n - 1 - i, lambda r: pair(i, r), "r"), "i")
            return when(load(state, 0) > 0, seq(store(state, const(0), 0), pairs))

        def measure(i: Expr) -> Stmt:
            (square,), summed = _products(work, w, [(i, i)])
            return seq(*summed, store(lengths, t.sqrt(square), i))

        def put(at: Expr, value: Expr) -> Stmt:
            return code.finish((*index, at), value)

        def value(i: Expr) -> Stmt:
            return put(n * n + i, (load(lengths, i) * scale.back).astype(dtype.name))

        def right(i: Expr) -> Stmt:
            length, known = bind("length", load(lengths, i).astype(dtype.name))

            def element(j: Expr) -> Stmt:
                x = load(w, load(order, i), j)
                return put(n * n + n + i * n + j, t.Select(t.EQ(length, none), none, x / length))

            return seq(known, serial(n, element, "j"))

        def left(i: Expr, j: Expr) -> Stmt:
            return put(i * n + j, load(z, load(order, j), i))

        return seq(
            *cleared,
            *made,
            [alloc(memory) for memory in (state, lengths, order)],
            copied(read, w, index, (n, n)),
            *scale.statements,
            serial(n, lambda i: store(z, one, i, i), "i"),
            store(state, const(1), 0),
            serial(_SWEEPS, sweep, "sweep") if n > 1 else seq(),
            serial(n, measure, "i"),
            *_ordered(lengths, order, n, lambda a, b: a > b),
            serial(n, value, "i"),
            serial(n, right, "i"),
            serial(n, lambda i: serial(n, lambda j: left(i, j), "j"), "i"),
        )

    return by_matrix("jacobi", tuple(lead), 4 * n * n * n, matrix)
