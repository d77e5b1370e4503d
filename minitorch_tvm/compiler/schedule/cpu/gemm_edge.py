"""Products whose columns fill whole vectors but for a few: those few are dot products along k.

A vector with 4 of 16 columns takes as long as a full one: of 100 columns' seven vectors that is an
eighth of the work.  The few are computed as by :mod:`.gemm_dot`, by the same tiles as the others:
a stage of their own would have all threads wait for each other once more.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.tvm_api import tvm
from ...loops import Builder, Expr, Stage, Stmt, bind, seq, serial
from ...target import CpuTarget
from .gemm_dot import dot_stages, suits
from .gemm_outer import outer_stages
from .gemm_problem import Problem
from .gemm_tiling import least_cycles

_SHARE = 4  # of a vector that is left, at most a fourth
_LEAST = 1 << 21  # terms: dot products are another register tile to compile
# Cycles of a vector of terms, and of a sum whose lanes are added up; what must be saved.
_TERM_CYCLES, _SUM_CYCLES, _WORTH = 0.9, 12, 0.03


def stages_with_edge(problem: Problem, builder: Builder, cpu: CpuTarget) -> list[Stage] | None:
    """The stages, if that is estimated to be faster than vectors that are partly empty."""
    if problem.batch > 1 or problem.m * problem.n * problem.k < _LEAST:
        return None
    lanes = cpu.lanes(problem.itemsize)
    best: tuple[float, Problem, Problem] | None = None
    for pb in (problem, problem.swap()):
        edge = pb.n % lanes
        if not 0 < edge <= lanes // _SHARE or pb.n < lanes:
            continue
        main, rest = _cut(pb, pb.n - edge)
        # Both operands as they lie in memory: a copy would be a stage of its own.
        if not (suits(rest, cpu) and rest.row_k_inner and rest.row_plain):
            continue
        cost = edge * pb.m * (pb.k / lanes * _TERM_CYCLES + _SUM_CYCLES) + least_cycles(main, cpu)
        if best is None or cost < best[0]:
            best = (cost, main, rest)
    if best is None or best[0] > (1 - _WORTH) * least_cycles(problem, cpu):
        return None
    _, main, rest = best
    stages = outer_stages(main.swap() if main.swapped else main, builder, cpu)
    (few,) = dot_stages(rest, builder, cpu)
    (number,) = (i for i, stage in enumerate(stages) if stage.name == "gemm")
    stages[number] = _together(stages[number], few)
    return stages


def _cut(pb: Problem, n: int) -> tuple[Problem, Problem]:
    """The first ``n`` columns, and the others, these as rows."""
    col, write = pb.col, pb.write
    rest = replace(
        pb,
        n=pb.n - n,
        col=lambda bt, k, j: col(bt, k, n + j),
        write=lambda bt, i, j, value: write(bt, i, n + j, value),
    )
    return replace(pb, n=n), rest.swap()


def _together(stage: Stage, few: Stage) -> Stage:
    """Every tile of a stage computes its share of another's."""
    assert stage.queue is few.queue is None, "these take their tiles themselves"
    first, last = ((stage.tile + n) * few.tiles // stage.tiles for n in (0, 1))

    def tile(q: Expr) -> Stmt:
        return seq(tvm().tirx.Bind(few.tile, begin + q), few.body)

    begin, know = bind("begin", first)
    shared = seq(know, serial(last - begin, tile, "few"))
    return replace(stage, body=seq(stage.body, shared), helpers=(*stage.helpers, *few.helpers))
