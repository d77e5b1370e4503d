"""Every stage of a program ends in a barrier: the next one reads what all threads wrote."""

from __future__ import annotations

from minitorch_tvm.compiler import native, target
from minitorch_tvm.compiler.assemble import Place, StageCall, assemble
from minitorch_tvm.compiler.loops import Memory, Stage, load, parallel_stage, pointer_buffer, store


def _copy(name: str, source: Memory, to: Memory) -> Stage:
    return parallel_stage(name, 8, lambda t: store(to, load(source, t), t))


def test_lowered_programs_keep_a_barrier_per_stage() -> None:
    a, b, c = (pointer_buffer((8,), "float32", name) for name in "abc")
    order = [a, b, c]

    def place(buffer: object) -> Place:
        return Place([m.same_as(buffer) for m in order].index(True))

    calls = [StageCall(_copy("first", a, b), place), StageCall(_copy("second", b, c), place)]
    module, _ = assemble(calls, len(order), 2)
    text = native.compile_module(module, target.host()).mod.inspect_source("ll")
    barrier = "__TVMBackendParallelBarrier"
    loads = [line for line in text.splitlines() if "load ptr" in line and barrier in line]
    assert len(loads) >= len(calls), text[-2000:]
