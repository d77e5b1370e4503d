"""Runs what was recorded op by op, by programs of one op or a few, or by copying memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from ..core.events import EVENTS
from ..core.interrupts import interrupts_wait
from ..core.record import record
from .executor import Executor, exclusive
from .memory import Buffer, join


@record(frozen=False)
class Runs:
    """How often a structure has run, and after how many a program of its own is worth while."""

    most: float
    done: int = 0


class View(NamedTuple):
    """A result that is a part of its input's memory."""

    offset: int  # in bytes
    nbytes: int


class Join:
    """A result that is parts of inputs' memory, one behind the other."""

    overwrites = (False,)

    def __init__(self, parts: Sequence[View]) -> None:
        self._parts = tuple(parts)
        self.sizes = [sum(nbytes for _, nbytes in parts)]

    def run(self, inputs: Sequence[Buffer], result: Buffer) -> None:
        """Copy them."""
        pairs = zip(self._parts, inputs, strict=True)
        join(result, [(x.address + offset, nbytes) for (offset, nbytes), x in pairs])


class Pieces:
    """Ops in the order of recording; values are numbers of the recording's.

    Apart, as there are thousands, and Python's garbage collector would visit an object per op.
    """

    def __init__(self) -> None:
        self.made_by: list[Executor | Join | View] = []
        self.inputs: list[tuple[int, ...]] = []
        self.scalars: list[tuple[int, ...]] = []
        self.results: list[tuple[int, ...]] = []

    def add(
        self,
        made_by: Executor | Join | View,
        inputs: tuple[int, ...],
        scalars: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None:
        """Behind those that there are."""
        self.made_by.append(made_by)
        self.inputs.append(inputs)
        self.scalars.append(scalars)
        self.results.append(results)


class PiecewiseExecutor:
    """Runs pieces one after the other.

    Every intermediate value has memory from the pool, until its last reader has run.
    """

    setting: ClassVar[str] = "changing"
    provisional: ClassVar[bool] = False

    def __init__(
        self,
        pieces: Pieces,
        buffers: Sequence[int],
        scalars: Sequence[int],
        outputs: Sequence[int],
        donors: Sequence[int],
        runs: Runs,
    ) -> None:
        """``buffers`` and ``scalars`` are the numbers of what comes with a call, ``donors``, for
        each of the ``outputs``, of what it may be written over, or -1."""
        self._pieces, self._runs = pieces, runs
        self._buffers, self._scalars, self._outputs = buffers, scalars, outputs
        last: dict[int, int] = {}
        owner: dict[int, int] = {}  # of the memory that views are in
        for position, inputs in enumerate(pieces.inputs):
            for x in inputs:
                last[x] = position
                if owner and x in owner:
                    last[owner[x]] = position
            if type(pieces.made_by[position]) is View:
                owner[pieces.results[position][0]] = owner.get(inputs[0], inputs[0])
        self._first, self.overwrites = self._in_place(last, donors)
        for o in outputs:
            last.pop(o, None)
        dead: list[tuple[int, ...]] = [()] * len(pieces.inputs)
        for x, position in last.items():
            dead[position] += (x,)
        self._dead = tuple(dead)

    def _in_place(
        self, last: dict[int, int], donors: Sequence[int]
    ) -> tuple[int, tuple[bool, ...]]:
        """The first piece that may write over something, and which outputs may be.

        From there on memory is taken for all results before any is computed, as nothing may go
        wrong once something is written over: at most as much as is saved where all may be.
        """
        p = self._pieces
        donor = {o: d for o, d in zip(self._outputs, donors, strict=True) if d >= 0}
        left, first, extra = len(donor), len(p.made_by), 0
        chosen: set[int] = set()
        waiting: list[int] = []
        position = first
        while left and position:
            position -= 1
            made_by = p.made_by[position]
            if isinstance(made_by, View):
                continue
            for i, result in enumerate(p.results[position]):
                if result in donor:
                    left -= 1
                    read = last.get(donor[result], -1)  # a composite may need its shape only
                    if read < position or (read == position and made_by.overwrites[i]):
                        waiting.append(result)
                        extra -= made_by.sizes[i]
                elif result in last:
                    extra += made_by.sizes[i]
            if waiting and extra <= 0:
                first = position
                chosen.update(waiting)
                waiting.clear()
        return first, tuple([o in chosen for o in self._outputs])

    @property
    def calls(self) -> int:
        """How often it has run."""
        return self._runs.done

    @property
    def over(self) -> bool:
        """Whether it has run so often that it had better been compiled."""
        return self._runs.done >= self._runs.most

    def run(
        self,
        inputs: Sequence[Buffer],
        scalars: Sequence[float],
        targets: Sequence[Buffer | None],
        finish: Callable[[list[Buffer]], object],
        addresses: Sequence[int] | None = None,
    ) -> list[Buffer]:
        """As :meth:`.executor.Executor.run`."""
        values: dict[int, Any] = dict(zip(self._buffers, inputs, strict=True))
        values.update(zip(self._scalars, scalars, strict=True))
        given = {o: t for o, t in zip(self._outputs, targets, strict=True) if t is not None}
        p = self._pieces
        pieces = zip(p.made_by, p.inputs, p.scalars, p.results, self._dead, strict=True)
        with exclusive(), interrupts_wait():
            late = _run(itertools.islice(pieces, self._first) if given else pieces, values, {})
            if given:
                # From here on nothing may go wrong.
                raised = _run(pieces, values, given | self._taken_ahead(given))
                late = late or raised
            self._runs.done += 1
            EVENTS.add("piecewise_runs")
            found = [values[o] for o in self._outputs]
            finish(found)
        if late is not None:
            raise late
        return found

    def _taken_ahead(self, given: dict[int, Buffer]) -> dict[int, Buffer]:
        """Memory for all results of the pieces that may write over something, but ``given``."""
        p = self._pieces
        return {
            result: Buffer(size)
            for made_by, results in itertools.islice(
                zip(p.made_by, p.results, strict=True), self._first, None
            )
            if not isinstance(made_by, View)
            for result, size in zip(results, made_by.sizes, strict=True)
            if result not in given
        }


def _run(
    pieces: Iterable[tuple[Any, ...]], values: dict[int, Any], given: dict[int, Buffer]
) -> BaseException | None:
    """Run some; ``given`` is memory for the results, if there is any.

    Returns what a signal raised meanwhile.
    """
    late: BaseException | None = None
    for made_by, inputs, scalars, results, dead in pieces:
        if isinstance(made_by, View):
            values[results[0]] = values[inputs[0]].part(*made_by)
        else:
            if given:
                made = [given.pop(r) for r in results]
            else:
                made = [Buffer(size) for size in made_by.sizes]
            taken = [values[i] for i in inputs]
            if isinstance(made_by, Join):
                made_by.run(taken, made[0])
            else:
                raised = made_by.launch(taken, [values[i] for i in scalars], made)
                if raised is not None:
                    late = late or raised
            for r, buffer in zip(results, made, strict=True):
                values[r] = buffer
        for i in dead:
            del values[i]
    return late
