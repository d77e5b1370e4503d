"""Moves reshapes out of the way of fusion.

A reshape of something in memory is another name for it and costs nothing; anywhere else it moves
elements, and keeps a kernel from taking up what follows.  Layers compute on matrices and reshape
around them: what they compute elementwise lies between two reshapes, and a head is a reshaped
slice.  So ::

    h = matmul(x, w)                  : [1024, 512]
    y = gelu(reshape(h))              : [16, 64, 512]
    z = matmul(reshape(y), v)         : [1024, 128]

becomes ``z = matmul(gelu(h), v)``, with gelu in the first product's kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..core.shape import Shape, numel
from ..ir.graph import Graph, Value
from ..ir.op import Kind
from ..ops import movement as mv

if TYPE_CHECKING:
    from .canonicalize import Rewriter


def between(graph: Graph) -> dict[int, Shape]:
    """Elementwise values that may have the shape from which they are reshaped.

    They form regions of one shape; whatever enters one is a number or reshaped from one other
    shape, and whatever leaves it is reshaped, to any shape.
    """
    values = graph.values
    region: dict[int, int] = {}

    def root(v: int) -> int:
        while region[v] != v:
            region[v] = v = region[region[v]]
        return v

    for i, v in enumerate(values):
        if v.is_leaf or not v.op.elementwise or numel(v.shape) < 2:
            continue
        region[i] = i
        for x in v.inputs:
            if x in region and values[x].shape == v.shape:
                region[root(x)] = root(i)
    origins: dict[int, set[Shape | None]] = {}  # of what enters a region; None: it must stay
    for i, v in enumerate(values):
        for x in v.inputs:
            source = values[x]
            if i in region and x in region and source.shape == v.shape:
                continue
            if x in region and not isinstance(v.op, mv.Reshape):
                origins.setdefault(root(x), set()).add(None)
            if i in region and source.shape != ():
                reshaped = isinstance(source.op, mv.Reshape) and source.shape == v.shape
                origin = values[source.inputs[0]].shape if reshaped else None
                origins.setdefault(root(i), set()).add(origin)
    for o in graph.outputs:
        if o in region:
            origins.setdefault(root(o), set()).add(None)
    found: dict[int, Shape] = {}
    for i in region:
        shapes = origins.get(root(i), {None})
        if len(shapes) == 1:
            (shape,) = shapes
            if shape is not None:
                found[i] = shape
    return found


def _refined(coarse: Shape, fine: Shape) -> list[Shape] | None:
    """For each dimension of ``coarse``, those of ``fine`` into which it is divided."""
    groups: list[Shape] = []
    at = 0
    for n in coarse:
        start = at
        while at < len(fine) and (at == start or numel(fine[start:at]) < n):
            at += 1
        if at == start or numel(fine[start:at]) != n:
            return None
        groups.append(fine[start:at])
    return groups if at == len(fine) else None


def _divided(
    whole: Shape, part: Shape, groups: list[Shape], starts: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[Shape, tuple[int, ...], tuple[int, ...]] | None:
    """``whole``, starts and steps of a part of it, when the part's dimensions are divided."""
    shape: list[int] = []
    first: list[int] = []
    stride: list[int] = []
    for n, m, group, start, step in zip(whole, part, groups, starts, steps, strict=True):
        inner = numel(group[1:])
        if len(group) > 1 and (step != 1 or start % inner or n % inner):
            return None
        shape += [n // inner, *group[1:]] if m else group
        first += [start // inner, *(0 for _ in group[1:])]
        stride += [step, *(1 for _ in group[1:])]
    return tuple(shape), tuple(first), tuple(stride)


def divided_slice(r: Rewriter, v: Value) -> int | None:
    """Reshaped slices of something in memory are slices of what is reshaped."""
    return _reshaped_slice(r, v, _divide)


def merged_slice(r: Rewriter, v: Value) -> int | None:
    """The same where dimensions become one, of which all but the first are whole."""
    return _reshaped_slice(r, v, _merge)


_Starts = tuple[Shape, tuple[int, ...], tuple[int, ...]]
"""What is sliced instead: its shape, where the slice starts, its steps."""


def _reshaped_slice(
    r: Rewriter, v: Value, other: Callable[[Shape, Shape, Shape, mv.Slice], _Starts | None]
) -> int | None:
    """``other(whole, piece, reshaped piece, slice)``: of what the reshaped piece is a slice."""
    if not isinstance(v.op, mv.Reshape) or not numel(v.shape):
        return None
    piece = r.values[v.inputs[0]]
    if not isinstance(piece.op, mv.Slice) or not _in_memory(r, piece.inputs[0]):
        return None
    found = other(r.values[piece.inputs[0]].shape, piece.shape, v.shape, piece.op)
    if found is None:
        return None
    shape, starts, steps = found
    stops = tuple(
        start + (n - 1) * step + 1 for start, n, step in zip(starts, v.shape, steps, strict=True)
    )
    source = r.make(mv.Reshape(shape), piece.inputs, v)
    return r.make(mv.Slice(starts, stops, steps), (source,), v)


def _divide(whole: Shape, piece: Shape, shape: Shape, op: mv.Slice) -> _Starts | None:
    groups = _refined(piece, shape)
    return (groups and _divided(whole, piece, groups, op.starts, op.steps)) or None


def _merge(whole: Shape, piece: Shape, shape: Shape, op: mv.Slice) -> _Starts | None:
    groups = _refined(shape, piece)
    if groups is None:
        return None
    merged: list[tuple[int, int, int]] = []
    at = 0
    for group in groups:
        inner, step = numel(group[1:]), op.steps[at]
        if group[1:] != whole[at + 1 : at + len(group)] or (len(group) > 1 and step != 1):
            return None
        merged.append((whole[at] * inner, op.starts[at] * inner, step))
        at += len(group)
    sizes, starts, steps = (tuple(m[i] for m in merged) for i in range(3))
    return sizes, starts, steps


def divided_insert(r: Rewriter, v: Value) -> int | None:
    """What is permuted, reshaped and inserted into a constant is inserted as it is permuted."""
    if not isinstance(v.op, mv.Insert) or not numel(v.shape):
        return None
    base, piece = r.constant(v.inputs[0]), r.values[v.inputs[1]]
    if base is None or not isinstance(piece.op, mv.Reshape) or not numel(piece.shape):
        return None
    moved = r.values[piece.inputs[0]]
    if not isinstance(moved.op, mv.Permute):
        return None
    groups = _refined(piece.shape, moved.shape)
    divided = groups and _divided(v.shape, piece.shape, groups, v.op.starts, v.op.steps)
    if not divided:
        return None
    shape, starts, steps = divided
    full = r.full(shape, base.value, base.dtype, v)
    inserted = r.make(mv.Insert(starts, steps), (full, piece.inputs[0]), v)
    return r.make(mv.Reshape(v.shape), (inserted,), v)


def _in_memory(r: Rewriter, i: int) -> bool:
    """True for values that have memory of their own, as far as can be told before fusion."""
    value = r.values[i]
    while isinstance(value.op, mv.Reshape):
        value = r.values[value.inputs[0]]
    if value.is_leaf or value.op.kind is not Kind.INJECTIVE:
        return True
    # The continuation of a product or reduction.
    return value.op.elementwise and any(
        r.values[x].op.kind not in (Kind.INJECTIVE, Kind.LEAF) and r.values[x].shape == value.shape
        for x in value.inputs
    )
