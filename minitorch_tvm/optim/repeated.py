"""An optimizer's step that was made before is neither recorded nor planned again.

What a step records follows from what it reads: the options of its groups, which tensors there are,
and where their values stand in the recording so far (see :mod:`minitorch_tvm.ir.trace`).  When all
of this is as it was at an earlier step, the same program is run on the present memory, and the
values that it updates stay the same nodes with new contents.  That is possible where nobody else
can see the old contents; otherwise the step is recorded as always.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import is_
from sys import getrefcount
from typing import Any, NamedTuple

from .. import lazy
from ..core.events import EVENTS
from ..ir.node import MODE, Node
from ..ir.tape import Owed, Tape
from ..ir.trace import Prefix, catch_up
from ..plans import Known, kept, reusable
from ..runtime.memory import Buffer

Key = tuple[object, ...]

Action = tuple[Callable[[], Any], Sequence[Node]]
"""A side effect of a step and the numbers of the program that it returns, if any."""


class Reads:
    """What a step depends on."""

    __slots__ = ("choices", "debt", "gradients", "owners", "params", "tensors")

    def __init__(self, debt: Owed | None) -> None:
        self.debt = debt
        """What stands for the gradients of this recording, if they are owed."""
        self.choices: list[object] = []
        """Values that decide which operations are recorded."""
        self.params: list[Any] = []
        """Tensors to be changed that have a gradient."""
        self.gradients: list[Any] = []
        """Theirs; all of them or, if they are owed, none."""
        self.tensors: list[Any] = []
        """Others that the operations read or change."""
        self.owners: list[dict[str, Any]] = []
        """What the step's actions look numbers up in."""

    def add(self, params: Sequence[Any]) -> list[Any]:
        """Add those that have a gradient, and what they have; returns them."""
        debt, found, gradients = self.debt, self.params, self.gradients
        start = len(found)
        for p in params:
            gradient = p._gradient
            if gradient is not None:
                found.append(p)
                if gradient is not debt:
                    gradients.append(p._grad)
        return found[start:] if start else found

    def all(self) -> list[Any]:
        """The tensors of all kinds; those that may be owed last."""
        return self.params + self.tensors + self.gradients


def key_of(reads: Reads) -> Key | None:
    """Equal for steps that do the same; None if there is no telling."""
    trace, debt = MODE.trace, reads.debt
    params, gradients = reads.params, reads.gradients
    owed: Sequence[int] = ()
    tape = None
    if len(gradients) < len(params):
        if debt is None or gradients:
            return None
        tape = debt.tape
        if len(params) < len(tape.cts):
            owed = debt.outstanding()
    pending = lazy.recorded(owed)
    if pending is None:
        return None
    places: list[int] = []
    others = reads.tensors
    if tape is None:
        others = reads.all()
    else:
        cts, base = tape.cts, trace.base
        for t in params:
            place = t._node.at - base
            if place not in cts or t._base is not None:  # owed to what the parameter was then
                return None
            places.append(place)
    if others:
        nodes = []
        for t in others:
            if t._base is not None:
                return None
            nodes.append(t._node)
        found = trace.places_of(nodes)
        if found is None:
            return None
        places += found
    return trace.prefix, tape, pending, tuple(places), tuple(reads.choices)


class Watch:
    """Follows a step that is recorded, to repeat it later."""

    def __init__(self, reads: Reads) -> None:
        trace = MODE.trace
        self._reads = reads
        # Weak: what has further references is not overwritten.
        self._tensors = reads.all()
        self._before = [weakref.ref(t._node) for t in self._tensors]
        self._start, self._base, self._count = trace.prefix, trace.base, len(trace.values)
        self._entered: dict[int, int] = {}
        self._written: dict[int, tuple[int, int]] = {}
        self._numbers: dict[int, tuple[int, int]] = {}
        self._uses: dict[int, int] | None = None

    def recorded(self, actions: Sequence[Action]) -> None:
        """All updates have been recorded, and are about to be evaluated."""
        if MODE.trace.base != self._base:  # something has been evaluated meanwhile
            return
        for number, (tensor, reference) in enumerate(zip(self._tensors, self._before, strict=True)):
            node = reference()
            if node is None:
                return
            place = node.at - self._base
            if place >= self._count:
                self._entered[place] = ~number
            if tensor._node is not node:
                self._written[tensor._node.at - self._base] = (~number, place)
        for action, (_, nodes) in enumerate(actions):
            for entry, node in enumerate(nodes):
                self._numbers[node.at - self._base] = (action, entry)
        self._uses = _uses(self._start, MODE.trace.prefix, len(MODE.trace.values))

    def result(self, known: Known | None, actions: Sequence[Action]) -> Repeated | None:
        """How to do the same again, ``known`` having been evaluated; None if that is unknown."""
        count, tensors = self._count, self._tensors
        by = self._uses  # the step's own operations
        if known is None or by is None:
            return None
        own = {*self._written, *self._entered, *self._numbers}
        used = (*known.outputs, *known.buffers, *known.scalars)
        if any(place >= count and place not in own for place in used):
            return None
        outputs, written = [], {}
        for i, (place, donor) in enumerate(zip(known.outputs, known.donors, strict=True)):
            if place < count:
                outputs.append(place)
                continue
            number, before = self._written[place]
            if donor < 0 or known.buffers[donor] != before:
                return None
            outputs.append(number)
            written[i] = tensors[~number]._node.requires_grad
        if len(written) < len(self._written):
            return None
        return Repeated(
            known,
            outputs,
            [p if p < count else self._entered[p] for p in known.buffers],
            [n - by.get(p, 0) for p, n in zip(known.buffers, known.uses, strict=True)],
            [(-1, p) if p < count else self._numbers[p] for p in known.scalars],
            written,
            [action for action, _ in actions],
            self._reads.owners,
        )


def _uses(start: Prefix, end: Prefix, count: int) -> dict[int, int] | None:
    """How often the values of a recording are inputs between two of its prefixes, by position."""
    found: dict[int, int] = {}
    path = end.path(start)
    if path is None:
        return None
    for prefix in path:
        for place in prefix.positions:
            found[place] = found.get(place, 0) + 1
    return found


class Repeated:
    """A step and the evaluation that it ends in, to be done again.

    Values are given by their positions in the recording before the step, or by ``~n`` for the n-th
    tensor that the step reads.
    """

    def __init__(
        self,
        known: Known,
        outputs: list[int],
        buffers: list[int],
        uses: list[int],
        scalars: list[tuple[int, int]],
        written: dict[int, bool],
        actions: list[Callable[[], Any]],
        owners: list[dict[str, Any]],
    ) -> None:
        """``uses`` tells how often a buffer is an input of what was recorded before the step;
        ``scalars`` are (-1, position) or (action, entry of what it returns); ``written`` are the
        outputs that are updated tensors, and whether those require grad."""
        self._key, self._uses = known.key, uses
        self._buffers, self._scalars = buffers, scalars
        self._written = [(i, known.donors[i], ~outputs[i], grad) for i, grad in written.items()]
        self._plain = [(i, p) for i, p in enumerate(outputs) if p >= 0]
        """The other outputs, and where they are in the recording."""
        donors = [-1 if i in written else d for i, d in enumerate(known.donors)]
        self._donors = donors if max(donors, default=-1) >= 0 else None
        self._actions, self._owners = actions, owners
        self._fresh = [i for i, d in enumerate(known.donors) if d < 0]
        self._none: list[Buffer | None] = [None] * len(outputs)
        self._spare: list[Buffer] = []
        self._owing = self._with(None)

    def forget(self) -> None:
        """Let go of memory that is kept for the next time."""
        self._spare = []

    def is_of(self, reads: Reads) -> bool:
        """True if its actions look at what there is now."""
        owners = self._owners
        return len(owners) == len(reads.owners) and all(map(is_, owners, reads.owners))

    def run(self, reads: Reads) -> bool:
        """Do the step; False, with nothing done, if somebody could see that it is not recorded."""
        executor = lazy.executor_of(self._key)
        if executor is None:
            return False
        trace, debt = MODE.trace, reads.debt
        values: list[Any] = trace.values
        if reads.tensors or reads.gradients:
            tensors = reads.all()
        else:
            tensors = reads.params
        nodes: list[Any] = [values[p]() if p >= 0 else tensors[~p]._node for p in self._buffers]
        owing = self._owing
        if owing.tape is not (None if debt is None else debt.tape):
            owing = self._owing = self._with(None if debt is None else debt.tape)
        _, written, uses, plain, places, gradients = owing
        outputs: list[Any] = [values[p]() for p in places]
        if trace.late and None in outputs:
            catch_up(trace.late)
            outputs = [values[p]() for p in places]
        targets = self._targets(outputs, nodes, written, uses, executor.overwrites)
        if targets is None:
            return False
        made = [action() for action in self._actions]
        scalars = [made[a][p] if a >= 0 else values[p]().value for a, p in self._scalars]
        _TOGETHER[_COUNTED] += 1  # changes here only, and under the lock of evaluations
        for _, _, number, _, _ in written:
            tensors[number]._version += 1

        def finish(results: list[Buffer]) -> None:
            if debt is not None:
                debt.computed(gradients, results)
            for output, at, _, _, _ in written:
                nodes[at].buffer = results[output]
            lazy.computed(outputs, [results[i] for i in plain])

        results = lazy.execute(executor, nodes, scalars, targets, finish)
        self._spare = [results[i] for i in self._fresh]
        return True

    def _with(self, tape: Tape | None) -> _Owing:
        """What is different while the gradients of ``tape`` are owed."""
        uses, cts = self._uses, set()
        if tape is not None:
            uses = [
                n - tape.uses.get(p, 0) + (p in tape.uses)  # what is owed holds each of them once
                for p, n in zip(self._buffers, uses, strict=True)
            ]
            cts = set(tape.cts.values())
        return _Owing(
            tape,
            # Known references: the tensor's, that as a buffer of this evaluation, the local one
            # and getrefcount's argument.
            [(i, at, number, grad, uses[at] + 4) for i, at, number, grad in self._written],
            uses,
            [i for i, p in self._plain if p not in cts],
            [p for _, p in self._plain if p not in cts],
            [(p, i) for i, p in self._plain if p in cts],
        )

    def _targets(
        self,
        outputs: list[Node],
        nodes: list[Node],
        written: Sequence[tuple[int, int, int, bool, int]],
        uses: list[int],
        overwrites: Sequence[bool],
    ) -> list[Buffer | None] | None:
        """Where to write each output; None if not only their tensors hold the values to be changed.

        ``outputs`` are those that are not updated tensors.  What only this step still has of what
        it computed the last time is written over.
        """
        still_read = kept(outputs)
        if self._donors is None:
            targets = self._none.copy()
        else:
            targets = reusable(nodes, uses, self._donors, overwrites, still_read)
        for output, at, _, requires_grad, references in written:
            node = nodes[at]
            buffer = node.buffer
            if (
                getrefcount(node) > references
                or buffer is None
                or buffer.array is not None
                or (still_read and id(node) in still_read)
                or node.history is not None
                or node.requires_grad is not requires_grad
                or (requires_grad and not node.grad_leaf)
            ):
                return None
            # That of the node, the local one and getrefcount's argument; else a numpy view.
            if overwrites[output] and getrefcount(buffer) <= 3:
                targets[output] = buffer
        spare = self._spare
        for i, output in enumerate(self._fresh if spare else ()):
            # Known references: that of the list and getrefcount's argument.
            if getrefcount(spare[i]) <= 2:
                targets[output] = spare[i]
        return targets


class _Owing(NamedTuple):
    """How a step is done while gradients are owed, or none are."""

    tape: Tape | None
    written: list[tuple[int, int, int, bool, int]]
    """Outputs that are updated tensors, the buffers that they update, the tensors' numbers, whether
    they require grad, and how many references a value that nobody else holds has."""
    uses: list[int]
    plain: list[int]
    """Outputs of the program that have been recorded,"""
    places: list[int]
    """and where."""
    gradients: list[tuple[int, int]]
    """Those that are owed: where they would be, and their numbers."""


_TOGETHER = EVENTS.together
_COUNTED = (
    "evaluations",
    "evaluations:step",
    "repeated_plans",
    "repeated_updates",
    "cache_hits",
)
