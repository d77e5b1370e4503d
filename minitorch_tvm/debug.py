"""Seeing inside: which programs were compiled, and what each of their kernels does."""

from __future__ import annotations

from pathlib import Path

from . import lazy
from .core import errors
from .ir.program import KernelInfo, Program
from .runtime.executor import Executor


def programs() -> list[Program]:
    """The compiled programs in memory, least recently used first.

    Programs of the numpy reference target (``MTVM_TARGET=numpy``) are not among them: nothing was
    compiled for those.
    """
    return [program for program, _ in _compiled()]


def explain() -> str:
    """A report on every compiled program in memory, as text of several lines.

    Per program: values (nodes of the simplified graph), kernels, stages (loop nests; the kernels'
    sum) and native calls so far; bytes of the arena as planned, as the naive sum of all
    intermediates, and as the lower bound (the largest sum alive at once); seconds per compiler
    stage.  Then one row per kernel: the schedule rule that was chosen, stages, values computed,
    MFLOP (10^6 multiplications and additions of products and reductions), MB (10^6 bytes read and
    written at least) and the line where its first value was recorded.

    >>> import minitorch_tvm as mt
    >>> mt.eval((mt.ones(4) * 3).sum())
    >>> "lower bound" in mt.debug.explain()
    True
    """
    compiled = _compiled()
    if not compiled:
        return "no program has been compiled"
    return "\n\n".join(
        f"program {number} of {len(compiled)}: {_describe(program, calls)}"
        for number, (program, calls) in enumerate(compiled, 1)
    )


def _compiled() -> list[tuple[Program, int]]:
    return [(x.program, x.calls) for x in lazy.executors() if isinstance(x, Executor)]


def _describe(p: Program, calls: int) -> str:
    stages = sum(k.stages for k in p.kernels)
    over = f" ({p.arena_bytes / p.lower_bound:.2f} x lower bound)" if p.lower_bound else ""
    seconds = ", ".join(f"{name} {s:.3f}" for name, s in p.seconds.items())
    lines = [
        f"{len(p.graph.values)} values, {len(p.kernels)} kernels, {stages} stages, {calls} calls",
        f"  arena: {p.arena_bytes:,} bytes planned{over}, naive sum {p.naive_bytes:,}, "
        f"lower bound {p.lower_bound:,}",
        f"  compile seconds: {sum(p.seconds.values()):.3f} ({seconds})",
    ]
    rows = [("kernel", "rule", "stages", "values", "MFLOP", "MB", "recorded at")]
    rows += [_row(p, k) for k in p.kernels]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def _row(p: Program, k: KernelInfo) -> tuple[str, ...]:
    place = p.graph.values[k.values[0]].place
    where = ""
    if place is not None:
        file, line = errors.line_of(place)
        where = f"{Path(file).name}:{line}"
    return (
        k.name,
        k.rule,
        str(k.stages),
        str(len(k.values)),
        f"{k.flops / 1e6:.2f}",
        f"{k.bytes_moved / 1e6:.3f}",
        where,
    )
