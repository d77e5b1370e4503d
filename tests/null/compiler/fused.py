"""What every fused graph must satisfy, checked by brute force."""

from __future__ import annotations

import numpy as np

from minitorch_tvm.ir.kernel import FusedGraph, Kernel
from minitorch_tvm.ir.op import Kind
from minitorch_tvm.ops.reduction import Reduction


def check_fused(found: FusedGraph, *, whole: bool = True) -> None:
    """Order, completeness, no double work, and overwritten leaves read by nobody later.

    ``whole`` also demands that nothing is stored in vain.
    """
    graph = found.graph
    written: set[int] = set()
    computed: list[int] = []
    overwritten: dict[int, int] = {}
    takers = {graph.outputs[out]: leaf for out, leaf in found.in_place.items()}
    for number, kernel in enumerate(found.kernels):
        available = set(kernel.reads)
        for r in kernel.reads:
            root = found.root(r)
            if graph.values[root].is_leaf:
                assert root not in overwritten, f"k{number} reads %{root} after it was overwritten"
            else:
                assert root in written, f"k{number} reads %{root} before it is written"
        for v in sorted({*kernel.members, *kernel.inlined}):
            inputs = graph.values[v].inputs
            assert all(x in available for x in inputs), f"k{number} lacks inputs of %{v}"
            available.add(v)
            if v in kernel.inlined:
                assert graph.values[v].op.kind is Kind.INJECTIVE, f"%{v} is recomputed"
        anchors = [m for m in kernel.members if graph.values[m].op.kind is not Kind.INJECTIVE]
        if kernel.rows is None:
            assert anchors == ([] if kernel.anchor is None else [kernel.anchor])
        else:
            _check_rows(found, kernel, number)
        assert set(kernel.stores) <= set(kernel.members)
        computed += kernel.members
        assert not written & set(kernel.stores)
        written |= set(kernel.stores)
        for s in kernel.stores:
            if s in takers:
                overwritten[takers[s]] = number
    assert len(computed) == len(set(computed)), "a value is computed by two kernels"
    results = [found.root(o) for o in graph.outputs]
    assert len(results) == len(set(results)), "two results have one memory"
    assert set(results) <= written
    if whole:
        read = {found.root(r) for k in found.kernels for r in k.reads}
        assert written <= read | set(results), "stored for nobody"


def _check_rows(found: FusedGraph, kernel: Kernel, number: int) -> None:
    """Nothing that a kernel computes for one row depends on what it computes for another.

    Members are computed from numbers by each op's reference.  Whatever memory holds may then change
    in one row of one member: no other row of any later member may.
    """
    values, rows = found.graph.values, kernel.rows
    assert rows is not None
    assert kernel.anchor is None
    assert set(rows.places) == set(kernel.members)
    computed = sorted({*kernel.inlined, *kernel.members})
    for v in kernel.members:
        op = values[v].op
        assert op.kind is Kind.INJECTIVE or isinstance(op, Reduction), f"k{number}: %{v}"
    row_of = np.broadcast_to(
        np.arange(rows.count).reshape(
            [n if d in rows.kept else 1 for d, n in enumerate(rows.shape)]
        ),
        rows.shape,
    )

    def rows_of(m: int) -> np.ndarray:
        """For each element of a member, the row it belongs to."""
        flat = row_of if rows.spread(rows.places[m]) else np.arange(rows.count)
        return flat.reshape(values[m].shape)

    # What an element may depend on is a set of rows, as bits of a Python integer.
    rank = np.vectorize(lambda r: 1 << int(r), otypes=[object])
    depends: dict[int, np.ndarray] = {}
    for v in computed:
        marks = [depends.get(x) for x in values[v].inputs]
        if all(m is None for m in marks):
            flow = None
        else:
            flow = _flow(found, v, marks)
        if v in rows.places:
            own = rank(rows_of(v))
            if flow is not None:
                assert ((flow | own) == own).all(), f"k{number}: %{v} reads another row"
            flow = own
        if flow is not None:
            depends[v] = flow


def _flow(found: FusedGraph, v: int, marks: list[np.ndarray | None]) -> np.ndarray:
    """Which rows each element of ``v`` depends on, found by moving bit sets like elements."""
    value = found.graph.values[v]
    shapes = [found.graph.values[x].shape for x in value.inputs]
    nothing = np.zeros((), object)
    filled = [
        np.broadcast_to(nothing if m is None else m, s) for m, s in zip(marks, shapes, strict=True)
    ]
    if value.op.elementwise:
        out = np.zeros(value.shape, object)
        for f in filled:
            out = out | f
        return out
    if isinstance(value.op, Reduction):
        flow = np.bitwise_or.reduce(filled[0], axis=value.op.dims, keepdims=value.op.keepdim)
        return np.asarray(flow, object).reshape(value.shape)
    # Moves (and gathers by fixed numbers): the reference moves objects as it moves numbers.
    return np.asarray(value.op.reference(np, *filled), object)
