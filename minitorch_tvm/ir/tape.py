"""What backward() records, known from an earlier time: done again without a walk, or put off.

Of the values that backward() records, a program that is known needs none: it says where gradients
come from.  :class:`Owed` stands for all of them.  They are recorded when somebody asks for one, and
never if the gradients are computed, or dropped, before.  What is done to all gradients at once
before that (they are clipped) can be put off like them: see :class:`Amendment`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..core import config, errors
from ..core.dtype import DType
from ..core.events import EVENTS
from ..core.record import record
from .node import MODE, SCALAR, Node, leaf, new_sequence, scalar
from .passage import Late, Source, recording, stretch_of
from .trace import Prefix, Result, Step, Trace, nothing, picker


class Tape:
    """What backward() does after a certain recording; values are given by their positions in it."""

    def __init__(
        self,
        start: int,
        steps: list[Step],
        end: Prefix,
        cts: dict[int, int],
        results: Sequence[int] = (),
        leaves: Sequence[int] = (),
        freed: Sequence[int] = (),
        again: Sequence[int] = (),
    ) -> None:
        """``cts`` are the gradients of what they are asked for.  ``results`` are on autograd paths
        to the roots, and so are ``leaves``."""
        self.start, self.steps, self.end = start, steps, end
        self.results, self.leaves, self.freed, self.cts = results, leaves, frozenset(freed), cts
        self.again = again
        self.inputs = [inputs(range(start + len(steps))) for _, inputs, _ in steps]
        needed: set[int] = set()
        stack = [ct for ct in cts.values() if ct >= start]
        while stack:
            place = stack.pop()
            if place not in needed and steps[place - start][0] is not SCALAR:
                needed.add(place)
                stack += (p for p in self.inputs[place - start] if p >= start)
        self.needed = sorted(needed)
        self.uses: dict[int, int] = {}
        """How often the values that were there before are inputs of what leads to gradients."""
        for place in self.needed:
            for p in self.inputs[place - start]:
                if p < start:
                    self.uses[p] = self.uses.get(p, 0) + 1
        self.held = list(self.uses)
        self.blanks = [nothing] * len(steps)
        # Each gradient a value of its own, with an owner of its own.
        self.may_wait = needed.issuperset(cts.values()) and len(cts) == len(set(cts.values()))
        self._line = errors.Line()
        self._behind: Prefix | None = None
        """What follows the end if the graph is used up, once it has been."""

    def play(self, trace: Trace, root: Node, keep: bool) -> bool:
        """Do what backward() did; False, with nothing done, if somebody watches it."""
        values: list[Any] = trace.values
        passed = self._passed(trace, owned=False)
        if passed is None:
            return False
        owners, references = [], []
        wait = self.may_wait and trace.debt() is None
        for p in self.cts:
            node = values[p]()
            reference = node.owner
            if reference is None or node.hooks:
                return False
            owner = reference()
            if owner is None or owner._gradient is not None or owner._node is not node:
                wait = False
            owners.append(owner)
            references.append(reference)
        EVENTS.add("repeated_backwards")
        if wait and trace.capture is None and config.CONFIG.mode != "eager":
            owed = Owed(self, trace, references, self._line.now())
            trace.prefix = self.end
            values += self.blanks  # at once: an interrupt must not come between the two
            trace.owed = weakref.ref(owed)
            self._use_up(trace, [root], keep, passed)
            for owner in owners:
                owner._gradient = owed
        else:
            nodes = self._again(trace)
            self._use_up(trace, [root], keep, passed)
            for owner, ct in zip(owners, self.cts.values(), strict=True):
                if owner is not None:
                    owner._accumulate_grad(nodes[ct])
        trace.derived += len(self.steps)
        return True

    def gradients(
        self, trace: Trace, roots: Sequence[Node], wanted: Callable[[Node], Any], keep: bool
    ) -> list[Node] | None:
        """Do what grad() did, for what is ``wanted``; None, with nothing done, if that is more, or
        somebody watches it."""
        values: list[Any] = trace.values
        passed = self._passed(trace, owned=True)
        if passed is None:
            return None
        for p in self.leaves:
            node = values[p]()
            if node.hooks or (p not in self.cts and wanted(node) is not None):
                return None
        EVENTS.add("repeated_grads")
        nodes = self._again(trace)
        self._use_up(trace, roots, keep, passed)
        return [nodes[ct] for ct in self.cts.values()]

    def _passed(self, trace: Trace, owned: bool) -> list[Node] | None:
        """What can be passed only once; None if something on the way cannot be passed unseen.

        What has a gradient of its own can if ``owned``.
        """
        values: list[Any] = trace.values
        passed = []
        for p in self.results:
            node = values[p]()
            if node is None:  # late: nobody has seen it
                continue
            if node.freed or node.hooks or not (owned or node.owner is None):
                return None
            if p in self.freed:
                passed.append(node)
        return passed

    def _again(self, trace: Trace) -> list[Any]:
        """Record now what leads to gradients; returns all values by their positions."""
        nodes: list[Any] = trace.nodes()
        references = self.record(nodes, trace.base, new_sequence(), self._line.now(), {})
        trace.prefix = self.end
        trace.values += references  # at once: an interrupt must not come between the two
        return nodes

    def record(
        self,
        nodes: list[Any],
        base: int,
        sequence: float,
        place: errors.Provenance | None,
        shown: Mapping[int, weakref.ref[Node]],
    ) -> list[Any]:
        """Add what leads to gradients to the values before, which are given by position.

        Returns references to what is recorded; those of ``shown`` are there already.
        """
        start, count = self.start, len(self.steps)
        nodes += [None] * (start + count - len(nodes))
        references = self.blanks.copy()
        for p in self.needed:
            op, inputs, (shape, dtype, spec_id, grad) = self.steps[p - start]
            node = shown[p]() if p in shown else None
            if node is None:
                node = Node(op, inputs(nodes), shape, dtype, grad, spec_id)
                node.place, node.at = place, base + p
            else:
                node.inputs = inputs(nodes)
            node.sequence = sequence + (p - start) / count
            nodes[p], references[p - start] = node, weakref.ref(node)
        return references

    def _use_up(self, trace: Trace, roots: Sequence[Node], keep: bool, passed: list[Node]) -> None:
        for node in passed:
            node.freed = True
        for p in self.again:
            seen = trace.values[p]()
            if seen is not None:
                seen.again = seen.freed
        if keep:
            return
        if self._behind is None:
            for root in roots:
                trace.used_up(root)
            self._behind = trace.prefix
        else:
            trace.prefix = self._behind


_NONE: Mapping[int, Any] = MappingProxyType({})


class Promise:
    """Of gradients: tensors hold it as ``_gradient`` until somebody asks for one."""

    __slots__ = ("__weakref__",)

    def settle(self) -> None:
        """Give its gradient to every tensor that waits for it.

        No other thread may evaluate meanwhile.
        """
        raise NotImplementedError


class Owed(Promise):
    """Gradients that backward() has put off."""

    __slots__ = (
        *("_base", "_held", "_late", "_made", "_numbers", "_owners", "_place", "_results"),
        *("_sequence", "_shown", "_values", "tape"),
    )

    def __init__(
        self,
        tape: Tape,
        trace: Trace,
        owners: list[weakref.ref[Any]],
        place: errors.Provenance | None,
    ) -> None:
        values: list[Any] = trace.values
        self.tape, self._base, self._values, self._place = tape, trace.base, values, place
        self._owners, self._sequence = owners, new_sequence()
        # In this order: another thread's evaluation may look at what is late, and so record it.
        self._late = [stretch for reference in trace.late if (stretch := stretch_of(reference()))]
        self._held = [values[p]() for p in tape.held]  # None: late
        self._made: dict[int, Node] | None = None
        self._results: tuple[Sequence[tuple[int, int]], list[Any]] | None = None
        self._numbers: Mapping[int, Node] = _NONE
        """By position, those that amendments read."""
        self._shown: Mapping[int, weakref.ref[Node]] = _NONE
        """By position, what amendments have returned: nodes that are there already."""

    @property
    def begun(self) -> bool:
        """True from when some tensor has been given its gradient."""
        return self._made is not None

    def outstanding(self) -> Sequence[int]:
        """Positions of the gradients that still have an owner."""
        return [
            ct
            for reference, ct in zip(self._owners, self.tape.cts.values(), strict=True)
            if (owner := reference()) is not None and owner._gradient is self
        ]

    def computed(self, places: Sequence[tuple[int, int]], results: Sequence[Any]) -> None:
        """Take the memory of the gradients: where they would be, and their numbers in results."""
        self._results = places, [results[i] for _, i in places]
        self._held, self._late = [], []

    def settle(self) -> None:
        """Record what backward() would have, if it has not been computed."""
        made = self.nodes()
        for reference, ct in zip(self._owners, self.tape.cts.values(), strict=True):
            owner = reference()
            if owner is not None and owner._gradient is self:
                owner._gradient = owner._wrap(made[ct])
        self._made = {}  # what nobody else holds may be written over

    def nodes(self) -> dict[int, Node]:
        """The gradients by their positions, recorded or computed."""
        with recording():
            made = self._made
            if made is None:
                if self._results is None:
                    return self._record()
                made = self._made = {
                    ct: self._leaf(ct, buffer)
                    for (ct, _), buffer in zip(*self._results, strict=True)
                }
            return made

    def _leaf(self, ct: int, buffer: Any) -> Node:
        shape, dtype, _, _ = self.tape.steps[ct - self.tape.start][2]
        return leaf(buffer, shape, dtype)

    def _record(self) -> dict[int, Node]:
        """Do now what backward() would have done then."""
        tape = self.tape
        start, stop = tape.start, tape.start + len(tape.steps)
        nodes: list[Any] = [None] * stop
        for p, node in zip(tape.held, self._held, strict=True):
            nodes[p] = node
        for stretch in self._late:
            for p, node in stretch.nodes():
                nodes[p] = node
        for p, node in self._numbers.items():
            nodes[p] = node
        references = tape.record(nodes, self._base, self._sequence, self._place, self._shown)
        for p, node in self._numbers.items():
            references[p - start] = weakref.ref(node)
        made = {ct: nodes[ct] for ct in tape.cts.values()}
        self._values[start:stop] = references
        self._made = made  # at once: an interrupt must not come between the two
        self._held, self._late = [], []
        return made


class Amendment:
    """What is done to gradients that are owed, and replaces them: known from an earlier time."""

    def __init__(
        self,
        tape: Tape,
        numbers: list[tuple[int, int, float, DType]],
        shown: int | None,
    ) -> None:
        """``tape`` leads to the new gradients.  ``numbers`` are those that enter: (place, which of
        the given ones or -1, value if it is none of these, dtype).  ``shown`` is returned."""
        self.tape = tape
        self._numbers, self._shown = numbers, shown
        self._line = errors.Line()

    def make(self, trace: Trace, owed: Owed, values: Sequence[float]) -> Node | None:
        """Amend what is ``owed``, with these numbers; returns what is shown of it."""
        count = len(trace.values)
        references: list[Any] = self.tape.blanks[count - self.tape.start :]
        numbers, shown = {**owed._numbers}, {**owed._shown}
        for place, number, value, dtype in self._numbers:
            node = numbers[place] = scalar(value if number < 0 else values[number], dtype)
            node.at = trace.base + place
            references[place - count] = weakref.ref(node)
        seen = None
        if self._shown is not None:
            seen = object.__new__(Late)
            op, _, result = self.tape.steps[self._shown - self.tape.start]
            seen.op, (seen.shape, seen.dtype, seen.spec_id, seen.requires_grad) = op, result
            seen.sequence, seen.place = new_sequence(), self._line.now()
            seen.at = trace.base + self._shown
            seen.late = _Behind(owed, self._shown)
            shown[self._shown] = references[self._shown - count] = weakref.ref(seen)
        EVENTS.add("repeated_amendments")
        trace.prefix = self.tape.end
        trace.values += references  # at once: an interrupt must not come in between
        owed.tape, owed._numbers, owed._shown = self.tape, numbers, shown
        return seen


class _Behind(Source):
    """Leads to what an amendment has shown, which is made of what is owed."""

    __slots__ = ("_owed", "_place")

    def __init__(self, owed: Owed, place: int) -> None:
        self._owed, self._place = owed, place

    def inputs(self) -> tuple[Node, ...]:
        self._owed.nodes()
        node = self._owed._shown[self._place]()
        assert type(node) is Node, "it has been recorded, or would have been computed"
        return node.inputs


class Amending:
    """What is about to be done to gradients that are owed."""

    def __init__(self, trace: Trace, owed: Owed, places: list[int], *choices: object) -> None:
        self._trace, self._owed, self._places = trace, owed, places
        self._tape = owed.tape
        self._start, self._base, self._count = trace.prefix, trace.base, len(trace.values)
        self._key = ("amended", self._tape, *places, *choices)

    @classmethod
    def of(cls, owners: Sequence[Any], *choices: object) -> Amending | None:
        """Something that depends on ``choices`` is about to be done to the gradients of ``owners``.

        None if they are not owed, or something has been recorded since.
        """
        trace = MODE.trace
        owed = trace.debt()
        if owed is None or not trace.whole or trace.checks or trace.capture is not None:
            return None
        tape = owed.tape
        if len(trace.values) != tape.start + len(tape.steps):
            return None
        places = []
        for owner in owners:
            gradient = owner._gradient
            if gradient is not None:
                place = owner._node.at - trace.base
                if gradient is not owed or owner._base is not None or place not in tape.cts:
                    return None
                places.append(place)
        return cls(trace, owed, places, *choices) if len({*places}) == len(places) > 0 else None

    @property
    def known(self) -> Amendment | None:
        """What to do, if it was done before."""
        found: Amendment | None = self._start.known.get(self._key)
        return found

    def again(self, known: Amendment, values: Sequence[float]) -> Node | None:
        """Do it with these numbers.  No other thread may evaluate meanwhile."""
        return known.make(self._trace, self._owed, values)

    def remember(
        self, gradients: Sequence[Node], numbers: Sequence[Node], shown: Node | None
    ) -> None:
        """It has been recorded: these are the new gradients, what it read, and what is returned."""
        trace, tape, count = self._trace, self._tape, self._count
        path = trace.prefix.path(self._start) if trace.base == self._base else None
        if path is None or not trace.whole or count + len(path) != len(trace.values):
            return
        steps, entered = [*tape.steps], []
        for place, prefix in enumerate(path, count):
            if prefix.op is not None:
                steps.append((prefix.op, prefix.inputs, prefix.result))
                continue
            node = trace.values[place]()
            if node is None or node.value is None:  # no number has entered
                return
            which = next((i for i, n in enumerate(numbers) if n is node), -1)
            entered.append((place, which, node.value, node.dtype))
            result: Result = (node.shape, node.dtype, node.spec_id, False)
            steps.append((SCALAR, picker(()), result))
        places = trace.places(gradients)
        seen = None if shown is None else shown.at - trace.base
        if places is None or min(places) < count:
            return
        cts = {**tape.cts, **dict(zip(self._places, places, strict=True))}
        amended = Tape(tape.start, steps, trace.prefix, cts)
        fits = amended.may_wait and amended.held == tape.held
        if fits and (seen is None or seen in amended.needed):
            self._start.remember(self._key, Amendment(amended, entered, seen))


def remember(
    trace: Trace,
    start: Prefix,
    count: int,
    history: list[Node],
    call: tuple[object, ...],
    found: list[tuple[Node, Node]],
) -> None:
    """Keep what a walk along ``history`` did, if it can be repeated at an equal ``call``.

    It began when ``start`` and ``count`` values had been recorded, and ``found`` values and their
    gradients.
    """
    if trace.prefix is start or not trace.whole:
        return
    # What is behind a value that was computed before is not part of the recording.  A function of
    # the user's may do something else the next time.
    plain = all(
        n.history is None and not n.hooks and n.call is None and (n.pending or n.grad_leaf)
        for n in history
    )
    results = trace.places(n for n in history if not n.grad_leaf)
    leaves = trace.places(n for n in history if n.grad_leaf)
    freed = trace.places(n for n in history if n.freed)
    again = trace.places(n for n in history if n.again)
    ends = trace.places(n for n, _ in found)
    cts = trace.places(ct for _, ct in found)
    if not plain or not results or leaves is None or freed is None or again is None:
        return
    if ends is not None and cts is not None:
        pairs = dict(zip(ends, cts, strict=True))
        start.remember(call, _Walk(count, trace.prefix, pairs, results, leaves, freed, again))


@record
class _Walk:
    """What a tape is made of when it is asked for: most recordings come once."""

    count: int
    end: Prefix
    cts: dict[int, int]
    results: list[int]
    leaves: list[int]
    freed: list[int]
    again: list[int]


def tape_of(start: Prefix, call: tuple[object, ...]) -> Tape | None:
    """What is to be done again behind ``start``, if that was remembered."""
    known: Tape | _Walk | None = start.known.get(call)
    if not isinstance(known, _Walk):
        return known
    steps = known.end.since(start)
    if not steps:  # something else has been recorded than what ops make
        return None
    marks = known.results, known.leaves, known.freed, known.again
    tape = Tape(known.count, steps, known.end, known.cts, *marks)
    start.remember(call, tape)
    return tape
