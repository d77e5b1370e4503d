"""The machine's limits, measured with kernels built the same way as the ones being judged.

* :func:`fma_peak`: floating-point peak.  Every thread runs independent chains of fused
  multiply-adds held in registers, so nothing but the arithmetic units limits it.
* :func:`copy_peak`: bandwidth of a copy, read plus written bytes, within caches or from memory.

Clock rates and neighbours drift, so a benchmark interleaves its kernel with ``probe.run()`` and
compares medians of ratios rather than two numbers taken minutes apart.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitorch_tvm.compiler import native
from minitorch_tvm.compiler.assemble import Functions, Place, StageCall, assemble, entry_functions
from minitorch_tvm.compiler.loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    Var,
    alloc,
    const,
    load,
    local_buffer,
    parallel_stage,
    pointer_buffer,
    ramp,
    seq,
    serial,
    splat,
    store,
)
from minitorch_tvm.compiler.steps import ENTRY
from minitorch_tvm.compiler.streams import LINE, closed, streamed
from minitorch_tvm.compiler.target import CpuTarget, from_features, host
from minitorch_tvm.core import config
from minitorch_tvm.core.threads import usable_cores
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.runtime.native import link


def allowed() -> CpuTarget:
    """The instructions that kernels may use: MTVM_ISA restricts them, and the limits with them."""
    return host(config.CONFIG.isa)


def aligned(elements: int, dtype: str) -> np.ndarray:
    """Zeros at a 64-byte boundary."""
    nbytes = elements * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype)


class Kernel:
    """Stages compiled to one native call over numpy memory.

    ``buffers`` pairs every pointer buffer the stages use with its array, which must be 64-byte
    aligned (:func:`aligned`).
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        buffers: Sequence[tuple[Memory, np.ndarray]],
        cpu: CpuTarget | None = None,
    ) -> None:
        def place(buffer: Memory) -> Place:
            return Place(1 + [b.same_as(buffer) for b, _ in buffers].index(True))

        made: dict[str, Any] = {}
        functions = Functions(made.__setitem__)
        calls = []
        for stage in stages:
            function, used, (numbers,) = functions.of(stage)
            places = tuple(map(place, used))
            calls.append(StageCall(stage.tiles, function, places, numbers=numbers))
        assembly = assemble(calls, usable_cores())
        cpu = cpu or allowed()
        made |= entry_functions(assembly.workers, cpu)
        t = tvm()
        module = t.IRModule({t.ir.GlobalVar(name): f for name, f in made.items()})
        self.executable: Any = native.compile_module(module, cpu)
        self._entry = link(assembly.table, native.object_code(self.executable))[ENTRY]
        steps = aligned(assembly.steps_nbytes, "uint8")
        steps[: len(assembly.steps)] = np.frombuffer(assembly.steps, np.uint8)
        self._arrays = [steps, *(array for _, array in buffers)]
        self._table = np.array([a.ctypes.data for a in self._arrays], np.uint64)
        self._argument = ctypes.c_void_p(self._table.ctypes.data)

    def __call__(self) -> None:
        self._entry(self._argument)

    def seconds(self) -> float:
        """Wall time of one call."""
        start = time.perf_counter()
        self._entry(self._argument)
        return time.perf_counter() - start


@dataclass(frozen=True)
class Probe:
    """A kernel and what one call of it amounts to (operations or bytes)."""

    kernel: Kernel
    amount: float

    def run(self) -> float:
        """Amount per second of one call."""
        return self.amount / self.kernel.seconds()


def fma_peak(
    dtype: str = "float32", microseconds: float = 300.0, cpu: CpuTarget | None = None
) -> Probe:
    """A probe whose ``run()`` gives floating-point operations per second of all threads.

    ``microseconds`` is the rough length of one call; ``cpu`` restricts the instructions used.

    Example::

        probe = fma_peak("float32")
        print(max(probe.run() for _ in range(20)) / 1e9, "GFLOP/s")
    """
    cpu = cpu or allowed()
    lanes = cpu.lanes(np.dtype(dtype).itemsize)
    chains = min(24, cpu.vector_registers - 4)  # more than latency times ports on any core
    tiles = 16 * usable_cores()  # as any kernel's, they go to the threads as these get ready
    steps = max(1, round(microseconds * 1e-6 * 3e9 * 2 / chains / 16))
    source = pointer_buffer((2, lanes), dtype, "source")
    result = pointer_buffer((tiles, chains, lanes), dtype, "result")

    def body(tile: Var) -> Stmt:
        acc = local_buffer((chains, lanes), dtype, "acc")
        every = ramp(0, lanes)

        def step(_: Var) -> Stmt:
            factor, term = load(source, 0, every), load(source, 1, every)
            return seq(
                [store(acc, load(acc, c, every) * factor + term, c, every) for c in range(chains)]
            )

        return seq(
            alloc(acc),
            [store(acc, splat(const(float(c), dtype), lanes), c, every) for c in range(chains)],
            serial(steps, step),
            [store(result, load(acc, c, every), tile, c, every) for c in range(chains)],
        )

    values = aligned(2 * lanes, dtype)
    values[:lanes], values[lanes:] = 0.999, 0.001  # converges: no infinities, no denormals
    out = aligned(tiles * chains * lanes, dtype)
    stage = parallel_stage("peak", tiles, body)
    kernel = Kernel([stage], [(source, values), (result, out)], cpu)
    return Probe(kernel, 2.0 * tiles * steps * chains * lanes)


def isa_peaks() -> dict[str, Probe]:
    """Floating-point probes by instruction set: the one in use, and AVX2 where it has more."""
    cpu = allowed()
    if cpu.vector_bytes != 64:
        return {cpu.mcpu: fma_peak()}
    narrow = from_features("x86-64-v3", {"avx2": True})
    return {"AVX-512": fma_peak(), "AVX2": fma_peak(cpu=narrow)}


def copy_peak(mebibytes: float = 64, around: bool = False) -> Probe:
    """A probe whose ``run()`` gives bytes read plus bytes written per second of all threads.

    What fits the caches is copied there and back again and again within a call, so that the launch
    does not count.  ``around``: by stores that go around the caches, as kernels use for large
    results; from memory these are faster.
    """
    rounds = 0 if around else round(2 / mebibytes)
    # Rounds stay within a thread's share; without them, smaller tiles balance better.
    tiles = usable_cores() * (1 if rounds else 64)
    block = round(mebibytes * (1 << 20)) // (4 * tiles)
    source = pointer_buffer((tiles, block), "float32", "source")
    target = pointer_buffer((tiles, block), "float32", "target")

    def copy(into: Memory, out_of: Memory, tile: Var) -> Stmt:
        def move(i: Expr) -> Stmt:
            value = load(out_of, tile, i)
            # Plain copies to and fro would be seen through and removed; an addition is free here.
            return store(into, value + const(1.0, "float32") if rounds else value, tile, i)

        if around:
            return serial(block // LINE, lambda q: streamed(move, q * LINE, lambda _: True))
        return serial(block, move)

    def body(tile: Var) -> Stmt:
        if not rounds:
            return copy(target, source, tile)
        return serial(rounds, lambda _: seq(copy(target, source, tile), copy(source, target, tile)))

    stages = closed(lambda: [parallel_stage("copy", tiles, body)])
    arrays = [aligned(tiles * block, "float32") for _ in range(2)]
    for array in arrays:
        array.fill(1.0)  # of memory never written to, every page is the same one, full of zeros
    kernel = Kernel(stages or [], [(source, arrays[0]), (target, arrays[1])])
    return Probe(kernel, 8.0 * tiles * block * max(1, 2 * rounds))


def empty_launch() -> Kernel:
    """A program that wakes all threads for a store each: what any native call costs at least."""
    cores = usable_cores()
    target = pointer_buffer((cores, 16), "float32", "target")
    zero = const(0.0, "float32")
    stage = parallel_stage("empty", cores, lambda t: store(target, zero, t, 0))
    return Kernel([stage], [(target, aligned(cores * 16, "float32"))])
