"""The pipeline of the compiler, in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from ..core import config
from ..core.machine import is_virtual
from ..core.threads import usable_cores
from ..ir.graph import Graph
from ..ir.kernel import FusedGraph
from ..ir.node import BUFFER, SCALAR
from ..ir.program import (
    ARENA_SLOT,
    FIRST_SLOT,
    SCALAR_SLOT,
    SCALAR_STRIDE,
    Clocks,
    KernelInfo,
    Library,
    Output,
    Placement,
    Program,
)
from . import native, plan, poison, shelf, target, triangles
from .assemble import Assembly, Place, StageCall, assemble
from .front import show
from .fuse import fuse
from .kernels import Isolated, Kernels, forget_all, isolate
from .loops import Stage
from .lower import KernelCode, bytes_moved, cycles, flops
from .schedule import cpu, default
from .shelf import Ready
from .steps import ENTRY

T = TypeVar("T")


def _may_use_unit(settings: config.Config) -> bool:
    """Whether products run on the processor's matrix unit, if there is one.

    Nothing is measured: the same program is to have the same bits whoever else uses the machine.
    """
    return not is_virtual() if settings.matrix_unit is None else settings.matrix_unit


class _Clock:
    """Times the stages of one compile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, stage: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = stage()
        self.seconds[name] = time.perf_counter() - start
        return result


def _show_assembly(executable: Any) -> None:
    show(5, "assembly", executable.mod.inspect_source("asm"))


def compile_graph(graph: Graph, library: Library | None = None) -> Program:
    """Compile a :func:`simplified` graph: fuse, schedule, plan, build.

    What the ``library`` has of it is not made again.

    Scheduling comes before planning because kernels ask for scratch memory, which the plan places
    beside the intermediates.
    """
    settings = config.CONFIG
    clock = _Clock()
    fuses = settings.fuse and settings.schedule != "default"
    # The reference computes all of every product.  (A program keeps the graph that it is known by.)
    hidden = triangles.hidden_in(graph) if fuses and not settings.validate else {}
    known = triangles.products(graph, hidden)
    known_host = None if library is None else shelf.host(library, settings.isa)
    host = machine = known_host or target.host(settings.isa)
    unread = {graph.outputs[i] for i in graph.unread}
    fused = clock("fuse", lambda: fuse(known, fuses, machine.row_bytes).without(unread))
    fused = triangles.row_kernels(fused, hidden)
    show(3, "fused", fused)
    # TVM's default schedule is the course's yardstick: it runs on the calling thread.
    workers = 1 if settings.schedule == "default" else usable_cores()
    on_unit = machine.matrix_unit and _may_use_unit(settings)
    machine = replace(machine, matrix_unit=on_unit, workers=workers)
    default_schedule = settings.schedule == "default"
    look = _show_assembly if settings.debug >= 5 else None
    # What was made before is not printed again, so nothing is shared where IR is to be seen.
    decides = None if settings.debug >= 4 else (settings.program_key, machine)
    isolated = [isolate(fused, k) for k in fused.kernels]
    code: tuple[bytes, ...] = ()
    steps, steps_nbytes = b"", 0
    clocks: Clocks | None = None
    shared: tuple[object, ...] = ()
    made, names = b"", tuple[str, ...]()
    with native.Build(machine, blocks=default_schedule, look=look) as build:
        kernels = Kernels(build, lambda k: _schedule(k, machine), decides, library)
        workers = _likely_workers(graph, machine)
        # First of all, as LLVM's threads wait for work; unless there may be nothing to make.
        if workers and known_host is None:
            kernels.entry(workers, machine, settings.profile)
        ready = clock("schedule", lambda: kernels.all_ready(isolated))
        memory = clock("plan", lambda: _plan(fused, ready, machine.workers))
        if settings.check:
            plan.verify(memory)
        assembly = clock(
            "assemble", lambda: _assemble(fused, isolated, ready, kernels, memory, machine)
        )
        if assembly is not None:
            steps, steps_nbytes = assembly.steps, assembly.steps_nbytes
            if settings.profile:
                clocks = Clocks(assembly.clocks, assembly.workers, assembly.kernels)
            entry = kernels.entry(assembly.workers, machine, settings.profile)
            clock("build", build.finish)
            if settings.debug >= 4:
                for piece in build.pieces:
                    show(4, "TVM IR", piece.module())
            shared = kernels.finish()
            pieces = native.with_needed([entry, *kernels.pieces()])
            made, names = kernels.written(pieces, host, settings.isa)
            code = (*(piece.code for piece in pieces), assembly.table)
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
            Output(0 if v in unread else graph.values[v].nbytes, donors.get(i))
            for i, v in enumerate(graph.outputs)
        ),
        arena_bytes=memory.arena_bytes,
        naive_bytes=memory.naive_bytes,
        lower_bound=memory.lower_bound,
        kernels=tuple(
            KernelInfo(
                name=kernel.name(known),
                values=kernel.members,
                inputs=kernel.reads,
                outputs=kernel.stores,
                stages=len(r.stages),
                flops=flops(graph, kernel),
                bytes_moved=bytes_moved(fused, kernel),
                rule=r.rule,
            )
            for kernel, r in zip(fused.kernels, ready, strict=True)
        ),
        placements=memory.placements,
        steps=steps,
        steps_nbytes=steps_nbytes,
        stage_functions=len({stage.function for r in ready for stage in r.stages}),
        seconds=clock.seconds,
        target=machine.key,
        validated=settings.validate,
        clocks=clocks,
        shared=shared,
        made=made,
        names=names,
    )
    show(1, "compiled", program.summary())
    show(2, "kernels", program.report())
    return program


def forget() -> None:
    """Let later programs share nothing with earlier ones."""
    forget_all()
    cpu.forget()


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


_SMALL = 1 << 15  # bytes of all values of a program that is likely to stay on one thread


def _likely_workers(graph: Graph, machine: target.CpuTarget) -> int:
    """How many threads will probably share the program's work, before that can be told; 0 if there
    is none."""
    nbytes = sum(v.nbytes for v in graph.values if not v.is_leaf)
    if not nbytes:
        return 0
    return machine.workers if nbytes > _SMALL else 1


def _schedule(code: KernelCode, machine: target.CpuTarget) -> tuple[str, list[Stage]]:
    if config.CONFIG.schedule == "default":
        return default.schedule(code, machine)
    return cpu.schedule(code, machine)


def _plan(fused: FusedGraph, ready: list[Ready], workers: int) -> plan.Plan:
    requests = plan.lifetimes(fused)
    for k, r in enumerate(ready):
        requests += [plan.Request(-1, plan.rounded(nbytes), k, k) for nbytes in r.scratch]
    reuse = config.CONFIG.plan and not config.CONFIG.validate
    return plan.plan(requests, len(ready), reuse, workers)


def _assemble(
    fused: FusedGraph,
    isolated: list[Isolated],
    ready: list[Ready],
    kernels: Kernels,
    memory: plan.Plan,
    machine: target.CpuTarget,
) -> Assembly | None:
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
        places[fused.root(v)] = Place(FIRST_SLOT + inputs + i, nbytes=nbytes, alias=alias)
    for p in memory.placements:
        if p.value >= 0:
            places[p.value] = Place(ARENA_SLOT, p.offset, p.nbytes)
    # The validator reads what the kernels left behind, so poison is off beside it.
    poisoned = config.CONFIG.poison and not config.CONFIG.validate
    functions = kernels.functions
    calls = poison.before_all(functions, memory) if poisoned else []
    free: dict[int, list[Placement]] = {}
    for p in memory.placements:
        if p.value < 0:
            free.setdefault(p.first, []).append(p)
    for k, (kernel, own, r) in enumerate(zip(fused.kernels, isolated, ready, strict=True)):
        written = {fused.root(v) for v in kernel.stores}
        scratch = _scratch_places(r, free.get(k, []))

        def place_of(
            argument: int,
            own: Isolated = own,
            scratch: list[Place] = scratch,
            written: set[int] = written,
        ) -> Place:
            if argument < 0:
                return scratch[~argument]
            root = fused.root(own.values[argument])
            place = replace(places[root], written=root in written)
            ahead = own.ahead.get(argument, 0)
            return place.behind(ahead) if ahead else place

        calls += [
            StageCall(
                stage.tiles,
                stage.function,
                tuple(map(place_of, stage.arguments)),
                k,
                stage.numbers,
            )
            for stage in r.stages
        ]
        if poisoned:
            calls += poison.after_kernel(functions, memory, k)
    if not calls:
        return None
    work = [
        cycles(fused, kernel, r.rule, machine)
        for kernel, r in zip(fused.kernels, ready, strict=True)
    ]
    return assemble(calls, machine.workers, sum(work), config.CONFIG.profile)


def _scratch_places(ready: Ready, free: list[Placement]) -> list[Place]:
    """Places of a kernel's scratch buffers: matched by size, each used once."""
    out = []
    for nbytes in ready.scratch:
        size = plan.rounded(nbytes)
        chosen = next(p for p in free if p.nbytes == size)
        free.remove(chosen)
        out.append(Place(ARENA_SLOT, chosen.offset, chosen.nbytes))
    return out
