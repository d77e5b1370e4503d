"""Find triangular products: those of matrices that are hidden right of their diagonal.

Causal attention says ``where(column <= row, scores, -inf)``.  From there on it is known what stands
right of the diagonal: a constant, whatever is computed from it element by element, and 0 in the
weights.  Products with these need half of their terms, and of products that are hidden behind them,
half of the elements are not needed.

Before::

    %5 = Where(%4, %3, %2) : float32[8, 8]          # %4: column <= row, %2: -inf
    %6 = Exp(%5) : float32[8, 8]
    %7 = Matmul(ta=False, tb=False)(%6, %1) : float32[8, 4]

After, %7 is ``TriangularMatmul(ta=False, tb=False, left=lower, right=, result=)``: row i of %6 ends
with column i.

A constant times what is computed is taken for what it is for finite numbers: 0 for 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..core.record import record
from ..ir.graph import Graph, Value
from ..ir.kernel import FusedGraph, Kernel
from ..ir.op import Kind, intern
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.matmul import Matmul

Hidden = dict[int, float]
"""By value: what it is right of the diagonal of its matrices."""

_NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
"""By reduction: what changes nothing."""


@record(eq=False)
class TriangularMatmul(Matmul, kind=Kind.COMPLEX):
    """Matmul of operands with triangles of zeros, or of whose result not all is wanted.

    ``left`` and ``right`` say where A and B, as they are multiplied, are not 0: ``"lower"``, on and
    left of the diagonal, ``"upper"``, on and right of it, ``""``, anywhere; ``result`` where the
    product is wanted: elsewhere it is any finite number.  No zero needs to be multiplied, so an
    infinity that only meets zeros need not make a NaN.
    """

    left: str
    right: str
    result: str


def products(graph: Graph, hidden: Hidden) -> Graph:
    """The same graph, with what is known of its products."""
    values = graph.values
    if not hidden:
        return graph
    unseen = _unseen(graph, hidden)
    found = list(values)
    for i, v in enumerate(values):
        if type(v.op) is not Matmul:
            continue
        a, b = (hidden.get(x) == 0 for x in v.inputs)
        left = ("upper" if v.op.ta else "lower") if a else ""
        right = ("upper" if v.op.tb else "lower") if b else ""
        result = "lower" if i in unseen else ""
        if left or right or result:
            op = intern(TriangularMatmul(v.op.ta, v.op.tb, left, right, result))
            found[i] = Value(op, v.inputs, v.shape, v.dtype, v.place)
    return replace(graph, values=tuple(found))


def row_kernels(fused: FusedGraph, hidden: Hidden) -> FusedGraph:
    """The same kernels; those that go through rows are told what need not be walked over."""
    if not hidden:
        return fused
    hidden = _unread(fused.graph, hidden)
    return replace(
        fused, kernels=tuple(_told(fused.graph.values, k, hidden) for k in fused.kernels)
    )


def _unread(graph: Graph, hidden: Hidden) -> Hidden:
    """Those of which nobody reads what is hidden, but triangular products and sums of zeros.

    To whoever does, it is what it is computed to be: NaN in a row of NaN, say.
    """
    values, users, outputs = graph.values, graph.users(), set(graph.outputs)
    found: Hidden = {}

    def reads(user: int, i: int) -> bool:
        op = values[user].op
        if isinstance(op, rd.Reduction):
            return _NEUTRAL.get(op.combine) != hidden[i]
        return user not in found and not isinstance(op, TriangularMatmul)

    for i in sorted(hidden, reverse=True):
        if i not in outputs and not any(reads(user, i) for user in users[i]):
            found[i] = hidden[i]
    return found


def _told(values: Sequence[Value], kernel: Kernel, hidden: Hidden) -> Kernel:
    rows = kernel.rows
    if rows is None or len(rows.shape) < 2 or rows.reduced != (len(rows.shape) - 1,):
        return kernel
    if rows.shape[-2] == 1:
        return kernel
    found = []
    for m in kernel.members:
        op = values[m].op
        if isinstance(op, rd.Reduction):
            neutral = _NEUTRAL.get(op.combine)
            if neutral is None or hidden.get(values[m].inputs[0]) != neutral:
                return kernel
        elif rows.spread(rows.places[m]) and m in kernel.stores:
            if m not in hidden or values[m].shape != rows.shape:
                return kernel
            found.append((m, hidden[m]))
    return replace(kernel, rows=replace(rows, hidden=tuple(found)))


def _is_mask(values: Sequence[Value], i: int) -> bool:
    """Whether that is ``column <= row``."""
    v = values[i]
    if not isinstance(v.op, ew.Le) or len(v.shape) < 2:
        return False
    ops, last = [values[x].op for x in v.inputs], len(v.shape) - 1
    return all(
        isinstance(op, mv.Iota) and op.dim == dim and op.shape == v.shape
        for op, dim in zip(ops, (last, last - 1), strict=True)
    )


def hidden_in(graph: Graph) -> Hidden:
    """What stands right of the diagonal of matrices, where it is one number."""
    values = graph.values
    known: Hidden = {}
    masks = {i for i in range(len(values)) if _is_mask(values, i)}
    if not masks:
        return known
    for i, v in enumerate(values):
        if not v.op.elementwise or not v.dtype.is_floating_point:
            continue
        numbers: list[float | None] = []
        for x in v.inputs:
            op = values[x].op
            if isinstance(op, mv.Full):
                numbers.append(float(op.value))
            elif values[x].shape[-2:] == v.shape[-2:]:
                numbers.append(known.get(x))
            else:
                numbers.append(None)
        number = _result(v, numbers) if any(x in known for x in v.inputs) else None
        if isinstance(v.op, ew.Where):
            hides = v.inputs[0] in masks and values[v.inputs[0]].shape[-2:] == v.shape[-2:]
            seen, number = numbers[1:] if hides else (None, None)
            # Of zeros that somebody wrote there, products with infinities are NaN.
            if number not in (-math.inf, seen):
                number = None
        if number is not None and not math.isnan(number):
            known[i] = number
    return known


def _result(v: Value, numbers: Sequence[float | None]) -> float | None:
    """What an op makes of these numbers, where None is finite and not known; None if unknown."""
    if None in numbers:
        zero = isinstance(v.op, ew.Mul) and 0 in numbers
        if zero or (isinstance(v.op, ew.Div) and numbers[0] == 0):
            return 0.0
        lowest = isinstance(v.op, ew.Sub) and numbers[0] == -math.inf
        return -math.inf if lowest else None
    with np.errstate(all="ignore"):
        return float(v.op.reference(np, *[np.asarray(n, v.dtype.name) for n in numbers]))


def _unseen(graph: Graph, hidden: Hidden) -> set[int]:
    """Values of which nobody sees what stands right of the diagonal."""
    values, found = graph.values, set[int]()
    users = graph.users()
    outputs = set(graph.outputs)

    def looks(user: int, i: int) -> bool:
        v = values[user]
        if not v.op.elementwise or v.shape[-2:] != values[i].shape[-2:]:
            return True
        if user in found:
            return False
        if isinstance(v.op, ew.Where) and _is_mask(values, v.inputs[0]):
            hides = values[v.inputs[0]].shape[-2:] == v.shape[-2:]
            return not hides or v.inputs[2] == i
        if isinstance(v.op, ew.Mul):
            zeros = (x for x in v.inputs if x != i and hidden.get(x) == 0)
            return not any(values[x].shape[-2:] == v.shape[-2:] for x in zeros)
        return True

    for i in reversed(range(len(values))):
        v = values[i]
        read = len(v.shape) >= 2 and users[i] and i not in outputs
        if read and not any(looks(user, i) for user in users[i]):
            found.add(i)
    return found
