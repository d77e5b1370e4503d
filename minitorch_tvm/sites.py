"""Lines that compile again and again, and what varies there.

Where a slice begins is part of a program.  A line that takes slices in ever other places of a value
that is still to be computed is noticed here, and then records where they begin as data.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable

from .core import errors
from .core.errors import Provenance
from .core.shape import Shape
from .ir.graph import Graph
from .ops.movement import Slice

_FEW = 4
_MOST_KINDS = 4096
_FORMS: dict[Hashable, set[Hashable]] = {}

_WARNING = 8
_GRAPHS: dict[Provenance, list[Graph]] = {}
_MOVING: dict[tuple[Shape, Shape, tuple[int, ...]], set[tuple[str, int]]] = {}


def varies(kind: Hashable, form: Hashable) -> bool:
    """True once operations of this kind have had several forms, this one included.

    >>> [varies("docs", n) for n in (1, 2, 1, 3, 4, 5)]
    [False, False, False, False, True, True]
    """
    forms = _FORMS.get(kind)
    if forms is None:
        if len(_FORMS) >= _MOST_KINDS:
            _FORMS.clear()
        forms = _FORMS.setdefault(kind, set())
    if len(forms) < _FEW:
        forms.add(form)
    return len(forms) >= _FEW


def moves(shape: Shape, sizes: Shape, steps: tuple[int, ...]) -> bool:
    """True if the user's current line took slices of such sizes in ever other places."""
    lines = _MOVING.get((shape, sizes, steps)) if _MOVING else None
    place = errors.user_place() if lines else None
    # Lines, as the interpreter tells other instructions of them once a loop is warm.
    return place is not None and lines is not None and errors.line_of(place) in lines


def note(graph: Graph, place: Provenance | None) -> None:
    """A line evaluates what has not been compiled before.

    Warns once about one that does so again and again, naming what differs.
    """
    if place is None:
        return
    seen = _GRAPHS.setdefault(place, [])
    for previous in reversed(seen):
        if len(previous.values) == len(graph.values):
            _compare(previous, graph)
            break
    seen.append(graph)
    if len(seen) == _WARNING + 1:
        warnings.warn(
            f"{errors.describe(place)} compiled {len(seen)} different programs; the last two "
            f"differ: {_difference(seen[-2], graph)}",
            stacklevel=2,
        )
    del seen[: -(_WARNING + 1)]


def _compare(previous: Graph, graph: Graph) -> None:
    """Remember slices that were elsewhere in a program that has as many values.

    A loop along a dimension takes slices in many places, too, but in one program, which is
    compiled once.
    """
    for a, b in zip(previous.values, graph.values, strict=True):
        if not (isinstance(a.op, Slice) and isinstance(b.op, Slice)) or a == b:
            continue
        like = (a.inputs, a.shape, a.dtype, a.op.steps) == (b.inputs, b.shape, b.dtype, b.op.steps)
        if like and b.place is not None:
            whole = graph.values[b.inputs[0]].shape
            kind, line = (whole, b.shape, b.op.steps), errors.line_of(b.place)
            before = varies((line, kind), a.op.starts)
            if varies((line, kind), b.op.starts) or before:
                _MOVING.setdefault(kind, set()).add(line)


def _difference(previous: Graph, graph: Graph) -> str:
    for i, (a, b) in enumerate(zip(previous.values, graph.values, strict=False)):
        if a != b:
            where = errors.describe(b.place)
            found = f"value {i} was {a.op} : {a.spec}, now {b.op} : {b.spec}"
            return f"{found} (recorded at {where})" if where else found
    return f"{len(previous.values)} values before, {len(graph.values)} now"


def forget() -> None:
    """Start again, as if nothing had been compiled."""
    _GRAPHS.clear()
    _MOVING.clear()
    _FORMS.clear()
