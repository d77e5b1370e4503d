"""Group values into kernels by the four kinds of ops.

* An injective value is *inlined* into its readers when recomputing it is cheap.
* A reduction, product or convolution *anchors* a kernel; elementwise followers of its shape join.
* An injective value that must be stored joins the kernel of a value it reads at its own index, or
  starts an elementwise kernel that others may join.  A product's kernel may store its lines in
  another order.
* A reshape of something stored is another name for the same memory; where it is a result, what is
  computed is stored there at once.
* Kernels that work on the same rows are merged (:mod:`.fuse_rows`).
* A long chain of elementwise values is several kernels, so that compile time is linear in it.

A reduction or product is never computed twice, and no kernel ever waits for itself: a value joins
a kernel only if nothing else that it reads depends on that kernel.
"""

from __future__ import annotations

from ..core.record import record
from ..core.shape import numel
from ..ir.graph import Graph, Value
from ..ir.kernel import FusedGraph, Kernel
from ..ir.op import Kind
from ..ops import conv as cv
from ..ops import elementary as el
from ..ops import elementwise as ew
from ..ops import movement as mv
from ..ops import pool as pl
from ..ops import special as sp
from ..ops.attention import ATTENTION
from ..ops.matmul import Matmul
from ..ops.random import BoxMuller, RandomBits
from ..ops.recurrent import STEPWISE
from .fuse_rows import merge_rows
from .groups import LARGEST, Group, Grouping, order

# Rough cost of recomputing one element, in simple instructions.
_COST: dict[type, int] = {
    ew.Exp: 20,
    ew.Log: 25,
    ew.Tanh: 30,
    ew.Sigmoid: 25,
    ew.Erf: 25,
    ew.NormalCdf: 35,
    ew.NormalDensity: 20,
    ew.Pow: 60,
    ew.Sin: 40,
    ew.Cos: 40,
    el.Elementary: 40,
    el.Fmod: 60,
    sp.Special: 60,
    el.Quotient: 60,
    el.IntegerQuotient: 25,
    ew.Div: 5,
    ew.Sqrt: 5,
    RandomBits: 120,
    BoxMuller: 70,
    mv.Full: 0,
    mv.Expand: 0,
    mv.Reshape: 1,
    mv.Permute: 0,
}
_CHEAP = 8  # a value of at most this cost may be recomputed by several readers
_LONGEST = 64  # inlined values per chain; keeps expressions and compile time bounded

_MOVES = (mv.Expand, mv.Permute, mv.Slice)  # an element each, from a place that is no quotient

# These read their input under a condition, where nothing can be bound to a variable: a long
# chain would be written out once per read.
_GUARDED = (mv.Insert, mv.Cat, cv.ConvBase, pl.PoolBase)
# These, too, read memory: else their code would depend on all sizes of how it is computed.
_FROM_MEMORY = (*_GUARDED, *STEPWISE, *ATTENTION)


@record(frozen=False)
class _Reads:
    """What evaluating a value reads: stored value -> always at the reader's own index."""

    direct: dict[int, bool]
    cost: int
    length: int


class _Fuser(Grouping):
    def __init__(self, graph: Graph, enabled: bool) -> None:
        super().__init__(graph)
        self.enabled = enabled
        self.users = graph.users()
        self.outputs = set(graph.outputs)  # and what has the memory of one
        donated = (out for out, _ in graph.donated)
        self.fixed = {graph.outputs[out] for out in (*donated, *graph.unread)}
        self.reads: dict[int, _Reads] = {}

    # --- helpers --------------------------------------------------------------------------

    def _same_index(self, reader: Value, source: Value) -> bool:
        return reader.op.elementwise and reader.shape == source.shape

    def collect(self, v: int) -> _Reads:
        """Reads of ``v`` if it were computed here."""
        known = self.reads.get(v)
        if known is not None:
            return known
        value = self.values[v]
        direct: dict[int, bool] = {}
        cost = _COST.get(type(value.op), 1)
        length = 1
        for x in value.inputs:
            source = self.values[x]
            same = self._same_index(value, source)
            if self.stored(x):
                r = self.root(x)
                same = same and self.values[r].shape == source.shape
                direct[r] = direct.get(r, True) and same
            else:
                inner = self.collect(x)
                cost += inner.cost
                length += inner.length
                for r, s in inner.direct.items():
                    direct[r] = direct.get(r, True) and s and same
        self.reads[v] = result = _Reads(direct, cost, length)
        return result

    def _needs(self, target: int, group: int) -> bool:
        """True if ``target`` (a group) depends on ``group``, directly or not."""
        stack, seen = [target], set()
        while stack:
            g = stack.pop()
            if g == group:
                return True
            if g not in seen:
                seen.add(g)
                stack.extend(self.depends[g])
        return False

    def _link(self, group: int, reads: _Reads) -> None:
        for r in reads.direct:
            g = self.group_of.get(r)
            if g is not None and g != group:
                self.depends[group].add(g)

    def _new_group(self, v: int, anchor: bool) -> None:
        reads = self.collect(v)
        number = len(self.groups)
        shape = self.values[v].shape
        self.groups.append(Group(v if anchor else None, shape, [v], reads.length))
        self.depends.append(set())
        self._link(number, reads)
        self.group_of[v] = number

    def _demands_memory(self, v: int) -> bool:
        """True if some reader cannot compute ``v`` in place.

        Products and convolutions read an element many times, guarded ops cannot share
        subexpressions, and a reshape that moves elements is free only as another name of memory.
        Every value is decided at its own turn, before any reader, so nothing is stored late.
        """
        simple = self._views(v) or (
            isinstance(self.values[v].op, (mv.Full, *_MOVES)) and self.collect(v).cost <= 1
        )
        for u in self.users[v]:
            reader = self.values[u]
            if reader.op.kind is Kind.COMPLEX or isinstance(reader.op, _FROM_MEMORY):
                moved = isinstance(reader.op, (mv.Cat, mv.Insert)) and self._flips(v)
                if not simple and not moved:
                    return True
            elif isinstance(reader.op, mv.Reshape) and (
                not self._only_ones(v, u) or self._demands_memory(u)
            ):
                return True
        return False

    def _views(self, v: int) -> bool:
        """True if ``v`` only says where in memory its elements are."""
        value = self.values[v]
        if isinstance(value.op, mv.Reshape):
            views = self._only_ones(value.inputs[0], v)
        else:
            views = isinstance(value.op, _MOVES)
        return views and all(self.stored(x) or self._views(x) for x in value.inputs)

    def _flips(self, v: int) -> bool:
        """True if ``v`` is something in memory backwards."""
        value = self.values[v]
        inside = value.inputs if isinstance(value.op, mv.Flip) else ()
        return bool(inside) and all(self.stored(x) or self._views(x) for x in inside)

    def _only_ones(self, x: int, v: int) -> bool:
        """True if reshaping ``x`` to ``v`` only adds or drops sizes of one."""
        kept = [n for n in self.values[x].shape if n != 1]
        return kept == [n for n in self.values[v].shape if n != 1]

    def store(self, v: int) -> None:
        """Give the injective value ``v`` memory: join a kernel or start one."""
        if v in self.group_of:
            return
        reads = self.collect(v)
        if self.enabled:
            for group in sorted({self.group_of[r] for r in reads.direct if r in self.group_of})[
                ::-1
            ]:
                turns = self._turns(v, group)
                if turns or self._joins(v, reads, group):
                    self.groups[group].turned = turns
                    self.groups[group].members.append(v)
                    self.groups[group].length += reads.length
                    self._link(group, reads)
                    self.group_of[v] = group
                    return
        self._new_group(v, anchor=False)

    def _turns(self, v: int, group: int) -> bool:
        """True if ``v`` is what a product's kernel computes, for nobody else, in another order of
        dimensions but for the last: its lines are stored elsewhere, and stay whole."""
        g, value = self.groups[group], self.values[v]
        if g.anchor is None or not isinstance(self.values[g.anchor].op, Matmul) or g.turned:
            return False
        if not isinstance(value.op, mv.Permute) or value.op.dims[-1] != len(value.shape) - 1:
            return False
        (x,) = value.inputs
        return x in g.members and x not in self.outputs and self.users[x] == [v]

    def _joins(self, v: int, reads: _Reads, group: int) -> bool:
        g = self.groups[group]
        if g.turned or g.shape != self.values[v].shape or not self.values[v].op.elementwise:
            return False
        if g.length + reads.length > LARGEST:
            return False
        if g.anchor is not None and self.values[g.anchor].op.kind is Kind.OPAQUE:
            return False
        for r, same in reads.direct.items():
            other = self.group_of.get(r)
            if other == group:
                if not same:
                    return False
            elif other is not None and self._needs(other, group):
                return False
        return True

    # --- the pass -------------------------------------------------------------------------

    def run(self) -> None:
        for v, value in enumerate(self.values):
            if value.is_leaf:
                continue
            if value.op.kind is not Kind.INJECTIVE:
                self._new_group(v, anchor=True)
            elif isinstance(value.op, mv.Reshape) and self._is_name(v):
                self._reshape(v)
            elif v in self.outputs or not self.enabled or self._must_store(v):
                self.store(v)

    def _is_name(self, v: int) -> bool:
        """True if the reshape ``v`` needs no memory of its own, if what it is of has any.

        A result does not where the other is none, nor given under another name, nor left out.
        """
        if v not in self.outputs:
            return True
        (x,) = self.values[v].inputs
        r = self.root(x)
        if not self.enabled or r not in self.group_of or r in self.outputs or v in self.fixed:
            return False
        self.outputs.add(r)
        return True

    def _reshape(self, v: int) -> None:
        (x,) = self.values[v].inputs
        if self.stored(x):
            self.alias[v] = self.root(x)

    def _must_store(self, v: int) -> bool:
        """Decide between recomputing ``v`` in every reader and storing it once."""
        value = self.values[v]
        readers = self.users[v]
        reads = self.collect(v)
        if reads.length > _LONGEST or self._demands_memory(v):
            return True
        if isinstance(value.op, _GUARDED) and len(readers) > 1:
            return True
        if self._finishes(v, reads) or self._narrows(v, reads):
            return True
        if len(readers) == 1:
            return False
        # Whole values that each reader would read again: a sum of residuals, and its sums, would
        # otherwise be written out in every layer behind them.
        whole = sum(numel(self.values[r].shape) == numel(value.shape) for r in reads.direct)
        count = len(set(readers))
        if whole * count > whole + 1 + count:
            return True
        larger = any(
            self.values[r].op.kind is Kind.INJECTIVE
            and numel(self.values[r].shape) > numel(value.shape)
            for r in readers
        )
        return reads.cost > _CHEAP or (larger and reads.cost > 1)

    def _finishes(self, v: int, reads: _Reads) -> bool:
        """True if ``v`` is the one continuation of an anchored kernel: it joins it as epilogue."""
        for r, same in reads.direct.items():
            group = self.group_of.get(r)
            if group is None or not same or self.groups[group].anchor is None:
                continue
            # Every other reader of r reads v instead, so r itself needs no memory.
            alone = r not in self.outputs and all(
                u == v or self._inlined_into(u, v) for u in self.users[r]
            )
            if alone and self._joins(v, reads, group):
                return True
        return False

    def _narrows(self, v: int, reads: _Reads) -> bool:
        """True if several values of one kernel need no memory once ``v`` is computed there.

        What backward passes make of an activation is often a function of several values that the
        forward pass computed together: one array instead of two or more.
        """
        by_group: dict[int, list[int]] = {}
        for r, same in reads.direct.items():
            group = self.group_of.get(r)
            if group is not None and same and self.values[r].shape == self.values[v].shape:
                by_group.setdefault(group, []).append(r)
        return any(
            len(found) > 1
            and sum(self._only_for(r, v, group) for r in found) > 1
            and self._joins(v, reads, group)
            for group, found in by_group.items()
        )

    def _only_for(self, r: int, v: int, group: int) -> bool:
        """True if of what is computed outside ``group`` only ``v`` needs ``r``."""
        waiting, seen = [r], {r}
        while waiting:
            value = waiting.pop()
            if value in self.outputs:
                return False
            for u in self.users[value]:
                if u == v or self.group_of.get(u) == group or u in seen:
                    continue
                if u > v or self.stored(u):
                    return False
                seen.add(u)
                waiting.append(u)
        return True

    def _inlined_into(self, u: int, v: int) -> bool:
        """True if ``u`` is an unstored value that only ``v`` (through others) reads."""
        if self.stored(u) or u in self.outputs or u > v:
            return False
        return all(w == v or self._inlined_into(w, v) for w in self.users[u])


def fuse(graph: Graph, enabled: bool = True, row_bytes: int = 256 << 10) -> FusedGraph:
    """Group the values of a canonical graph into kernels, in execution order.

    With ``enabled`` off every op is a kernel of its own (``MTVM_FUSE=0``).  Kernels that work row
    by row do so on rows of at most ``row_bytes`` of one value.
    """
    f = _Fuser(graph, enabled)
    f.run()
    if enabled:
        merge_rows(f, row_bytes)
    first = f.first()
    kernels: dict[int, Kernel] = {}
    for number, group in enumerate(f.groups):
        kernels[number] = _kernel(f, number, group)
    stores = _stores(f, kernels)
    depends = [set(d) for d in f.depends]
    in_place = _in_place(f, kernels, depends)
    ordered = order(depends, first)
    assert ordered is not None, "fusion made a cycle"
    final = tuple(
        Kernel(
            kernels[g].anchor,
            kernels[g].members,
            kernels[g].inlined,
            kernels[g].reads,
            tuple(m for m in kernels[g].members if m in stores),
            kernels[g].rows,
        )
        for g in ordered
    )
    return FusedGraph(graph, final, dict(f.alias), in_place)


def _kernel(f: _Fuser, number: int, group: Group) -> Kernel:
    """Walk from the members to what they read from memory."""
    reads: list[int] = []
    inlined: list[int] = []
    members = set(group.members)
    seen: set[int] = set()
    stack = [x for m in group.members for x in f.values[m].inputs]
    while stack:
        x = stack.pop()
        if x in seen or x in members:
            continue
        seen.add(x)
        # Another name of what is computed here is no memory to read.
        if f.stored(x) and f.root(x) not in members:
            reads.append(x)
        else:
            inlined.append(x)
            stack.extend(f.values[x].inputs)
    return Kernel(
        group.anchor,
        tuple(sorted(group.members)),
        tuple(sorted(inlined)),
        tuple(sorted(reads)),
        (),
        group.rows,
    )


def _stores(f: _Fuser, kernels: dict[int, Kernel]) -> set[int]:
    """Values that somebody reads from memory, or that are results."""
    needed = {f.root(o) for o in f.graph.outputs}
    for kernel in kernels.values():
        needed.update(f.root(r) for r in kernel.reads if not f.values[f.root(r)].is_leaf)
    return needed


def _reaches(after: list[set[int]], start: int, goals: set[int]) -> bool:
    """True if any of ``goals`` waits for ``start``, directly or not."""
    seen = {start}
    stack = [start]
    while stack:
        for g in after[stack.pop()] - seen:
            if g in goals:
                return True
            seen.add(g)
            stack.append(g)
    return False


def _in_place(f: _Fuser, kernels: dict[int, Kernel], depends: list[set[int]]) -> dict[int, int]:
    """Outputs that may overwrite their donor: the writer reads it at its own index only, and
    every other reader can run before (``depends`` gets those edges)."""
    result: dict[int, int] = {}
    after: list[set[int]] = [set() for _ in depends]
    for g, sources in enumerate(depends):
        for source in sources:
            after[source].add(g)
    readers: dict[int, set[int]] = {}
    for g, k in kernels.items():
        for r in k.reads:
            readers.setdefault(f.root(r), set()).add(g)
    taken: set[int] = set()
    for out, donor in f.graph.donated:
        v = f.graph.outputs[out]
        writer = f.group_of.get(v)
        if writer is None or donor in taken:
            continue
        group = f.groups[writer]
        member_reads: dict[int, bool] = {}
        for m in group.members:
            f.reads.pop(m, None)
            for r, same in f.collect(m).direct.items():
                member_reads[r] = member_reads.get(r, True) and same
        if not member_reads.get(donor, True):
            continue
        # The donor may also be read under another name (a reshape of it): not at the own index.
        if any(f.root(r) == donor and r != donor for r in kernels[writer].reads):
            continue
        before = readers.get(donor, set()) - {writer}
        # Usually nobody waits for the writer, an optimizer's update, so this costs next to nothing.
        if not _reaches(after, writer, before):
            depends[writer].update(before)
            for g in before:
                after[g].add(writer)
            result[out] = donor
            taken.add(donor)
    return result
