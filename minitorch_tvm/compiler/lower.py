"""From a fused kernel to the expressions of its loops.

:class:`KernelCode` gives schedules what they work with: the kernel's buffers, its reads as
functions of an index, and a way to finish an output element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from ..core import strides as st
from ..core.record import record
from ..core.shape import Shape, contiguous_strides, numel
from ..ir.graph import Graph, Value
from ..ir.kernel import FusedGraph, Kernel
from ..ir.op import Kind
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import reduction as rd
from ..ops.attention import ATTENTION, Attention, AttentionBackward
from ..ops.gather import Take
from ..ops.matmul import Matmul
from ..ops.recurrent import STEPWISE
from .dialect import Lazy, Reduce, Scope, index_key
from .loops import Builder, Expr, Memory, Stmt, load, pointer_buffer, store
from .target import CpuTarget


@record(frozen=False)
class KernelCode:
    """One kernel being scheduled."""

    graph: Graph
    kernel: Kernel
    overwrites: tuple[int, ...]  # inputs whose place outputs take: nothing may be computed twice
    passes: bool  # and the anchor's value is stored, but read by no other kernel
    builder: Builder = field(default_factory=Builder)
    buffers: dict[int, Memory | Any] = field(default_factory=dict)  # by value, in its own shape

    def buffer(self, v: int, shape: Shape | None = None) -> Memory:
        """The memory of value ``v`` (several shapes of one value are several declarations)."""
        value = self.graph.values[v]
        key = v
        if shape is not None and shape != value.shape:
            key = self._collapsed.setdefault((v, shape), -1 - len(self._collapsed))
        if key not in self.buffers:
            own = value.shape if shape is None else shape
            memory = pointer_buffer(own, value.dtype.name, f"b{v}", self._wide)
            self.buffers[key] = replace(memory, overwritten=v in self.overwrites)
        return self.buffers[key]

    def below(self, v: int) -> set[int]:
        """The memory that ``v`` is computed from."""
        seen, waiting = {v}, [v]
        while waiting:
            v = waiting.pop()
            if not self.is_memory(v):
                new = {*self.graph.values[v].inputs} - seen
                seen |= new
                waiting.extend(new)
        return {v for v in seen if self.is_memory(v)}

    def tell(self, memory: Iterable[int], shapes: Collapse, sizes: Sequence[Expr]) -> None:
        """Have stages know merged dimensions of memory by what they are told, see :mod:`.loops`.

        Before anything is read or stored: how far lines are apart is then not in the code.
        """
        for v in memory:
            value = self.graph.values[v]
            own = shapes.of(value.shape)
            buffer = self.buffer(v, own)
            known = tuple(1 if n == 1 else size for n, size in zip(own, sizes, strict=True))
            key = v if own == value.shape else self._collapsed[v, own]
            self.buffers[key] = replace(buffer, shape=known)

    _collapsed: dict[tuple[int, Shape], int] = field(default_factory=dict)

    @property
    def _wide(self) -> bool:
        """Whether positions are computed in 64 bits: where LLVM itself looks for vectors."""
        return self.kernel.anchor is None or isinstance(self.anchor.op, rd.Reduction)

    def value_of(self, buffer: Any) -> int | None:
        """The graph value that a buffer declared here belongs to (None: scratch)."""
        names = {number: v for (v, _), number in self._collapsed.items()}
        for key, own in self.buffers.items():
            if own.same_as(buffer):
                return names.get(key, key)
        return None

    @property
    def anchor(self) -> Value:
        """The reduction, product or convolution of the kernel."""
        assert self.kernel.anchor is not None
        return self.graph.values[self.kernel.anchor]

    def evaluator(self, scope: Scope, shapes: Collapse | None = None) -> Evaluator:
        """A fresh evaluator of this kernel's values in ``scope``."""
        return Evaluator(self, scope, shapes)

    def is_memory(self, v: int) -> bool:
        """True if ``v`` is read from memory here."""
        return v in self.kernel.reads

    def strides(self, v: int) -> tuple[int, ...] | None:
        """Elements of memory between neighbours along each dimension, if ``v`` is only read there.

        That is memory, as it stands or through permutations, slices and broadcasts; None if
        something is computed, or if the distance differs from place to place.
        """
        value = self.graph.values[v]
        if self.is_memory(v):
            return contiguous_strides(value.shape)
        op = value.op
        if not isinstance(op, (mv.Permute, mv.Slice, mv.Expand, mv.Reshape)):
            return None
        (x,) = value.inputs
        known, own = self.strides(x), self.graph.values[x].shape
        if known is None:
            return None
        if isinstance(op, mv.Permute):
            return st.permuted(own, known, op.dims)
        if isinstance(op, mv.Slice):
            return st.sliced(own, known, op.steps, tuple(range(len(own))))
        if isinstance(op, mv.Expand):
            return st.expanded(own, known, value.shape)
        return st.viewed(own, known, value.shape)

    def anchor_reduce(self) -> Reduce:
        """The anchor's reduction over inputs evaluated in a throwaway scope (for its extents)."""
        return self.evaluator(Scope()).reduction()

    def finish(self, index: tuple[Expr, ...], value: Expr, shapes: Collapse | None = None) -> Stmt:
        """Statements that store everything the kernel stores, at one index of the anchor's result.

        ``value`` is the anchor's element; the epilogue is computed from it.
        """
        scope = Scope()
        e = self.evaluator(scope, shapes)
        e.preset(self.kernel.anchor, index, scope.keep(value))
        return e.store_all(index)


@record
class Collapse:
    """A view of the kernel with adjacent dimensions merged.

    ``groups`` lists, for the full shape, which dimensions become one; every read of a value in the
    kernel covers each group fully or not at all.
    """

    full: Shape
    groups: tuple[tuple[int, ...], ...]
    identity: bool = False  # nothing could be merged: values keep their own shapes

    @property
    def shape(self) -> Shape:
        """The merged full shape."""
        return self.of(self.full)

    def of(self, shape: Shape) -> Shape:
        """The merged form of a shape that broadcasts to the full one."""
        lead = len(self.full) - len(shape)
        padded = (1,) * lead + shape
        return tuple(numel(tuple(padded[d] for d in group)) for group in self.groups)


class Evaluator:
    """Reads values of a kernel at an index, computing what is not in memory."""

    def __init__(self, code: KernelCode, scope: Scope, shapes: Collapse | None) -> None:
        self.code = code
        self.scope = scope
        self.shapes = None if shapes is None or shapes.identity else shapes
        self._memo: dict[tuple[object, ...], Expr] = {}

    def preset(self, v: int | None, index: tuple[Expr, ...], value: Expr) -> None:
        """Declare the element of ``v`` at ``index`` as known."""
        self._memo[(v, index_key(index))] = value

    def _shape(self, v: Value) -> Shape:
        return v.shape if self.shapes is None else self.shapes.of(v.shape)

    def tensor(self, v: int) -> Lazy:
        """Value ``v`` as a function of its index."""
        value = self.code.graph.values[v]
        return Lazy(self._shape(value), value.dtype, lambda *i: self.read(v, i))

    def read(self, v: int, index: tuple[Expr, ...]) -> Expr:
        """The element of ``v`` at ``index``."""
        key = (v, index_key(index))
        known = self._memo.get(key)
        if known is not None:
            return known
        value = self.code.graph.values[v]
        if self.code.is_memory(v):
            element = load(self.code.buffer(v, self._shape(value)), *index)
        else:
            element = self._compute(v, value, index)
        if not self.scope.guarded:
            element = self._memo[key] = self.scope.keep(element)
        return element

    def _compute(self, v: int, value: Value, index: tuple[Expr, ...]) -> Expr:
        if isinstance(value.op, mv.Full):
            return self.scope.literal(value.op.value, value.dtype)
        inputs = [self.tensor(x) for x in value.inputs]
        if self.shapes is not None and isinstance(value.op, mv.Expand):
            return ew.at(inputs[0], self._shape(value), index)
        if self.shapes is not None and isinstance(value.op, mv.Reshape):
            return inputs[0][index]
        result: Any = value.op.compute(self.scope, *inputs)
        assert isinstance(result, Lazy), f"{value.op} cannot be computed inside another kernel"
        return result[index]

    def reduction(self) -> Reduce:
        """The anchor as a reduction over its inputs."""
        anchor = self.code.anchor
        result: Any = anchor.op.compute(self.scope, *[self.tensor(x) for x in anchor.inputs])
        assert isinstance(result, Reduce)
        return result

    def store_all(self, index: tuple[Expr, ...], more: Callable[[], list[Stmt]] = list) -> Stmt:
        """Store every value the kernel stores, at ``index``, and do ``more`` beside it."""
        kernel, values = self.code.kernel, self.code.graph.values
        writes = []
        for v in kernel.members:
            value, at = values[v], index
            if isinstance(value.op, mv.Permute) and value.inputs[0] in kernel.members:
                element = self.read(value.inputs[0], index)
                at = tuple(index[d] for d in value.op.dims)
            else:
                element = self.read(v, index)
            if v in kernel.stores:
                writes.append(store(self.code.buffer(v, self._shape(value)), element, *at))
        # Reads come before writes: an output may stand on the memory of an input.
        return self.scope.body(*writes, *more())


class Reader(Evaluator):
    """Reads values that were computed before from where they were ``held``, at one index each."""

    def __init__(self, code: KernelCode, scope: Scope, held: dict[int, Expr]) -> None:
        super().__init__(code, scope, None)
        self.held = held

    def read(self, v: int, index: tuple[Expr, ...]) -> Expr:
        if v not in self.held:
            return super().read(v, index)
        if not self.scope.guarded:
            self.held[v] = self.scope.keep(self.held[v])
        return self.held[v]


def collapse(
    code: KernelCode, full: Shape, values: tuple[int, ...], reduced: tuple[int, ...] = ()
) -> Collapse:
    """Merge adjacent dimensions of ``full`` that every read below ``values`` treats alike.

    Dimensions in ``reduced`` are merged among themselves only.  Elementwise ops and broadcasts
    qualify; any op that computes with indices (slices, transposes, random bits) keeps all
    dimensions apart.
    """
    graph = code.graph
    apart = Collapse(full, tuple((d,) for d in range(len(full))), identity=True)
    shapes: set[Shape] = set()
    stack = list(values)
    seen: set[int] = set()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        value = graph.values[v]
        if len(value.shape) > len(full):
            return apart
        shapes.add((1,) * (len(full) - len(value.shape)) + value.shape)
        if code.is_memory(v) or v == code.kernel.anchor:
            continue
        if (
            value.op.elementwise
            or isinstance(value.op, (mv.Expand, mv.Full))
            or (isinstance(value.op, mv.Reshape) and _aligned(graph, value))
        ):
            stack.extend(value.inputs)
        else:
            return apart
    groups: list[tuple[int, ...]] = []
    for d, n in enumerate(full):
        joins = bool(groups) and (d in reduced) == (groups[-1][0] in reduced)
        joins = joins and all(
            _covers(s, full, groups[-1]) == _covers(s, full, (d,))
            or n == 1
            or all(full[x] == 1 for x in groups[-1])
            for s in shapes
        )
        if joins:
            groups[-1] = (*groups[-1], d)
        else:
            groups.append((d,))
    return Collapse(full, tuple(groups))


def _covers(shape: Shape, full: Shape, dims: tuple[int, ...]) -> bool:
    return all(shape[d] == full[d] for d in dims)


def _aligned(graph: Graph, value: Value) -> bool:
    """True if a reshape only adds leading sizes of one (broadcasting would do the same)."""
    source = graph.values[value.inputs[0]].shape
    return value.shape[len(value.shape) - len(source) :] == source


def flops(graph: Graph, kernel: Kernel) -> int:
    """Arithmetic operations of the kernel's anchor (2 per multiply-add)."""
    return 0 if kernel.anchor is None else flops_of(graph, graph.values[kernel.anchor])


def flops_of(graph: Graph, v: Value) -> int:
    """Those of a reduction, product or convolution."""
    if isinstance(v.op, ATTENTION):
        return _attention_flops(*(graph.values[i].shape for i in v.inputs), op=v.op)
    if isinstance(v.op, STEPWISE):
        shape, weight = (graph.values[i].shape for i in v.inputs[:2])
        return 2 * shape[0] * shape[1] * numel(weight)
    if v.op.kind is Kind.COMPLEX:
        x, w = (graph.values[i] for i in v.inputs)
        out = numel(v.shape)
        name = v.op.name
        if isinstance(v.op, Matmul):
            return 2 * out * (x.shape[-2] if v.op.ta else x.shape[-1])
        if name == "Conv2d":
            return 2 * out * numel(w.shape[1:])
        if name == "ConvGradInput":
            return 2 * numel(x.shape) * numel(w.shape[1:])
        return 2 * numel(w.shape) * numel(v.shape[1:])
    return sum(numel(graph.values[i].shape) for i in v.inputs)


def _attention_flops(*shapes: Shape, op: Attention | AttentionBackward) -> int:
    back = isinstance(op, AttentionBackward)
    q, k, v = shapes[2:5] if back else shapes[:3]
    # Of scores, their gradients and what these make of queries and keys; of values.
    each = 3 * q[-1] + 2 * v[-1] if back else q[-1] + v[-1]
    queries, keys = q[-2], k[-2]
    hidden = min(queries, keys)
    hidden = keys * hidden - hidden * (hidden + 1) // 2 if op.causal else 0
    return 2 * numel(q[:-2]) * (queries * keys - hidden) * each


def bytes_moved(fused: FusedGraph, kernel: Kernel) -> int:
    """Bytes read from and written to memory, each element counted once.

    Of rows that are gathered so many count as there are positions, up to all: which they are is not
    known, nor which parts of a value overlap.
    """
    values = fused.graph.values
    read = {fused.root(r): 0 for r in kernel.reads}
    for v in {*kernel.inlined, *kernel.members}:
        value = values[v]
        for position, x in enumerate(value.inputs):
            root = fused.root(x)
            if root not in read:
                continue
            part = isinstance(value.op, mv.Slice) or (isinstance(value.op, Take) and position == 0)
            shape = value.shape if part else values[x].shape
            read[root] += numel(shape) * values[x].dtype.itemsize
    read_bytes = sum(min(nbytes, values[r].nbytes) for r, nbytes in read.items())
    return read_bytes + sum(values[v].nbytes for v in kernel.stores)


# Vector instructions per vector: of an op, of an elementary function, and of a multiply-add with
# what is issued beside it.
_PLAIN, _ELEMENTARY, _MULTIPLY = 1.0, 10.0, 0.7
_CACHED_BYTES = 48  # that one core moves in a cycle, out of the second-level cache
_VECTOR_RULES = (
    "rows",
    "transpose",
    "elementwise",
    "product",
    "reduction",
    "attention",
    "recurrence",
)


def cycles(fused: FusedGraph, kernel: Kernel, rule: str, cpu: CpuTarget) -> float:
    """About how long one core needs for a kernel that a schedule of name ``rule`` made."""
    values, anchor = fused.graph.values, kernel.anchor
    arithmetic = 0.0
    for v in {*kernel.inlined, *kernel.members}:
        value = values[v]
        elements = max(map(numel, (value.shape, *(values[x].shape for x in value.inputs))))
        each = _ELEMENTARY if isinstance(value.op, ew.Float) else _PLAIN
        multiplies = isinstance(value.op, (*STEPWISE, *ATTENTION))
        if v == anchor and (multiplies or value.op.kind is Kind.COMPLEX):
            elements, each = flops(fused.graph, kernel) // 2, _MULTIPLY
        lanes = cpu.lanes(value.dtype.itemsize) if rule in _VECTOR_RULES else 1
        arithmetic += elements * each / lanes
    written = sum(values[v].nbytes for v in kernel.stores)  # brought before and taken away
    return max(arithmetic, (bytes_moved(fused, kernel) + written) / _CACHED_BYTES)


Accessor = Callable[..., Expr]


def accessor(code: KernelCode, v: int) -> Accessor:
    """``f(*index)``: the element of value ``v`` in a scope of its own (nothing is shared)."""

    def read(*index: Expr) -> Expr:
        scope = _Inline()
        return code.evaluator(scope).read(v, tuple(index))

    return read


class _Inline(Scope):
    """A scope that binds nothing: expressions are written out where they are used."""

    def keep(self, x: Expr) -> Expr:
        return x
