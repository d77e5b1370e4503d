"""From stages to one TVM module: stage functions and the program's single entry.

The entry receives one pointer to a table of pointers.  All stages run in one parallel launch: each
stage is a set of tiles that the threads take from queues, with a barrier before the first stage
that touches what an unfinished one writes.  Neighbouring stages of one tile each are run as one.
A stage function takes raw pointers and promises that they do not alias, which is what lets LLVM
keep accumulators in registers; pasting all loops into one function over one arena loses that and
runs three times slower.  Stages of equal structure share one function.

The entry calls stages by their symbol, so that each can be compiled apart from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.tvm_api import ffi, tvm
from .loops import Expr, Stage, Stmt, const, free_buffers, seq, serial
from .queues import Queues

ENTRY = "step"
# TVM's number for functions whose calling convention is settled: it leaves their arguments alone.
_SETTLED = 1


Buffer = Any  # TVM's buffer variable


@dataclass(frozen=True)
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

    def conflicts(self, other: Place) -> bool:
        """True if both may touch one byte and one of them writes it."""
        mine, theirs = (p.slot if p.alias is None else p.alias for p in (self, other))
        apart = (
            mine != theirs
            or self.offset + self.nbytes <= other.offset
            or other.offset + other.nbytes <= self.offset
        )
        return not apart and (self.written or other.written)


@dataclass(frozen=True)
class StageCall:
    """One stage and the places of the buffers it touches (keyed by the buffer variable)."""

    stage: Stage
    place_of: Callable[[Buffer], Place]


def _pointer_type(buffer: Buffer) -> Any:
    t = tvm()
    return t.ir.PointerType(t.ir.PrimType(str(buffer.dtype)))


def _on_cpu(body: Stmt) -> Stmt:
    """Tell which device local buffers live on: TVM asks its pool for the large ones."""
    attribute, zero = tvm().tirx.AttrStmt, const(0)
    return attribute(zero, "device_id", zero, attribute(zero, "device_type", const(1), body))


def _raw(stage: Stage, buffers: Sequence[Buffer]) -> Any:
    t = tvm()
    pointers = [t.tirx.Var(f"p{i}", _pointer_type(b)) for i, b in enumerate(buffers)]
    declared = [t.tirx.DeclBuffer(b, data=p) for b, p in zip(buffers, pointers, strict=True)]
    body = _on_cpu(t.tirx.SeqStmt([*declared, stage.body]))
    zero = const(0)
    return (
        t.tirx.PrimFunc(
            [*pointers, stage.tile],
            t.tirx.SeqStmt([body, t.tirx.Return(zero)]),
            t.ir.PrimType("int32"),
        )
        .with_attr("s_tir", True)
        .with_attr("tirx.noalias", True)
    )


@dataclass
class _Step:
    """One stage, or several of one tile each: what the threads share out at a time."""

    tiles: int
    runs: list[Callable[[Expr], Stmt]]
    places: list[Place]


def _waits(places: Sequence[Sequence[Place]]) -> list[bool]:
    """Per step, whether all threads must be done with it before any goes on to the next."""
    waits = [False] * len(places)
    unfinished: list[Place] = []
    for i, touched in enumerate(places):
        if any(a.conflicts(b) for a in touched for b in unfinished):
            waits[i - 1] = True
            unfinished = []
        unfinished += touched
    return waits


def assemble(calls: Sequence[StageCall], slots: int, workers: int) -> tuple[Any, int]:
    """Build the module of a program.

    ``slots`` is the length of the pointer table.  ``workers`` is the largest number of threads that
    can share a stage; with one, all runs on the calling thread.  Returns the module and the number
    of distinct stage functions.
    """
    t = tvm()
    table_pointer = t.tirx.Var("table", t.ir.PointerType(t.ir.PrimType("uint64")))
    table = t.tirx.decl_buffer([const(max(slots, 1))], "uint64", "table", data=table_pointer)

    def pointer(buffer: Buffer, place: Place) -> Any:
        base = t.ir.Call(
            "tirx.reinterpret",
            [t.tirx.BufferLoad(table, [const(place.slot)])],
            ret_ty=_pointer_type(buffer),
        )
        if place.offset == 0:
            return base
        return t.tirx.handle_add_byte_offset(base, const(place.offset, "int64"))

    functions: dict[Any, str] = {}
    module: dict[Any, Any] = {}
    # TVM tells LLVM that buffers of different names never alias.  Stages inlined into one function
    # would then be reordered although they share the arena; an unknown call, which a barrier is
    # too, keeps them apart.
    fence = t.tirx.Evaluate(t.tirx.call_extern("uint64", "pthread_self"))
    steps: list[_Step] = []
    for call in calls:
        stage = call.stage
        buffers = free_buffers(stage.body)
        function = _raw(stage, buffers)
        key = ffi.StructuralKey(function)
        name = functions.get(key)
        if name is None:
            name = f"s{len(functions)}_{stage.name}"
            functions[key] = name
            public = function.with_attr("global_symbol", name)
            module[t.ir.GlobalVar(name)] = public.with_attr("calling_conv", _SETTLED)
        places = [call.place_of(b) for b in buffers]
        arguments = [pointer(b, p) for b, p in zip(buffers, places, strict=True)]

        def run(tile: Expr, name: str = name, arguments: list[Any] = arguments) -> Stmt:
            return t.tirx.Evaluate(t.tirx.call_extern("int32", name, *arguments, tile))

        if steps and steps[-1].tiles == stage.tiles == 1:
            steps[-1].runs.append(run)
            steps[-1].places += places
        else:
            steps.append(_Step(stage.tiles, [run], places))

    def body_of(step: _Step) -> Callable[[Expr], Stmt]:
        return lambda tile: seq([part for run in step.runs for part in (run(tile), fence)])

    if workers == 1:
        body = seq([serial(step.tiles, body_of(step), "tile") for step in steps])
    else:
        queues = Queues([step.tiles for step in steps], workers)
        waits = _waits([step.places for step in steps])
        body = seq([queues.run(i, body_of(s), waits[i]) for i, s in enumerate(steps)])
        launch = t.tirx.AttrStmt(const(0), "pragma_parallel_launch_point", const(1), body)
        body = _on_cpu(seq(queues.prepare(), launch))
    entry = (
        t.tirx.PrimFunc(
            [table_pointer], t.tirx.SeqStmt([t.tirx.DeclBuffer(table, data=table_pointer), body])
        )
        .with_attr("global_symbol", ENTRY)
        .with_attr("s_tir", True)
    )
    module[t.ir.GlobalVar(ENTRY)] = entry
    return t.IRModule(module), len(functions)
