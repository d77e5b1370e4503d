"""Products whose columns fill whole vectors but for a few: those few are computed in other ways.

A vector with 4 of 16 columns takes as long as a full one: of 100 columns' seven vectors that is an
eighth of the work.  If the rows are stored along k, the few are dot products, as in
:mod:`.gemm_dot`; if they are stored along m, the few are scalars that meet vectors of m.  The same
tiles compute them as the others: a stage of their own would have all threads wait for each other
once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...loops import Builder, Expr, Stage, Stmt, alloc, load, local_buffer, serial, store
from ...target import CpuTarget
from .gemm_dot import cycles as dot_cycles
from .gemm_dot import dot_stages, suits
from .gemm_outer import Beside, outer_stages, stage_in_place
from .gemm_problem import Problem
from .gemm_tiling import choose, packs_rows, time_of
from .gemm_triangles import ALL

Make = Callable[[], Beside]

_SHARE = 4  # of a vector that is left, at most a fourth
_LEAST = 1 << 21  # terms: the few are another register tile to compile
# Share of the second-level cache for a thread's copy of the few columns.
_NEAR = 0.1
# Cycles of an element that every thread copies; what must be saved.
_COPY_CYCLES, _WORTH = 2, 0.02


def stages_with_edge(problem: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage] | None:
    """The stages, if that is estimated to be faster than vectors that are partly empty."""
    if problem.batch > 1 or problem.terms < _LEAST:
        return None
    lanes = cpu.lanes(problem.itemsize)
    best: tuple[float, Problem, Make] | None = None
    for pb in (problem, problem.swap()):
        edge = pb.n % lanes
        if not 0 < edge <= lanes // _SHARE or pb.n < lanes:
            continue
        main, rest = _cut(pb, pb.n - edge)
        # What is computed must not depend on threads: this reckons with two.
        few = (_dots if suits(rest, cpu) else _scalars)(rest, replace(cpu, workers=2))
        if few is not None:
            cost = few[0] + time_of(main, cpu)
            if best is None or cost < best[0]:
                best = (cost, main, few[1])
    if best is None or best[0] > (1 - _WORTH) * time_of(problem, cpu):
        return None
    _, main, make = best
    return outer_stages(main.swap() if main.swapped else main, builder, cpu, beside=make())


def _cut(pb: Problem, n: int) -> tuple[Problem, Problem]:
    """The first ``n`` columns, and the others, these as rows."""
    col, write = pb.col, pb.write
    pb = replace(pb, whole=pb.result_pitch)
    rest = replace(
        pb,
        n=pb.n - n,
        triangles=ALL,
        col=lambda bt, k, j: col(bt, k, n + j),
        write=lambda bt, i, j, value: write(bt, i, n + j, value),
    )
    return replace(pb, n=n), rest.swap()


def _dots(rest: Problem, cpu: CpuTarget) -> tuple[float, Make] | None:
    """Estimated cycles of the few as dot products, and what makes them."""
    cycles = dot_cycles(rest, cpu)
    in_place = rest.row_k_inner and rest.row_plain
    if not in_place:
        if rest.m * rest.k * rest.itemsize > _NEAR * cpu.l2_bytes:
            return None
        cycles += cpu.workers * _COPY_CYCLES * rest.m * rest.k

    def make() -> Beside:
        start, pb = ([], rest) if in_place else _copied(rest)
        (few,) = dot_stages(pb, Builder(), cpu)
        return Beside(few, start)

    return cycles, make


def _scalars(rest: Problem, cpu: CpuTarget) -> tuple[float, Make] | None:
    """The same of the few as scalars, if the others are vectors that are read in place."""
    cycles, tiling = choose(rest, cpu)
    if not tiling.direct or packs_rows(rest, cpu, tiling.mr):
        return None
    return cycles, lambda: Beside(stage_in_place(rest, tiling, cpu))


def _copied(rest: Problem) -> tuple[list[Stmt], Problem]:
    """Statements with which a thread copies the few, so that k are neighbours; what reads that."""
    copy, row = local_buffer((rest.m, rest.k), rest.dtype, "few"), rest.row

    def line(i: Expr) -> Stmt:
        return serial(rest.k, lambda k: store(copy, row(0, i, k), i, k), "k")

    near = replace(rest, row=lambda _, i, k: load(copy, i, k), row_k_inner=True, row_pitch=rest.k)
    return [alloc(copy), serial(rest.m, line, "i")], near
