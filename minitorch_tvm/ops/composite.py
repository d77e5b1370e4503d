"""Composite ops: recorded as one node, turned into primitive ops when a program is compiled.

Recording costs microseconds a node and happens at every step; expanding happens once.  What users
call often and what would take many nodes is therefore recorded as one: a linear layer, a
classification loss, SGD's update.  No pass of the compiler ever sees a composite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ..core import errors
from ..core.dtype import DType
from ..core.record import record
from ..core.shape import Shape
from ..ir.node import MODE, Node, grad_enabled, leaf
from ..ir.op import Kind, Op, Spec, intern
from ..ir.te import TE, Tensor


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
    >>> from minitorch_tvm.ops import build as b
    >>> double = composite("Double", lambda x: b.add(x, x))
    >>> apply(double, leaf(None, (3,), float32)).spec
    Spec(shape=(3,), dtype=mt.float32)
    """
    return intern(Composite(title, function, static))


class Expansion(NamedTuple):
    """What a composite stands for, step by step.

    Apart, as thousands are kept, and Python's garbage collector would visit an object per step.
    """

    ops: tuple[Op, ...]
    inputs: tuple[tuple[int, ...], ...]
    """Positions among the composite's inputs, and the results of earlier steps behind them."""
    shapes: tuple[Shape, ...]
    dtypes: tuple[DType, ...]
    result: int
    """The position of the composite's result."""


_EXPANSIONS: dict[tuple[object, ...], Expansion] = {}
_MOST_EXPANSIONS = 4096


def expansion(node: Node, given: Sequence[int]) -> Expansion:
    """What ``node``, of a composite op, stands for.

    ``given`` tells which of its inputs are one.  It is the same for inputs of the same kind.
    """
    op, inputs = node.op, node.inputs
    same = None if len(set(given)) == len(given) else tuple([given.index(x) for x in given])
    # Nothing that is expanded requires gradients; leaves may.
    kinds = [2 * x.spec_id + (x.requires_grad and not x.pending) for x in inputs]
    key = (op.uid, same, *kinds)
    known = _EXPANSIONS.get(key)
    if known is None:
        if len(_EXPANSIONS) >= _MOST_EXPANSIONS:
            _EXPANSIONS.clear()
        known = _EXPANSIONS[key] = _expanded(node, same or range(len(inputs)))
    return known


def _expanded(node: Node, same: Sequence[int]) -> Expansion:
    stand_ins = [leaf(None, x.shape, x.dtype, x.spec_id) for x in node.inputs]
    for x, y in zip(node.inputs, stand_ins, strict=True):
        y.requires_grad = x.requires_grad and not x.pending
    place = {id(y): i for i, y in enumerate(stand_ins)}
    with errors.at(node.place), grad_enabled(False), expanding():
        result = node.op.expand(*[stand_ins[i] for i in same])
    steps = _needed([result])
    for n in steps:
        place[id(n)] = len(place)
    if any(id(x) not in place for n in steps for x in n.inputs):
        raise AssertionError(f"{node.op} makes a number of its own: constants in it are full_like")
    return Expansion(
        tuple([n.op for n in steps]),
        tuple([tuple([place[id(x)] for x in n.inputs]) for n in steps]),
        tuple([n.shape for n in steps]),
        tuple([n.dtype for n in steps]),
        place[id(result)],
    )


def _needed(outputs: Iterable[Node]) -> list[Node]:
    """Pending nodes that lead to ``outputs``, in order."""
    found: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.pending and id(node) not in found:
            found[id(node)] = node
            stack.extend(node.inputs)
    return sorted(found.values(), key=lambda n: n.sequence)
