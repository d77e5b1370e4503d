"""Seeing inside: which programs were compiled, and what each of their kernels does."""

from __future__ import annotations

from . import lazy
from .ir.program import Program
from .runtime.executor import Executor


def programs() -> list[Program]:
    """The compiled programs in memory, least recently used first.

    Programs of the numpy reference target (``MTVM_TARGET=numpy``) are not among them: nothing was
    compiled for those.
    """
    return [program for program, _ in _compiled()]


def explain() -> str:
    """A report on every compiled program in memory, as text of several lines.

    Per program: nodes (of the simplified graph), kernels, stages (loop nests; the kernels'
    sum) and native calls so far; bytes of the arena as planned, as the naive sum of all
    intermediates, and as the lower bound (the largest sum alive at once); seconds per compiler
    stage.  Then one row per kernel: the schedule rule that was chosen, stages, nodes computed,
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
        f"program {number} of {len(compiled)}: {program.summary()}, {calls} calls\n"
        f"{program.report()}"
        for number, (program, calls) in enumerate(compiled, 1)
    )


def _compiled() -> list[tuple[Program, int]]:
    return [(x.program, x.calls) for x in lazy.executors() if isinstance(x, Executor)]
