"""Runs what was recorded op by op, each op by a program of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from ..core.events import EVENTS
from ..core.interrupts import interrupts_wait
from ..core.record import record
from .executor import Executor, exclusive
from .memory import Buffer


@record(frozen=False)
class Runs:
    """How often a structure has run, and after how many a program of its own is worth while."""

    most: float
    done: int = 0


class View(NamedTuple):
    """A result that is a part of its input's memory."""

    offset: int  # in bytes
    nbytes: int


class Pieces:
    """Ops in the order of recording; values are numbers of the recording's.

    Apart, as there are thousands, and Python's garbage collector would visit an object per op.
    """

    def __init__(self) -> None:
        self.made_by: list[Executor | View] = []
        self.inputs: list[tuple[int, ...]] = []
        self.scalars: list[tuple[int, ...]] = []
        self.results: list[int] = []

    def add(
        self,
        made_by: Executor | View,
        inputs: tuple[int, ...],
        scalars: tuple[int, ...],
        result: int,
    ) -> None:
        """Behind those that there are."""
        self.made_by.append(made_by)
        self.inputs.append(inputs)
        self.scalars.append(scalars)
        self.results.append(result)


class PiecewiseExecutor:
    """Runs pieces one after the other.

    Every intermediate value has memory from the pool until its last reader has run.
    """

    setting: ClassVar[str] = "changing"

    def __init__(
        self,
        pieces: Pieces,
        buffers: Sequence[int],
        scalars: Sequence[int],
        outputs: Sequence[int],
        runs: Runs,
    ) -> None:
        """``buffers`` and ``scalars`` are the numbers of what comes with a call."""
        self._pieces, self._runs = pieces, runs
        self._buffers, self._scalars, self._outputs = buffers, scalars, outputs
        self.overwrites = (False,) * len(outputs)
        last: dict[int, int] = {}
        for position, inputs in enumerate(pieces.inputs):
            for x in inputs:
                last[x] = position
        for o in outputs:
            last.pop(o, None)
        dead: list[tuple[int, ...]] = [()] * len(pieces.inputs)
        for x, position in last.items():
            dead[position] += (x,)
        self._dead = tuple(dead)

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
        late: BaseException | None = None
        p = self._pieces
        with exclusive(), interrupts_wait():
            for made_by, taken, numbers, result, dead in zip(
                p.made_by, p.inputs, p.scalars, p.results, self._dead, strict=True
            ):
                if isinstance(made_by, Executor):
                    (values[result],), raised = made_by.launch(
                        [values[i] for i in taken], [values[i] for i in numbers]
                    )
                    late = late or raised
                else:
                    values[result] = values[taken[0]].part(*made_by)
                for i in dead:
                    del values[i]
            self._runs.done += 1
            EVENTS.add("piecewise_runs")
            results = [values[o] for o in self._outputs]
            finish(results)
        if late is not None:
            raise late
        return results
