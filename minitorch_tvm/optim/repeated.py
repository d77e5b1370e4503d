"""An optimizer's step that was made before is neither recorded nor planned again.

What a step records follows from what it reads: the options of its groups, which tensors there are,
and where their values stand in the recording so far (see :mod:`minitorch_tvm.ir.trace`).  When all
of this is as it was at an earlier step, the same program is run on the present memory, and the
values that it updates stay the same nodes with new contents.  That is possible where nobody else
can see the old contents; otherwise the step is recorded as always.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

from .. import lazy
from ..core.events import EVENTS
from ..ir.node import MODE, Node
from ..ir.trace import Prefix
from ..tensor import Tensor

Key = tuple[object, ...]

Action = tuple[Callable[[], Any], Sequence[Node]]
"""A side effect of a step and the numbers of the program that it returns, if any."""


class Reads(NamedTuple):
    """What a step depends on."""

    choices: list[object]
    """Values that decide which operations are recorded."""
    tensors: list[Tensor]
    """Those that the operations read, and those that they change."""
    owners: list[dict[str, Any]]
    """What the step's actions look numbers up in."""


def key_of(reads: Reads) -> Key | None:
    """Equal for steps that do the same; None if there is no telling."""
    pending = lazy.recorded()
    if pending is None:
        return None
    trace = MODE.trace
    base, count = trace.base, len(trace.values)
    places = []
    entering = set()
    for t in reads.tensors:
        if t._base is not None:
            return None
        node = t._node
        place = node.at - base
        if not 0 <= place < count:
            if node.pending or trace.elsewhere(node):
                return None
            place = trace.entry(node)
            if node in entering:  # which of them are one does not show
                return None
            entering.add(node)
        places.append(place)
    return trace.prefix, pending, tuple(places), tuple(reads.choices)


class Watch:
    """Follows a step that is recorded, to repeat it later."""

    def __init__(self, reads: Reads) -> None:
        trace = MODE.trace
        self._reads = reads
        # Weak: what has further references is not overwritten.
        self._before = [weakref.ref(t._node) for t in reads.tensors]
        self._start, self._base, self._count = trace.prefix, trace.base, len(trace.values)
        self._entered: dict[int, int] = {}
        self._written: dict[int, tuple[int, int]] = {}
        self._numbers: dict[int, tuple[int, int]] = {}
        self._uses: dict[int, int] | None = None

    def recorded(self, actions: Sequence[Action]) -> None:
        """All updates have been recorded, and are about to be evaluated."""
        if MODE.trace.base != self._base:  # something has been evaluated meanwhile
            return
        for number, (tensor, reference) in enumerate(
            zip(self._reads.tensors, self._before, strict=True)
        ):
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

    def result(self, known: lazy.Known | None, actions: Sequence[Action]) -> Repeated | None:
        """How to do the same again, ``known`` having been evaluated; None if that is unknown."""
        count, tensors = self._count, self._reads.tensors
        if known is None or self._uses is None or len(set(map(id, tensors))) < len(tensors):
            return None
        own = {*self._written, *self._entered, *self._numbers}
        used = (*known.outputs, *known.buffers, *known.scalars)
        if any(place >= count and place not in own for place in used):
            return None
        outputs, written = [], []
        for place, donor in zip(known.outputs, known.donors, strict=True):
            if place < count:
                outputs.append(place)
                continue
            number, before = self._written[place]
            if donor < 0 or known.buffers[donor] != before:
                return None
            outputs.append(number)
            uses = known.uses[donor] - self._uses.get(before, 0)
            written.append((donor, uses, tensors[~number]._node.requires_grad))
        if len(written) < len(self._written):
            return None
        return Repeated(
            known.key,
            outputs,
            [p if p < count else self._entered[p] for p in known.buffers],
            known.uses,
            [(-1, p) if p < count else self._numbers[p] for p in known.scalars],
            known.donors,
            written,
            [~n for n in outputs if n < 0],
            [action for action, _ in actions],
            self._reads.owners,
        )


def _uses(start: Prefix, end: Prefix, count: int) -> dict[int, int] | None:
    """How often the values of a recording are inputs between two of its prefixes, by position."""
    found: dict[int, int] = {}
    prefix = end
    while prefix is not start:
        for place in prefix.inputs(range(count)):
            found[place] = found.get(place, 0) + 1
        if prefix.before is None:
            return None
        prefix = prefix.before
    return found


class Repeated(NamedTuple):
    """A step and the evaluation that it ends in.

    Values are given by their positions in the recording before the step, or by ``~n`` for the n-th
    tensor that the step reads.
    """

    key: lazy.Key
    outputs: list[int]
    buffers: list[int]
    uses: list[int]
    scalars: list[tuple[int, int]]  # (-1, position), or (action, entry of what it returns)
    donors: list[int]
    written: list[tuple[int, int, bool]]
    """Per updated tensor: position among the buffers, how often it is an input of what was recorded
    before the step, and whether it requires grad."""
    updated: list[int]  # their numbers
    actions: list[Callable[[], Any]]
    owners: list[dict[str, Any]]

    def run(self, reads: Reads) -> bool:
        """Do the step; False, with nothing done, if somebody could see that it is not recorded."""
        owners = self.owners
        executor = lazy.executor_of(self.key)
        if (
            executor is None
            or len(owners) != len(reads.owners)
            or not all(map(is_, owners, reads.owners))
        ):
            return False
        tensors, values = reads.tensors, MODE.trace.values
        outputs: list[Any] = [values[p]() if p >= 0 else tensors[~p]._node for p in self.outputs]
        buffers: list[Any] = [values[p]() if p >= 0 else tensors[~p]._node for p in self.buffers]
        kept = lazy.kept(outputs)
        if not self._unseen(buffers, kept):
            return False
        # Of an updated tensor's value there are two references more than of a donor: the tensor's,
        # and that as an output; and it is no donor.
        uses = self.uses.copy()
        for at, before, _ in self.written:
            uses[at] = before + 1
        made = [action() for action in self.actions]
        scalars = [_value(values[p]()) if a < 0 else made[a][p] for a, p in self.scalars]
        plan = lazy.Plan([], outputs, self.key, buffers, uses, scalars, self.donors)
        EVENTS.count(_COUNTED)
        lazy.execute(executor, plan, kept)
        for number in self.updated:
            tensors[number]._version += 1
        return True

    def _unseen(self, buffers: Sequence[Node], kept: set[int]) -> bool:
        """True if only their tensors hold the values to be overwritten."""
        for at, uses, requires_grad in self.written:
            node = buffers[at]
            # Known references: the tensor's, those as an output and a buffer of this evaluation,
            # the local one and getrefcount's argument.
            if (
                sys.getrefcount(node) > uses + 5
                or id(node) in kept
                or node.pending
                or node.buffer is None
                or node.buffer.shared
                or node.history is not None
                or node.requires_grad != requires_grad
                or (requires_grad and not node.grad_leaf)
            ):
                return False
        return True


def _value(scalar: Any) -> Any:
    return scalar.value


_COUNTED = (
    "evaluations",
    "evaluations:step",
    "repeated_plans",
    "repeated_updates",
    "cache_hits",
)
