"""What a thread has recorded since its last evaluation, and whether that was recorded before.

A training loop records the same operations at every step.  Recordings are therefore kept as paths
in a tree: each value that enters leads from one :class:`Prefix` to the next, and a recording that
was made before walks a path that exists.  A step along it costs one lookup, which at the same time
tells the shape of the new value.  What was found out about a recording once (the program that it
makes, the nodes that backward() adds to it) is kept at its prefix and need not be found out again.

Values are identified by their position in the recording, so a path says everything about the graph
but the contents of its leaves.  What is not said there breaks the trace: a pending value that comes
from elsewhere (another thread, or left over from before the last evaluation).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..core.dtype import DType
from ..core.errors import Provenance
from ..core.shape import Shape

if TYPE_CHECKING:
    from .node import Capture, Node
    from .op import Op
    from .tape import Owed

# (op, grad mode, positions of the inputs), (-1, position, flags) of a value whose flags have
# changed (and the position of the value that takes its cotangent, if its inputs do not),
# (-1, position) of one whose graph is used up, or -2 or less of a leaf.
Key = tuple[int, ...] | int

Result = tuple[Shape, DType, int, bool]
"""Shape, dtype, their number, and requires_grad."""

Picker = Callable[[Sequence[Any]], tuple[Any, ...]]
Step = tuple["Op", Picker, Result]
"""An op, how to choose its inputs among the values of a recording, and what it makes."""

NOWHERE: Provenance = ((lambda: None).__code__, -1)
"""A line that is never executed."""

Ending = tuple[int, ...]
"""Of the last ops of a recording, each before those that came before it: op, and what it makes."""
_ENDING = 2 * 64
_PARTS = 5
"""A loop is evaluated in such parts of what may be pending."""
_LIMIT = 1 << 16  # prefixes; a program whose steps never repeat must not fill the memory


_NOTHING: dict[Any, Any] = {}
"""Of prefixes that have nothing to keep; stays empty."""
_END: Prefix | None = None


class Prefix:
    """A recording up to some value.  Equal recordings have one."""

    # Whatever is recorded once only leaves such objects, and nothing else that Python's garbage
    # collector would visit: as most have one follower or none, and nobody remembers anything of
    # them, the dictionaries of others are made when they are needed.
    __slots__ = (
        *("before", "depth", "key", "known", "next", "op", "others", "place", "positions"),
        "result",
    )

    total = 0

    def __init__(
        self,
        before: Prefix | None = None,
        op: Op | None = None,
        positions: Sequence[int] = (),
        result: Result | None = None,
    ) -> None:
        self.before = before
        self.op = op
        """What makes the last value; None if it is a leaf, or if only its flags have changed."""
        self.positions = tuple(positions)
        """Of the op's inputs among the values of the recording."""
        if result is not None:
            self.result: Result = result
            """Of the last value; there is one if an op makes it."""
        self.key: Key | None = None
        """The step that leads here."""
        self.next: Prefix = _END or self
        """Where the step leads that was taken from here first; no step leads to ``_END``."""
        self.others: dict[Key, Prefix] = _NOTHING
        """Where others lead."""
        self.known: dict[Any, Any] = _NOTHING
        """What others remember of this recording; see :meth:`remember`."""
        self.place = NOWHERE
        """Where the last value was recorded the last time, ``depth`` calls further out."""
        self.depth = 1  # never that of the function that asks: it would hold itself
        Prefix.total += 1

    def following(self, key: Key) -> Prefix | None:
        """Where a step leads that was taken from here before."""
        after = self.next
        return after if after.key == key else self.others.get(key)

    def follow(self, key: Key, after: Prefix) -> Prefix:
        """From now on this new one is where a step leads that was not taken before."""
        after.key = key  # before any other thread can see it
        if self.next is _END:
            self.next = after
        elif self.others is _NOTHING:
            self.others = {key: after}
        else:
            self.others[key] = after
        return after

    def remember(self, key: Hashable, what: Any) -> None:
        """Keep something in ``known``."""
        if self.known is _NOTHING:
            self.known = {key: what}
        else:
            self.known[key] = what

    @property
    def inputs(self) -> Picker:
        """Chooses the op's inputs; made when it is asked for, as most recordings come once."""
        return picker(self.positions)

    def since(self, start: Prefix) -> list[Step] | None:
        """What led from ``start`` here; None if there are other steps than results of ops.

        ``start`` must be on the path to this one.
        """
        path = self.path(start)
        if path is None:
            return None
        steps: list[Step] = []
        for prefix in path:
            if prefix.op is None:
                return None
            steps.append((prefix.op, prefix.inputs, prefix.result))
        return steps

    def path(self, start: Prefix) -> list[Prefix] | None:
        """From ``start``, which is left out, to here; None if it is not on the way."""
        found: list[Prefix] = []
        prefix = self
        while prefix is not start:
            if prefix.before is None:
                return None
            found.append(prefix)
            prefix = prefix.before
        return found[::-1]


def picker(positions: Sequence[int]) -> Picker:
    """Chooses the values at ``positions``."""
    if not positions:
        return lambda values: ()
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return itemgetter(*positions)


_END = Prefix()
_start = Prefix()
_THREADS = itertools.count()
# Numbers of values: thread, recording of the thread, position in the recording.
_POSITION_BITS, _RECORDING_BITS = 32, 64
_THREAD_BITS = _POSITION_BITS + _RECORDING_BITS
_reference = weakref.ref


class Trace:
    """The recording of one thread, and how it records."""

    __slots__ = (
        *("base", "capture", "checks", "collecting", "cut", "derived", "expanding", "first"),
        *("forbidden", "grad_enabled", "handles", "late", "owed", "prefix", "thread", "values"),
        *("whole", "writes"),
    )

    def __init__(self) -> None:
        self.grad_enabled = True
        self.expanding = False
        """Composites record what they stand for."""
        self.capture: Capture | None = None
        """Somebody watches what a function does."""
        self.handles: list[weakref.ref[Any]] = []
        """Tensors on what has been recorded, and not evaluated yet."""
        self.checks: list[Any] = []
        """Conditions that are to hold before the next evaluation."""
        self.writes: list[tuple[Any, Node]] = []
        """Tensors that have been written to since the first of these, and what they were before."""
        self.collecting = False
        """An evaluation has begun: what is recorded now belongs to it, however much it is."""
        self.forbidden = False
        """There is to be no evaluation."""
        self.thread = next(_THREADS)
        self.base = self.first = self.thread << _THREAD_BITS
        self.restart()

    def restart(self) -> None:
        """Begin a new recording: what was recorded before has been evaluated."""
        global _start
        if Prefix.total > _LIMIT:
            Prefix.total = 0
            _start = Prefix()
        self.prefix = _start
        # Weak: a value that the program drops must go, with all the memory it holds.
        self.values: list[weakref.ref[Node]] = []
        self.base += 1 << _POSITION_BITS
        self.derived = 0
        """How many of the values backward() has recorded."""
        self.cut: Ending = ()
        """How the recording before this one ended, if that was cut as it had become too long."""
        self.whole = True
        """False once something happened that the prefix does not tell."""
        self.late: list[weakref.ref[Node]] = []
        """Last values of passages: those before them are not recorded yet."""
        self.owed: weakref.ref[Owed] | None = None
        """Gradients that this recording counts among its values, but that are not recorded yet."""

    def ending(self) -> Ending:
        """How the recording ends so far."""
        found: list[int] = []
        prefix: Prefix | None = self.prefix
        while prefix is not None and len(found) < _ENDING:
            if prefix.op is not None:
                found += (prefix.op.uid, prefix.result[2])
            prefix = prefix.before
        return tuple(found)

    def repeats(self, pending: int, most: int) -> bool:
        """Whether the recording had better be cut here: it ends as the one that was cut before.

        A loop that reads nothing is then evaluated by the same program again and again.
        """
        op = self.prefix.op
        if op is None or pending * _PARTS < most or self.cut[:1] != (op.uid,):
            return False
        return self.ending() == self.cut

    def debt(self) -> Owed | None:
        """What ``owed`` refers to, if somebody still waits for all of it."""
        debt = None if self.owed is None else self.owed()
        return None if debt is None or debt.begun else debt

    def settle(self) -> None:
        """Record what is owed, or late.  No other thread may evaluate meanwhile."""
        self.collecting = True
        try:
            catch_up(self.late)
            debt = None if self.owed is None else self.owed()
            if debt is not None:
                debt.settle()
        finally:
            self.collecting = False

    def position(self, node: Node) -> int:
        """Where ``node`` is in this recording; a leaf that is met for the first time enters it."""
        at, values = node.at, self.values
        position, count = at - self.base, len(values)
        if 0 <= position < count:
            return position
        if node.pending or (at >= 0 and at >> _THREAD_BITS != self.thread):
            # Another thread may use it at the same time: its position is not safe then.
            self.whole = False
        reference = _reference(node)
        position = count
        key = node.entry or self.entry(node)
        following = self.prefix.following(key) or self.prefix.follow(key, Prefix(self.prefix))
        node.at = self.base + position
        self.prefix = following
        values.append(reference)  # at once: an interrupt must not come between the three
        return position

    @staticmethod
    def entry(node: Node) -> int:
        """What a leaf adds to the recording that it enters: a number below -1."""
        scalar = node.value is not None
        flags = 4 * scalar + 2 * node.requires_grad + node.grad_leaf
        found = node.entry = -2 - (8 * node.spec_id + flags)
        return found

    def places_of(self, nodes: Iterable[Node]) -> list[int] | None:
        """For each of them its position or, if it is a leaf that would enter, what it would add.

        None if that does not show which of them are one, or may be wrong in a moment.
        """
        base, first, count = self.base, self.first, len(self.values)
        found: list[int] = []
        entering: list[Node] = []
        for x in nodes:
            at = x.at
            place = at - base
            if not 0 <= place < count:
                if x.pending or (at != -1 and not first <= at < base):
                    return None
                place = x.entry or self.entry(x)
                entering.append(x)
            found.append(place)
        return None if len(set(entering)) < len(entering) else found

    def step(self, *key: int) -> None:
        """Go on to the prefix that follows."""
        prefix = self.prefix
        self.prefix = prefix.following(key) or prefix.follow(key, Prefix(prefix))

    def marked(self, node: Node) -> None:
        """The flags of ``node`` have changed."""
        position = node.at - self.base
        if 0 <= position < len(self.values):
            past = () if node.history is None else (self.position(node.history),)
            self.step(-1, position, _flags(node), *past)

    def used_up(self, root: Node) -> None:
        """Backward has passed from ``root`` and may not pass again."""
        position = root.at - self.base
        if 0 <= position < len(self.values):
            self.step(-1, position)
        elif root.pending:
            self.whole = False

    def places(self, nodes: Iterable[Node]) -> list[int] | None:
        """Positions of values that are in this recording; None if one is not."""
        found = [n.at - self.base for n in nodes]
        return found if all(0 <= p < len(self.values) for p in found) else None

    def nodes(self) -> list[Node | None]:
        """The values by position; None for those that nobody needs any more."""
        catch_up(self.late)
        return [value() for value in self.values]


def catch_up(late: Iterable[weakref.ref[Node]]) -> None:
    """Record the values of passages that somebody has the last of."""
    for reference in late:
        node = reference()
        if node is not None:
            _ = node.inputs


class _Gone:
    __slots__ = ("__weakref__",)


nothing: weakref.ref[Any] = weakref.ref(_Gone())
"""A reference to a value that is not there.  (Calling a function would take twice as long.)"""


def _flags(node: Node) -> int:
    return 2 * node.requires_grad + node.grad_leaf
