"""The steps of a program as data, and the entry that carries them out.

A step is a stage, or several of one tile each.  The entry reads from an array of 64-bit words which
functions each step calls and with which pointers::

    steps, arguments, workers                           how many there are
    first run, run behind the last, tiles, wait         of each step
    function, first argument                            of each run: a call of a stage function
    slot, offset                                        of each argument: its pointer in the table
    address                                             of each argument, filled in by the entry
    queue                                               of each step and worker (see :mod:`.queues`)

so the entry itself grows only with the number of different functions.  The array is the runtime's
to provide, and the entry's to write: one program runs at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core.tvm_api import tvm
from .loops import (
    Expr,
    Memory,
    Stmt,
    const,
    load,
    on_cpu,
    pointer_buffer,
    pointer_type,
    seq,
    serial,
    store,
    when,
)
from .queues import QUEUE_BYTES, Queues

_WORD = 8
_STEP, _RUN, _ARGUMENT = 4, 2, 2  # words of each
_HEADER = 3


@dataclass(frozen=True)
class Step:
    """Tiles to compute, whether all threads wait for them, and how many functions compute each."""

    tiles: int
    wait: bool
    runs: int


@dataclass(frozen=True)
class Function:
    """A stage function: its symbol and what its pointers point to (the tile follows them)."""

    symbol: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """The array of one program."""

    steps: Sequence[Step]
    functions: Sequence[int]  # of each run
    arguments: Sequence[Sequence[tuple[int, int]]]  # of each run: slots and offsets
    workers: int

    @property
    def runs(self) -> int:
        """The word at which runs start."""
        return _HEADER + _STEP * len(self.steps)

    @property
    def slots(self) -> int:
        """The word at which arguments start."""
        return self.runs + _RUN * len(self.functions)

    @cached_property
    def count(self) -> int:
        """Arguments of all runs."""
        return sum(map(len, self.arguments))

    @property
    def addresses(self) -> int:
        """The word at which addresses start."""
        return self.slots + _ARGUMENT * self.count

    @property
    def queues(self) -> int:
        """The byte at which queues start."""
        return -(-(self.addresses + self.count) * _WORD // QUEUE_BYTES) * QUEUE_BYTES

    def data(self) -> bytes:
        """The array before the first run of the program."""
        words = [len(self.steps), self.count, self.workers]
        run = 0
        for step in self.steps:
            words += [run, run + step.runs, step.tiles, int(step.wait)]
            run += step.runs
        first = 0
        for function, arguments in zip(self.functions, self.arguments, strict=True):
            words += [function, first]
            first += len(arguments)
        words += [x for arguments in self.arguments for pair in arguments for x in pair]
        queues = len(self.steps) * self.workers if self.workers > 1 else 0
        head = struct.pack(f"={len(words)}q", *words)
        return head.ljust(self.queues + queues * QUEUE_BYTES, b"\0")


def entry_function(layout: Layout, functions: Sequence[Function], slots: int) -> Any:
    """The entry: it receives a table of ``slots`` pointers and, behind them, the array's."""
    t = tvm()
    table_pointer = t.tirx.Var("table", pointer_type("uint64"))
    table = t.tirx.decl_buffer([const(slots + 1)], "uint64", "table", data=table_pointer)
    array = t.tirx.BufferLoad(table, [const(slots)])

    def declared(memory: Memory, offset: int) -> Stmt:
        kind = pointer_type(memory.dtype)
        base = t.ir.Call("tirx.reinterpret", [array + const(offset, "uint64")], ret_ty=kind)
        return t.tirx.DeclBuffer(memory.raw, data=base)

    words = pointer_buffer((1 << 30,), "int64", "words")
    queues = Queues(layout.workers)

    def word(at: Expr, field: int = 0) -> Expr:
        return load(words, at + field).astype("int32")

    def field(step: Expr, number: int) -> Expr:
        return word(step * _STEP, _HEADER + number)

    def resolve(i: Expr) -> Stmt:
        slot = word(i * _ARGUMENT, layout.slots)
        offset = load(words, i * _ARGUMENT + (layout.slots + 1))
        base = t.tirx.BufferLoad(table, [slot]).astype("int64")
        return store(words, base + offset, i + layout.addresses)

    # TVM tells LLVM that buffers of different names never alias.  Stages inlined into one function
    # would then be reordered although they share the arena; an unknown call, which a barrier is
    # too, keeps them apart.
    fence = t.tirx.Evaluate(t.tirx.call_extern("uint64", "pthread_self"))

    def call(number: int, first: Expr, tile: Expr) -> Stmt:
        function = functions[number]
        pointers = [
            t.ir.Call(
                "tirx.reinterpret",
                [load(words, first + (layout.addresses + i)).astype("uint64")],
                ret_ty=pointer_type(dtype),
            )
            for i, dtype in enumerate(function.dtypes)
        ]
        return t.tirx.Evaluate(t.tirx.call_extern("int32", function.symbol, *pointers, tile))

    def choose(low: int, high: int, number: Expr, first: Expr, tile: Expr) -> Stmt:
        """Call the function of that number, which is at least ``low`` and below ``high``."""
        if high - low == 1:
            return call(low, first, tile)
        middle = (low + high) // 2
        halves = [(low, middle), (middle, high)]
        return when(number < middle, *[choose(*half, number, first, tile) for half in halves])

    def compute(step: Expr, tile: Expr) -> Stmt:
        def run(i: Expr) -> Stmt:
            at = (i + field(step, 0)) * _RUN
            return seq(
                choose(0, len(functions), word(at, layout.runs), word(at, layout.runs + 1), tile),
                fence,
            )

        return serial(field(step, 1) - field(step, 0), run, "run")

    # The numbers of steps and arguments are read, not written into the code: LLVM would unroll.
    count = word(const(0))
    prepare = serial(word(const(0), 1), resolve, "argument")
    if layout.workers == 1:

        def alone(step: Expr) -> Stmt:
            return serial(field(step, 2), lambda tile: compute(step, tile), "tile")

        body = seq(prepare, serial(count, alone, "step"))
    else:

        def shared(step: Expr) -> Stmt:
            tiles = field(step, 2)
            share = queues.run(step, tiles, word(const(0), 2), lambda tile: compute(step, tile))
            return seq(share, when(field(step, 3) != 0, queues.barrier()))

        launch = t.tirx.AttrStmt(
            const(0), "pragma_parallel_launch_point", const(1), serial(count, shared, "step")
        )
        start = serial(count, lambda step: queues.fill(step, field(step, 2)), "step")
        body = seq(declared(queues.memory, layout.queues), prepare, start, launch)
    declarations = [t.tirx.DeclBuffer(table, data=table_pointer), declared(words, 0)]
    return t.tirx.PrimFunc(
        [table_pointer], on_cpu(t.tirx.SeqStmt([*declarations, body]))
    ).with_attr("s_tir", True)
