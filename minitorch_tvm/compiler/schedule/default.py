"""TVM's own lowering: every op an unscheduled tensor expression (``MTVM_SCHEDULE=default``).

Nothing is fused, vectorised or parallel beyond what TVM and LLVM do by themselves.  This is what
schedules are compared with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core.dtype import DType
from ...core.shape import Shape
from ...core.tvm_api import tvm
from ...ops.random import RandomBits
from ...ops.special import Special
from ..dialect import Lazy, Reduce, Scope
from ..loops import Stage, const, var
from ..lower import KernelCode
from ..scalars import unless
from ..target import CpuTarget
from .cpu import deferred
from .cpu.combine import Combine
from .cpu.elementwise import elementwise


class _Plain(Scope):
    """The dialect with TVM's functions: nothing is bound, elementary functions are libm's."""

    def keep(self, x: Any) -> Any:
        return x

    def not_equal(self, a: Any, b: Any) -> Any:
        return unless(tvm().tirx.EQ(a, b))

    def _elementary(self, name: str, x: Any) -> Any:
        return self._by_library(name, x)

    def _fmod(self, x: Any, y: Any) -> Any:
        return self._called("fmod", x, y)

    def pow(self, x: Any, y: Any) -> Any:
        return self._called("pow", x, y)


def _placeholder(shape: Shape, dtype: DType, name: str) -> Any:
    return tvm().te.placeholder(shape or (1,), dtype.name, name)


def _copied(tensor: Any) -> Any:
    return tvm().te.compute(tensor.shape, lambda *i: tensor[i], name="again")


def _lazy(source: Any, shape: Shape, dtype: DType) -> Lazy:
    def read(*index: Any) -> Any:
        return source(*[const(i) if isinstance(i, int) else i for i in index or (0,)])

    return Lazy(shape, dtype, read)


def _compute(result: Lazy | Reduce, name: str) -> Any:
    te = tvm().te
    shape = result.shape or (1,)

    def own(index: tuple[Any, ...]) -> tuple[Any, ...]:
        return index if result.shape else ()

    if isinstance(result, Lazy):
        return te.compute(shape, lambda *i: result[own(i)], name=name)
    combine = Combine(result.combine, result.dtype)
    start = combine.start()
    if 0 in result.extents:
        return te.compute(shape, lambda *i: start[-1], name=name)
    axes = [te.reduce_axis((0, n), f"r{d}") for d, n in enumerate(result.extents)]

    def term(*i: Any) -> Any:
        return result.fn(own(i), tuple(a.var for a in axes))

    if not combine.indexed:
        reducer = te.comm_reducer(
            lambda x, y: combine.take((x,), y)[0], lambda _: start[0], name=result.combine
        )
        return te.compute(shape, lambda *i: reducer(term(*i), axis=axes), name=name)

    def position() -> Any:
        flat: Any = const(0, "int64")
        for n, a in zip(result.extents, axes, strict=True):
            flat = flat * const(n, "int64") + a.var.astype("int64")
        return flat

    indexed = te.comm_reducer(
        lambda x, y: combine.take(x, y[0], y[1]), lambda *_: start, name=result.combine
    )
    _, where = te.compute(shape, lambda *i: indexed((term(*i), position()), axis=axes), name=name)
    return where


_STEPWISE = (
    *(deferred.scan, deferred.leader, deferred.paths, deferred.sort, deferred.recurrence),
    *(deferred.attention, deferred.factor, deferred.orthogonal, deferred.spectra),
)


def schedule(code: KernelCode, cpu: CpuTarget) -> tuple[str, list[Stage]]:
    """One serial stage: the kernel as TVM lowers it."""
    graph, kernel = code.graph, code.kernel
    computed = sorted({*kernel.inlined, *kernel.members})
    if any(isinstance(graph.values[i].op, (RandomBits, Special)) for i in computed):
        # Many steps on shared values: tensor expressions cannot name a value inside an element,
        # so written out it would double with every step.
        stages = elementwise(code, cpu)
        assert stages is not None
        return "default", stages
    # What goes from element to element, a tensor expression cannot say.  Without vectors, as TVM's
    # own passes take those of a cell's variables apart.
    for rule in _STEPWISE:
        stages = rule(code, replace(cpu, vector_bytes=1))
        if stages is not None:
            return "default", stages
    tensors: dict[int, Any] = {}
    for r in kernel.reads:
        v = graph.values[r]
        tensors[r] = _placeholder(v.shape, v.dtype, f"in{r}")
    for i in computed:
        v = graph.values[i]
        sources: list[Any] = []
        for n, x in enumerate(v.inputs):
            # Of what is read twice, a copy: TVM's simplifier makes 0 of x - x, and true of x == x.
            sources.append(_copied(tensors[x]) if x in v.inputs[:n] else tensors[x])
        inputs = [
            _lazy(source, graph.values[x].shape, graph.values[x].dtype)
            for source, x in zip(sources, v.inputs, strict=True)
        ]
        result: Any = v.op.compute(_Plain(), *inputs)
        tensors[i] = _compute(result, f"v{i}")
    if any(0 in graph.values[s].shape for s in kernel.stores):
        return "default", []
    order = [*kernel.reads, *kernel.stores]
    function = tvm().te.create_prim_func([tensors[v] for v in order])
    code.buffers.update(zip(order, function.params, strict=True))
    return "default", [Stage("default", 1, var("tile"), function.body)]
