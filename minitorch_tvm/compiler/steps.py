"""The steps of a program as data, and the functions that carry them out.

A step is a stage, or several of one tile each.  The entry reads from an array of 64-bit words which
functions each step calls and with which pointers::

    header                               see :data:`_HEADER`
    first run, runs, tiles, wait, alone  of each step
    function, pointers, first address    of each run: a call of a stage function
    slot, offset                         of each argument: its pointer in the table
    number                               that functions are told
    address                              of each argument, filled in by the entry
    queue                                of each step and worker (see :mod:`.queues`)
    ns                                   of each worker and step, where they are measured

What comes first is told by the number of its word.  The entry is therefore the same for all
programs of as many workers, and compiled again only when no program that has it is left.  It calls
stages by number, through a table of their addresses, which is left to make for each program.  The
array is the runtime's to provide, and the entry's to write: one program runs at a time.

LLVM does not optimise the entry, which would take it 50 ms: what is used twice there is kept in
variables.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..core.record import record
from ..core.tvm_api import tvm
from ..ir.program import STEPS_SLOT
from . import apart, crowd
from .clocks import TOTALS, Clocks
from .loops import (
    Expr,
    Helper,
    Memory,
    Stmt,
    bind,
    const,
    importing,
    load,
    on_cpu,
    pointer_buffer,
    pointer_type,
    seq,
    serial,
    store,
    var,
    when,
)
from .queues import QUEUE_BYTES, Queues
from .table import table_object

ENTRY, TABLE = "step", "stages"
_CALL, _OF_ALL = "call_stage", "_of_all"
MOST_POINTERS = 12
"""A function of more is called through another, which takes the address of the first."""
# TVM's number for functions whose calling convention is settled: it leaves their arguments alone.
SETTLED = 1
_WORD = 8
NUMBER = "int64"  # what a function is told is kept as
_STEP, _RUN, _ARGUMENT = 5, 3, 2  # words of each
# How many there are, at which word some of them start, at which byte queues and times do, and
# whether queues are prepared.
_ZEROS = ("prepared", *apart.WORDS, *crowd.WORDS)
_HEADER = ("steps", "arguments", "slots", "addresses", "queues", "clocks", *_ZEROS)


@record
class Step:
    """Tiles to compute, whether all threads wait for them, and how many functions compute each.

    ``takes``: called with a tile, the function goes on with others (:class:`.loops.Stage`).
    """

    tiles: int
    wait: bool
    runs: int
    takes: bool

    @property
    def alone(self) -> int:
        """Calls of one thread that computes all tiles."""
        return 1 if self.takes else self.tiles


@record
class Function:
    """A stage function: its symbol and what its pointers point to.

    The last of them points to the numbers that it is told, if any.  Behind them follow the tile and
    the address of the queue that it is from, or 0.
    """

    symbol: str
    dtypes: tuple[str, ...]
    takes: bool
    structure: object = None  # equal for equal functions

    @property
    def pointers(self) -> int:
        """How many it takes."""
        return len(self.dtypes)

    @property
    def called(self) -> str:
        """The symbol of what the entry calls: the function, or one around it."""
        return self.symbol + (_OF_ALL if self.pointers > MOST_POINTERS else "")


@record
class Layout:
    """The array of one program."""

    steps: Sequence[Step]
    functions: Sequence[int]  # of each run
    arguments: Sequence[Sequence[tuple[int, int]]]  # of each run: slots and offsets
    numbers: Sequence[Sequence[int]]  # of each run: what it is told
    workers: int
    timed: bool = False

    @property
    def runs(self) -> int:
        """The word at which runs start."""
        return len(_HEADER) + _STEP * len(self.steps)

    @property
    def slots(self) -> int:
        """The word at which arguments start."""
        return self.runs + _RUN * len(self.functions)

    @cached_property
    def count(self) -> int:
        """Arguments of all runs."""
        return sum(map(len, self.arguments)) + sum(map(bool, self.numbers))

    @property
    def told(self) -> int:
        """The word at which numbers start."""
        return self.slots + _ARGUMENT * self.count

    @property
    def addresses(self) -> int:
        """The word at which addresses start."""
        return self.told + sum(map(len, self.numbers))

    @property
    def queues(self) -> int:
        """The byte at which queues start."""
        return -(-(self.addresses + self.count) * _WORD // QUEUE_BYTES) * QUEUE_BYTES

    def data(self) -> bytes:
        """The array up to the addresses."""
        header = {
            "steps": len(self.steps),
            "arguments": self.count,
            "slots": self.slots,
            "addresses": self.addresses,
            "queues": self.queues,
            "clocks": self.clocks,
            **dict.fromkeys(_ZEROS, 0),
        }
        words = [header[name] for name in _HEADER]
        run = self.runs
        for step in self.steps:
            words += [run, step.runs, step.tiles, int(step.wait), step.alone]
            run += _RUN * step.runs
        address, told = self.addresses, self.told
        slots: list[int] = []
        for function, arguments, numbers in zip(
            self.functions, self.arguments, self.numbers, strict=True
        ):
            pointers = len(arguments) + bool(numbers)
            assert pointers, "a stage that writes nothing"  # the entry takes 0 for many
            words += [function, pointers, address]
            address += pointers
            slots += [x for pair in arguments for x in pair]
            slots += [STEPS_SLOT, told * _WORD] if numbers else []
            told += len(numbers)
        words += slots
        words += [number for numbers in self.numbers for number in numbers]
        return struct.pack(f"={len(words)}q", *words)

    @property
    def clocks(self) -> int:
        """The byte at which measured times start."""
        queues = len(self.steps) * self.workers if self.workers > 1 else 0
        return self.queues + queues * QUEUE_BYTES

    @property
    def nbytes(self) -> int:
        """Length of the whole array."""
        times = len(self.steps) * self.workers + TOTALS if self.timed else 0
        return self.clocks + times * _WORD


def entry_helpers(workers: int) -> tuple[Helper, ...]:
    """What the entry calls beside the stages of a program."""
    return (crowd.DECIDE,) if workers > 1 and crowd.available() else ()


def entry_function(workers: int, timed: bool = False) -> Any:
    """The entry: it receives the table of pointers, of which the first is the array's.

    With one worker, all runs on the calling thread; with more, if other programs leave it no core
    for each (see :mod:`.crowd`).  If it is ``timed``, steps are (:mod:`.clocks`).
    """
    t = tvm()
    table_pointer = t.tirx.Var("table", pointer_type("uint64"))
    table = t.tirx.decl_buffer([const(1 << 30)], "uint64", "table", data=table_pointer)
    array = t.tirx.BufferLoad(table, [const(STEPS_SLOT)])

    def declared(memory: Memory, offset: Expr) -> Stmt:
        kind = pointer_type(memory.dtype)
        base = t.ir.Call("tirx.reinterpret", [array + offset], ret_ty=kind)
        return t.tirx.DeclBuffer(memory.raw, data=base)

    words = pointer_buffer((1 << 30,), "int64", "words")
    queues = Queues(workers)

    def word(at: Expr) -> Expr:
        return load(words, at).astype("int32")

    def head(name: str) -> Expr:
        return word(const(_HEADER.index(name)))

    def field(step: Expr, number: int) -> Expr:
        return word(step * _STEP + (len(_HEADER) + number))

    slots, know_slots = bind("slots", head("slots"))
    addresses, know_addresses = bind("addresses", head("addresses"))

    def resolve(i: Expr) -> Stmt:
        at, know = bind("at", slots + i * _ARGUMENT)
        base = t.tirx.BufferLoad(table, [word(at)]).astype("int64")
        return seq(know, store(words, base + load(words, at + 1), addresses + i))

    # TVM tells LLVM that buffers of different names never alias.  Stages inlined into one function
    # would then be reordered although they share the arena; an unknown call, which a barrier is
    # too, keeps them apart.
    fence = t.tirx.Evaluate(t.tirx.call_extern("uint64", "pthread_self"))

    def compute(step: Expr, tile: Expr, queue: Expr) -> Stmt:
        first, know = bind("first", field(step, 0))

        def run(i: Expr) -> Stmt:
            at, know = bind("at", first + i * _RUN)
            arguments = t.tirx.address_of(load(words, word(at + 2)))
            numbers = word(at), word(at + 1)
            call = t.tirx.call_extern("int32", _CALL, *numbers, arguments, tile, queue)
            return seq(know, t.tirx.Evaluate(call), fence)

        return seq(know, serial(field(step, 1), run, "run"))

    count = head("steps")
    prepare = seq(know_slots, know_addresses, serial(head("arguments"), resolve, "argument"))

    clocks = Clocks(count, workers)

    def by_itself(step: Expr) -> Stmt:
        none = const(0, "uint64")
        work = serial(field(step, 4), lambda tile: compute(step, tile, none), "tile")
        return clocks.step(step, const(0), work) if timed else work

    body = seq(prepare, serial(count, by_itself, "step"))
    if workers > 1:

        def shared(step: Expr) -> Stmt:
            around = functools.partial(clocks.step, step) if timed else None
            share = queues.run(step, functools.partial(compute, step), around)
            return seq(share, when(field(step, 3) != 0, queues.barrier()))

        work = serial(count, shared, "step")
        prepared = _HEADER.index("prepared")
        once = seq(
            serial(count, lambda step: queues.prepare(step, field(step, 2)), "step"),
            store(words, const(1, "int64"), prepared),
        )
        start = seq(when(load(words, prepared) == 0, once), queues.fill(count))
        others = crowd.Crowd(words, _HEADER.index(crowd.WORDS[0]), workers)
        if crowd.available():
            threads = apart.Apart(words, _HEADER.index(apart.WORDS[0]), others.room)
            start = seq(start, threads.announce())
            work = seq(queues.each(lambda _: threads.leave()), work)
        launch = t.tirx.AttrStmt(const(0), "pragma_parallel_launch_point", const(1), work)
        offset = load(words, _HEADER.index("queues")).astype("uint64")
        together = seq(prepare, declared(queues.memory, offset), start, launch)
        if crowd.available():
            body = seq(others.begin(), when(others.alone, body, together), others.end())
        else:
            body = together
    if timed:
        offset = load(words, _HEADER.index("clocks")).astype("uint64")
        body = seq(declared(clocks.memory, offset), clocks.launch(body))
    declarations = [
        t.tirx.DeclBuffer(table, data=table_pointer),
        declared(words, const(0, "uint64")),
    ]
    body = importing(_caller(), on_cpu(t.tirx.SeqStmt([*declarations, body])))
    return (
        t.tirx.PrimFunc([table_pointer], body)
        .with_attr("s_tir", True)
        .with_attr("global_symbol", ENTRY)
    )


def _call(pointers: int, callee: str) -> list[str]:
    """LLVM's text that calls a function with so many pointers from ``%addresses`` on, a tile and a
    queue, and returns what it returns."""
    lines, values = [], []
    for i in range(pointers):
        name = f"%p{pointers}.{i}"
        lines += [
            f"  {name}.at = getelementptr ptr, ptr %addresses, i32 {i}",
            f"  {name} = load ptr, ptr {name}.at",
        ]
        values.append(f"ptr {name}, ")
    result = f"%result{pointers}"
    lines.append(f"  {result} = call i32 {callee}({''.join(values)}i32 %tile, i64 %queue)")
    return [*lines, f"  ret i32 {result}"]


def _caller() -> str:
    """``call_stage(number, pointers, addresses, tile, queue)``: call a function of the table."""
    cases = " ".join(f"i32 {n}, label %with{n}" for n in range(1, MOST_POINTERS + 1))
    lines = [
        f"@{TABLE} = external constant [0 x ptr]",
        f"define i32 @{_CALL}"
        "(i32 %number, i32 %pointers, ptr %addresses, i32 %tile, i64 %queue) {",
        f"  %at = getelementptr [0 x ptr], ptr @{TABLE}, i32 0, i32 %number",
        "  %callee = load ptr, ptr %at",
        f"  switch i32 %pointers, label %with_all [ {cases} ]",
        "with_all:",
        "  %result = call i32 %callee(ptr %addresses, i32 %tile, i64 %queue)",
        "  ret i32 %result",
    ]
    for n in range(1, MOST_POINTERS + 1):
        lines += [f"with{n}:", *_call(n, "%callee")]
    return "\n".join([*lines, "}"])


def of_all(function: Function) -> Any:
    """What the entry calls in the place of a function of more than ``MOST_POINTERS``: it takes the
    address of the first."""
    t = tvm()
    pointer = t.tirx.Var("addresses", pointer_type("uint64"))
    tile, queue = var("tile"), var("queue", "uint64")
    addresses = t.tirx.decl_buffer([const(1 << 30)], "uint64", "addresses", data=pointer)
    pointers = [
        t.ir.Call(
            "tirx.reinterpret",
            [t.tirx.BufferLoad(addresses, [const(i)])],
            ret_ty=pointer_type(dtype),
        )
        for i, dtype in enumerate(function.dtypes)
    ]
    call = t.tirx.call_extern("int32", function.symbol, *pointers, tile, queue)
    declared = t.tirx.DeclBuffer(addresses, data=pointer)
    body = seq(declared, t.tirx.Evaluate(call), t.tirx.Return(const(0)))
    return _settled([pointer, tile, queue], body, function.called)


def _settled(arguments: list[Any], body: Stmt, symbol: str) -> Any:
    """A function that is called from native code only, and returns an int32."""
    t = tvm()
    return (
        t.tirx.PrimFunc(arguments, body, t.ir.PrimType("int32"))
        .with_attr("s_tir", True)
        .with_attr("global_symbol", symbol)
        .with_attr("calling_conv", SETTLED)
    )


def table(functions: Sequence[Function]) -> bytes:
    """The object file of a program's functions, in the order of their numbers."""
    return table_object(TABLE, [f.called for f in functions])
