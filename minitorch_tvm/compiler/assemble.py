"""From stages to native functions: stage functions and the program's single entry.

The entry receives one pointer to a table of pointers.  All stages run in one parallel launch: each
stage is a set of tiles that the threads take from queues, with a barrier before the first stage
that touches what an unfinished one writes.  Neighbouring stages of one tile each are run as one.
Short programs run on the calling thread instead.
What is called with which pointers is data that the entry reads (:mod:`.steps`): written out as
code, it took longer to compile than all stages of a large program together.

A stage function takes raw pointers and promises that they do not alias, which is what lets LLVM
keep accumulators in registers; pasting all loops into one function over one arena loses that and
runs three times slower.  Stages of equal structure share one function.

The entry finds stages in a table of addresses, so that each can be compiled apart from the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.record import record
from ..core.tvm_api import ffi, tvm
from ..ir.program import WITHIN
from .loops import (
    Helper,
    Parts,
    Stage,
    below,
    called,
    const,
    count_statements,
    free_variables,
    load,
    on_cpu,
    pointer_buffer,
    pointer_type,
    seq,
    var,
)
from .steps import (
    ENTRY,
    NUMBER,
    SETTLED,
    Function,
    Layout,
    Step,
    entry_function,
    entry_helpers,
    of_all,
    table,
)
from .target import CpuTarget
from .within import within_function

Buffer = Any  # TVM's buffer variable


@record
class Place:
    """Where a buffer lives: a slot of the pointer table plus a byte offset.

    The rest tells what must not happen at once: how large it is, whether the kernel writes it, and
    the slot whose memory its own may be (an output that overwrites an input).
    """

    slot: int
    offset: int = 0
    nbytes: int = 1 << 62
    written: bool = True
    alias: int | None = None

    @property
    def memory(self) -> int:
        """The slot of what it is a part of."""
        return self.slot if self.alias is None else self.alias

    def behind(self, nbytes: int) -> Place:
        """What is left of it behind its first bytes."""
        return replace(self, offset=self.offset + nbytes, nbytes=self.nbytes - nbytes)

    def conflicts(self, other: Place) -> bool:
        """True if both may touch one byte and one of them writes it."""
        if self.memory != other.memory:
            return False
        if self.offset + self.nbytes <= other.offset or other.offset + other.nbytes <= self.offset:
            return False
        return self.written or other.written


@record
class StageCall:
    """A stage as the entry sees it: how many tiles, computed by what, on memory where."""

    tiles: int
    function: Function
    places: tuple[Place, ...]
    kernel: int = -1  # that it is of
    numbers: tuple[int, ...] = ()  # that the function is told


def _raw(parts: Parts) -> Any:
    t = tvm()
    buffers = parts.buffers
    pointers = [t.tirx.Var(f"p{i}", pointer_type(str(b.dtype))) for i, b in enumerate(buffers)]
    declared = [t.tirx.DeclBuffer(b, data=p) for b, p in zip(buffers, pointers, strict=True)]
    body = on_cpu(seq(declared, parts.body))
    return (
        t.tirx.PrimFunc(
            [*pointers, *parts.numbers],
            t.tirx.SeqStmt([body, t.tirx.Return(const(0))]),
            t.ir.PrimType("int32"),
        )
        .with_attr("s_tir", True)
        .with_attr("tirx.noalias", True)
    )


def _know(told: Sequence[tuple[Any, int]]) -> tuple[list[Buffer], list[Any]]:
    """What a function that is told numbers takes, and the statements that find them there."""
    if not told:
        return [], []
    memory = pointer_buffer((len(told),), NUMBER, "numbers")
    read = [below(load(memory, i).astype("int32"), value) for i, (_, value) in enumerate(told)]
    bind = tvm().tirx.Bind
    return [memory.raw], [bind(v, value) for (v, _), value in zip(told, read, strict=True)]


def _symbol(structure: tuple[str, tuple[str, ...], int, int]) -> str:
    name, dtypes, *numbers = structure
    text = " ".join([*dtypes, *map(str, numbers)])
    return f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class Functions:
    """The stage functions of one program; ``made(symbol, function)`` is told of every new one.

    Symbols tell what a function does: a later program may call functions of an earlier one, and a
    later process those of this one.
    ``has(name)`` tells of helpers that need not be made, because an earlier program did, and
    ``found(function)`` of stage functions.
    """

    def __init__(
        self,
        made: Callable[[str, Any], None],
        has: Callable[[str], bool] = lambda _: False,
        found: Callable[[Function], bool] = lambda _: False,
    ) -> None:
        self._made, self._has, self._found = made, has, found
        self._known: dict[Any, Function] = {}
        self._helpers: set[str] = set()

    def of(self, stage: Stage) -> tuple[Function, list[Buffer], list[tuple[int, ...]]]:
        """The function of a stage, the buffers whose addresses it takes, and what it is told in
        each turn."""
        buffers, told = free_variables(stage.body)
        queue = var("queue", "uint64") if stage.queue is None else stage.queue
        taken, known = _know(told)
        pointers, body = [*buffers, *taken], seq(known, stage.body)
        raw = _raw(Parts(pointers, [stage.tile, queue], body))
        dtypes = tuple(str(b.dtype) for b in pointers)
        # TVM's trees are large, and take long to compare: 64 bits are kept, and a little more.
        structure = (stage.name, dtypes, count_statements(body), ffi.structural_hash(raw))
        function = self._known.get(structure)
        if function is None:
            function = Function(_symbol(structure), dtypes, stage.queue is not None, structure)
            if not self._found(function):
                self._make(function.symbol, raw)
                if function.called != function.symbol:
                    self._made(function.called, of_all(function))
            self._known[structure] = function
        for helper in stage.helpers:
            self.need(helper)
        turns = [
            tuple(turn if v.same_as(stage.turn) else value for v, value in told)
            for turn in range(stage.turns)
        ]
        return function, buffers, turns

    def need(self, helper: Helper) -> None:
        """Make a helper, unless it is there."""
        if helper.name not in self._helpers:
            self._helpers.add(helper.name)
            if not self._has(helper.name):
                self._make(helper.name, _raw(helper.make()))

    def _make(self, symbol: str, raw: Any) -> None:
        public = raw.with_attr("global_symbol", symbol)
        self._made(symbol, public.with_attr("calling_conv", SETTLED))


def entry_functions(workers: int, cpu: CpuTarget, timed: bool = False) -> dict[str, Any]:
    """By symbol, what all programs of so many workers have in common: the entry, what it calls
    beside stages, and what tests positions."""
    made: dict[str, Any] = {ENTRY: entry_function(workers, timed), WITHIN: within_function(cpu)}
    functions = Functions(made.__setitem__)
    for helper in entry_helpers(workers):
        functions.need(helper)
    called()  # not by a stage
    return made


@record(frozen=False)
class _Step:
    """One stage, or several of one tile each: what the threads share out at a time."""

    tiles: int
    calls: list[StageCall]

    @property
    def places(self) -> list[Place]:
        """All that it touches."""
        return [place for call in self.calls for place in call.places]


def _waits(places: Sequence[Sequence[Place]]) -> list[bool]:
    """Per step, whether all threads must be done with it before any goes on to the next."""
    waits = [False] * len(places)
    unfinished: dict[int, list[Place]] = {}  # by what they are parts of
    for i, touched in enumerate(places):
        if any(a.conflicts(b) for a in touched for b in unfinished.get(a.memory, ())):
            waits[i - 1] = True
            unfinished = {}
        for a in touched:
            unfinished.setdefault(a.memory, []).append(a)
    return waits


@record
class Assembly:
    """A program but for its stages and what all programs have in common."""

    table: bytes  # the object file that tells the entry where stages are
    workers: int
    steps: bytes
    steps_nbytes: int  # with what the entry adds
    clocks: int  # byte of that at which times start
    kernels: tuple[tuple[int, ...], ...]  # of each step's calls


# What waking the other threads costs in cycles of the calling one, and what a barrier does.
_LAUNCH_CYCLES, _BARRIER_CYCLES = 12_000, 6_000


def assemble(
    calls: Sequence[StageCall], workers: int, cycles: float = float("inf"), timed: bool = False
) -> Assembly:
    """Put the calls of a program in order (see :mod:`.steps`).

    ``workers`` is the largest number of threads that can share a stage; with one, or if no step has
    more than one tile, all runs on the calling thread.  So it does where one thread needs so few
    ``cycles`` (an estimate) that sharing them out would take longer than they do.  ``timed``: the
    entry measures how long steps take.
    """
    functions = list(dict.fromkeys(call.function for call in calls))
    numbers = {function: i for i, function in enumerate(functions)}
    steps: list[_Step] = []
    for call in calls:
        if steps and steps[-1].tiles == call.tiles == 1:
            steps[-1].calls.append(call)
        else:
            steps.append(_Step(call.tiles, [call]))
    waits = _waits([step.places for step in steps])
    short = cycles < _LAUNCH_CYCLES + _BARRIER_CYCLES * sum(waits)
    if workers == 1 or short or all(step.tiles == 1 for step in steps):
        workers, waits = 1, [False] * len(steps)
    layout = Layout(
        [
            Step(step.tiles, wait, len(step.calls), step.calls[0].function.takes)
            for step, wait in zip(steps, waits, strict=True)
        ],
        [numbers[call.function] for call in calls],
        [[(p.slot, p.offset) for p in call.places] for call in calls],
        [call.numbers for call in calls],
        workers,
        timed,
    )
    kernels = tuple(tuple(call.kernel for call in step.calls) for step in steps)
    return Assembly(table(functions), workers, layout.data(), layout.nbytes, layout.clocks, kernels)
