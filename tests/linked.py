"""Stages without a program around them, compiled and called on numpy's memory."""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minitorch_tvm.compiler import native
from minitorch_tvm.compiler.assemble import Functions, Place, StageCall, assemble, entry_functions
from minitorch_tvm.compiler.loops import Stage
from minitorch_tvm.compiler.steps import ENTRY
from minitorch_tvm.compiler.target import CpuTarget, host
from minitorch_tvm.runtime.memory import Buffer
from minitorch_tvm.runtime.native import link

_KEPT = 16
_known: OrderedDict[object, bytes] = OrderedDict()
"""Code of stages that differ in nothing from those of an earlier test, the last used last."""


class Linked:
    """Native code of stages; ``place_of`` tells the place of each buffer that they use.

    As in a program, what all programs of so many workers have in common is compiled once, and
    stages of equal structure are.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        place_of: Callable[[Any], Place],
        workers: int = 2,
        cpu: CpuTarget | None = None,
    ) -> None:
        cpu = cpu or host()
        made: dict[str, Any] = {}
        functions = Functions(made.__setitem__)
        calls = []
        for stage in stages:
            function, buffers, (numbers,) = functions.of(stage)
            places = (replace(p, slot=p.slot + 1) for p in map(place_of, buffers))
            calls.append(StageCall(stage.tiles, function, tuple(places), numbers=numbers))
        assembly = assemble(calls, workers)
        # Apart from those who call them, as in a program.
        names = sorted({helper.name for stage in stages for helper in stage.helpers})
        helpers = {name: made.pop(name) for name in names}
        structure = cpu, *(call.function.structure for call in calls), *names
        code = _known.pop(structure, None) or _compiled(made, cpu)
        _known[structure] = code
        if len(_known) > _KEPT:
            _known.popitem(last=False)
        apart = (_helper(name, function, cpu) for name, function in helpers.items())
        self._entry = link(_entry(assembly.workers, cpu), assembly.table, code, *apart)[ENTRY]
        self._steps = Buffer(assembly.steps_nbytes)
        steps = np.frombuffer(assembly.steps, np.uint8)
        memory = self._steps.view((assembly.steps_nbytes,), np.dtype(np.uint8))
        memory[: len(steps)] = steps

    def __call__(self, arrays: Sequence[np.ndarray]) -> None:
        """Run on these arrays, by slot."""
        addresses = [a.ctypes.data for a in arrays]
        table = np.array([self._steps.address, *addresses], np.uint64)
        self._entry(ctypes.c_void_p(table.ctypes.data))


def _compiled(functions: Mapping[str, Any], cpu: CpuTarget, **options: Any) -> bytes:
    # As programs are: without conversions of halves, a fourth of LLVM's work for a short stage.
    module = native.Piece(functions).module()
    return native.object_code(native.compile_module(module, cpu, **options))


_HELPERS: dict[tuple[str, CpuTarget], bytes] = {}


def _helper(name: str, function: Any, cpu: CpuTarget) -> bytes:
    if (name, cpu) not in _HELPERS:
        _HELPERS[name, cpu] = _compiled({name: function}, cpu)
    return _HELPERS[name, cpu]


@functools.cache
def _entry(workers: int, cpu: CpuTarget) -> bytes:
    return _compiled(entry_functions(workers, cpu), cpu, level=native._ENTRY_LEVEL)
