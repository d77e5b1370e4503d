"""What an evaluation computes: values in their order, the key that their structure makes, and which
memory it may write over."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from .core import config, errors
from .core.events import EVENTS
from .core.record import record
from .ir.graph import Graph, Value, prune
from .ir.node import BUFFER, SCALAR, Node
from .ir.op import Kind
from .ir.trace import Trace
from .ops.build import CLONE
from .ops.composite import expansion
from .runtime.memory import Buffer

_VISITS = itertools.count(1)
_BY_SEQUENCE = operator.attrgetter("sequence")


class Key:
    """The structure of an evaluation as numbers.  Equal ones are one object: see :meth:`of`."""

    __slots__ = ("__weakref__", "_numbers")

    def __init__(self, numbers: tuple[object, ...]) -> None:
        self._numbers = numbers

    @staticmethod
    def of(*numbers: object) -> Key:
        """The key that these numbers make.

        They are thousands: whoever looks up what was found for a key shall not compare them.
        """
        known = _KEYS.get(numbers)
        return _KEYS.setdefault(numbers, Key(numbers)) if known is None else known

    def extended(self, *more: object) -> Key:
        """That of something made of what this is the key of."""
        return Key.of(*self._numbers, *more)

    def digest(self) -> int:
        """A hash of the numbers, which tells nearly as much."""
        return hash(self._numbers)

    def __reduce__(self) -> tuple[object, ...]:
        return Key.of, self._numbers


_KEYS: WeakValueDictionary[tuple[object, ...], Key] = WeakValueDictionary()


@record(frozen=False)
class Plan:
    """One evaluation: its values in order, and the key they make."""

    entries: list[Node]
    outputs: list[Node]
    key: Key
    buffers: list[Node]
    uses: list[int]  # how often each of them is an input in this evaluation
    scalars: list[float]
    donors: list[int]  # per output: position among ``buffers`` or -1


@record
class Known:
    """The plan of a recording: values are given by their positions in it."""

    key: Key
    outputs: list[int]
    buffers: list[int]
    uses: list[int]
    scalars: list[int]
    donors: list[int]

    @property
    def overwrites(self) -> bool:
        """True if outputs may take the place of what was there."""
        return max(self.donors, default=-1) >= 0

    def found(self, trace: Trace) -> bool:
        """True if all outputs are nodes already."""
        values = trace.values
        return all([values[p]() is not None for p in self.outputs])  # noqa: C419  is faster

    @staticmethod
    def of(plan: Plan, trace: Trace) -> Known | None:
        """None if another thread has met some of the values since this one did."""
        if trace.places(plan.entries) is None:
            return None

        def places(nodes: Iterable[Node]) -> list[int]:
            return [n.at - trace.base for n in nodes]

        return Known(
            plan.key,
            places(plan.outputs),
            places(plan.buffers),
            plan.uses,
            places(n for n in plan.entries if n.op is SCALAR),
            plan.donors,
        )

    def plan(self, trace: Trace) -> Plan:
        """The plan for the values of ``trace``; its ``entries`` are empty."""
        values: list[Callable[[], Any]] = [*trace.values]
        return Plan(
            [],
            [values[p]() for p in self.outputs],
            self.key,
            [values[p]() for p in self.buffers],
            self.uses,
            [values[p]().value for p in self.scalars],
            self.donors,
        )


def saved(roots: dict[int, Node]) -> None:
    """Add the values that a later backward() may read: inputs along unfreed autograd paths."""
    stack = [n for n in roots.values() if n.requires_grad]
    seen = set(map(id, stack))
    while stack:
        node = stack.pop()
        if node.freed or node.grad_leaf or not node.pending:
            continue
        past = node.history
        if past is not None:  # of its value backward() has no use
            if id(past) not in seen:
                seen.add(id(past))
                stack.append(past)
            continue
        read = len(node.inputs) if node.call is None else node.call.saved
        for place, x in enumerate(node.inputs):
            if x.pending and place < read:
                roots[id(x)] = x
            if x.requires_grad and id(x) not in seen:
                seen.add(id(x))
                stack.append(x)


def reachable(roots: Iterable[Node]) -> list[Node]:
    """Pending nodes that lead to ``roots``, the roots included, in the order of recording.

    Marks them with a fresh ``visit`` number.
    """
    visit = next(_VISITS)
    found: list[Node] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.visit != visit:
            node.visit = visit
            found.append(node)
            for x in node.inputs:
                if x.pending and x.visit != visit:
                    stack.append(x)
    found.sort(key=_BY_SEQUENCE)
    return found


def linearise(order: list[Node], roots: dict[int, Node]) -> Plan:
    """Number the values of an evaluation, leaves before their first reader, and build its key."""
    visit = next(_VISITS)
    entries: list[Node] = []
    buffers: list[Node] = []
    scalars: list[Any] = []
    # One flat sequence, hashed once: each value starts with a negative number that tells its kind
    # (and how many inputs follow).
    key: list[object] = [config.CONFIG.program_key]
    outputs: list[Node] = []
    donors: list[int] = []
    number = 0
    for node in order:
        inputs = node.inputs
        for x in inputs:
            if x.visit != visit:
                x.visit = visit
                x.index = number
                x.uses = 0
                number += 1
                entries.append(x)
                if x.op is SCALAR:
                    scalars.append(x.value)
                    key += (-2, x.spec_id)
                else:
                    buffers.append(x)
                    key += (-1, x.spec_id)
            x.uses += 1
        key += (-8 - len(inputs), node.op.uid)
        key += [x.index for x in inputs]
        node.visit = visit
        node.index = number
        node.uses = 0
        number += 1
        entries.append(node)
        if id(node) in roots:
            outputs.append(node)
            donor = node.donor
            taken = donor.index if donor is not None and donor.visit == visit else -1
            donors.append(taken)
            key += (-4, taken)
    position = {n.index: i for i, n in enumerate(buffers)}
    slots = [position.get(d, -1) for d in donors]
    uses = [n.uses for n in buffers]
    return Plan(entries, outputs, Key.of(*key), buffers, uses, scalars, slots)


def graph_of(plan: Plan) -> Graph:
    """What the compiler is given of it; composites are expanded."""
    entries = plan.entries
    composed = any([n.op.kind is Kind.COMPOSITE for n in entries if n.pending])  # noqa: C419
    if composed:  # of what is expanded, leaves come first
        entries = [n for n in entries if not n.pending] + [n for n in entries if n.pending]
    values: list[Value] = []
    position = [0] * len(entries)
    for n in entries:
        given = [position[x.index] for x in n.inputs] if n.pending else []
        if not n.pending:
            kind = SCALAR if n.op is SCALAR else BUFFER
            values.append(Value(kind, (), n.shape, n.dtype, n.place))
        elif n.op.kind is not Kind.COMPOSITE:
            values.append(Value(n.op, tuple(given), n.shape, n.dtype, n.place))
        else:
            ops, chosen, shapes, dtypes, result = expansion(n, given)
            for op, places, shape, dtype in zip(ops, chosen, shapes, dtypes, strict=True):
                inputs = tuple([given[i] for i in places])
                given.append(len(values))
                values.append(Value(op, inputs, shape, dtype, n.place))
            position[n.index] = given[result]
            continue
        position[n.index] = len(values) - 1
    outputs: list[int] = []
    taken: set[int] = set()
    for n in plan.outputs:
        found = position[n.index]
        if found in taken or values[found].is_leaf:  # every output is a value of its own
            values.append(Value(CLONE, (found,), n.shape, n.dtype, errors.user_place()))
            found = len(values) - 1
        taken.add(found)
        outputs.append(found)
    donors = [(o, plan.buffers[d]) for o, d in enumerate(plan.donors) if d >= 0]
    donated = tuple((o, position[donor.index]) for o, donor in donors)
    graph = Graph(tuple(values), tuple(outputs), donated)
    return prune(graph)[0] if composed else graph


def kept(outputs: Iterable[Node]) -> set[int]:
    """Ids of the leaves that will be read by what is left of the history of ``outputs``."""
    found: set[int] = set()
    for n in outputs:
        if n.requires_grad and not n.freed and not n.grad_leaf:
            found.update(map(id, n.inputs))
    return found


def reusable(
    buffers: list[Node],
    uses: list[int],
    donors: list[int],
    overwrites: Sequence[bool],
    still_read: set[int],
) -> list[Buffer | None]:
    """Buffers that outputs may overwrite: their old value is read by this program only.

    A donor is reachable from its donee, from inputs of nodes in this evaluation (``uses`` times),
    from ``buffers`` and from the local below.  Any further reference means that somebody may still
    read it.
    """
    reuse: list[Buffer | None] = []
    for position, possible in zip(donors, overwrites, strict=True):
        if position < 0:
            reuse.append(None)
            continue
        donor = buffers[position]
        # +1 each: buffers, donee.donor, the local, getrefcount's argument.
        known = uses[position] + 4
        # The memory itself: donor.buffer and getrefcount's argument; a numpy view counts too.
        free = (
            donor.buffer.array is None
            and id(donor) not in still_read
            and sys.getrefcount(donor) <= known
            and sys.getrefcount(donor.buffer) <= 2
        )
        if not free:
            EVENTS.add("donations_declined")
        reuse.append(donor.buffer if free and possible else None)
    return reuse
