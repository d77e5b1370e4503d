"""What attention and its gradients share: copies of keys and values, products, scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....core.tvm_api import tvm
from ....ops.attention import Attention, AttentionBackward
from ...dialect import Scope
from ...loops import (
    Expr,
    Helper,
    Memory,
    Stage,
    Stmt,
    bind,
    const,
    grid,
    load,
    maximum,
    minimum,
    number,
    parallel_stage,
    ramp,
    seq,
    serial,
    store,
    vectorized,
    when,
)
from ...lower import KernelCode
from .attention_sizes import TERMS, Sizes
from .conv_layout import div, mod, split, transpose_rows
from .elementwise import unravel

Read = Callable[[Scope, Expr, Expr, Expr], Expr]
"""An element of a head: by its number, the position and the column."""

Body = Callable[[Expr, Expr], Stmt]
"""What is done with an element of a row, and in which lane."""


class Tiles:
    """What both directions share."""

    def __init__(
        self, code: KernelCode, op: Attention | AttentionBackward, z: Sizes, operands: Sequence[int]
    ) -> None:
        self.code, self.op, self.z = code, op, z
        q, k, v, *masks = operands
        self.outer = code.graph.values[q].shape[:-2]
        self.q, self.k, self.v = map(self.reader, (q, k, v))
        self.mask = masks[0] if masks else None
        assert code.kernel.anchor is not None
        result = code.buffer(code.kernel.anchor)
        self.result = replace(result, shape=(result.count,))
        self.zero = const(0.0, z.dtype)
        # Of what the forward pass gives, how much are results, and how many queries there are.
        self.results = number(z.heads * z.queries * z.values, "results")
        self.rows = number(z.heads * z.queries, "rows")
        builder = code.builder

        def copied(width: int, name: str) -> Memory:
            shape = (z.heads, z.padded, z.whole(width))
            return builder.scratch_buffer(shape, z.dtype, name)

        self.keys, self.lines = copied(z.width, "keys"), copied(z.values, "values")

    def head(self, head: Expr) -> tuple[Expr, ...]:
        """A head's index in all dimensions but the last two."""
        return unravel(head, self.outer)

    def reader(self, v: int) -> Read:
        """Elements of an operand."""

        def read(scope: Scope, head: Expr, position: Expr, column: Expr) -> Expr:
            index = (*self.head(head), position, column)
            return scope.keep(self.code.evaluator(scope).read(v, index))

        return read

    def scaled(self, scope: Scope, head: Expr, position: Expr, column: Expr) -> Expr:
        """An element of a query, times the scale of scores."""
        value = self.q(scope, head, position, column)
        return scope.keep(scope.mul(value, const(self.op.scale, self.z.dtype)))

    def place(self, first: Expr, n: int, width: int, head: Expr, i: Expr) -> tuple[Expr, Stmt]:
        """Where line i of a part of the result begins, which begins at ``first`` itself."""
        across = self.outer[-1] if self.outer else 1
        line = (div(head, across) * n + i) * across + mod(head, across)
        return bind("start", first + line * width)

    def together(self, memory: Memory, take: Callable[[Expr, Expr], Expr]) -> Stmt:
        """Lane 0 becomes what all lanes make."""
        return serial(
            self.z.lanes - 1,
            lambda n: store(memory, take(load(memory, 0), load(memory, n + 1)), 0),
            "n",
        )

    def copied(
        self, read: Read, head: Expr, position: Expr, width: int, to: Memory, *line: Expr
    ) -> Stmt:
        """Copy a line of an operand, followed by zeros."""
        whole = to.shape[-1]

        def element(c: Expr, _: Expr) -> Stmt:
            scope = Scope()
            return scope.body(store(to, read(scope, head, position, c), *line, c))

        copy = self.along(const(whole), element, width)
        return seq(copy, self.blank(to, *line, first=width))

    def blank(self, to: Memory, *line: Expr, first: int = 0) -> Stmt:
        """Zeros in a line, from ``first`` on."""
        rest = to.shape[-1] - first
        zeros = serial(rest, lambda c: store(to, self.zero, *line, first + c), "c")
        return zeros if rest else seq()

    def kept(self, which: int, head: Expr, i: Expr) -> Expr:
        """Where the largest score of a query is kept, 0, and what its weights are multiplied by."""
        first = self.results + self.rows if which else self.results
        return first + head * self.z.queries + i

    def along(self, count: Expr, body: Body, most: int) -> Stmt:
        """``body`` of ``count`` elements of a row, whole vectors, and of those up to ``most``."""
        lanes = self.z.lanes
        whole = most // lanes

        parts = self.vectors(minimum(div(count, lanes), whole), body)
        rest = most % lanes
        if not rest:
            return parts
        last = serial(rest, lambda n: body(whole * lanes + n, n), "rest")
        return seq(parts, when(count > whole * lanes, last))

    def vectors(self, count: Expr, body: Body) -> Stmt:
        """``body`` of all elements of so many vectors."""
        lanes = self.z.lanes
        if lanes == 1:
            return serial(count, lambda n: body(n, const(0)), "n")

        # In float64, elementary functions are calls, one for each element.
        loop = vectorized if self.z.dtype == "float32" else serial

        def vector(q: Expr) -> Stmt:
            return loop(lanes, lambda lane: body(q * lanes + lane, lane), "lane")

        return serial(count, vector, "vector")

    def packing(self, turned: Sequence[tuple[Memory, Memory, int]]) -> Stage:
        """Copy keys and values as lines, and of ``turned`` (lines, panels, width) as panels."""
        z = self.z

        def lines(head: Expr, first: Expr, read: Read, to: Memory, width: int) -> Stmt:
            def line(n: Expr) -> Stmt:
                j, know = bind("j", first + n)
                copy = self.copied(read, head, j, width, to, head, j)
                return seq(know, when(j < z.keys, copy, self.blank(to, head, j)))

            return serial(z.panel, line, "n")

        def turn(head: Expr, panel: Expr, source: Memory, to: Memory, width: int) -> Stmt:
            if z.lanes == 1:
                return grid(
                    (width, z.panel),
                    lambda c, n: store(
                        to, load(source, head, panel * z.panel + n, c), head, panel, c, n
                    ),
                )

            def square(half: Expr, c: Expr) -> Stmt:
                def fill(block: Memory, r: Expr) -> Stmt:
                    at = ramp(c * z.lanes, z.lanes)
                    line = load(source, head, panel * z.panel + half * z.lanes + r, at)
                    return store(block, line, r, ramp(0, z.lanes))

                def put(column: Expr, vector: Expr) -> Stmt:
                    at = ramp(half * z.lanes, z.lanes)
                    return store(to, vector, head, panel, c * z.lanes + column, at)

                return transpose_rows(z.lanes, z.dtype, fill, put)

            return grid((2, z.whole(width) // z.lanes), square)

        def one(tile: Expr) -> Stmt:
            head, panel = split(tile, z.panels)
            first = panel * z.panel
            return seq(
                lines(head, first, self.k, self.keys, z.width),
                lines(head, first, self.v, self.lines, z.values),
                [turn(head, panel, *what) for what in turned],
            )

        return self.stage("attention_pack", z.panels, one)

    def stage(self, name: str, each: int, body: Callable[[Expr], Stmt]) -> Stage:
        """A stage of so many tiles for each head.

        Of their number TVM sees no more than that positions are those of memory: fewer heads share
        what is compiled.
        """
        z = self.z
        most = max(z.heads, z.most_heads) * each

        def bounded(tile: Expr) -> Stmt:
            index, know = bind("index", minimum(maximum(tile, 0), most - 1))
            return seq(know, body(index))

        return parallel_stage(name, z.heads * each, bounded)

    def panels_of(self, width: int, name: str) -> Memory:
        """Memory for panels."""
        z = self.z
        shape = (z.heads, z.panels, z.whole(width), z.panel)
        return self.code.builder.scratch_buffer(shape, z.dtype, name)

    def fetch(self, read: Read, head: Expr, first: Expr, to: Memory, width: int) -> Stmt:
        """Copy the lines of some queries; behind the last query, its line again."""
        z = self.z

        def line(r: Expr) -> Stmt:
            i, know = bind("i", minimum(first + r, z.queries - 1))
            return seq(know, self.copied(read, head, i, width, to, r))

        return serial(z.rows, line, "r")

    def multiply(
        self, lines: Memory, panels: Memory, head: Expr, first: Expr, count: Expr, to: Memory
    ) -> Stmt:
        """Scores of some queries: their ``lines`` times ``count`` panels from the ``first`` on."""
        z = self.z
        width = lines.shape[-1]
        helper = z.scores(width)

        def panel(p: Expr, r: Expr) -> Stmt:
            return call(
                helper,
                load(lines, r * z.mr, 0),
                load(panels, head, first + p, 0, 0),
                load(to, r * z.mr, p * z.panel),
                const(width),
            )

        return grid((count, z.rows // z.mr), panel, "p")

    def combine(
        self, scores: Memory, source: Memory, head: Expr, first: Expr, count: Expr, to: Memory
    ) -> Stmt:
        """Add scores times ``count`` lines of ``source`` from the ``first`` on."""
        z = self.z

        def some(block: Expr) -> Stmt:
            start = block * TERMS
            terms = minimum(count - start, TERMS)

            def tile(r: Expr) -> Stmt:
                scores_here = load(scores, r * z.mr, start)
                lines = (source, (head, first + start))
                return self.add(z.combined, scores_here, lines, to, r * z.mr, terms)

            return serial(z.rows // z.mr, tile, "r")

        return serial(div(count + (TERMS - 1), TERMS), some, "block")

    def add(
        self,
        product: Callable[[int, int], Helper],
        left: Expr,
        lines: tuple[Memory, tuple[Expr, ...]],
        to: Memory,
        row: Expr,
        terms: Expr,
    ) -> Stmt:
        """Add to a register tile's rows of ``to`` a product with lines, from some place on."""
        width, (source, place) = to.shape[-1], lines
        return seq(
            [
                call(
                    product(width, vectors),
                    left,
                    load(source, *place, column),
                    load(to, row, column),
                    terms,
                )
                for column, vectors in self.z.parts(width)
            ]
        )

    def score(self, scope: Scope, raw: Expr, head: Expr, i: Expr, j: Expr) -> Expr:
        """A product as a score: masked.

        It is scaled already, as queries are: of a product here and the subtraction of the largest
        score LLVM makes one operation, where that score was rounded.
        """
        value = scope.keep(raw)
        hidden = const(float("-inf"), self.z.dtype)
        if self.mask is not None:
            mask = self.code.graph.values[self.mask]
            full = (*self.head(head), minimum(i, self.z.queries - 1), j)
            index = tuple(
                0 if n == 1 else at
                for n, at in zip(mask.shape, full[len(full) - len(mask.shape) :], strict=True)
            )
            own = scope.keep(self.code.evaluator(scope).read(self.mask, index))
            if mask.dtype.name == "bool":
                value = scope.keep(scope.select(own, value, hidden))
            else:
                value = scope.keep(scope.add(value, own))
        if self.op.causal:
            value = scope.keep(scope.select(j <= i, value, hidden))
        return value


def call(helper: Helper, *arguments: Expr) -> Stmt:
    *addresses, terms = arguments
    return helper.call(*map(tvm().tirx.address_of, addresses), terms)
