"""Products whose columns fill whole vectors but for a few: those few are dot products along k.

A vector with 4 of 16 columns takes as long as a full one: of 100 columns' seven vectors that is an
eighth of the work.  The few are computed as by :mod:`.gemm_dot`, by the same tiles as the others:
a stage of their own would have all threads wait for each other once more.
"""

from __future__ import annotations

from dataclasses import replace

from ...loops import Builder, Stage
from ...target import CpuTarget
from .gemm_dot import dot_stages, suits
from .gemm_outer import outer_stages
from .gemm_problem import Problem
from .gemm_tiling import fastest

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
        cost = edge * pb.m * (pb.k / lanes * _TERM_CYCLES + _SUM_CYCLES) + fastest(main, cpu)[0]
        if best is None or cost < best[0]:
            best = (cost, main, rest)
    if best is None or best[0] > (1 - _WORTH) * fastest(problem, cpu)[0]:
        return None
    _, main, rest = best
    (few,) = dot_stages(rest, builder, cpu)
    return outer_stages(main.swap() if main.swapped else main, builder, cpu, beside=few)


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
