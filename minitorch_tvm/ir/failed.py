"""Values that are never computed, because what they would be computed from is known to be wrong.

A condition on data fails long after the value behind it was recorded, and the program may have kept
that value, or what was recorded from it.  Asked for at any later time, it raises the same error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import ClassVar

from ..core import errors
from ..core.record import record
from .node import Leaf, Node
from .op import Kind


@record(eq=False)
class Failed(Leaf, kind=Kind.LEAF):
    """What stands where a value would have been computed."""

    label: str
    error: Callable[[], Exception]
    place: errors.Provenance | None
    differentiable: ClassVar[bool] = False

    def exception(self) -> Exception:
        """A new one, with the line that it is about."""
        error = self.error()
        if self.place is not None:
            error.add_note(f"recorded at {errors.describe(self.place)}")
        return error


FAILED: weakref.WeakSet[Node] = weakref.WeakSet()
"""Those that somebody may still ask for."""


def fail(node: Node, error: Callable[[], Exception], place: errors.Provenance | None) -> Failed:
    """``node``, which has not been computed, never will be."""
    op = Failed("failed", error, place)
    node.op, node.inputs = op, ()
    FAILED.add(node)
    return op


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
