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


class Passage:
    """The values that entered a recording between two of its prefixes."""

    __slots__ = (
        *("_blanks", "_computed", "_end", "_entered", "_held", "_leaves", "_line", "_result"),
        "_steps",
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
        self._entered = [place for place, _ in entered]
        self._leaves = picker([number for _, number in entered])
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

    def record(self, trace: Trace, given: Sequence[Node]) -> Node:
        """Record it again, from other nodes with an equal key; returns the last value."""
        held = self._held(given)
        values, base = trace.values, trace.base
        at = base + len(values)
        node = _new(Late)
        node.op, _, (node.shape, node.dtype, node.spec_id, node.requires_grad) = self._result
        node.sequence = new_sequence()
        node.place = self._line.now()
        node.late = Stretch(self, held, node, at, values)
        references = self._blanks.copy()
        whole, trace.whole = trace.whole, False  # should an interrupt come in between
        trace.prefix = self._end
        for offset, leaf in zip(self._entered, self._leaves(held), strict=True):
            references[offset] = _reference(leaf)
            leaf.at = at + offset
        node.at = at + len(references) - 1
        references[-1] = _reference(node)
        values += references
        trace.late.append(references[-1])
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

    __slots__ = ("_at", "_held", "_made", "_passage", "_place", "_sequence", "_start", "_values")

    def __init__(
        self, passage: Passage, held: tuple[Node, ...], last: Node, at: int, values: list[Any]
    ) -> None:
        self._passage, self._held, self._at = passage, held, at
        self._start, self._values = len(values), values
        self._sequence, self._place = last.sequence, last.place
        self._made: tuple[list[tuple[int, Node]], tuple[Node, ...]] | None = None

    def _nodes(self) -> tuple[list[tuple[int, Node]], tuple[Node, ...]]:
        with recording():
            made = self._made
            if made is None:
                made = self._passage.between(self._held, self._at, self._sequence, self._place)
                for offset, node in made[0]:
                    self._values[self._start + offset] = _reference(node)
                self._made, self._held = made, ()
        return made

    def nodes(self) -> list[tuple[int, Node]]:
        """Their nodes and places in the recording."""
        return [(self._start + offset, node) for offset, node in self._nodes()[0]]

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
    """What comes before ``node``, if it is the last value of a passage, and late."""
    return node.late if type(node) is Late and isinstance(node.late, Stretch) else None
