"""Stages without a program around them, compiled and called on numpy's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minitorch_tvm.compiler import native
from minitorch_tvm.compiler.assemble import Functions, Place, StageCall, assemble, entry_functions
from minitorch_tvm.compiler.loops import Stage
from minitorch_tvm.compiler.steps import ENTRY
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.core.tvm_api import tvm
from minitorch_tvm.runtime.memory import Buffer
from minitorch_tvm.runtime.native import link


class Linked:
    """Native code of stages; ``place_of`` tells the place of each buffer that they use.

    One module holds the entry and the stages, unlike in a program: what LLVM may then inline must
    not change what is computed.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        place_of: Callable[[Any], Place],
        workers: int = 2,
        cpu: CpuTarget | None = None,
    ) -> None:
        made: dict[str, Any] = {}
        functions = Functions(made.__setitem__)
        calls = []
        for stage in stages:
            function, buffers, numbers = functions.of(stage)
            places = (replace(p, slot=p.slot + 1) for p in map(place_of, buffers))
            calls.append(StageCall(stage.tiles, function, tuple(places), numbers=numbers))
        assembly = assemble(calls, workers)
        cpu = cpu or host()
        made |= assembly.functions | entry_functions(assembly.workers, cpu)
        t = tvm()
        module = t.IRModule({t.ir.GlobalVar(name): f for name, f in made.items()})
        self.executable: Any = native.compile_module(module, cpu)
        self._entry = link(native.object_code(self.executable))[ENTRY]
        self._steps = Buffer(assembly.steps_nbytes)
        steps = np.frombuffer(assembly.steps, np.uint8)
        memory = self._steps.view((assembly.steps_nbytes,), np.dtype(np.uint8))
        memory[: len(steps)] = steps

    def __call__(self, arrays: Sequence[np.ndarray]) -> None:
        """Run on these arrays, by slot."""
        addresses = [a.ctypes.data for a in arrays]
        table = np.array([self._steps.address, *addresses], np.uint64)
        self._entry(ctypes.c_void_p(table.ctypes.data))
