"""Optimizers that are stated as formulas: state per parameter, numbers, and one value at a time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ..core.dtype import DType
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops.composite import composite
from ..tensor import Tensor
from ..tensor.creation import tensor
from .optimizer import Group, Optimizer, full_for
from .repeated import Reads


class Formula(NamedTuple):
    """A value of a step: ``function(*reads, *options)``, where the names stand for nodes.

    "p" is the parameter, "g" its gradient (in the parameter's dtype); others are entries of its
    state or numbers of the step.  A trailing "'" means the new value.
    """

    target: str
    function: Callable[..., Node]
    reads: tuple[str, ...]
    options: tuple[object, ...] = ()


def direction(g: Node, p: Node, decay: Node, decays: bool, maximize: bool) -> Node:
    """The gradient that a rule follows: negated and with the weights' decay, if asked for."""
    if maximize:
        g = b.neg(g)
    return b.add(g, b.mul(p, decay)) if decays else g


DIRECTION = ("g", "p", "decay")
"""What :func:`direction` reads."""


def mixed(old: Node, new: Node, keep: Node, share: Node) -> Node:
    """A running mean."""
    return b.add(b.mul(old, keep), b.mul(new, share))


def towards(old: Node, new: Node, share: Node) -> Node:
    """A running mean of which ``new`` gets a share, and what was there the rest."""
    return b.add(old, b.mul(b.sub(new, old), share))


def mean(g: Node, p: Node, decay: Node, m: Node, share: Node, *options: bool) -> Node:
    """The running mean ``m`` of gradients."""
    return towards(m, direction(g, p, decay, *options), share)


def square(g: Node, p: Node, decay: Node, v: Node, keep: Node, share: Node, *options: bool) -> Node:
    """The running mean ``v`` of their squares."""
    g = direction(g, p, decay, *options)
    return mixed(v, b.mul(g, g), keep, share)


class RuleOptimizer(Optimizer):
    """Base class: a subclass gives names of buffers and numbers, and its formulas."""

    counters: ClassVar[dict[str, float]] = {"step": 0}
    """Entries of a parameter's state that are numbers, and what they are at first."""
    numbers: ClassVar[tuple[str, ...]]
    """Names of what :meth:`values` returns."""
    _age: ClassVar[operator.itemgetter[Any]]
    """The counters of a parameter's state."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._age = operator.itemgetter(*cls.counters)

    @staticmethod
    def values(group: Group, state: Mapping[str, Any]) -> Sequence[float]:
        """Runtime numbers of a step of parameters with that state's counters."""
        raise NotImplementedError

    @staticmethod
    def advance(group: Group, states: Sequence[dict[str, Any]]) -> None:
        """Count a step."""
        for state in states:
            state["step"] += 1

    def buffers(self, group: Group) -> tuple[str, ...]:
        """Names of the tensors in a parameter's state."""
        raise NotImplementedError

    def formulas(self, group: Group) -> list[Formula]:
        """New values of buffers and parameter, in the order of recording."""
        raise NotImplementedError

    def _begin(self, p: Tensor, group: Group) -> dict[str, Any]:
        """The state of a parameter, completed."""
        state = self.state[p]
        for name, value in self.counters.items():
            state.setdefault(name, value)
        for name in self.buffers(group):
            if name not in state:
                state[name] = full_for(p.node, self._first(name, group), self._shape(p, name))
        return state

    def _first(self, name: str, group: Group) -> float:
        """What a buffer is filled with at first."""
        return 0.0

    def _update(self, group: Group) -> None:
        title = type(self).__name__
        formulas = [
            (f.target, composite(f"{title}.{f.target}", f.function, *f.options), f.reads)
            for f in self.formulas(group)
        ]
        names = self.buffers(group)
        updated = [p for p in group["params"] if p._grad is not None]
        states = [self._begin(p, group) for p in updated]
        self._effect(functools.partial(self.advance, group, states))
        known: dict[tuple[DType, object], dict[str, Node]] = {}
        for p, state in zip(updated, states, strict=True):
            node: Node = p.node
            dtype = node.dtype
            age = self._age(state)
            given = known.get((dtype, age))
            if given is None:
                values = functools.partial(self.values, group, state)
                made = self._numbers(values, dtype)
                given = known[dtype, age] = dict(zip(self.numbers, made, strict=True))
            # A model whose dtype has changed keeps the buffers that it had.
            nodes = {**given, "p": node, "g": b.cast(p._grad.node, dtype)}
            for name in names:
                nodes[name] = b.cast(state[name].node, dtype)
            for target, op, reads in formulas:
                nodes[target + "'"] = apply(op, *[nodes[name] for name in reads])
            for name in names:
                buffer = state[name]
                buffer._become(b.cast(nodes[name + "'"], buffer.dtype))
            p._become(nodes["p'"])

    def _structure(self) -> object:
        ages = [self._age(state) for state in self.state.values() if "step" in state]
        return super()._structure(), _partition(ages)

    def _add_reads(self, group: Group, reads: Reads) -> bool:
        reads.choices.append(tuple((f.function, f.options) for f in self.formulas(group)))
        all_states = self.state
        states = [all_states[p] for p in reads.add(group["params"])]
        try:
            for name in self.buffers(group):
                reads.tensors += [state[name] for state in states]
            ages = list(map(self._age, states))
        except KeyError:  # the first step
            return False
        reads.owners += states
        reads.choices.append(_partition(ages))
        return True

    def _packed(self, state: dict[str, Any]) -> dict[str, Any]:
        return {k: tensor(float(v)) if k in self.counters else v for k, v in state.items()}

    def _unpacked(self, p: Tensor, state: Mapping[str, Any]) -> dict[str, Any]:
        unpacked = super()._unpacked(p, state)
        for name, first in self.counters.items():
            if name in unpacked:
                value = state[name]
                number = value.item() if isinstance(value, Tensor) else value
                unpacked[name] = type(first)(number)
        return unpacked


def _partition(ages: list[object]) -> tuple[int, ...] | None:
    """Which are equal: parameters of one age share their numbers.  None if all are."""
    if not ages or ages.count(ages[0]) == len(ages):
        return None
    first: dict[object, int] = {}
    return tuple(first.setdefault(age, i) for i, age in enumerate(ages))
