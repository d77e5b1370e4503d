"""Sorting lines: positions in the order of the elements.

Pattern: ArgSort.  Strategy: elements become unsigned keys of the same order.  A short line is
ranked: an element's place is the number of those before it, which LLVM counts in vectors.  A long
one is sorted digit by digit, from the last (radix sort: time proportional to the length, no branch
on data, and equal elements keep their order); digits that all elements share are skipped.  Where
only the first few are wanted, those that the first digit rules out are left out before; and very
few are found one after another, each by two walks along all keys in vectors: for the next key, and
for its position.  Merging was rejected: it predicts a branch per element and round.  Lines are
divided among threads, one line is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.scan import ArgSort
from ...dialect import Scope
from ...loops import (
    Expr,
    Stage,
    Stmt,
    alloc,
    cell,
    const,
    lanes_of,
    load,
    local_buffer,
    number,
    ramp,
    seq,
    serial,
    splat,
    store,
    when,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .elementwise import GRAIN, tiled, unravel

_SHORT = 96
_FEW = 4
"""Elements for each that is wanted from which on it pays to leave some out first."""
_FOUND = 16
"""Elements from which on few of them are found one after another."""
_NEAR = 32 << 10
"""Bytes of keys that are kept on the stack."""
_BITS = 8
_DIGITS = 1 << _BITS


def _ones(kind: str) -> Expr:
    return tvm().tirx.bitwise_not(const(0, kind))


def _key(x: Expr, descending: bool) -> tuple[Expr, str, int]:
    """(an unsigned number in the order of x, its type, its bits that may differ)."""
    t, name = tvm().tirx, str(x.ty.dtype)
    if name in ("bool", "uint8"):
        key, kind, bits = x.astype("uint32"), "uint32", 8
        return (const(255, kind) - key if descending else key), kind, bits
    bits = 64 if name.endswith("64") else 32
    kind = f"uint{bits}"
    sign = t.shift_left(const(1, kind), const(bits - 1, kind))
    # TVM takes a reinterpreted 0, of which integers are made known, for a pointer.
    raw = x.astype(kind) if name.startswith("int") else t.reinterpret(kind, x)
    if name.startswith("int"):
        key = t.bitwise_xor(raw, sign)
    else:
        negative = t.Select(t.EQ(t.bitwise_and(raw, sign), const(0, kind)), sign, _ones(kind))
        key = t.bitwise_xor(raw, negative)
        # Zeros of either sign are equal, and so are all NaN.
        key = t.Select(t.EQ(x, const(0.0, name)), sign, key)
        key = t.Select(x <= t.infinity(name), key, _ones(kind))
    return (t.bitwise_not(key) if descending else key), kind, bits


def _digit(key: Expr, number: int, kind: str) -> Expr:
    t = tvm().tirx
    moved = t.shift_right(key, const(number * _BITS, kind)) if number else key
    return t.bitwise_and(moved, const(_DIGITS - 1, kind)).astype("int32")


def sort(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a sort."""
    op, shape = code.anchor.op, code.anchor.shape
    assert isinstance(op, ArgSort)
    if numel(shape) == 0:
        return []
    lead, wanted, behind = shape[: op.dim], shape[op.dim], shape[op.dim + 1 :]
    lines = numel(lead) * numel(behind)
    (source,) = code.anchor.inputs
    n = code.graph.values[source].shape[op.dim]
    _, kind, bits = _key(tvm().tirx.Var("x", _type(code.graph.values[source].dtype.name)), False)

    def key(scope: Scope, index: tuple[Expr, ...]) -> Expr:
        x = scope.keep(code.evaluator(scope).read(source, index))
        return scope.keep(_key(x, op.descending)[0])

    def place(line: Expr, k: Expr) -> tuple[Expr, ...]:
        index = unravel(line, (*lead, *behind))
        return (*index[: len(lead)], k, *index[len(lead) :])

    def put(line: Expr, k: Expr, position: Expr) -> Stmt:
        return code.finish(place(line, k), position.astype("int64"))

    def short(line: Expr) -> Stmt:
        keys = local_buffer((n,), kind, "keys")
        count = local_buffer((1,), "int32", "count")

        def read(k: Expr) -> Stmt:
            scope = Scope()
            value = key(scope, place(line, k))
            return scope.body(store(keys, value, k))

        def rank(i: Expr) -> Stmt:
            def add(condition: Expr) -> Stmt:
                one = tvm().tirx.Select(condition, const(1), const(0))
                return store(count, load(count, 0) + one, 0)

            def last(statement: Stmt) -> Stmt:
                return when(load(count, 0) < wanted, statement) if wanted < n else statement

            own = load(keys, i)
            return seq(
                store(count, const(0), 0),
                serial(i, lambda j: add(load(keys, j) <= own), "j"),
                serial(n - 1 - i, lambda j: add(load(keys, j + i + 1) < own), "j"),
                last(put(line, load(count, 0), i)),
            )

        return seq(alloc(keys), alloc(count), serial(n, read, "k"), serial(n, rank, "i"))

    def found(line: Expr) -> Stmt:
        """The first ones, each the next behind the one before: nothing needs to be taken out."""
        keys = local_buffer((room,), signed, "keys") if near is None else near
        at = (lambda k: (k,)) if near is None else (lambda k: (line, k))
        last = local_buffer((2,), signed, "last")  # its key, its position
        best = local_buffer((vector,), signed, "best")
        t = tvm().tirx
        sign = t.shift_left(const(1, kind), const(nbytes * 8 - 1, kind))
        least, most = t.min_value(signed), t.max_value(signed)

        def read(k: Expr) -> Stmt:
            scope = Scope()
            value = t.reinterpret(signed, t.bitwise_xor(key(scope, place(line, k)), sign))
            return scope.body(store(keys, value, *at(k)))

        def walk(choose: Callable[[Expr, Expr], Expr], into: Expr) -> list[Stmt]:
            """In ``last``, the least of what is chosen of vectors of keys and their positions."""

            def some(q: Expr) -> Stmt:
                first = q * vector
                here = ramp(first, vector).astype(f"{signed}x{vector}")
                chosen = choose(load(keys, *at(ramp(first, vector))), here)
                held = load(best, ramp(0, vector))
                return store(best, t.min(held, chosen), ramp(0, vector))

            merged = [store(best, splat(most, vector), ramp(0, vector))]
            merged.append(serial(number(room // vector, "vectors"), some, "q"))
            found, lanes = load(best, ramp(0, vector)), vector
            while lanes > 1:
                lanes //= 2
                name, new = cell("v", t.min(*[lanes_of(found, x, lanes) for x in (0, lanes)]))
                merged += new
                found = name
            return [*merged, store(last, found, into)]

        def next_one(r: Expr) -> Stmt:
            scope = Scope()
            before, position = (scope.keep(load(last, x)) for x in range(2))
            far, behind = splat(before, vector), splat(position, vector)
            none = splat(most, vector)

            def larger(own: Expr, here: Expr) -> Expr:
                equal = t.Select(t.EQ(own, far), t.Select(here > behind, own, none), none)
                return t.Select(own > far, own, equal)

            own = Scope()
            now = own.keep(load(last, 0))
            after = own.keep(t.Select(now > before, const(-1, signed), position))

            def first(keys: Expr, here: Expr) -> Expr:
                fits = t.Select(here > splat(after, vector), here, none)
                return t.Select(t.EQ(keys, splat(now, vector)), fits, none)

            there = own.body(*walk(first, 1), put(line, r, load(last, 1).astype("int32")))
            return scope.body(*walk(larger, 0), there)

        return seq(
            *[alloc(m) for m in (*([keys] if near is None else []), last, best)],
            store(last, least, 0),
            store(last, const(-1, signed), 1),
            serial(n, read, "k"),
            *([serial(room - n, lambda k: store(keys, most, *at(n + k)), "k")] if room > n else []),
            serial(number(wanted, "wanted"), next_one, "r"),
        )

    if wanted <= cpu.lanes(4) and n >= max(_FOUND, 2 * wanted):
        signed, nbytes = kind.removeprefix("u"), 8 if kind.endswith("64") else 4
        vector = cpu.lanes(nbytes)
        room, near = -(-n // vector) * vector, None
        if room * nbytes > _NEAR:
            near = code.builder.scratch_buffer((lines, room), signed, "keys")
        return [tiled("found", lines, max(1, GRAIN // n), found)]
    if n <= _SHORT:
        return [tiled("rank", lines, max(1, GRAIN // (n * n)), short)]
    digits = bits // _BITS
    # The package has no unsigned type of 64 bits.
    stored = kind.removeprefix("u")
    keys = code.builder.scratch_buffer((lines, 2, n), stored, "keys")
    positions = code.builder.scratch_buffer((lines, 2, n), "int32", "positions")

    def key_at(line: Expr, now: Expr, k: Expr) -> Expr:
        return tvm().tirx.reinterpret(kind, load(keys, line, now, k))

    def store_key(value: Expr, line: Expr, now: Expr, k: Expr) -> Stmt:
        return store(keys, tvm().tirx.reinterpret(stored, value), line, now, k)

    def long(line: Expr) -> Stmt:
        counts = local_buffer((digits, _DIGITS), "int32", "counts")
        side = local_buffer((1,), "int32", "side")
        total = local_buffer((1,), "int32", "total")
        live = local_buffer((1,), "int32", "live")  # elements that are sorted
        few = wanted * _FEW <= n

        def clear(d: Expr) -> Stmt:
            return seq(*[store(counts, const(0), p, d) for p in range(digits)])

        def count(scope: Scope, value: Expr, which: range) -> list[Stmt]:
            steps = []
            for p in which:
                digit = scope.keep(_digit(value, p, kind))
                steps.append(store(counts, load(counts, p, digit) + 1, p, digit))
            return steps

        def read(k: Expr) -> Stmt:
            scope = Scope()
            value = key(scope, place(line, k))
            steps = [store_key(value, line, const(0), k)]
            if not few:
                steps.append(store(positions, k, line, 0, k))
            steps += count(scope, value, range(digits - 1, digits) if few else range(digits))
            return scope.body(*steps)

        def cut(d: Expr) -> Stmt:
            """In ``side``, how many first digits have no more than is wanted, with those before."""
            scope = Scope()
            before = scope.keep(load(total, 0))
            more = tvm().tirx.Select(before < wanted, const(1), const(0))
            return scope.body(
                store(side, load(side, 0) + more, 0),
                store(total, before + load(counts, digits - 1, d), 0),
            )

        def choose(k: Expr) -> Stmt:
            scope = Scope()
            value = scope.keep(key_at(line, const(0), k))
            to = scope.keep(load(live, 0))
            inside = _digit(value, digits - 1, kind) < load(side, 0)
            return scope.body(
                store_key(value, line, const(1), to),
                store(positions, k, line, 1, to),
                store(live, to + tvm().tirx.Select(inside, const(1), const(0)), 0),
            )

        def again(k: Expr) -> Stmt:
            scope = Scope()
            value = scope.keep(key_at(line, const(1), k))
            return scope.body(*count(scope, value, range(digits)))

        def one_pass(p: int) -> Stmt:
            def begin(d: Expr) -> Stmt:
                scope = Scope()
                here = scope.keep(load(counts, p, d))
                before = scope.keep(load(total, 0))
                return scope.body(store(counts, before, p, d), store(total, before + here, 0))

            def move(k: Expr) -> Stmt:
                scope = Scope()
                now = scope.keep(load(side, 0))
                value = scope.keep(key_at(line, now, k))
                position = scope.keep(load(positions, line, now, k))
                digit = scope.keep(_digit(value, p, kind))
                to = scope.keep(load(counts, p, digit))
                return scope.body(
                    store(counts, to + 1, p, digit),
                    store_key(value, line, 1 - now, to),
                    store(positions, position, line, 1 - now, to),
                )

            first = _digit(key_at(line, load(side, 0), const(0)), p, kind)
            work = seq(
                store(total, const(0), 0),
                serial(_DIGITS, begin, "d"),
                serial(load(live, 0) if few else n, move, "k"),
                store(side, 1 - load(side, 0), 0),
            )
            return when(load(counts, p, first) < load(live, 0), work)

        def result(k: Expr) -> Stmt:
            return put(line, k, load(positions, line, load(side, 0), k))

        chosen = [
            store(total, const(0), 0),
            store(live, const(0), 0),
            serial(_DIGITS, cut, "d"),
            serial(n, choose, "k"),
            store(side, const(1), 0),
            serial(_DIGITS, clear, "d"),
            serial(load(live, 0), again, "k"),
        ]
        return seq(
            *[alloc(m) for m in (counts, side, total, live)],
            store(side, const(0), 0),
            store(live, const(n), 0),
            serial(_DIGITS, clear, "d"),
            serial(n, read, "k"),
            *(chosen if few else []),
            *[one_pass(p) for p in range(digits)],
            serial(wanted, result, "k"),
        )

    return [tiled("radix", lines, max(1, GRAIN // n), long)]


def _type(name: str) -> Any:
    return tvm().ir.PrimType(name)
