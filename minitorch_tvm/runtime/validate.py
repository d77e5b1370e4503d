"""Comparing every kernel with the numpy reference (``MTVM_VALIDATE=1``).

The program was planned so that all intermediates survive.  After a run each kernel's stored values
are computed again by ``op.reference`` from what that kernel actually read; the first kernel that
differs is the one that is wrong, whatever became of its result later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core import errors
from ..core.events import EVENTS
from ..core.shape import numel
from ..ir.graph import Graph, Value
from ..ir.node import BUFFER
from ..ir.op import Kind
from ..ir.program import KernelInfo, Program
from ..ops.movement import Reshape
from .memory import ARENA, Buffer

_ROUNDINGS = 256  # of elementwise chains, exp and pow of large arguments among them


class _Memory:
    """What the run left behind: leaves, results and the arena."""

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        scalars: Sequence[float],
        results: Sequence[Buffer],
    ) -> None:
        self.graph = program.graph
        self.known: dict[int, Any] = {}
        buffers, numbers = iter(inputs), iter(scalars)
        values = self.graph.values
        for i in self.graph.leaves():
            v = values[i]
            if v.op is BUFFER:
                self.known[i] = next(buffers).numpy(v.shape, v.dtype)
            else:
                self.known[i] = np.asarray(next(numbers)).astype(v.dtype.numpy)
        for n, (i, buffer) in enumerate(zip(self.graph.outputs, results, strict=True)):
            if n not in self.graph.unread:
                self.known[i] = buffer.numpy(values[i].shape, values[i].dtype)
        arena = ARENA.view()
        for p in program.placements:
            if p.value >= 0:
                v = values[p.value]
                piece = arena[p.offset : p.offset + v.nbytes]
                self.known[p.value] = piece.view(v.dtype.numpy).reshape(v.shape)
        # What a result is a reshape of may have its memory.
        for i in self.graph.outputs:
            while i in self.known and isinstance(values[i].op, Reshape):
                (x,) = values[i].inputs
                self.known.setdefault(x, self.known[i].reshape(values[x].shape))
                i = x

    def read(self, i: int) -> Any:
        """Value ``i`` as it stands in memory (a reshape is another name of its input)."""
        if i not in self.known:
            v = self.graph.values[i]
            self.known[i] = v.op.reference(np, *[self.read(x) for x in v.inputs])
        return self.known[i]


def _computed(
    graph: Graph, kernel: KernelInfo, memory: _Memory, wide: bool, shift: Callable[[int, Any], Any]
) -> dict[int, Any]:
    """The kernel's members by reference, in float64 if ``wide``; ``shift`` may move each one."""
    env: dict[int, Any] = {}

    def value(i: int) -> Any:
        if i in env:
            return env[i]
        v = graph.values[i]
        if i in kernel.inputs or v.is_leaf:
            out = memory.read(i)
        else:
            out = v.op.reference(np, *[value(x) for x in v.inputs])
        out = np.asarray(out)
        if wide and v.dtype.is_floating_point:
            out = out.astype(np.float64)
        env[i] = shift(i, out)
        return env[i]

    return {i: value(i) for i in kernel.values}


def _epsilon(v: Value) -> float:
    """Spacing of the value's type at 1 (0 for integers)."""
    if not v.dtype.is_floating_point:
        return 0.0
    return float(np.finfo(v.dtype.name).eps)


def _terms(graph: Graph, i: int) -> int:
    """How many elements one element of an anchor combines, at most."""
    v = graph.values[i]
    read = [numel(graph.values[x].shape) for x in v.inputs]
    if v.op.kind is Kind.COMPLEX:
        return max(1, *read)
    return max(1, max(read) // max(1, numel(v.shape)))


def _tolerances(
    graph: Graph, kernel: KernelInfo, memory: _Memory, want: dict[int, Any], narrow: dict[int, Any]
) -> dict[int, Any]:
    """Absolute tolerance of each stored float, element by element.

    A reduction of n terms may be off by about sqrt(n) roundings of the sum of their magnitudes.
    How far that moves the values computed from it is found by moving it and computing them again.
    """
    anchors = {
        i for i in kernel.values if graph.values[i].op.kind in (Kind.REDUCTION, Kind.COMPLEX)
    }

    def error(i: int) -> Any:
        v = graph.values[i]
        sources = _computed_inputs(graph, kernel, memory, i)
        size = np.abs(np.asarray(v.op.reference(np, *[np.abs(s) for s in sources])))
        result = np.abs(want[i])
        # Of a row with infinite elements, such as masked scores, a maximum is finite all the same.
        size = np.where(np.isfinite(size), size, 0.0) + np.where(np.isfinite(result), result, 0.0)
        return _epsilon(v) * (8 + 4 * np.sqrt(_terms(graph, i))) * size

    errors_of = {i: error(i) for i in anchors}

    def moved(sign: float) -> dict[int, Any]:
        def shift(i: int, x: Any) -> Any:
            return x + sign * errors_of[i] if i in errors_of else x

        return _computed(graph, kernel, memory, True, shift)

    others = [moved(-1.0), moved(1.0)] if anchors else []
    opaque = any(graph.values[i].op.kind is Kind.OPAQUE for i in kernel.values)
    out = {}
    for i in kernel.outputs:
        if not graph.values[i].dtype.is_floating_point:
            continue
        size, rounded = np.abs(want[i]), np.abs(narrow[i] - want[i])
        if opaque:  # an element is made of all others
            size, rounded = (np.max(x, where=np.isfinite(x), initial=0.0) for x in (size, rounded))
        tolerance = _ROUNDINGS * _epsilon(graph.values[i]) * (1.0 + size) + 8 * rounded
        for other in others:
            tolerance = tolerance + np.abs(other[i] - want[i])
        out[i] = tolerance
    return out


def _computed_inputs(graph: Graph, kernel: KernelInfo, memory: _Memory, i: int) -> list[Any]:
    inputs = graph.values[i].inputs
    partial = KernelInfo(kernel.name, inputs, kernel.inputs, (), kernel.stages, 0, 0, kernel.rule)
    found = _computed(graph, partial, memory, True, lambda _, x: x)
    return [found[x] for x in inputs]


def _differs(got: Any, want: Any, tolerance: Any) -> Any:
    """Where ``got`` is not ``want``; NaN and infinities must agree exactly."""
    if tolerance is None:
        return got != want
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    return ~(same | (np.abs(got - want) <= tolerance))


def validate(
    program: Program,
    inputs: Sequence[Buffer],
    scalars: Sequence[float],
    results: Sequence[Buffer],
) -> None:
    """Raise RuntimeError for the first kernel whose stored values are wrong.

    The message names the kernel, its ops and the user's lines.  Integers and bools must be equal
    wherever float32 and float64 arithmetic agree on them.
    """
    graph = program.graph
    memory = _Memory(program, inputs, scalars, results)
    with np.errstate(all="ignore"):
        for number, kernel in enumerate(program.kernels):
            want = _computed(graph, kernel, memory, True, lambda _, x: x)
            narrow = _computed(graph, kernel, memory, False, lambda _, x: x)
            tolerances = _tolerances(graph, kernel, memory, want, narrow)
            for i in kernel.outputs:
                got = memory.known[i]
                tolerance = tolerances.get(i)
                wrong = np.atleast_1d(_differs(got, want[i], tolerance))
                if tolerance is None:
                    wrong &= np.atleast_1d(narrow[i] == want[i])
                if wrong.any():
                    raise RuntimeError(_report(graph, number, kernel, i, got, want[i], wrong))
            EVENTS.add("kernels_validated")


def _report(
    graph: Graph, number: int, kernel: KernelInfo, i: int, got: Any, want: Any, wrong: Any
) -> str:
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    values = [(graph.values[m].op, graph.values[m].place) for m in kernel.values]
    lines = list(dict.fromkeys(filter(None, (errors.describe(p) for _, p in values))))
    return (
        f"kernel k{number} ({kernel.name}, schedule {kernel.rule}) disagrees with the reference at "
        f"{int(wrong.sum())} of {wrong.size} elements of %{i}; first at "
        f"{[int(x) for x in first]}: {np.atleast_1d(got)[first]} instead of "
        f"{np.atleast_1d(want)[first]}.\n"
        f"  ops: {', '.join(str(op) for op, _ in values)}\n"
        f"  recorded at: {'; '.join(lines) or 'unknown'}"
    )
