"""Values that are never computed: no memory holds them, or what they would be computed from is
known to be wrong.

A condition on data fails long after the value behind it was recorded, and the program may have kept
that value, or what was recorded from it.  Asked for at any later time, it raises the same error.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ..core import errors
from ..core.dtype import DType
from ..core.machine import memory_bytes
from ..core.record import record
from ..core.shape import MOST_ELEMENTS, Shape, numel
from .node import Leaf, Node
from .op import Kind


@record(eq=False)
class Failed(Leaf, kind=Kind.LEAF):
    """What stands where a value would have been computed."""

    error: Callable[[], Exception]
    place: errors.Provenance | None
    differentiable: ClassVar[bool] = False

    def exception(self) -> Exception:
        """A new one, with the line that it is about."""
        error = self.error()
        if self.place is not None:
            error.add_note(f"recorded at {errors.describe(self.place)}")
        return error


def too_large(node: Node) -> Failed | None:
    """What stands for a value that no memory can hold, else None."""
    count = numel(node.shape)
    if count <= MOST_ELEMENTS and count * node.dtype.itemsize <= memory_bytes():
        return None
    error = functools.partial(_too_large, count, node.shape, node.dtype)
    return Failed("failed", error, node.place)


def _too_large(count: int, shape: Shape, dtype: DType) -> Exception:
    if count > MOST_ELEMENTS:
        return RuntimeError(
            f"a tensor in memory has at most {MOST_ELEMENTS} elements, not {count} (shape "
            f"{list(shape)})"
        )
    return RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        f"{count * dtype.itemsize} bytes. Error code 12 (Cannot allocate memory)"
    )


FAILED: dict[int, weakref.ref[Node]] = {}
"""By identity, those that somebody may still ask for."""
UNTESTED: dict[int, Any] = {}
"""Conditions of all threads (see :mod:`minitorch_tvm.lazy`) by the identity of what they guard."""
_found = 1  # changes whenever one more has failed


def fail(node: Node, op: Failed) -> None:
    """``node``, which has not been computed, never will be."""
    global _found
    number = id(node)
    node.op, node.inputs = op, ()
    FAILED[number] = weakref.ref(node, lambda _: FAILED.pop(number, None))
    _found += 1


def spoiled(order: Iterable[Node]) -> dict[int, Failed]:
    """By identity, those of these values that depend on failed ones, and on which.

    Values come behind those that they are made from.
    """
    found: dict[int, Failed] = {}
    for node in order:
        if isinstance(node.op, Failed):
            found[id(node)] = node.op
            continue
        for x in node.inputs:
            cause = found.get(id(x))
            if cause is not None:
                found[id(node)] = cause
                break
    return found


def doubted(nodes: Iterable[Node]) -> list[Node]:
    """Pending values that lead to ``nodes``, themselves included, and are not known to be sound.

    Followed by :func:`confirm`, each value is looked at once until another one fails.
    """
    found: list[Node] = []
    seen = set[int]()
    stack = [n for n in nodes if n.pending]
    while stack:
        node = stack.pop()
        if id(node) in seen or node.sound == _found:
            continue
        seen.add(id(node))
        found.append(node)
        stack += (x for x in node.inputs if x.pending)
    return found


def confirm(nodes: Iterable[Node]) -> None:
    """Raise the error of one of the values that :func:`doubted` found; else all are sound."""
    for node in nodes:
        if isinstance(node.op, Failed):
            raise node.op.exception()
    for node in nodes:
        node.sound = _found
