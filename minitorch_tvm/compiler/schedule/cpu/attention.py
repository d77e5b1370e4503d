"""Attention and its gradients, without storing scores.

Pattern: Attention and AttentionBackward.  Strategy: a tile takes some queries of a head, computes
their scores with all keys that they see into memory of its own, makes weights of them there, and
multiplies these with the values.  Gradients take some keys of a head, for which they keep sums,
through all queries that see them: weights are computed again, from each query's largest score and
sum of exponentials.  Sums for queries go on from one part of the keys to the next; where several
tiles share the keys of a head, their sums are added in the end.

Keys and values are copied first, as lines and as panels, so that a register tile reads vectors.
Products are functions of their own, compiled apart.

Panels that a causal mask hides from all queries of a tile are left out; masks, and what is behind
the last key, make scores of -inf.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod

from ....core.shape import numel
from ....core.tvm_api import tvm
from ....ops.attention import Attention, AttentionBackward
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    bind,
    const,
    grid,
    load,
    local_buffer,
    maximum,
    minimum,
    number,
    seq,
    serial,
    store,
    when,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .attention_sizes import Sizes
from .attention_tiles import Tiles
from .conv_layout import div, mod, split


class _Forward(Tiles):
    """Weighted values, and for gradients each query's largest score and factor."""

    def __init__(self, code: KernelCode, cpu: CpuTarget, op: Attention) -> None:
        operands = code.anchor.inputs
        super().__init__(code, op, _sizes(code, operands, op.causal, cpu, False), operands)
        self.keeps = op.keeps

    def stages(self) -> list[Stage]:
        z = self.z
        turned = self.panels_of(z.width, "turned")
        last = self.stage("attention", z.blocks, lambda tile: self.tile(tile, turned))
        return [self.packing([(self.keys, turned, z.width)]), last]

    def tile(self, tile: Expr, turned: Memory) -> Stmt:
        z = self.z
        head, block = split(tile, z.blocks)
        # Those that see most keys first: the last ones to be done should be short.
        first, know = bind("first", (z.blocks - 1 - block) * z.rows)
        lines = local_buffer((z.rows, z.whole(z.width)), z.dtype, "lines")
        scores = local_buffer((z.rows, z.line), z.dtype, "scores")
        sums = local_buffer((z.rows, z.whole(z.values)), z.dtype, "sums")
        panels: Expr = const(z.panels)
        if z.causal:
            panels = minimum(div(first + (z.rows + z.panel - 1), z.panel), z.panels)
        count, know_count = bind("count", panels)
        factor = local_buffer((z.rows,), z.dtype, "factor")
        return seq(
            know,
            know_count,
            [alloc(m) for m in (lines, scores, sums, factor)],
            self.fetch(self.scaled, head, first, lines, z.width),
            self.multiply(lines, turned, head, const(0), count, scores),
            serial(
                z.rows, lambda r: self.weigh(head, first, r, count * z.panel, scores, factor), "r"
            ),
            grid((z.rows, z.whole(z.values)), lambda r, c: store(sums, self.zero, r, c)),
            self.combine(scores, self.lines, head, const(0), count * z.panel, sums),
            serial(
                minimum(z.queries - first, z.rows),
                lambda r: self.finish(head, first, r, sums, factor),
                "r",
            ),
        )

    def weigh(
        self, head: Expr, first: Expr, r: Expr, count: Expr, scores: Memory, factor: Memory
    ) -> Stmt:
        """Exponentials of a query's scores, and what they are to be multiplied by."""
        z, t = self.z, tvm().tirx
        i, know = bind("i", first + r)
        lowest = const(float("-inf"), z.dtype)
        top, total = (local_buffer((z.lanes,), z.dtype, name) for name in ("top", "total"))

        def score(j: Expr, lane: Expr) -> Stmt:
            scope = Scope()
            value = self.score(scope, load(scores, r, j), head, i, j)
            best = t.max(load(top, lane), value)
            return scope.body(store(scores, value, r, j), store(top, best, lane))

        def nothing(j: Expr) -> Stmt:
            return store(scores, self.zero, r, z.keys + j)

        known = local_buffer((1,), z.dtype, "known")
        # Without a mask, scores of -inf are not hidden: their row is NaN.
        blind = t.EQ(load(top, 0), lowest) if self.mask is not None else const(0, "bool")

        def exponential(j: Expr, lane: Expr) -> Stmt:
            scope = Scope()
            own = scope.keep(load(scores, r, j))
            e = scope.exp(scope.keep(scope.sub(own, load(known, 0))))
            e = scope.keep(e)
            return scope.body(store(scores, e, r, j), store(total, load(total, lane) + e, lane))

        scope = Scope()
        seen = scope.keep(t.Select(blind, const(1.0, z.dtype), load(total, 0)))
        own = scope.keep(scope.div(const(1.0, z.dtype), seen))
        stores = [store(factor, own, r)]
        if self.keeps:
            kept = [
                store(self.result, value, self.kept(which, head, i))
                for which, value in enumerate((load(known, 0), own))
            ]
            stores.append(when(i < z.queries, seq(kept)))
        behind = z.padded - z.keys
        return seq(
            know,
            [alloc(m) for m in (top, total, known)],
            serial(z.lanes, lambda n: store(top, lowest, n), "n"),
            serial(z.lanes, lambda n: store(total, self.zero, n), "n"),
            self.along(count, score, z.keys),
            self.together(top, t.max),
            store(known, t.Select(blind, self.zero, load(top, 0)), 0),
            self.along(count, exponential, z.keys),
            when(count > z.keys, serial(behind, nothing, "j")) if behind else [],
            self.together(total, operator.add),
            scope.body(*stores),
        )

    def finish(self, head: Expr, first: Expr, r: Expr, sums: Memory, factor: Memory) -> Stmt:
        z = self.z
        i, know = bind("i", first + r)
        start, know_start = self.place(0, z.queries, z.values, head, i)

        def element(c: Expr, _: Expr) -> Stmt:
            value = load(sums, r, c) * load(factor, r)
            return store(self.result, value, start + c)

        return seq(know, know_start, self.along(const(z.whole(z.values)), element, z.values))


class _Backward(Tiles):
    """Gradients of queries, keys and values."""

    def __init__(self, code: KernelCode, cpu: CpuTarget, op: AttentionBackward) -> None:
        ct, y, *operands = code.anchor.inputs
        z = _sizes(code, operands, op.causal, cpu, True)
        super().__init__(code, op, z, operands)
        self.ct = self.reader(ct)
        self.y = y

    def known(self, scope: Scope, place: Expr) -> Expr:
        """An element of what the forward pass gave."""
        return scope.keep(self.code.evaluator(scope).read(self.y, (place,)))

    def stages(self) -> list[Stage]:
        z = self.z
        keys, values = self.panels_of(z.width, "keys"), self.panels_of(z.values, "values")
        partial = None
        if z.splits > 1:
            shape = (z.splits, z.heads, z.blocks * z.rows, z.whole(z.width))
            partial = self.code.builder.scratch_buffer(shape, z.dtype, "partial")
        main = self.stage(
            "attention_back", z.splits, lambda tile: self.tile(tile, keys, values, partial)
        )
        turned = [(self.keys, keys, z.width), (self.lines, values, z.values)]
        stages = [self.packing(turned), main]
        if partial is not None:
            memory = partial
            stages.append(
                self.stage("attention_sum", z.blocks, lambda tile: self.total(tile, memory))
            )
        return stages

    def tile(self, tile: Expr, keys: Memory, values: Memory, partial: Memory | None) -> Stmt:
        z = self.z
        # The first keys, which most queries see, first.  Of one split, how many heads there are is
        # not part of the code.
        part, head = split(tile, z.heads) if z.splits > 1 else (const(0), tile)
        width, depth = z.whole(z.width), z.whole(z.values)

        def local(*shape: int, name: str) -> Memory:
            return local_buffer(shape, z.dtype, name)

        q, ct = local(z.rows, width, name="q"), local(z.rows, depth, name="ct")
        weights, back = (local(z.rows, z.line, name=name) for name in ("weights", "back"))
        dq = local(z.rows, width, name="dq")
        dk, dv = local(z.chunk, width, name="dk"), local(z.chunk, depth, name="dv")
        of_rows = local(3, z.rows, name="of_rows")
        begin, know_begin = bind("begin", part * z.own)
        end, know_end = bind("end", minimum(begin + z.own, z.padded))

        def some_keys(chunk: Expr) -> Stmt:
            first, know_first = bind("first", begin + chunk * z.chunk)
            here, know_here = bind("here", minimum(end - first, z.chunk))
            start = div(first, z.rows) if z.causal else const(0)

            def some_queries(n: Expr) -> Stmt:
                block = start + n
                i, know_i = bind("i", block * z.rows)
                count: Expr = here
                if z.causal:
                    count = minimum(
                        div(i + (z.rows + z.panel - 1) - first, z.panel) * z.panel, here
                    )
                seen, know_seen = bind("seen", count)
                panel = div(first, z.panel)
                panels = div(seen, z.panel)

                def columns(source: Memory, lines: Memory, to: Memory) -> Stmt:
                    return self.add_columns(source, lines, div(seen, z.mr), to)

                return seq(
                    know_i,
                    know_seen,
                    self.fetch(self.scaled, head, i, q, z.width),
                    self.fetch(self.ct, head, i, ct, z.values),
                    serial(z.rows, lambda r: self.row(head, i, r, ct, of_rows), "r"),
                    self.multiply(q, keys, head, panel, panels, weights),
                    self.multiply(ct, values, head, panel, panels, back),
                    serial(
                        z.rows,
                        lambda r: self.weigh(head, i, r, first, seen, weights, back, of_rows),
                        "r",
                    ),
                    columns(weights, ct, dv),
                    columns(back, q, dk),
                    grid((z.rows, width), lambda r, c: store(dq, self.zero, r, c)),
                    self.combine(back, self.keys, head, first, seen, dq),
                    self.put_queries(head, block, dq, partial, part, chunk),
                )

            def clear(memory: Memory) -> Stmt:
                return grid((here, memory.shape[-1]), lambda j, c: store(memory, self.zero, j, c))

            return seq(
                know_first,
                know_here,
                clear(dk),
                clear(dv),
                serial(maximum(z.blocks - start, 0), some_queries, "block"),
                self.put_keys(head, first, here, dk, dv),
            )

        chunks = div(end - begin + (z.chunk - 1), z.chunk)
        return seq(
            know_begin,
            know_end,
            [alloc(m) for m in (q, ct, weights, back, dq, dk, dv, of_rows)],
            serial(chunks, some_keys, "chunk"),
        )

    def row(self, head: Expr, first: Expr, r: Expr, ct: Memory, of_rows: Memory) -> Stmt:
        """A query's largest score, infinite behind the last one, the mean of its cotangents, and
        what its weights are multiplied by."""
        z, t = self.z, tvm().tirx
        i, know = bind("i", minimum(first + r, z.queries - 1))
        total = local_buffer((z.lanes,), z.dtype, "total")
        start, know_start = self.place(0, z.queries, z.values, head, i)

        def element(c: Expr, lane: Expr) -> Stmt:
            scope = Scope()
            product = load(ct, r, c) * self.known(scope, start + c)
            return scope.body(store(total, load(total, lane) + product, lane))

        scope = Scope()
        top, factor = (self.known(scope, self.kept(which, head, i)) for which in (0, 1))
        inside = t.Select(first + r < z.queries, top, const(float("inf"), z.dtype))
        return seq(
            know,
            know_start,
            alloc(total),
            serial(z.lanes, lambda n: store(total, self.zero, n), "n"),
            self.along(const(z.whole(z.values)), element, z.values),
            self.together(total, operator.add),
            scope.body(
                store(of_rows, inside, 0, r),
                store(of_rows, load(total, 0), 1, r),
                store(of_rows, factor, 2, r),
            ),
        )

    def weigh(
        self,
        head: Expr,
        block: Expr,
        r: Expr,
        first: Expr,
        count: Expr,
        weights: Memory,
        back: Memory,
        of_rows: Memory,
    ) -> Stmt:
        """Make weights of scores, and cotangents of scores of those of weights."""
        z = self.z
        i, know = bind("i", block + r)

        def one(n: Expr, _: Expr) -> Stmt:
            scope = Scope()
            score = self.score(scope, load(weights, r, n), head, i, first + n)
            e = scope.keep(scope.exp(scope.keep(scope.sub(score, load(of_rows, 0, r)))))
            weight = scope.keep(scope.mul(e, load(of_rows, 2, r)))
            change = scope.keep(scope.sub(load(back, r, n), load(of_rows, 1, r)))
            own = scope.keep(scope.mul(weight, change))
            return scope.body(store(back, own, r, n), store(weights, weight, r, n))

        def nothing(n: Expr) -> Stmt:
            return seq(store(back, self.zero, r, n), store(weights, self.zero, r, n))

        if z.padded == z.keys:
            return seq(know, self.vectors(div(count, z.lanes), one))
        live, know_live = bind("live", minimum(count, maximum(z.keys - first, 0)))
        vectors = div(live, z.lanes)
        return seq(
            know,
            know_live,
            self.vectors(vectors, one),
            serial(mod(live, z.lanes), lambda n: one(vectors * z.lanes + n, n), "rest"),
            serial(count - live, lambda n: nothing(live + n), "n"),
        )

    def add_columns(self, source: Memory, lines: Memory, count: Expr, to: Memory) -> Stmt:
        """Add columns of ``source``, turned, times lines of queries."""
        z = self.z

        def tile(j: Expr) -> Stmt:
            columns, rows = load(source, 0, j * z.mr), const(z.rows)
            return self.add(z.turned, columns, (lines, (0,)), to, j * z.mr, rows)

        return serial(count, tile, "j")

    def put_queries(
        self,
        head: Expr,
        block: Expr,
        dq: Memory,
        partial: Memory | None,
        part: Expr,
        chunk: Expr,
    ) -> Stmt:
        """Add to the gradient of some queries; the first keys begin it."""
        z = self.z
        sizes = (z.queries, z.width)

        def line(r: Expr) -> Stmt:
            i, know = bind("i", block * z.rows + r)
            if partial is None:
                memory, (start, know_start) = self.result, self.place(0, *sizes, head, i)
            else:
                memory, start, know_start = partial, None, seq()

            def where(c: Expr) -> tuple[Expr, ...]:
                return (part, head, i, c) if start is None else (start + c,)

            def own(c: Expr) -> Expr:
                return load(dq, r, c) * const(self.op.scale, z.dtype)

            def begin(c: Expr, _: Expr) -> Stmt:
                return store(memory, own(c), *where(c))

            def add(c: Expr, _: Expr) -> Stmt:
                return store(memory, load(memory, *where(c)) + own(c), *where(c))

            whole = const(z.whole(z.width))
            every = [self.along(whole, body, z.width) for body in (begin, add)]
            return seq(know, know_start, when(chunk < 1, *every))

        return serial(minimum(z.queries - block * z.rows, z.rows), line, "r")

    def put_keys(self, head: Expr, first: Expr, here: Expr, dk: Memory, dv: Memory) -> Stmt:
        z = self.z
        of_keys = z.heads * z.queries * z.width
        of_values = of_keys + z.heads * z.keys * z.width

        def put(source: Memory, begin: Expr, width: int) -> Stmt:
            def line(j: Expr) -> Stmt:
                start, know = self.place(begin, z.keys, width, head, first + j)

                def element(c: Expr, _: Expr) -> Stmt:
                    return store(self.result, load(source, j, c), start + c)

                return seq(know, self.along(const(z.whole(width)), element, width))

            live = minimum(here, maximum(z.keys - first, 0))
            return serial(live, line, "j")

        keys, values = number(of_keys, "of_keys"), number(of_values, "of_values")
        return seq(put(dk, keys, z.width), put(dv, values, z.values))

    def total(self, tile: Expr, partial: Memory) -> Stmt:
        """The gradient of some queries from its parts; of keys that see none there is no part."""
        z = self.z
        head, block = split(tile, z.blocks)
        parts: Expr = const(z.splits)
        if z.causal:
            parts = minimum(div(block * z.rows + (z.rows - 1), z.own) + 1, z.splits)
        count, know_count = bind("parts", parts)

        def line(r: Expr) -> Stmt:
            i, know = bind("i", block * z.rows + r)
            start, know_start = self.place(0, z.queries, z.width, head, i)

            def element(c: Expr) -> Stmt:
                own = local_buffer((1,), z.dtype, "own")

                def add(n: Expr) -> Stmt:
                    return store(own, load(own, 0) + load(partial, n + 1, head, i, c), 0)

                return seq(
                    alloc(own),
                    store(own, load(partial, 0, head, i, c), 0),
                    serial(count - 1, add, "n"),
                    store(self.result, load(own, 0), start + c),
                )

            return seq(know, know_start, serial(z.width, element, "c"))

        rows = minimum(z.queries - block * z.rows, z.rows)
        return seq(know_count, serial(rows, line, "r"))


def _sizes(
    code: KernelCode, operands: Sequence[int], causal: bool, cpu: CpuTarget, gradients: bool
) -> Sizes:
    q, k, v = (code.graph.values[x].shape for x in operands[:3])
    sizes = (prod(q[:-2]), q[-2], k[-2], q[-1], v[-1])
    return Sizes.of(cpu, code.anchor.dtype, sizes, causal, gradients)


def attention(code: KernelCode, cpu: CpuTarget) -> list[Stage]:
    """Stages of attention, or of its gradients."""
    op = code.anchor.op
    assert isinstance(op, (Attention, AttentionBackward))
    if numel(code.anchor.shape) == 0:
        return []
    kernel = _Forward(code, cpu, op) if isinstance(op, Attention) else _Backward(code, cpu, op)
    return kernel.stages()
