"""Runs a program that has room for more elements than there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ..core.dtype import DType
from ..core.events import EVENTS
from ..core.interrupts import interrupts_wait
from ..core.shape import Shape, numel
from ..ir.graph import Graph
from ..ir.node import BUFFER
from .executor import Executor
from .memory import Buffer, buffer_of


class PaddedExecutor:
    """Runs a graph by the program of another that computes the same with more room.

    Inputs are copied to where there is room, and of results what belongs to them is copied.
    """

    setting: ClassVar[str] = "varying"
    provisional: ClassVar[bool] = False

    def __init__(
        self,
        roomy: Graph,
        numbers: Sequence[float | int | bool | None],
        given: Sequence[Shape],
        results: Sequence[Shape],
        executor: Executor,
        runs: int,
    ) -> None:
        """``numbers`` are the scalars of ``roomy``; None: the next one of those that come with a
        call.  ``given`` and ``results`` are the shapes in which buffers and outputs are corners of
        those of ``roomy``.
        After so many ``runs`` a program of its own is worth while."""
        self.executor = executor
        self.calls = 0
        self._runs = runs
        self._numbers = numbers
        theirs = [v for v in roomy.values if v.op is BUFFER]
        self._inputs = [
            None if shape == v.shape else _Part(shape, v.shape, v.dtype)
            for shape, v in zip(given, theirs, strict=True)
        ]
        self._outputs = [
            None if shape == v.shape else _Part(shape, v.shape, v.dtype)
            for shape, v in zip(results, (roomy.values[o] for o in roomy.outputs), strict=True)
        ]
        self.overwrites = tuple(
            possible and part is None
            for possible, part in zip(executor.overwrites, self._outputs, strict=True)
        )

    @property
    def over(self) -> bool:
        """Whether it has run so often that a program without room had better be compiled."""
        return self.calls >= self._runs

    def run(
        self,
        inputs: Sequence[Buffer],
        scalars: Sequence[float],
        targets: Sequence[Buffer | None],
        finish: Callable[[list[Buffer]], object],
        addresses: Sequence[int] | None = None,
    ) -> list[Buffer]:
        """As :meth:`.executor.Executor.run`."""
        given = iter(scalars)
        numbers = [next(given) if n is None else n for n in self._numbers]
        found: list[Buffer] = []

        def cut(results: list[Buffer]) -> None:
            for part, target, result in zip(self._outputs, targets, results, strict=True):
                found.append(result if part is None else part.cut(result, target))
            finish(found)

        # Inputs may have been written over when the results have not been told yet.
        with interrupts_wait():
            self.executor.run(
                [
                    x if p is None else p.padded(x)
                    for p, x in zip(self._inputs, inputs, strict=True)
                ],
                numbers,
                [t if p is None else None for p, t in zip(self._outputs, targets, strict=True)],
                cut,
            )
            self.calls += 1
            EVENTS.add("padded_runs")
        return found


class _Part:
    """The first elements along each dimension of something larger."""

    def __init__(self, shape: Shape, room: Shape, dtype: DType) -> None:
        self._shape, self._room, self._dtype = shape, room, dtype
        self._region = tuple(slice(0, n) for n in shape)
        self._rest = [
            (*self._region[:axis], slice(n, m))
            for axis, (n, m) in enumerate(zip(shape, room, strict=True))
            if n < m
        ]
        self._room_bytes = numel(room) * dtype.itemsize

    def padded(self, x: Buffer) -> Buffer:
        """With zeros behind the elements."""
        buffer = Buffer(self._room_bytes)
        view = buffer.numpy(self._room, self._dtype)
        view[self._region] = x.numpy(self._shape, self._dtype)
        for region in self._rest:
            view[region] = 0
        return buffer

    def cut(self, x: Buffer, target: Buffer | None) -> Buffer:
        """Those elements alone."""
        found = x.numpy(self._room, self._dtype)[self._region]
        if target is None:
            return buffer_of(found, self._dtype)
        target.numpy(self._shape, self._dtype)[...] = found
        return target
