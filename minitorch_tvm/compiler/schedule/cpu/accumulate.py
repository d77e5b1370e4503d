"""Walking over the elements that make one result, with partial results in vector lanes.

A walk goes along the innermost dimension a few vectors at a time; its lanes are merged as a tree.
What does not fill a vector at the end is covered by one that overlaps the vector before: elements
are met twice, but enter a sum once (for extrema it makes no difference).

A long sum of floating point numbers is a sum of sums of some dozens, so that rounding errors grow
with the root of its length (see N. Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from ....core.shape import numel
from ....core.tvm_api import tvm
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stmt,
    alloc,
    cell,
    const,
    grid,
    in_vectors,
    lanes_of,
    load,
    local_buffer,
    minimum,
    number,
    quotient,
    ramp,
    seq,
    serial,
    store,
    vectorized,
)
from ...streams import LINE, Around, streamed
from .combine import Combine

FOLD = 64
"""Additions to one accumulator, at least, before it is added to a total and starts from zero."""

FEW = 8
"""Terms up to which LLVM knows how many there are."""

_VECTORS = 4
"""Vectors of partial results: an addition waits for the one before."""

# Of the outermost dimension: start, length, and the most that the length may be.
Range = tuple[Expr, Expr, int]


def fold_length(additions: int, each: int) -> int:
    """How many times ``each`` additions make a fold, about as long as there are folds."""
    return max(1, max(FOLD, math.isqrt(additions)) // each)


def told_fold(length: Expr, additions: int, each: int) -> Expr:
    """The same, told to the stage if the ``length`` is."""
    size = fold_length(additions, each)
    return size if isinstance(length, int) else number(size, "fold")


def in_folds(
    length: Expr, size: Expr, some: Callable[[Expr, Expr], Stmt], folded: Callable[[Stmt], Stmt]
) -> Stmt:
    """``some(first, count)`` of 0 .. length - 1, ``size`` of them to a fold."""

    def block(j: Expr) -> Stmt:
        start = j * size
        even = isinstance(length, int) and length % size == 0
        return folded(some(start, size if even else minimum(size, length - start)))

    return serial((length + (size - 1)) // size, block)


def one_by_one(body: Callable[[Expr], Stmt]) -> Callable[[Expr, Expr], Stmt]:
    """What a fold does that takes an element after the other."""
    return lambda first, count: serial(count, lambda i: body(first + i))


class Partial:
    """``width`` accumulators of one reduction, and totals beside them if it ``folds``."""

    def __init__(self, combine: Combine, width: int, long: bool) -> None:
        self.combine = combine
        self.width = width
        self.folds = long and combine.kind == "sum" and combine.dtype.is_floating_point
        self.acc = [local_buffer((width,), d, f"acc{i}") for i, d in enumerate(combine.dtypes)]
        self.total = self.acc
        if self.folds:
            self.total = [local_buffer((width,), combine.dtype.name, "total")]

    def begin(self) -> list[Stmt]:
        """Declare the memory and set it to the result of no elements."""
        buffers = self.acc + self.total if self.folds else self.acc
        return [*map(alloc, buffers), *self._clear(self.total)]

    def _clear(self, buffers: list[Memory]) -> list[Stmt]:
        def fill(b: Memory, value: Expr) -> Stmt:
            return serial(self.width, lambda i: store(b, value, i))

        return [fill(b, v) for b, v in zip(buffers, self.combine.start(), strict=True)]

    def take(
        self, scope: Scope, lane: Expr, value: Expr, position: Expr, fresh: Expr | None
    ) -> list[Stmt]:
        """Take one more element into ``lane``, or none unless ``fresh``."""
        if fresh is not None and self.combine.kind == "sum":
            value = tvm().tirx.Select(fresh, value, const(0, self.combine.dtype.name))
        value = scope.keep(value)
        held = tuple(scope.keep(load(b, lane)) for b in self.acc)
        where = position if self.combine.indexed else None
        new = self.combine.take(held, value, where, scope)
        return [store(b, v, lane) for b, v in zip(self.acc, new, strict=True)]

    def folded(self, taken: Stmt) -> Stmt:
        """Sum what ``taken`` takes from zero, and add it to the total."""
        (a,), (t,) = self.acc, self.total
        fold = serial(self.width, lambda x: store(t, load(t, x) + load(a, x), x))
        return seq(self._clear(self.acc), taken, fold)

    def merge(self, lanes: int) -> list[Stmt]:
        """Merge the accumulators as a tree, vectors of ``lanes`` first."""
        if self.width == 1:
            return []
        if self.combine.indexed or self.combine.dtype.name == "bool":
            out = []
            half = self.width // 2
            while half:
                out.append(self._meet_halves(half))
                half //= 2
            return out
        # In registers: through memory, LLVM would take the vectors apart.
        (t,) = self.total
        statements: list[Stmt] = []

        def named(value: Expr) -> Expr:
            v, new = cell("v", value)
            statements.extend(new)
            return v

        def meet(low: Expr, high: Expr) -> Expr:
            (new,) = self.combine.merge((low,), (high,))
            return named(new)

        vectors = [named(load(t, ramp(at, lanes))) for at in range(0, self.width, lanes)]
        while len(vectors) > 1:
            half = len(vectors) // 2
            vectors = [meet(a, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
        (vector,) = vectors
        while lanes > 1:
            lanes //= 2
            vector = meet(*[named(lanes_of(vector, at, lanes)) for at in (0, lanes)])
        return [*statements, store(t, vector, 0)]

    def _meet_halves(self, half: int) -> Stmt:
        def meet(x: Expr) -> Stmt:
            scope = Scope()
            mine = tuple(scope.keep(load(b, x)) for b in self.total)
            other = tuple(scope.keep(load(b, x + half)) for b in self.total)
            new = self.combine.merge(mine, other)
            return scope.body(*[store(b, v, x) for b, v in zip(self.total, new, strict=True)])

        return serial(half, meet)

    def result(self, lane: Expr = 0) -> Expr:
        """What a reduction gives: its last part (the index, of those that have one)."""
        return load(self.total[-1], lane)


# body(index, lane, fresh): one element, taken into the accumulators at ``lane``; ``fresh`` tells
# whether it is met for the first time (None: it is).
Body = Callable[[tuple[Expr, ...], Expr, Expr | None], Stmt]


class Walk:
    """A walk over ``extents`` for some reductions.

    ``lanes`` elements make a vector.  ``outer`` restricts the outermost dimension.  With ``side``
    so many walks go side by side, each in a lane of its own, and the body is given no lane to
    share.
    """

    def __init__(
        self,
        combines: Sequence[Combine],
        extents: tuple[int, ...],
        lanes: int,
        outer: Range | None = None,
        side: int = 0,
        beside: Callable[[Expr, int], list[Stmt]] | None = None,
        far: Around | None = None,
        seen: Expr | None = None,
        hide: Callable[[Expr], Stmt] | None = None,
    ) -> None:
        """``beside(first, count)`` is done behind every so many elements of one dimension.

        ``far``: which memory is stored to around the caches.  ``seen``: of one dimension, elements
        behind so many need not be walked over, but are to be done with by ``hide``, each.
        """
        self.extents = extents
        # Of a line shorter than a vector LLVM must not know how long it is: it unrolls eight
        # elements, and looks for vectors among them without end.
        self._short = not side and extents[-1] < lanes
        # How long the innermost dimension is must be known: lanes need it.
        told = extents[0] >= FEW if len(extents) > 1 else self._short
        self.outer = outer or (0, number(extents[0], "outer") if told else extents[0], extents[0])
        self.lanes, self.side = lanes, side
        self._beside, self._far = beside, far
        self._seen, self._hide = seen, hide
        *middle, inner = extents
        vectors = 1
        most = inner // lanes
        if seen is not None and most >= _VECTORS:
            most //= 2  # so that there are steps to be left out; of one vector they are slow
        while 2 * vectors <= min(_VECTORS, most):
            vectors *= 2
        self.width = side or (vectors * lanes if inner >= lanes else 1)
        each = 1 if side else self.width
        self.steps = max(1, inner // each)  # along the innermost dimension
        self.terms = numel(tuple(middle[1:])) * self.steps if middle else 1
        extent = self.outer[2]
        self.additions = extent * self.terms if middle else extent // each
        long = self.additions > 2 * FOLD
        self.partials = [Partial(c, self.width, long) for c in combines]
        self.long = any(p.folds for p in self.partials)
        self.inside = self.long and bool(middle) and self.steps > 2 * FOLD

    def statements(self, body: Body) -> list[Stmt]:
        """The walk, at the end of which the partials hold results."""
        *middle, inner = self.extents
        start, length, _ = self.outer
        if not middle:
            taken = self._along((), start, length, body, self.long)
        else:

            def nest(i: Expr) -> Stmt:
                return grid(
                    middle[1:], lambda *m: self._along((start + i, *m), 0, inner, body, self.inside)
                )

            if self.long and not self.inside:
                size = told_fold(length, self.additions, self.terms)
                taken = in_folds(length, size, one_by_one(nest), self._folded)
            else:
                taken = serial(length, nest)
        begin = [s for p in self.partials for s in p.begin()]
        merge = [] if self.side else [s for p in self.partials for s in p.merge(self.lanes)]
        return [*begin, taken, *merge]

    def _hidden(
        self, first: Expr, count: Expr, some: Callable[[Callable[[Expr], Stmt]], list[Stmt]]
    ) -> Stmt:
        """So many times the walk's width of elements that take part in nothing."""
        hide = self._hide
        assert hide is not None

        def step(q: Expr) -> Stmt:
            return seq(some(lambda x: hide(first + q * self.width + x)))

        return serial(count, step, "q")

    def _folded(self, taken: Stmt) -> Stmt:
        for p in self.partials:
            if p.folds:
                taken = p.folded(taken)
        return taken

    def _along(
        self, head: tuple[Expr, ...], first: Expr, count: Expr, body: Body, folds: bool
    ) -> Stmt:
        """Elements first .. first + count of the innermost dimension."""

        def element(start: Expr, x: Expr, repeated: int = 0) -> Stmt:
            return body((*head, start + x), x, x >= repeated if repeated else None)

        def some(each: Callable[[Expr], Stmt]) -> list[Stmt]:
            if self._far is None or self.width % LINE:
                return [serial(self.width, each, "x")]
            lines = range(0, self.width, LINE)
            return [streamed(each, const(x), self._far) for x in lines]

        def step(q: Expr) -> Stmt:
            if self.side:
                return vectorized(
                    self.side, lambda x: body((*head, first + q), x, None), "x", wide=True
                )
            start = first + q * self.width
            more = [] if self._beside is None else self._beside(start, self.width)
            return seq(some(partial(element, start)), more)

        if self.side or self.width == 1:
            whole, rest = number(count) if self._short and isinstance(count, int) else count, 0
        else:
            assert isinstance(count, int)
            whole, rest = divmod(count, self.width)
        hidden: list[Stmt] = []
        if self._seen is not None and whole > 1:
            every = whole
            whole = minimum(quotient(self._seen + (self.width - 1), self.width), every)
            if self._hide is not None:
                hidden = [self._hidden(first + whole * self.width, every - whole, some)]
        if folds:
            parts = [
                in_folds(
                    whole,
                    fold_length(self.outer[2] if not head else self.steps, 1),
                    one_by_one(step),
                    self._folded,
                )
            ]
        else:
            parts = [serial(whole, step, "q")]
        parts += hidden
        if rest:
            width = -(-rest // self.lanes) * self.lanes
            start, repeated = first + count - width, width - rest
            # LLVM would unroll the few lanes of the end, and gather them.
            tail = in_vectors(width, self.lanes, lambda x: element(start, x, repeated), wide=True)
            parts.append(self._folded(tail) if folds else tail)
        return seq(parts)
