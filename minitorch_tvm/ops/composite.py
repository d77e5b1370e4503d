"""Composite ops: recorded as one node, turned into primitive ops when a program is compiled.

Recording costs microseconds a node and happens at every step; expanding happens once.  What users
call often and what would take many nodes is therefore recorded as one: a linear layer, a
classification loss, SGD's update.  No pass of the compiler ever sees a composite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence
from types import ModuleType
from typing import Any

from ..core import errors
from ..core.record import record
from ..ir.node import MODE, Node, apply, leaf
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor
from ..ir.trace import Result
from . import build as b


class Expandable(Op, kind=Kind.COMPOSITE):
    """An op that is defined by the primitive ops it stands for: see :meth:`Op.expand`."""

    def cotangent(self, index: int, ct: Node, *inputs: Node) -> Node | None:
        """That of an input, if there is a better way than differentiating what it stands for.

        Records primitive ops, which are differentiated for derivatives of derivatives.
        """
        return None

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        raise AssertionError(f"{self} reached the compiler")

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        raise AssertionError(f"{self} reached the executor")


@record(eq=False)
class Composite(Expandable, kind=Kind.COMPOSITE):
    """``function(*inputs, *static)``, where function records primitive ops."""

    title: str
    function: Callable[..., Node]
    static: tuple[object, ...]

    @property
    def name(self) -> str:
        return self.title

    def __str__(self) -> str:
        return f"{self.title}({', '.join(map(str, self.static))})"

    def expand(self, *xs: Node) -> Node:
        return self.function(*xs, *self.static)

    def infer(self, *inputs: Spec) -> Spec:
        with expanding():
            return self.expand(*[leaf(None, s.shape, s.dtype) for s in inputs]).spec


class expanding:
    """While active in a thread, composites record their primitive ops."""

    def __enter__(self) -> None:
        self._before = MODE.trace.expanding
        MODE.trace.expanding = True

    def __exit__(self, *_: object) -> None:
        MODE.trace.expanding = self._before


@functools.lru_cache(maxsize=4096, typed=True)
def composite(title: str, function: Callable[..., Node], *static: object) -> Composite:
    """The op that stands for ``function(*nodes, *static)``.

    ``static`` are numbers, strings and tuples of them; they are part of a program's key.

    >>> from minitorch_tvm.ir.node import apply, leaf
    >>> from minitorch_tvm.core.dtype import float32
    >>> double = composite("Double", lambda x: b.add(x, x))
    >>> apply(double, leaf(None, (3,), float32)).spec
    Spec(shape=(3,), dtype=mt.float32)
    """
    return intern(Composite(title, function, static))


def expanded(entries: Sequence[Node], outputs: Iterable[Node]) -> tuple[list[Node], list[Node]]:
    """(entries, outputs) with composites replaced by the primitive ops they stand for.

    ``entries`` are in the order of recording, each with its position as ``index``.  Leaves keep
    their order and come first.
    """
    new: list[Node] = []
    before = errors.OVERRIDE.place
    grad, MODE.trace.grad_enabled = MODE.trace.grad_enabled, False
    try:
        with expanding():
            for n in entries:
                if not n.pending:
                    new.append(n)
                    continue
                errors.OVERRIDE.place = n.place
                new.append(_expanded_once(n.op, [new[x.index] for x in n.inputs]))
    finally:
        errors.OVERRIDE.place = before
        MODE.trace.grad_enabled = grad
    results: list[Node] = []
    taken: set[int] = set()
    for o in outputs:
        node = new[o.index]
        if not node.pending or id(node) in taken:
            node = apply(b.CLONE, node)  # every output is a value of its own
        taken.add(id(node))
        results.append(node)
    return [n for n in entries if not n.pending] + _needed(results), results


@record
class _Expansion:
    """What a composite has recorded: it does the same on inputs of the same kind."""

    steps: list[tuple[Op, list[int], Result]]
    """Inputs are positions among the composite's and the results of earlier steps."""
    result: int

    def record(self, inputs: list[Node]) -> Node:
        """Do it again."""
        nodes, place = [*inputs], errors.OVERRIDE.place
        for op, chosen, (shape, dtype, spec_id, grad) in self.steps:
            node = Node(op, tuple([nodes[i] for i in chosen]), shape, dtype, grad, spec_id)
            node.place = place
            nodes.append(node)
        return nodes[self.result]


_EXPANSIONS: dict[tuple[object, ...], _Expansion] = {}
_MOST_EXPANSIONS = 4096


def _expanded_once(op: Op, inputs: list[Node]) -> Node:
    """``op`` on ``inputs``, recorded as primitive ops; no gradients are recorded."""
    if op.kind is not Kind.COMPOSITE:
        return apply(op, *inputs)
    key = (op.uid, *[2 * x.spec_id + x.requires_grad for x in inputs])
    known = _EXPANSIONS.get(key)
    if known is not None:
        return known.record(inputs)
    result = op.expand(*inputs)
    place = {id(x): i for i, x in enumerate(inputs)}
    if len(place) == len(inputs):
        steps = []
        for node in _needed([result], place):
            chosen = [place.get(id(x), -1) for x in node.inputs]
            if -1 in chosen:  # something that was there before
                return result
            made = node.shape, node.dtype, node.spec_id, node.requires_grad
            steps.append((node.op, chosen, made))
            place[id(node)] = len(place)
        if len(_EXPANSIONS) >= _MOST_EXPANSIONS:
            _EXPANSIONS.clear()
        _EXPANSIONS[key] = _Expansion(steps, place[id(result)])
    return result


def _needed(outputs: Iterable[Node], given: Container[int] = ()) -> list[Node]:
    """Pending nodes that lead to ``outputs`` from those with ids in ``given``, in order."""
    found: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.pending and id(node) not in found and id(node) not in given:
            found[id(node)] = node
            stack.extend(node.inputs)
    return sorted(found.values(), key=lambda n: n.sequence)
