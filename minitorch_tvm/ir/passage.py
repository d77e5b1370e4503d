"""A stretch of a recording that is known from an earlier time is recorded again as a whole.

Calling an operation costs several times what its node costs, and of the nodes of layers in a row
only the last has a tensor.  A function whose operations follow from some choices and from what it
reads is therefore called once for each recording that it continues.  Later the tree of prefixes
says what it would record: only its result becomes a node at once, and the values in between when
somebody asks where that comes from (a program that is known does not).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any
from weakref import ref as _reference

from ..core import errors
from .node import Node, new_sequence
from .op import Op
from .trace import Prefix, Result, Step, Trace, nothing, picker

_new = object.__new__


def key_of(trace: Trace, choices: Sequence[object], given: Sequence[Node]) -> object:
    """Equal where the same is recorded after the same prefix; None if there is no telling.

    ``choices`` decide which operations read ``given``.
    """
    places = trace.places_of(given)
    return None if places is None else (trace.grad_enabled, *choices, *places)


class Latest:
    """The passage that was recorded last behind a prefix, and what was given to it.

    A training loop gives it the same again, but for a new batch that comes first: whether that is
    so is known in half the time that :func:`key_of` takes.
    """

    __slots__ = ("_base", "_choices", "_enabled", "_marks", "_spec_id", "passage")

    def __init__(
        self, trace: Trace, choices: Sequence[object], given: Sequence[Node], passage: Passage
    ) -> None:
        """``passage`` has just been recorded, and ``given`` are leaves that entered with it."""
        first, *rest = given
        base = self._base = trace.base
        self._choices, self._enabled, self.passage = choices, trace.grad_enabled, passage
        self._spec_id = first.spec_id
        self._marks = [((x.at - base) << _ENTRY_BITS) - x.entry for x in rest]

    @classmethod
    def note(
        cls,
        trace: Trace,
        start: Prefix,
        choices: Sequence[object],
        given: Sequence[Node],
        passage: Passage,
    ) -> None:
        """Remember ``passage``, which has just been recorded behind ``start``, if it may come
        again in this way."""
        if passage.enters(given) and _is_plain(given[0]):
            start.remember(_LATEST, cls(trace, choices, given, passage))

    @staticmethod
    def of(trace: Trace, choices: Sequence[object], given: Sequence[Node]) -> Passage | None:
        """The latest passage behind what is recorded, if its key is that of these."""
        latest: Latest | None = trace.prefix.known.get(_LATEST)
        if latest is None:
            return None
        first, *rest = given
        before, base = latest._base, trace.base
        # A place belongs to one value: who has had it has it still, and nobody has used it since.
        # Which thread that was, the base tells.
        if (
            trace.first <= before < base
            and first.at == -1
            and first.spec_id == latest._spec_id
            and _is_plain(first)
            and [((x.at - before) << _ENTRY_BITS) - x.entry for x in rest] == latest._marks
            and choices == latest._choices
            and trace.grad_enabled is latest._enabled
        ):
            latest._base = base
            return latest.passage
        return None


_LATEST = "latest passage"
_ENTRY_BITS = 40
"""More than what a leaf adds to a recording has."""


def _is_plain(x: Node) -> bool:
    """True for memory that no gradient flows to."""
    return not (x.pending or x.requires_grad or x.grad_leaf) and x.value is None


class Passage:
    """The values that entered a recording between two of its prefixes."""

    __slots__ = (
        *("_blanks", "_computed", "_end", "_entered", "_held", "_line", "_result", "_steps"),
    )

    def __init__(
        self,
        held: Sequence[int],
        steps: list[Step],
        computed: Sequence[int],
        entered: Sequence[tuple[int, int]],
        end: Prefix,
    ) -> None:
        """``held`` tells which of the given nodes are inputs, each as often as it is; ``steps``
        choose theirs among these and the results of earlier steps.  ``computed`` are the places of
        results, counted from the first value that enters, ``entered`` (place, number among
        ``held``) those of leaves."""
        self._held = picker(held)
        *self._steps, (op, inputs, result) = steps
        self._result = op, inputs, result
        self._computed = computed
        self._entered = list(entered)
        self._blanks: list[Any] = [nothing] * (len(computed) + len(entered))
        self._end = end
        self._line = errors.Line()

    @classmethod
    def since(
        cls, trace: Trace, start: Prefix, count: int, given: Sequence[Node], end: Node
    ) -> Passage | None:
        """What led here from ``start``, after ``count`` values, where ``end`` is the last value.

        None if that is not all: flags have changed, or other leaves than those given have entered.
        """
        path = trace.prefix.path(start)
        if path is None:
            return None
        last = count + len(path) - 1
        if (
            not path
            or path[-1].op is None
            or not end.at - trace.base == last == len(trace.values) - 1
        ):
            return None
        number = {node.at - trace.base: i for i, node in enumerate(given)}
        held: list[int] = []
        steps: list[tuple[Op, list[int], Result]] = []  # ~n: the result of the n-th
        results: dict[int, int] = {}
        entered = []
        for place, prefix in enumerate(path, count):
            if prefix.op is None:
                entered.append(place)
                continue
            inputs = []
            for p in prefix.positions:
                if p in results:
                    inputs.append(~results[p])
                elif p in number:
                    inputs.append(len(held))
                    held.append(number[p])
                else:
                    return None
            results[place] = len(steps)
            steps.append((prefix.op, inputs, prefix.result))
        if not {number.get(place) for place in entered} <= set(held):
            return None
        return cls(
            held,
            [
                (op, picker([i if i >= 0 else len(held) + ~i for i in inputs]), result)
                for op, inputs, result in steps
            ],
            [place - count for place in results],
            [(place - count, held.index(number[place])) for place in entered],
            trace.prefix,
        )

    def enters(self, given: Sequence[Node]) -> bool:
        """Whether all that is given enters with it, and is no number."""
        return len(self._entered) == len(given) and all(x.value is None for x in given)

    def record(self, trace: Trace, given: Sequence[Node]) -> Node:
        """Record it again, from other nodes with an equal key; returns the last value."""
        held = self._held(given)
        values = trace.values
        start = len(values)
        at = trace.base + start
        node = _new(Late)
        node.op, _, (node.shape, node.dtype, node.spec_id, node.requires_grad) = self._result
        sequence = node.sequence = new_sequence()
        place = node.place = self._line.now()
        node.late = Stretch(self, held, at, start, values, sequence, place)
        whole, trace.whole = trace.whole, False  # should an interrupt come in between
        trace.prefix = self._end
        values += self._blanks  # at once: what has no place yet would enter again
        for offset, number in self._entered:
            leaf = held[number]
            values[start + offset] = _reference(leaf)
            leaf.at = at + offset
        node.at = at + len(self._blanks) - 1
        reference = values[-1] = _reference(node)
        trace.late.append(reference)
        trace.whole = whole
        return node

    def between(
        self, held: tuple[Node, ...], at: int, sequence: float, place: errors.Provenance | None
    ) -> tuple[list[tuple[int, Node]], tuple[Node, ...]]:
        """The values before the last one with their places, and what that is applied to."""
        nodes: list[Node] = [*held]
        made = []
        sequence -= 1
        for offset, (op, inputs, (shape, dtype, spec_id, grad)) in zip(
            self._computed, self._steps, strict=False
        ):
            node = Node(op, inputs(nodes), shape, dtype, grad, spec_id)
            sequence += 1 / len(self._computed)
            node.sequence, node.place, node.at = sequence, place, at + offset
            nodes.append(node)
            made.append((offset, node))
        return made, self._result[1](nodes)


class Source:
    """Where the inputs of a late value come from."""

    __slots__ = ()

    def inputs(self) -> tuple[Node, ...]:
        """What it is applied to."""
        raise NotImplementedError


class Stretch(Source):
    """The values of a passage that was recorded at some time, but for the last one."""

    __slots__ = ("_given", "_made")

    def __init__(self, *given: Any) -> None:
        """The passage, its ``held`` nodes, the number of its first value, the position of that, the
        recording's values, and the last one's sequence and line."""
        # As one: it is made at every step, and asked at few.
        self._given = given
        self._made: tuple[list[tuple[int, Node]], tuple[Node, ...]] | None = None

    def _nodes(self) -> tuple[list[tuple[int, Node]], tuple[Node, ...]]:
        with recording():
            made = self._made
            if made is None:
                passage, held, at, start, values, *last = self._given
                between, inputs = passage.between(held, at, *last)
                placed = [(start + offset, node) for offset, node in between]
                for position, node in placed:
                    values[position] = _reference(node)
                made = self._made = placed, inputs
                self._given = ()
        return made

    def nodes(self) -> list[tuple[int, Node]]:
        """Their places in the recording, and they."""
        return self._nodes()[0]

    def inputs(self) -> tuple[Node, ...]:
        """What the last one is applied to."""
        return self._nodes()[1]


_LOCK = threading.RLock()


def recording() -> contextlib.AbstractContextManager[object]:
    """While this is held, no other thread records values that are late."""
    return _LOCK


def _unlock_in_child() -> None:
    # Another thread of the parent may have held it at the fork; it does not exist here.
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


class Late(Node):
    """A value whose inputs are not recorded yet; once somebody asks for them, it is any node.

    Most are the last one of a passage.
    """

    late: Source | None

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that its op is applied to."""
        source = self.late
        if source is not None:
            self.inputs = source.inputs()
        return self.__dict__["inputs"]

    @inputs.setter
    def inputs(self, value: tuple[Node, ...]) -> None:
        self.__dict__["inputs"] = value
        self.late = None  # it holds nodes
        self.__class__ = Node  # type: ignore[assignment]


def stretch_of(node: Node | None) -> Stretch | None:
    """What comes before ``node``, the last value of a passage, if it is late."""
    return node.late if type(node) is Late else None  # type: ignore[return-value]
