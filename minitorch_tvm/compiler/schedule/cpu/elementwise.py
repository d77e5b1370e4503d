"""Kernels without an anchor: every stored element is computed once, at its own index.

Pattern: injective ops and broadcasts.  Strategy: merge dimensions that all reads treat alike, split
the outer ones over tiles of about a first-level cache, leave the innermost loop to LLVM's
vectoriser (its extent may be anything: the remainder is LLVM's).  Vectorising by hand was rejected:
it needs predicates for odd sizes and slows the compiler down.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.shape import contiguous_strides, numel
from ...dialect import Scope
from ...loops import Expr, Stage, Stmt, minimum, parallel_stage, serial
from ...lower import KernelCode, collapse
from ...target import CpuTarget

GRAIN = 8192
"""Elements per tile: small enough to balance two threads, large against the cost of a tile."""


_FEW_TILES = 4
_WHOLE = 64
"""Tiles of more elements than this are a multiple of it: whole vectors, and whole cache lines."""


def unravel(flat: Expr, shape: tuple[int, ...]) -> tuple[Expr, ...]:
    """Index of the ``flat``-th element of ``shape`` in row-major order."""
    out: list[Expr] = []
    scope = Scope()
    first = True
    for n, stride in zip(shape, contiguous_strides(shape), strict=True):
        if n == 1:
            out.append(0)
            continue
        i = flat if stride == 1 else scope.floordiv(flat, stride)
        out.append(i if first else scope.floormod(i, n))
        first = False
    return tuple(out)


def tiled(name: str, count: int, per_tile: int, body: Callable[[Expr], Stmt]) -> Stage:
    """``for i in range(count): body(i)`` in even tiles of ``per_tile`` at most, but for the last.

    More than one are at least four: a small and a large one would leave a thread idle.
    """
    per_tile = max(1, min(per_tile, count))
    tiles = -(-count // per_tile)
    if tiles > 1:
        even = -(-count // max(tiles, _FEW_TILES))
        per_tile = min(per_tile, even if even < _WHOLE else -(-even // _WHOLE) * _WHOLE)
        tiles = -(-count // per_tile)
    if per_tile == 1:
        return parallel_stage(name, tiles, body)

    def tile(t: Expr) -> Stmt:
        start = t * per_tile
        size = per_tile if count % per_tile == 0 else minimum(per_tile, count - start)
        return serial(size, lambda i: body(start + i))

    return parallel_stage(name, tiles, tile)


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

    def element(index: tuple[Expr, ...]) -> Stmt:
        return code.evaluator(Scope(), shapes).store_all(index)

    if len(shape) <= 1:
        count = numel(shape)
        return [tiled(name, count, GRAIN, lambda i: element((i,) * len(shape)))]
    outer, inner = shape[:-1], shape[-1]
    rows = numel(outer)
    if rows < 4 and inner > 2 * GRAIN:
        # Few long rows: split the rows themselves.
        def split(r: int) -> Stage:
            return tiled(name, inner, GRAIN, lambda j: element((*_fixed(r, outer), j)))

        return [split(r) for r in range(rows)]

    def row(r: Expr) -> Stmt:
        head = unravel(r, outer)
        return serial(inner, lambda j: element((*head, j)), "j")

    return [tiled(name, rows, max(1, GRAIN // inner), row)]


def _fixed(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    out = []
    for stride, n in zip(contiguous_strides(shape), shape, strict=True):
        out.append(flat // stride % n)
    return tuple(out)
