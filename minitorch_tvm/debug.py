"""Seeing inside: which programs were compiled, and what each of their kernels does."""

from __future__ import annotations

from typing import Any

from . import lazy
from .core.record import record
from .growing import Interim
from .ir.program import KernelInfo, Program, in_columns
from .runtime.executor import Executor
from .runtime.padded import PaddedExecutor
from .runtime.piecewise import PiecewiseExecutor


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
    written at least) and the line where its first value was recorded.  In the end, how many
    programs numpy runs as they grow (``MTVM_GROWING``), and how many sizes are run by programs that
    have room for others (``MTVM_VARYING``).

    >>> import minitorch_tvm as mt
    >>> mt.eval((mt.ones(4) * 3).sum())
    >>> "lower bound" in mt.debug.explain()
    True
    """
    compiled = _compiled()
    if not compiled:
        return "no program has been compiled"
    found = [
        f"program {number} of {len(compiled)}: {program.summary()}, {calls} calls\n"
        f"{program.report()}"
        for number, (program, calls) in enumerate(compiled, 1)
    ]
    for kind, text in (
        (Interim, "growing programs, run by numpy"),
        (PaddedExecutor, "sizes, run by programs with room for others"),
        (PiecewiseExecutor, "structures, run op by op"),
    ):
        several = [x for x in lazy.executors() if isinstance(x, kind)]
        if several:
            found.append(f"{len(several)} {text}: {sum(x.calls for x in several)} calls")
    return "\n\n".join(found)


@record(sealed=True)
class KernelTime:
    """How long a kernel took: ``seconds`` of all threads together, per call of its program.

    Neighbouring kernels of one tile each are run, and measured, as one: ``kernels`` are several
    then.
    """

    kernels: tuple[KernelInfo, ...]
    seconds: float

    @property
    def flops(self) -> int:
        """Multiplications and additions of products and reductions, per call."""
        return sum(k.flops for k in self.kernels)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written at least, per call."""
        return sum(k.bytes_moved for k in self.kernels)


@record(sealed=True)
class Profile:
    """What was measured of a program; as text a table, the longest kernels first.

    ``seconds`` is the time of a native call, on average over ``calls`` of them.  Of the threads'
    time in it, ``threads`` of them, the kernels' is the most; the rest is waiting, for each other
    and for the threads to begin.
    """

    program: Program
    calls: int
    seconds: float
    threads: int
    kernels: tuple[KernelTime, ...]

    @property
    def waiting(self) -> float:
        """The share of the threads' time that no kernel has."""
        total = self.seconds * self.threads
        return 1 - sum(k.seconds for k in self.kernels) / total if total else 0.0

    def __repr__(self) -> str:
        return f"<Profile of {self.program.summary()}, {self.calls} calls>"

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        lines = [
            f"{self.program.summary()}: {self.calls} calls of {self.seconds * 1e6:.1f} us on "
            f"{threads}, {self.waiting:.1%} waiting"
        ]
        rows: list[tuple[str, ...]] = [
            ("kernel", "rule", "us", "share", "GFLOP/s", "GB/s", "recorded at")
        ]
        total = sum(k.seconds for k in self.kernels) or 1.0
        for k in sorted(self.kernels, key=lambda k: -k.seconds):
            wall = k.seconds / self.threads or float("inf")
            rows.append(
                (
                    " + ".join(info.name for info in k.kernels),
                    k.kernels[0].rule,
                    f"{k.seconds * 1e6:.1f}",
                    f"{k.seconds / total:.1%}",
                    f"{k.flops / wall / 1e9:.1f}",
                    f"{k.bytes_moved / wall / 1e9:.1f}",
                    self.program.where(k.kernels[0]),
                )
            )
        return "\n".join([*lines, *in_columns(rows, range(2, 6))])


def profile(*, reset: bool = False) -> list[Profile]:
    """Where the time of each program goes that was compiled with ``MTVM_PROFILE=1`` and has run.

    Least recently used programs first.  Times are of all threads together, since the program was
    compiled, or since the last call with ``reset``; rates are those of all threads at work.
    Measuring takes some 50 ns for each kernel and thread.  Empty without that setting.

    >>> import minitorch_tvm as mt
    >>> from minitorch_tvm.core import config
    >>> _ = mt.debug.profile(reset=True)
    >>> with config.override(profile=True):
    ...     mt.eval(mt.randn(64, 64) @ mt.randn(64, 64))
    ...     found = mt.debug.profile()[-1]
    >>> found.calls, found.kernels[-1].kernels[0].name
    (1, 'matmul')
    """
    found = []
    for executor in lazy.executors():
        if not isinstance(executor, Executor) or executor.program.clocks is None:
            continue
        measured = executor.times(reset)
        if measured is not None and measured[2]:
            found.append(_profile(executor.program, *measured))
    return found


def _profile(program: Program, times: Any, launches: int, calls: int) -> Profile:
    assert program.clocks is not None
    by_kernels: dict[tuple[int, ...], float] = {}
    for step, kernels in enumerate(program.clocks.kernels):
        group = tuple(dict.fromkeys(k for k in kernels if k >= 0))
        if group:  # else it fills memory with NaN (MTVM_POISON)
            by_kernels[group] = by_kernels.get(group, 0.0) + float(times[:, step].sum())
    return Profile(
        program,
        calls,
        launches / calls / 1e9,
        program.clocks.workers,
        tuple(
            KernelTime(tuple(program.kernels[k] for k in group), ns / calls / 1e9)
            for group, ns in by_kernels.items()
        ),
    )


def _compiled() -> list[tuple[Program, int]]:
    return [(x.program, x.calls) for x in lazy.executors() if isinstance(x, Executor)]
