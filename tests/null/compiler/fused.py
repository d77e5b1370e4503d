"""What every fused graph must satisfy, checked by brute force."""

from __future__ import annotations

from minitorch_tvm.ir.kernel import FusedGraph
from minitorch_tvm.ir.op import Kind


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
        assert anchors == ([] if kernel.anchor is None else [kernel.anchor])
        assert set(kernel.stores) <= set(kernel.members)
        computed += kernel.members
        assert not written & set(kernel.stores)
        written |= set(kernel.stores)
        for s in kernel.stores:
            if s in takers:
                overwritten[takers[s]] = number
    assert len(computed) == len(set(computed)), "a value is computed by two kernels"
    assert set(graph.outputs) <= written
    if whole:
        read = {found.root(r) for k in found.kernels for r in k.reads}
        assert written <= read | set(graph.outputs), "stored for nobody"
