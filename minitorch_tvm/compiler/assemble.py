"""From stages to one TVM module: stage functions and the program's single entry.

The entry receives one pointer to a table of pointers.  All stages run in one parallel launch: each
stage is a set of tiles that the threads take from queues, with a barrier behind it.  A stage
function takes raw pointers and promises that they do not alias, which is what lets LLVM keep
accumulators in registers; pasting all loops into one function over one arena loses that and runs
three times slower.  Stages of equal structure share one function.

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
    """Where a buffer lives: a slot of the pointer table plus a byte offset."""

    slot: int
    offset: int = 0


@dataclass(frozen=True)
class StageCall:
    """One stage and the places of the buffers it touches (keyed by the buffer variable)."""

    stage: Stage
    place_of: Callable[[Buffer], Place]


def _pointer_type(buffer: Buffer) -> Any:
    t = tvm()
    return t.ir.PointerType(t.ir.PrimType(str(buffer.dtype)))


def _raw(stage: Stage, buffers: Sequence[Buffer]) -> Any:
    t = tvm()
    pointers = [t.tirx.Var(f"p{i}", _pointer_type(b)) for i, b in enumerate(buffers)]
    declared = [t.tirx.DeclBuffer(b, data=p) for b, p in zip(buffers, pointers, strict=True)]
    zero = const(0)
    # Local buffers need to know which device they live on.
    body = t.tirx.AttrStmt(
        zero,
        "device_id",
        zero,
        t.tirx.AttrStmt(zero, "device_type", const(1), t.tirx.SeqStmt([*declared, stage.body])),
    )
    return (
        t.tirx.PrimFunc(
            [*pointers, stage.tile],
            t.tirx.SeqStmt([body, t.tirx.Return(zero)]),
            t.ir.PrimType("int32"),
        )
        .with_attr("s_tir", True)
        .with_attr("tirx.noalias", True)
    )


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
    queues = Queues([call.stage.tiles for call in calls], workers)
    loops: list[Stmt] = []
    for number, call in enumerate(calls):
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
        arguments = [pointer(b, call.place_of(b)) for b in buffers]

        def run(tile: Expr, name: str = name, arguments: list[Any] = arguments) -> Stmt:
            return t.tirx.Evaluate(t.tirx.call_extern("int32", name, *arguments, tile))

        if workers > 1:
            loops.append(queues.run(number, run))
            continue
        loops.append(serial(stage.tiles, run, "tile"))
        # TVM tells LLVM that buffers of different names never alias.  Stages inlined into one
        # function would then be reordered although they share the arena; an unknown call, which
        # a barrier is too, keeps them apart.
        loops.append(t.tirx.Evaluate(t.tirx.call_extern("int32", "sched_yield")))
    body = seq(loops)
    if workers > 1:
        launch = t.tirx.AttrStmt(const(0), "pragma_parallel_launch_point", const(1), body)
        body = seq(queues.prepare(), launch)
    entry = (
        t.tirx.PrimFunc(
            [table_pointer], t.tirx.SeqStmt([t.tirx.DeclBuffer(table, data=table_pointer), body])
        )
        .with_attr("global_symbol", ENTRY)
        .with_attr("s_tir", True)
    )
    module[t.ir.GlobalVar(ENTRY)] = entry
    return t.IRModule(module), len(functions)
