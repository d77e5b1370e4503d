"""Matrix product on a CPU: which schedule for which shape.

* dot products along k (:mod:`.gemm_dot`): one side too narrow to fill vectors, the other stored
  with k innermost.  The wide operand is streamed once.
* whole rows of a large matrix, streamed once (:mod:`.gemm_stream`): one row times such a matrix.
* outer products in registers (:mod:`.gemm_outer`): everything else, as it stands or transposed,
  whichever packs less and fills vectors better; a few columns that fill no vector are computed in
  other ways by the same tiles (:mod:`.gemm_edge`).

All add the terms of one element in an order that depends on the shape and the target only, never
on the number of threads.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

from ....core.record import record
from ...loops import (
    Builder,
    Expr,
    Stage,
    Stmt,
    Var,
    ceil_div,
    const,
    in_vectors,
    load,
    minimum,
    number,
    parallel_stage,
    seq,
    serial,
    store,
)
from ...streams import Around
from ...target import CpuTarget
from . import gemm_dot, gemm_stream
from .elementwise import GRAIN, tiled
from .gemm_edge import stages_with_edge
from .gemm_outer import outer_stages
from .gemm_problem import Load, Problem, Write
from .gemm_tiling import fastest, time_of
from .gemm_triangles import ALL, Triangles

# How much longer multiply-adds take than estimated where a neighbour uses the core too, which
# slows the matrix unit less.
_DISTURBED = 1.12
# Sums are cut into parts where operands are larger than this share of the second-level cache, and
# so many times as large as the result, and sums so many times as long as its longer edge, for
# threads share out rows, too, and read their own; into so many that the operands of one are about
# so many times as large as the cache.
_MUCH, _SMALL_RESULT, _LONG, _NEAR = 0.5, 12, 1.25, 1.4
# Of a larger result, too, if half the operands are no more than this share of the cache, and no
# line of them runs along the sums: then each thread reads what it has written before, or fetches it
# once.
_LARGER_RESULT, _HALF_SHARE = 9, 0.7
# Not where one operand is so many times the other and has so many lines along k: threads share out
# these, and each packs little twice.
_MANY_TIMES, _MANY_LINES = 4, 64
# How many times as many elements operands have as results of parts, of products that are added up.
_FEW_SUMS = 4
# What cutting must be estimated to save where threads can pack their own panels anyway.
_WORTH_CUTTING = 0.1
_JOIN_CYCLES = 0.5  # of adding up one sum of a part
_TOGETHER = 16  # parts that are added at once


@record
class Gemm:
    """``out[bt, i, j] = sum over k of a(bt, i, k) * b(bt, k, j)``.

    ``a_transposed`` says that A is stored ``[batch, k, m]`` rather than ``[batch, m, k]``;
    ``b_transposed`` that B is stored ``[batch, n, k]`` rather than ``[batch, k, n]``.
    ``a_pitch`` and ``b_pitch`` say that the operand is memory, contiguous along its last stored
    axis, so that reading an element again costs nothing: how many elements after one line the next
    begins.  An operand without is computed on the fly, once, into a packed copy.  ``a_batched`` and
    ``b_batched`` are False for an operand that is the same for every batch.  ``costly`` says that
    finishing an element takes elementary functions or divisions.  ``summed``: the result is the sum
    of all batches' products, and finished as batch 0.  ``triangles`` may be left out of account.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    a_transposed: bool
    b_transposed: bool
    a_pitch: int | None = None
    b_pitch: int | None = None
    a_batched: bool = True
    b_batched: bool = True
    costly: bool = False
    summed: bool = False
    triangles: Triangles = ALL


def gemm_stages(
    spec: Gemm,
    load_a: Load,
    load_b: Load,
    write: Write,
    builder: Builder,
    cpu: CpuTarget,
    around: Around | None = None,
) -> list[Stage] | None:
    """The stages that compute a product, or None for a dtype these schedules do not cover.

    ``load_a(bt, i, k)`` and ``load_b(bt, k, j)`` give scalar expressions of type ``spec.dtype``;
    ``write(bt, i, j, value)`` gives the statement that finishes one element and is run exactly once
    for each.  An empty result needs no stages; an empty sum (k = 0) writes zeros.  Outer products
    by multiply-adds store ``around`` the caches what ``write`` stores to such memory.

    Example: C = A @ B for float32 matrices of 64 x 64::

        a, b, c = (pointer_buffer((64, 64), "float32", name) for name in "abc")
        stages = gemm_stages(
            Gemm(1, 64, 64, 64, "float32", False, False, a_pitch=64, b_pitch=64),
            lambda bt, i, k: load(a, i, k),
            lambda bt, k, j: load(b, k, j),
            lambda bt, i, j, value: store(c, value, i, j),
            Builder(),
            host(),
        )
    """
    if spec.dtype not in ("float32", "float64"):
        return None
    if min(spec.batch, spec.m, spec.n) == 0:
        return []
    if spec.k == 0:
        return [_fill_zero(spec, write)]
    problem = replace(_problem(spec, load_a, load_b, write), around=around)
    if spec.summed and spec.batch > 1:
        return _joined(_near(problem, cpu), builder, cpu)
    narrow_first = sorted((problem, problem.swap()), key=lambda p: p.m)
    for candidate in narrow_first:
        if gemm_dot.suits(candidate, cpu) or _dots_pay(candidate, cpu):
            return gemm_dot.dot_stages(candidate, builder, cpu)
        if gemm_stream.suits(candidate, cpu):
            return gemm_stream.stream_stages(candidate, builder)
    parts = _in_parts(problem, cpu)
    return _whole(problem, builder, cpu) if parts is None else _joined(parts, builder, cpu)


def _dots_pay(pb: Problem, cpu: CpuTarget) -> bool:
    """Whether dot products of a vector's worth of rows and more are faster than anything else."""
    if not gemm_dot.may_suit(pb, cpu):
        return False
    two = replace(cpu, workers=2)  # bits do not depend on how many there are
    return _DISTURBED * gemm_dot.cycles(pb, two) < min(_cycles(pb, two))


def _tiles() -> Any:
    """Products on the matrix unit, which most machines do not have: imported where they are."""
    return importlib.import_module(f"{__package__}.gemm_tiles")


def _suits_unit(problem: Problem, cpu: CpuTarget) -> bool:
    """True if the machine has the unit and it computes this type."""
    return cpu.matrix_unit and problem.dtype == "float32"


def _whole(problem: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of a product whose sums are each computed by one thread."""
    if _suits_unit(problem, cpu):
        on_unit, by_vectors = _cycles(problem, cpu)
        if on_unit < by_vectors:
            stages: list[Stage] = _tiles().tile_stages(problem, cpu)
            return stages
    return stages_with_edge(problem, builder, cpu) or outer_stages(problem, builder, cpu)


def _in_parts(pb: Problem, cpu: CpuTarget) -> Problem | None:
    """The parts of few, long sums as batches; None if sums are not cut.

    Threads that share a small result share its operands, too: each packs most of both.  If they
    share the sums instead, nothing is packed twice, or comes from another core.  Into how many
    parts a sum is cut depends on the shape alone.
    """
    found = _parts(pb, cpu)
    return None if found is None else _cut(pb, found)


def _near(pb: Problem, cpu: CpuTarget) -> Problem:
    """Products that are added up, in parts of which both operands fit into a core's cache.

    Then a thread packs what it multiplies itself, instead of getting it from other cores.  As they
    are, if threads can do so anyway and little slower, if their length has no suitable divisor,
    if results of parts would be much to keep and add, and for the matrix unit.
    """
    operands, result = pb.k * (pb.m + pb.n), pb.m * pb.n
    least = ceil_div(operands * pb.itemsize, int(_MUCH * cpu.l2_bytes))
    parts = next((n for n in range(least, 2 * least) if pb.k % n == 0), 1)
    if parts == 1 or operands < _FEW_SUMS * parts * result or _suits_unit(pb, cpu):
        return pb
    cut = _cut(pb, parts)
    two = replace(cpu, workers=2)  # bits do not depend on how many there are
    if fastest(pb, two)[1].own_panels:
        joining = _JOIN_CYCLES * (cut.batch - pb.batch) * result
        time = cut.batch * time_of(cut, cpu) + joining
        return cut if time < (1 - _WORTH_CUTTING) * pb.batch * time_of(pb, cpu) else pb
    return cut


def _cut(pb: Problem, parts: int) -> Problem:
    """Each product as so many, of equal parts of its sums."""
    k, single = pb.k // parts, pb.batch == 1
    size = k if pb.told_k is pb.k else number(k, "size")

    def place(batch: Expr, k: Expr) -> tuple[Expr, Expr]:
        if single:
            return 0, batch * size + k
        bt = batch // parts
        return bt, (batch - bt * parts) * size + k  # not by remainders, see product.py

    def row(batch: Expr, i: Expr, k: Expr) -> Expr:
        bt, k = place(batch, k)
        return pb.row(bt, i, k)

    def col(batch: Expr, k: Expr, j: Expr) -> Expr:
        bt, k = place(batch, k)
        return pb.col(bt, k, j)

    batch = pb.batch * parts
    cut = replace(pb, batch=batch, k=k, row=row, col=col, row_batched=True, col_batched=True)
    return replace(cut, triangles=ALL)


def _joined(pb: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage]:
    """Stages of the sum of all batches' products, which ``write`` finishes as batch 0."""
    sums = builder.scratch_buffer((pb.batch, pb.m, pb.n), pb.dtype, "sums")
    apart = replace(pb, write=lambda part, i, j, value: store(sums, value, part, i, j))

    def add(first: Expr, count: int, i: Expr, j: Expr) -> Expr:
        total = load(sums, 0, i, j)
        for part in range(count):
            total = total + load(sums, first + part, i, j)
        return total

    lanes = cpu.lanes(pb.itemsize)
    # Some at a time, but for the last ones, which are finished at once.
    rounds, rest = divmod(pb.batch - 1, _TOGETHER)

    def line(i: Expr) -> Stmt:
        def some(q: Expr) -> Stmt:
            first = q * _TOGETHER + 1
            return in_vectors(
                pb.n, lanes, lambda j: store(sums, add(first, _TOGETHER, i, j), 0, i, j)
            )

        last = pb.batch - rest
        finish = in_vectors(pb.n, lanes, lambda j: pb.write(const(0), i, j, add(last, rest, i, j)))
        return seq([serial(rounds, some, "q")] if rounds else [], finish)

    join = tiled("gemm_join", pb.m, max(1, GRAIN // (pb.n * pb.batch)), line)
    return [*_whole(apart, builder, cpu), join]


def _parts(pb: Problem, cpu: CpuTarget) -> int | None:
    """Into how many parts sums are cut, or None if they are not."""
    operands, result = (n * pb.itemsize for n in (pb.k * (pb.m + pb.n), pb.m * pb.n))
    if pb.batch > 1 or pb.k < _LONG * max(pb.m, pb.n):
        return None
    near = operands <= 2 * _HALF_SHARE * cpu.l2_bytes
    across = not (pb.row_k_inner or pb.col_k_inner)
    times = _LARGER_RESULT if near and across else _SMALL_RESULT
    if operands < _MUCH * cpu.l2_bytes or operands < times * result:
        return None
    most, along_k = max((pb.m, pb.row_k_inner), (pb.n, pb.col_k_inner))
    if along_k and most >= max(_MANY_LINES, _MANY_TIMES * min(pb.m, pb.n)):
        return None
    # In pairs, of which two threads compute one each.
    pairs = ceil_div(operands, int(2 * _NEAR * cpu.l2_bytes))
    least = 2 * max(1, min(pairs, operands // (2 * _FEW_SUMS * result)))
    even, odd = range(least, 2 * least, 2), range(least + 1, 2 * least, 2)
    return next((n for n in (*even, *odd) if pb.k % n == 0), None)


def cycles(spec: Gemm, cpu: CpuTarget) -> float:
    """Estimated cycles of a product, all cores together."""

    def none(*_: Expr) -> Expr:
        raise AssertionError("an estimate reads nothing")

    problem = _problem(spec, none, none, none)
    added = spec.summed and spec.batch > 1
    parts = _near(problem, cpu) if added else _in_parts(problem, cpu)
    if parts is None:
        return min(_cycles(problem, cpu))
    return min(_cycles(parts, cpu)) + _JOIN_CYCLES * parts.batch * parts.m * parts.n


def _cycles(problem: Problem, cpu: CpuTarget) -> tuple[float, float]:
    """The same on the matrix unit (infinite if there is none), and by multiply-adds."""
    both = problem, problem.swap()
    on_unit = math.inf
    if _suits_unit(problem, cpu):
        on_unit = min(_tiles().cycles(p, cpu) for p in both)
    return on_unit, _DISTURBED * problem.batch * fastest(problem, cpu)[0]


def _problem(spec: Gemm, load_a: Load, load_b: Load, write: Write) -> Problem:
    return Problem(
        batch=spec.batch,
        m=spec.m,
        n=spec.n,
        k=spec.k,
        dtype=spec.dtype,
        row=load_a,
        col=load_b,
        row_k_inner=not spec.a_transposed,
        col_k_inner=spec.b_transposed,
        row_pitch=spec.a_pitch,
        col_pitch=spec.b_pitch,
        write=write,
        row_batched=spec.a_batched,
        col_batched=spec.b_batched,
        swapped=False,
        costly=spec.costly,
        triangles=spec.triangles,
    )


def _fill_zero(spec: Gemm, write: Write) -> Stage:
    rows = max(1, min(spec.m, 4096 // spec.n))
    parts = ceil_div(spec.m, rows)

    def body(tile: Var) -> Stmt:
        bt, first = tile // parts, tile % parts * rows
        zero = const(0.0, spec.dtype)
        count = rows if spec.m % rows == 0 else minimum(rows, spec.m - first)
        return serial(
            count, lambda i: serial(spec.n, lambda j: write(bt, first + i, j, zero), "j"), "i"
        )

    return parallel_stage("gemm_zero", spec.batch * parts, body)
