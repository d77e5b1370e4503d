"""Lines that compile again and again, and what varies or grows there.

Where a slice begins is part of a program.  A line that takes slices in ever other places of a value
that is still to be computed is noticed here, and then records where they begin as data.  So is a
line that sets ever other regions of such a value to a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import cached_property
from types import CodeType
from typing import Any

from .core import errors
from .core.errors import Provenance
from .core.record import record
from .core.shape import Shape
from .ir.graph import Graph, Value
from .ir.op import Op
from .ops.movement import Full, Insert, Slice

Pair = tuple[int, Value, Value]
"""A position, and the values there of two graphs of one structure."""

_SOME = 4
"""Programs of a structure behind which further sizes are expected."""
_SEVERAL, _CHOICES, _HARDLY = 4, 6, 2
"""Structures of a line, or programs of one with equal shapes, which have run so often at most,
behind which others are expected."""
_OFTEN, _SELDOM = 3, 8
"""Times in a row that programs must have grown to be expected to; one of them counts for all if the
program before ran so often at most: once for each layer of a model, say."""


@record(frozen=False)
class History:
    """The programs of one structure that a line has had."""

    last: Graph
    grown: int = 0
    """How many times in a row they have grown by an element."""
    programs: int = 0
    """How many there have been before the last one."""
    sizes: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Sizes that have been different, (value, axis): the least and the largest."""
    values: set[int] = field(default_factory=set)
    """Constants that have."""
    starts: set[tuple[int, int]] = field(default_factory=set)
    """Where slices and insertions begin that have, or their steps."""
    between: bool = False
    """No size of the last one was smaller, or larger, than all before (sums of sizes may be)."""
    chosen: int = 0
    """How many in a row have had the shapes of the one before, which had hardly run."""
    runner: Any = None
    """A weak reference to what runs the last one."""
    roomy: list[Any] = field(default_factory=list)
    """Programs that have room for several sizes,"""
    refused: int = 0
    """and how often in a row there could be none."""

    @property
    def grows(self) -> bool:
        """Whether they have grown often enough to be expected to."""
        return self.grown >= _OFTEN

    @property
    def recurs(self) -> bool:
        """Whether there have been some, with smaller sizes than the last one's and with larger.

        Once that was so, the last one may be the smallest or the largest.
        """
        between = self.between or bool(self.roomy)
        return self.programs >= _SOME and between and bool(self.sizes)

    @property
    def calls(self) -> int:
        """How often the last one has run, at least."""
        runner = None if self.runner is None else self.runner()
        return 1 if runner is None else int(runner.calls)

    def add(self, graph: Graph, different: Sequence[Pair]) -> None:
        """There is another one, in which these values are not the last one's."""
        alike = all(a.shape == b.shape for _, a, b in different)
        self.chosen = self.chosen + 1 if alike and self.calls <= _HARDLY else 0
        self.last = graph
        self.programs += 1
        self.between = True
        for i, a, b in different:
            if a.shape != b.shape:
                for axis, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)):
                    least, most = self.sizes.get((i, axis), (m, m))
                    if not least <= n <= most:
                        if i in self.sources:
                            self.between = False
                        self.sizes[i, axis] = min(least, n), max(most, n)
            if a.op is not b.op:
                self._differ(i, a.op, b.op)

    @cached_property
    def sources(self) -> set[int]:
        """Values whose sizes come from no other value, in each of them."""
        values = self.last.values
        return {i for i, v in enumerate(values) if not any(values[x].shape for x in v.inputs)}

    def _differ(self, i: int, a: Op, b: Op) -> None:
        if isinstance(a, Full) and isinstance(b, Full) and a.value != b.value:
            self.values.add(i)
        if isinstance(a, (Slice, Insert)) and isinstance(b, (Slice, Insert)):
            for pairs in (zip(a.starts, b.starts, strict=True), zip(a.steps, b.steps, strict=True)):
                self.starts.update((i, axis) for axis, (m, n) in enumerate(pairs) if m != n)


_FEW = 4
_TIMES = 3  # beside the first
_MOST_KINDS = 4096
_FORMS: dict[Hashable, set[Hashable]] = {}
_Where = tuple[Hashable, int, tuple[str, int] | None]
"""What is joined, how many parameters have been read before, and the line."""
_JOINED: dict[_Where, tuple[Shape, ...]] = {}
"""The sizes of what was joined last."""
_LONGER: set[tuple[Hashable, tuple[str, int] | None]] = set()
"""What is joined to ever more, and the line."""
_IMAGES: dict[Hashable, set[Hashable]] = {}
"""Sizes that were few then, by what is done with images and their channels."""

_WARNING = 8
_Line = tuple[CodeType, int]
_MOST_STRUCTURES = 64  # of a line
# No ordered dictionaries, which hash each key that they come by: keys are thousands of numbers.
_HISTORIES: dict[_Line, dict[Hashable, History]] = {}
"""What each line has computed, by structure; the latest last."""
_CHANGING: set[_Line] = set()
"""Lines that have ever other structures."""
_LAST: dict[_Line, tuple[int, Graph]] = {}
"""How many programs a line has compiled, and the last one."""
_MOVING: dict[tuple[Shape, Shape, tuple[int, ...]], set[tuple[str, int]]] = {}
"""Lines that take slices in ever other places, by the tensor's shape, the slices' and steps."""
_NOTED = [0]
"""How many programs have been looked for that are not known."""
_COVERING: dict[Shape, set[tuple[str, int]]] = {}
"""Lines that write to ever other regions, by the tensor's shape."""


def varies(kind: Hashable, form: Hashable, few: int = _FEW) -> bool:
    """True once operations of this kind have had several forms, this one included.

    >>> [varies("docs", n) for n in (1, 2, 1, 3, 4, 5)]
    [False, False, False, False, True, True]
    """
    forms = _FORMS.get(kind)
    if forms is None:
        if len(_FORMS) >= _MOST_KINDS:
            _FORMS.clear()
        forms = _FORMS.setdefault(kind, set())
    if len(forms) < few:
        forms.add(form)
    return len(forms) >= few


def goes_on(where: _Where, sizes: tuple[Shape, ...], computed: Sequence[bool]) -> bool:
    """True where a sequence grows, of what is joined, so that it :func:`varies` from now on.

    One part is computed and as long as the last result there was, as a text is to which another
    token comes; or that was so at the same line, and some parts are computed here, too, as keys and
    values of another layer are.  Who puts parts together within a step joins what is still to be
    computed.
    """
    kind, _, line = where
    before = _JOINED.get(where)
    if before == sizes:  # as a layer does it in every pass
        return False
    if len(_JOINED) >= _MOST_KINDS:
        _JOINED.clear()
        _LONGER.clear()
    _JOINED[where] = sizes
    if before is not None and _continues(before, sizes, computed):
        _LONGER.add((kind, line))
    elif (kind, line) not in _LONGER or not any(computed) or all(computed):
        return False
    _FORMS.setdefault(where, set()).update(range(_FEW))
    return True


def _continues(
    before: tuple[Shape, ...], sizes: tuple[Shape, ...], computed: Sequence[bool]
) -> bool:
    """Whether one of as many parts differs, which is computed, and what the others made."""
    if len(before) != len(sizes):
        return False
    changed = [i for i, (a, b) in enumerate(zip(before, sizes, strict=True)) if a != b]
    whole = (sum(n for (n,) in before),)
    return len(changed) == 1 and sizes[changed[0]] == whole and computed[changed[0]]


def of_any_size(what: str, x: Shape, *sizes: int) -> bool:
    """True once the user's current line did something with images x [n, c, ...] of many sizes.

    What is recorded may depend on whether sizes are even or multiples of others.  Each combination
    is a structure of its own, so what suits all sizes is recorded then.
    """
    form = x[2:], sizes
    if len(_IMAGES) >= _MOST_KINDS:
        _IMAGES.clear()
    known = _IMAGES.setdefault((what, x[1]), {form})
    if form in known:  # recorded as it was; of one size no line need be looked for
        return False
    place = errors.user_place()
    line = None if place is None else errors.line_of(place)
    # A network's levels, on one line, are of one program.
    if varies((what, line, x[1]), _NOTED[0], _TIMES) or len(known) >= _MOST_KINDS:
        return True
    known.add(form)
    return False


def moves(shape: Shape, sizes: Shape, steps: tuple[int, ...]) -> bool:
    """True if the user's current line took slices of such sizes in ever other places.

    Of ``sizes`` without any entry: slices whose sizes have varied, too.
    """
    return _MOVING != {} and _is_in(_MOVING.get((shape, sizes, steps)))


def covers(shape: Shape) -> bool:
    """True if the user's current line wrote to ever other regions of tensors of such a shape."""
    return _COVERING != {} and _is_in(_COVERING.get(shape))


def _is_in(lines: set[tuple[str, int]] | None) -> bool:
    place = errors.user_place() if lines else None
    # Lines, as the interpreter tells other instructions of them once a loop is warm.
    return place is not None and lines is not None and errors.line_of(place) in lines


def note(graph: Graph, place: Provenance | None) -> History:
    """A line evaluates what is not known yet.

    Returns what it has computed with programs of that structure.  It has ``grown`` as many times in
    a row or, if this one has not, somewhat less than those of another structure have.
    """
    _NOTED[0] += 1
    if place is None:
        return History(graph)
    seen = _HISTORIES.setdefault(site_of(place), {})
    structure = tuple([(type(v.op), v.inputs, v.dtype, len(v.shape)) for v in graph.values])
    history = seen.pop(structure, None)
    others = max((h.grown for h in seen.values()), default=0)
    if history is None:
        history = History(graph, max(0, others - 1))
    else:
        different = [
            (i, a, b)
            for i, (a, b) in enumerate(zip(history.last.values, graph.values, strict=True))
            if a.shape != b.shape or a.op is not b.op
        ]
        _compare(graph, different)
        if _grown(different):
            more = _OFTEN if history.calls <= _SELDOM else 1
            history.grown = min(history.grown + more, _WARNING)
        else:
            history.grown = max(0, others - 1, history.grown - 1)
        history.add(graph, different)
    seen[structure] = history
    if len(seen) > _MOST_STRUCTURES:
        del seen[next(iter(seen))]
    return history


def compiling(graph: Graph, place: Provenance | None) -> None:
    """What was noted is compiled.

    Warns once about a line for which that is done again and again, naming what differs.
    """
    if place is None:
        return
    line = site_of(place)
    count, before = _LAST.get(line, (0, graph))
    _LAST[line] = count + 1, graph
    if count == _WARNING:
        errors.warn(
            f"{errors.describe(place)} compiled {count + 1} different programs; the last two "
            f"differ: {_difference(before, graph)}"
        )


def changes(place: Provenance) -> bool:
    """Whether a line has ever other structures, or makes other choices, none of them again."""
    line = site_of(place)
    if line in _CHANGING:
        return True
    seen = _HISTORIES.get(line)
    if seen is None or len(_CHANGING) >= _MOST_KINDS:
        return False
    last = [*itertools.islice(reversed(seen.values()), _SEVERAL)]
    several = len(last) == _SEVERAL and all(h.programs + h.calls <= _HARDLY for h in last)
    if not several and last[0].chosen < _CHOICES:
        return False
    _CHANGING.add(line)
    return True


def recorded_at(line: _Line) -> list[int]:
    """How many values the programs had that a line compiled (or some like them)."""
    seen = _HISTORIES.get(line, {})
    return [len(h.last.values) for h in seen.values() for _ in range(h.programs + 1)]


def site_of(place: Provenance) -> _Line:
    """What tells a line from others."""
    # The interpreter tells other instructions of a line once a loop is warm.
    return place[0], errors.line_of(place)[1]


def _grown(different: Sequence[Pair]) -> bool:
    """True if no size of the same structure has become smaller, and one has grown by one."""
    longer = False
    for _, a, b in different:
        if a.shape != b.shape:
            for m, n in zip(a.shape, b.shape, strict=True):
                if n < m:
                    return False
                longer = longer or n == m + 1
    return longer


def _compare(graph: Graph, different: Sequence[Pair]) -> None:
    """Remember slices and writes that were elsewhere in a program that has as many values.

    A loop along a dimension takes slices in many places, too, but in one program, which is
    compiled once.
    """
    for _, a, b in different:
        if isinstance(a.op, Insert) and isinstance(b.op, Insert):
            if a.shape == b.shape and a.inputs == b.inputs and b.place is not None:
                line = errors.line_of(b.place)
                before = varies((line, "written", a.shape), a.op)
                if varies((line, "written", b.shape), b.op) or before:
                    _COVERING.setdefault(b.shape, set()).add(line)
            continue
        if not (isinstance(a.op, Slice) and isinstance(b.op, Slice)) or a == b:
            continue
        like = (a.inputs, a.dtype, a.op.steps) == (b.inputs, b.dtype, b.op.steps)
        if like and b.place is not None:
            whole = graph.values[b.inputs[0]].shape
            line = errors.line_of(b.place)
            for sizes in (b.shape, ()) if a.shape == b.shape else ((),):
                kind = (whole, sizes, b.op.steps)
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
    _HISTORIES.clear()
    _CHANGING.clear()
    _LAST.clear()
    _MOVING.clear()
    _COVERING.clear()
    _FORMS.clear()
    _JOINED.clear()
    _LONGER.clear()
    _IMAGES.clear()
