"""Kernels without an anchor: every stored element is computed once, at its own index.

Pattern: injective ops and broadcasts.  Strategy: merge dimensions that all reads treat alike, split
the outer ones over tiles of about a first-level cache, leave the innermost loop to LLVM's
vectoriser (its extent may be anything: the remainder is LLVM's), cut where what is joined or
inserted begins and ends (:mod:`.pieces`).  Vectorising by hand was rejected: it needs predicates
for odd sizes and slows the compiler down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ....core import dtype as dt
from ....core.shape import contiguous_strides, numel
from ....ops import elementary as el
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    below,
    const,
    load,
    local_buffer,
    minimum,
    number,
    parallel_stage,
    quotient,
    seq,
    serial,
    store,
    when,
)
from ...lower import KernelCode, collapse
from ...streams import LARGER, LINE, Around, far_results, streamed
from ...target import CpuTarget
from .conv_layout import div
from .pieces import pieces

GRAIN = 8192
"""Elements per tile: small enough to balance two threads, large against the cost of a tile."""


_FEW_TILES = 4
_WHOLE = 64
"""Tiles of more elements than this are a multiple of it: whole vectors, and whole cache lines."""


Along = Callable[[Expr, Expr, Callable[[Expr], Stmt]], Stmt]
"""What makes a loop from where it starts, how long it is, and what is done for one number."""


def unravel(flat: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Index of the ``flat``-th element of ``shape`` in row-major order."""
    strides: list[Expr] = [1] if shape else []
    for n in shape[:0:-1]:
        strides.append(strides[-1] * n)
    out: list[Expr] = []
    scope = Scope()
    first = True
    for n, stride in zip(shape, strides[::-1], strict=True):
        if isinstance(n, int) and n == 1:
            out.append(0)
            continue
        if not isinstance(stride, int):
            flat_by = quotient(flat, stride)
        else:
            flat_by = flat if stride == 1 else scope.floordiv(flat, stride)
        if first:
            out.append(flat_by)
        elif isinstance(n, int):
            out.append(scope.floormod(flat_by, n))
        else:
            out.append(flat_by - quotient(flat_by, n) * n)
        first = False
    return tuple(out)


def tiled(
    name: str,
    count: int,
    per_tile: int,
    body: Callable[[Expr], Stmt],
    along: Along | None = None,
    apart: bool = True,
) -> Stage:
    """``for i in range(count): body(i)`` in even tiles of ``per_tile`` at most, but for the last.

    More than one are at least four: a small and a large one would leave a thread idle.
    ``along(start, size, body)`` makes the loop of a tile.  What is done for one number is ``apart``
    from the next unless LLVM is to find vectors along them.
    """
    per_tile = max(1, min(per_tile, count))
    tiles = -(-count // per_tile)
    if tiles > 1:
        even = -(-count // max(tiles, _FEW_TILES))
        per_tile = min(per_tile, even if even < _WHOLE else -(-even // _WHOLE) * _WHOLE)
        tiles = -(-count // per_tile)
    if per_tile == 1:
        return parallel_stage(name, tiles, body)

    each, all_of_them = number(per_tile, "each"), number(count, "count")

    def tile(t: Expr) -> Stmt:
        start = below(t * each, count)
        size = minimum(each, all_of_them - start)
        return (
            serial(size, lambda i: body(below(start + i, count) if apart else start + i))
            if along is None
            else along(start, size, body)
        )

    return parallel_stage(name, tiles, tile)


def _along(start: Expr, size: Expr, body: Callable[[Expr], Stmt], around: Around) -> Stmt:
    """``body`` for so many numbers, of which some memory is stored to ``around`` the caches."""
    whole = div(size, LINE)
    done = whole * LINE
    return seq(
        serial(whole, lambda q: streamed(body, start + q * LINE, around), "q"),
        serial(size - done, lambda i: body(start + done + i)),
    )


def _worth_hoping(code: KernelCode) -> bool:
    """Whether something is computed of which there are vectors as long as quotients are not large.

    What is read must still be there afterwards.  Small kernels do not repay compiling that.
    """
    values = [code.graph.values[v] for v in (*code.kernel.members, *code.kernel.inlined)]
    return (
        not code.overwrites
        and any(isinstance(v.op, (el.Fmod, el.Quotient)) and v.dtype is dt.float32 for v in values)
        and numel(values[0].shape) > GRAIN
    )


class _Hopes:
    """Loops without calls, and with them once more where something may be wrong without.

    LLVM makes no vectors of a loop with a call in it, however rarely that is reached.
    """

    def __init__(self) -> None:
        self._note: Memory | None = None  # taken while loops without calls are built
        self._doubts: list[Expr] | None = None
        self._calls = False

    def scope(self) -> Scope:
        """For an element of the loop that is being built."""
        self._doubts = None if self._note is None else []
        return Scope(self._doubts, self._calls)

    def noted(self, scope: Scope) -> list[Stmt]:
        """A note if that element may be wrong."""
        if self._note is None or not self._doubts:
            return []
        doubt = scope.cast(scope.any(*self._doubts), dt.int32)
        return [store(self._note, load(self._note, 0) | doubt, 0)]

    def along(self, start: Expr, size: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body`` for so many numbers."""
        self._note = note = local_buffer((1,), "int32", "doubt")
        quick = serial(size, lambda i: body(start + i), "j")
        self._note, self._calls = None, True
        sure = serial(size, lambda i: body(start + i), "j")
        self._calls = False
        return seq(alloc(note), store(note, const(0), 0), quick, when(load(note, 0) != 0, sure))


def elementwise(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a kernel without an anchor."""
    if code.kernel.anchor is not None:
        return None
    full = code.graph.values[code.kernel.members[0]].shape
    if numel(full) == 0:
        return []
    shapes = collapse(code, full, code.kernel.members)
    shape = shapes.shape
    name = "elementwise"

    hopes = _Hopes()

    def element(index: tuple[Expr, ...]) -> Stmt:
        scope = hopes.scope()
        e = code.evaluator(scope, shapes)
        return e.store_all(index, partial(hopes.noted, scope))

    far = far_results(code, {*code.kernel.inlined, *code.kernel.members}, cpu)
    if shape and shape[-1] < LINE:
        far = None  # no line of it is whole
    along: Along | None = None
    if far is not None:
        along = partial(_along, around=far)
    elif _worth_hoping(code):
        along = hopes.along
    grain = GRAIN * (LARGER if far else 1)

    def line(count: int, one: Callable[[Expr], Stmt]) -> Stage:
        return tiled(name, count, grain, one, along, apart=False)

    if not shape:
        return [line(1, lambda i: element(()))]
    # Of a line of bytes shorter than a vector LLVM must not know how long it is: it unrolls it and
    # looks for vectors among its elements, for seconds.  It finds good ones of integers, which many
    # rows repay, and none of bools.
    stored = {code.graph.values[m].dtype for m in code.kernel.stores}
    short = dt.bool_ in stored or (dt.uint8 in stored and numel(full) <= GRAIN)
    unknown = cpu.lanes(1) if short else 0
    cut = pieces(code, shape[-1]) if shapes.identity else [(0, shape[-1])]

    def along_row(head: tuple[Expr, ...]) -> Stmt:
        """A row, piece by piece."""

        def piece(start: int, length: int) -> Stmt:
            def one(j: Expr) -> Stmt:
                return element((*head, start + j))

            if along is not None:
                return along(0, length, one)
            return serial(number(length, "length") if length < unknown else length, one, "j")

        return seq([piece(*p) for p in cut])

    outer, inner = shape[:-1], shape[-1]
    rows = numel(outer)
    if not outer and (len(cut) == 1 or inner > grain):
        return [line(n, partial(_from, element, a)) for a, n in cut]
    if rows < 4 and inner > 2 * grain:
        # Few long rows: split the rows themselves.
        def split(r: int, start: int, length: int) -> Stage:
            return line(length, lambda j: element((*_fixed(r, outer), start + j)))

        return [split(r, *piece) for r in range(rows) for piece in cut]

    return [tiled(name, rows, max(1, grain // inner), lambda r: along_row(unravel(r, outer)))]


def _from(element: Callable[[tuple[Expr, ...]], Stmt], first: int, i: Expr) -> Stmt:
    return element((first + i,))


def _fixed(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    out = []
    for stride, n in zip(contiguous_strides(shape), shape, strict=True):
        out.append(flat // stride % n)
    return tuple(out)
