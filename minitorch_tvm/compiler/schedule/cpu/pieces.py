"""Where along the innermost dimension a kernel without an anchor goes on with other memory.

What is joined or inserted there is found by a condition on the position.  In a loop over all of
them LLVM would ask for each element; in a loop that begins and ends where the answer changes it
knows the answer, and has vectors.
"""

from __future__ import annotations

from ....ir.graph import Value
from ....ops import movement as mv
from ...lower import KernelCode

_SHORTEST = 16
"""Elements along the innermost dimension from which on pieces are loops of their own."""
_MOST, _FEW, _VALUES = 16, 3, 64
"""Pieces, and values that are computed in all of them together: more would be more code than they
save time.  A few are cut in any case."""


def pieces(code: KernelCode, length: int) -> list[tuple[int, int]]:
    """The innermost dimension, cut: where each piece starts, and how long it is."""
    whole = [(0, length)]
    if length < _SHORTEST:
        return whole
    values = len({*code.kernel.members, *code.kernel.inlined})
    most = max(_FEW, min(_MOST, _VALUES // values))
    cuts: set[int] = set()
    waiting, seen = [(m, 0) for m in code.kernel.members], set[tuple[int, int]]()
    while waiting:
        found = waiting.pop()
        v, first = found  # the result's element 0 would be this one's -first
        if found in seen:
            continue
        seen.add(found)
        if code.is_memory(v):
            continue
        changes, sources = _step(code, code.graph.values[v])
        cuts.update(first + change for change in changes)
        waiting += [(x, first + start) for x, start in sources]
    ends = sorted(cut for cut in cuts if 0 < cut < length)
    if len(ends) >= most:
        return whole
    return [(a, b - a) for a, b in zip([0, *ends], [*ends, length], strict=True)]


def _step(code: KernelCode, value: Value) -> tuple[list[int], list[tuple[int, int]]]:
    """Where something changes in a value, and what it reads along its own last dimension, each with
    the position at which that one's first element would be."""
    op, xs = value.op, value.inputs
    shapes = [code.graph.values[x].shape for x in xs]
    if isinstance(op, mv.Cat) and op.dim == len(value.shape) - 1:
        at, changes, sources = 0, [], []
        for x, shape in zip(xs, shapes, strict=True):
            sources.append((x, at))
            at += shape[-1]
            changes.append(at)
        return changes, sources
    if isinstance(op, mv.Insert):
        start, step, length = op.starts[-1], op.steps[-1], shapes[1][-1]
        if step != 1:
            return [], [(xs[0], 0)]
        return [start, start + length], [(xs[0], 0), (xs[1], start)]
    if isinstance(op, mv.Slice):
        return [], [(xs[0], -op.starts[-1])] if op.steps[-1] == 1 else []
    if isinstance(op, mv.Permute) and op.dims[-1] != len(op.dims) - 1:
        return [], []
    if value.op.elementwise or isinstance(op, (mv.Expand, mv.Permute, mv.Cat)):
        same = zip(xs, shapes, strict=True)
        return [], [(x, 0) for x, shape in same if shape and shape[-1] == value.shape[-1]]
    return [], []
