"""A compiled program, ready to run again and again: fill a table of pointers, make one call."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.dtype import uint8 as _BYTES
from ..core.events import EVENTS
from ..core.interrupts import interrupts_wait
from ..core.shape import numel
from ..ir.graph import Graph
from ..ir.node import BUFFER
from ..ir.program import ARENA_SLOT, FIRST_SLOT, SCALAR_SLOT, SCALAR_STRIDE, STEPS_SLOT, Program
from .memory import ARENA, Buffer
from .native import link
from .positions import provide
from .validate import validate

_RUNNING = threading.RLock()  # one program at a time: they share the arena
_COUNTS = EVENTS.counts
_SLOT_BYTES = 8


def _unlock_in_child() -> None:
    global _RUNNING
    _RUNNING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


def exclusive() -> contextlib.AbstractContextManager[object]:
    """While this is held, no other thread runs a program."""
    return _RUNNING


def count(name: str) -> None:
    """Add one to a counter that changes only while no other thread runs a program."""
    with _RUNNING:
        _COUNTS[name] += 1


class Executor:
    """Runs one :class:`Program`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls = 0
        self._entry = None
        if program.code:
            code = link(*program.code)
            self._entry = code[program.entry]
            provide(code)
        self._table: Any = (ctypes.c_uint64 * program.slots)()
        self._argument = ctypes.c_void_p(ctypes.addressof(self._table))
        self._point = struct.Struct(f"={program.slots - FIRST_SLOT}Q").pack_into
        self._arena_bytes = program.arena_bytes
        self._scalars = Buffer(max(program.scalars, 1) * SCALAR_STRIDE)
        self._scalar_view = memoryview(self._scalars.numpy((self._scalars.nbytes,), _BYTES))
        self._pack = struct.Struct(program.scalar_format).pack_into if program.scalars else None
        self._steps = Buffer(program.steps_nbytes)
        steps = self._steps.numpy((program.steps_nbytes,), _BYTES)
        steps[: len(program.steps)] = np.frombuffer(program.steps, np.uint8)
        if program.clocks is not None:
            steps[program.clocks.offset :] = 0
        self._table[STEPS_SLOT] = self._steps.address
        self._table[SCALAR_SLOT] = self._scalars.address
        self._scratch: dict[int, Buffer] = {}
        self._validated = program.validated
        self.overwrites = tuple(o.donor is not None for o in program.outputs)
        """Which outputs may be written over their donors: a kernel that reads its donor elsewhere
        than where it writes cannot."""
        self.sizes = [o.nbytes for o in program.outputs]
        """Bytes of the outputs."""

    def run(
        self,
        inputs: Sequence[Buffer],
        scalars: Sequence[float],
        targets: Sequence[Buffer | None],
        finish: Callable[[list[Buffer]], object],
        addresses: Sequence[int] | None = None,
    ) -> list[Buffer]:
        """Execute once.

        ``targets`` gives, per output, the buffer to write (an input only where the output may
        overwrite it, see :attr:`overwrites`) or None for a fresh one.  Returns one buffer per
        output, which ``finish`` is given before.  What a signal raises meanwhile, a
        KeyboardInterrupt for example, is raised when that has been done.

        ``addresses`` are those of inputs and targets, for who knows that they are aligned and all
        there.
        """
        with _RUNNING:
            results: list[Any] = [*targets]
            if addresses is None:
                # Loops: for the few values of a small program, comprehensions cost twice as much.
                addresses = []
                for x in inputs:
                    addresses.append(x.address if x.aligned else self._stage(x, inputs))
                for i, result in enumerate(results):
                    if result is None:
                        result = results[i] = Buffer(self.sizes[i])
                    addresses.append(result.address)
            late = self._launch(addresses, scalars)
            if self._validated and self._entry is not None:
                validate(self.program, inputs, scalars, results)
            finish(results)
            if late is not None:
                raise late
            return results

    def launch(
        self, inputs: Sequence[Buffer], scalars: Sequence[float], results: Sequence[Buffer]
    ) -> BaseException | None:
        """Execute once for who runs nothing else (:func:`exclusive`).

        ``results`` are as ``targets`` of :meth:`run`, but all there.  Returns what a signal raised
        meanwhile instead of raising it.
        """
        addresses = [x.address if x.aligned else self._stage(x, inputs) for x in inputs]
        addresses += [result.address for result in results]
        return self._launch(addresses, scalars)

    def _launch(self, addresses: Sequence[int], scalars: Sequence[float]) -> BaseException | None:
        if self._entry is None:  # nothing to compute
            return None
        if self._arena_bytes:
            self._table[ARENA_SLOT] = ARENA.address(self._arena_bytes)
        self._point(self._table, FIRST_SLOT * _SLOT_BYTES, *addresses)
        if self._pack is not None:
            self._pack(self._scalar_view, 0, *scalars)
        late: BaseException | None = None
        try:
            self._entry(self._argument)
        except BaseException as error:
            # Handlers of signals run when the call returns.  Memory has changed by then:
            # values that were not told would be computed again, from what they became.
            if hasattr(error, "__tvm_ffi_error__"):
                raise
            late = error
        self.calls += 1
        _COUNTS["native_calls"] += 1  # changes here only, under this lock
        return late

    def times(self, reset: bool = False) -> tuple[Any, int, int] | None:
        """What the entry has measured: ns of each worker and step, ns of all launches, launches.

        None if the program does not measure; ``reset``: it starts anew.
        """
        clocks = self.program.clocks
        if clocks is None:
            return None
        with _RUNNING:
            words = self._steps.numpy((self._steps.nbytes,), _BYTES)[clocks.offset :].view(np.int64)
            found = words.copy()
            if reset:
                words[:] = 0
        steps = found[:-2].reshape(clocks.workers, len(clocks.kernels))
        return steps, int(found[-2]), int(found[-1])

    def _stage(self, x: Buffer, inputs: Sequence[Buffer]) -> int:
        """Copy an input whose elements are not aligned; kernels may assume that they are."""
        number = inputs.index(x)
        copy = self._scratch.get(number)
        if copy is None:
            copy = self._scratch[number] = Buffer(x.nbytes)
        EVENTS.add("unaligned_inputs_copied")
        if x.nbytes:
            copy.numpy((x.nbytes,), _BYTES)[...] = x.numpy((x.nbytes,), _BYTES)
        return copy.address


class ReferenceExecutor:
    """Runs a graph op by op through the numpy references (``MTVM_TARGET=numpy``)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls = 0
        self.overwrites = (True,) * len(program.graph.outputs)
        self._last_read = _last_reads(program.graph)

    def run(
        self,
        inputs: Sequence[Buffer],
        scalars: Sequence[float],
        targets: Sequence[Buffer | None],
        finish: Callable[[list[Buffer]], object],
        addresses: Sequence[int] | None = None,
    ) -> list[Buffer]:
        """As :meth:`Executor.run`."""
        graph = self.program.graph
        buffers, numbers = iter(inputs), iter(scalars)
        env: list[Any] = []
        with _RUNNING, interrupts_wait(), np.errstate(all="ignore"):
            for v, read in zip(graph.values, self._last_read, strict=True):
                if v.op is BUFFER:
                    env.append(next(buffers).numpy(v.shape, v.dtype))
                elif v.is_leaf:
                    env.append(np.asarray(next(numbers)).astype(v.dtype.numpy))
                else:
                    value = v.op.reference(np, *[env[x] for x in v.inputs])
                    value = np.asarray(value)
                    if value.shape != v.shape or value.dtype != v.dtype.numpy:
                        raise AssertionError(
                            f"reference of {v.op} gave {value.dtype}{list(value.shape)} instead "
                            f"of {v.spec}"
                        )
                    env.append(value)
                for x in read:
                    env[x] = None
            self.calls += 1
            EVENTS.add("reference_calls")
            results = []
            finished = [np.array(env[position]) for position in graph.outputs]
            for value, position, target in zip(finished, graph.outputs, targets, strict=True):
                v = graph.values[position]
                out = target if target is not None else Buffer(numel(v.shape) * v.dtype.itemsize)
                if out.nbytes:
                    out.numpy(v.shape, v.dtype)[...] = value
                results.append(out)
            finish(results)
        return results


def _last_reads(graph: Graph) -> list[list[int]]:
    """For each value, those that nobody reads behind it."""
    last = dict.fromkeys(graph.outputs, len(graph.values))
    read: list[list[int]] = [[] for _ in graph.values]
    for i in reversed(range(len(graph.values))):
        for x in (i, *graph.values[i].inputs):
            if x not in last:
                last[x] = i
                read[i].append(x)
    return read
