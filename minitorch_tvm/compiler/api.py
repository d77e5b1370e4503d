"""The pipeline of the compiler, in order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..core import config
from ..core import dtype as dt
from ..core.shape import numel
from ..core.threads import usable_cores
from ..ir import graph as ir
from ..ir.graph import Graph
from ..ir.kernel import FusedGraph
from ..ir.node import BUFFER, SCALAR
from ..ir.program import (
    ARENA_SLOT,
    FIRST_SLOT,
    SCALAR_SLOT,
    SCALAR_STRIDE,
    KernelInfo,
    Output,
    Program,
)
from . import native, plan, poison, target
from .assemble import ENTRY, Place, StageCall, assemble
from .canonicalize import canonicalize
from .fuse import fuse
from .loops import Memory, Stage
from .lower import KernelCode, bytes_moved, flops
from .schedule import cpu, default

T = TypeVar("T")


class _Clock:
    """Times the stages of one compile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, stage: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = stage()
        self.seconds[name] = time.perf_counter() - start
        return result


def _show(level: int, title: str, value: object) -> None:
    if config.CONFIG.debug >= level:
        print(f"--- {title}\n{value}", file=sys.stderr)


def _show_assembly(executable: Any) -> None:
    _show(5, "assembly", executable.mod.inspect_source("asm"))


def reference_program(graph: Graph) -> Program:
    """A program without native code, for the reference executor."""
    return Program(
        graph=graph,
        code=(),
        entry="",
        scalar_format="",
        scalars=0,
        inputs=0,
        outputs=(),
        arena_bytes=0,
        naive_bytes=0,
        lower_bound=0,
        kernels=(),
        placements=(),
        stage_functions=0,
        seconds={},
    )


def simplified(recorded: Graph) -> Graph:
    """The first stage, apart from the others: its result is what identifies a program."""
    _show(3, "recorded", recorded)
    graph = canonicalize(recorded)
    _show(3, "canonical", graph)
    if config.CONFIG.check:
        ir.verify(recorded)
        ir.verify(graph)
    return graph


def compile_graph(graph: Graph) -> Program:
    """Compile a :func:`simplified` graph: fuse, schedule, plan, build.

    Scheduling comes before planning because kernels ask for scratch memory, which the plan places
    beside the intermediates.
    """
    settings = config.CONFIG
    clock = _Clock()
    fuses = settings.fuse and settings.schedule != "default"
    machine = target.host(settings.isa)
    fused = clock("fuse", lambda: fuse(graph, fuses, machine.row_bytes))
    _show(3, "fused", fused)
    # TVM's default schedule is the course's yardstick: it runs on the calling thread.
    workers = 1 if settings.schedule == "default" else usable_cores()
    machine = replace(
        machine, matrix_unit=machine.matrix_unit and settings.matrix_unit, workers=workers
    )
    codes = [KernelCode(graph, fused, k) for k in fused.kernels]
    scheduled = clock("schedule", lambda: [_schedule(c, machine) for c in codes])
    memory = clock("plan", lambda: _plan(fused, codes, settings.plan and not settings.validate))
    if settings.check:
        plan.verify(memory)
    module, functions = clock(
        "assemble", lambda: _assemble(fused, codes, scheduled, memory, workers)
    )
    code: tuple[bytes, ...] = ()
    if module is not None:
        _show(4, "TVM IR", module)
        blocks = settings.schedule == "default"
        look = _show_assembly if settings.debug >= 5 else None
        code = clock(
            "build", lambda: native.compile_parts(module, machine, blocks=blocks, look=look)
        )
    inputs = [v for v in graph.leaves() if graph.values[v].op is BUFFER]
    scalars = [v for v in graph.leaves() if graph.values[v].op is SCALAR]
    # The validator compares with what kernels read, so nothing may be overwritten.
    in_place = {} if settings.validate else fused.in_place
    donors = {out: inputs.index(leaf) for out, leaf in in_place.items()}
    program = Program(
        graph=graph,
        code=code,
        entry=ENTRY,
        scalar_format="<" + "".join(_SCALAR_FORMAT[graph.values[v].dtype.name] for v in scalars),
        scalars=len(scalars),
        inputs=len(inputs),
        outputs=tuple(
            Output(graph.values[v].nbytes, donors.get(i)) for i, v in enumerate(graph.outputs)
        ),
        arena_bytes=memory.arena_bytes,
        naive_bytes=memory.naive_bytes,
        lower_bound=memory.lower_bound,
        kernels=tuple(
            KernelInfo(
                name=c.kernel.name(graph),
                values=c.kernel.members,
                inputs=c.kernel.reads,
                outputs=c.kernel.stores,
                stages=len(stages),
                flops=flops(graph, c.kernel),
                bytes_moved=bytes_moved(fused, c.kernel),
                rule=rule,
            )
            for c, (rule, stages) in zip(codes, scheduled, strict=True)
        ),
        placements=memory.placements,
        stage_functions=functions,
        seconds=clock.seconds,
        target=machine.key,
        validated=settings.validate,
    )
    _show(1, "compiled", program.summary())
    _show(2, "kernels", program.report())
    return program


# struct codes of runtime scalars, each padded to SCALAR_STRIDE bytes
_SCALAR_FORMAT = {
    "bool": "?7x",
    "uint8": "B7x",
    "int32": "i4x",
    "uint32": "I4x",
    "int64": "q",
    "float32": "f4x",
    "float64": "d",
}


def _schedule(code: KernelCode, machine: target.CpuTarget) -> tuple[str, list[Stage]]:
    if config.CONFIG.schedule == "default":
        return default.schedule(code, machine)
    return cpu.schedule(code, machine)


def _scratch_bytes(buffer: Memory) -> int:
    return numel(buffer.shape) * dt.by_name(buffer.dtype).itemsize


def _plan(fused: FusedGraph, codes: list[KernelCode], reuse: bool) -> plan.Plan:
    requests = plan.lifetimes(fused)
    for k, code in enumerate(codes):
        for buffer in code.builder.scratch:
            requests.append(plan.Request(-1, plan.rounded(_scratch_bytes(buffer)), k, k))
    return plan.plan(requests, len(codes), reuse)


def _assemble(
    fused: FusedGraph,
    codes: list[KernelCode],
    scheduled: list[tuple[str, list[Stage]]],
    memory: plan.Plan,
    workers: int,
) -> tuple[object, int]:
    graph = fused.graph
    places: dict[int, Place] = {}
    inputs = scalars = 0
    for v in graph.leaves():
        if graph.values[v].op is BUFFER:
            places[v] = Place(FIRST_SLOT + inputs, nbytes=graph.values[v].nbytes)
            inputs += 1
        else:
            places[v] = Place(SCALAR_SLOT, scalars * SCALAR_STRIDE, SCALAR_STRIDE)
            scalars += 1
    donors = dict(graph.donated)
    for i, v in enumerate(graph.outputs):
        alias = places[donors[i]].slot if i in donors else None
        nbytes = graph.values[v].nbytes
        places[v] = Place(FIRST_SLOT + inputs + i, nbytes=nbytes, alias=alias)
    scratch: list[list[Place]] = [[] for _ in codes]
    for p in memory.placements:
        if p.value >= 0:
            places[p.value] = Place(ARENA_SLOT, p.offset, p.nbytes)
    # The validator reads what the kernels left behind, so poison is off beside it.
    poisoned = config.CONFIG.poison and not config.CONFIG.validate
    calls = poison.before_all(memory) if poisoned else []
    for k, (code, (_, stages)) in enumerate(zip(codes, scheduled, strict=True)):
        scratch[k] = _scratch_places(code, k, memory)

        def place_of(
            buffer: Memory, code: KernelCode = code, own: list[Place] = scratch[k]
        ) -> Place:
            for candidate, place in zip(code.builder.scratch, own, strict=True):
                if candidate.same_as(buffer):
                    return place
            v = code.value_of(buffer)
            assert v is not None, f"unknown buffer {buffer}"
            root = fused.root(v)
            return replace(places[root], written=root in map(fused.root, code.kernel.stores))

        calls += [StageCall(stage, place_of) for stage in stages]
        if poisoned:
            calls += poison.after_kernel(memory, k)
    if not calls:
        return None, 0
    return assemble(calls, FIRST_SLOT + inputs + len(graph.outputs), workers)


def _scratch_places(code: KernelCode, k: int, memory: plan.Plan) -> list[Place]:
    """Places of a kernel's scratch buffers: matched by size, each used once."""
    free = [p for p in memory.placements if p.value < 0 and p.first == k]
    out = []
    for buffer in code.builder.scratch:
        size = plan.rounded(_scratch_bytes(buffer))
        chosen = next(p for p in free if p.nbytes == size)
        free.remove(chosen)
        out.append(Place(ARENA_SLOT, chosen.offset, chosen.nbytes))
    return out
