"""What kernels on whole matrices share: memory to work in, and products that are subtracted.

A matrix is worked on in rows of whole vectors, zeros behind what there is of them.  A tile owns
some matrices of a batch; one matrix is not divided among threads.  What takes n**3 steps is sums of
products in register tiles; the rest, of which a panel of some rows or columns is large enough to
make n**2 times its size, goes along rows, in vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dtype import DType
from ....core.record import record
from ....core.shape import Shape, numel
from ....core.tvm_api import tvm
from ...dialect import Scope
from ...loops import (
    Expr,
    Helper,
    Memory,
    Parts,
    Stage,
    Stmt,
    alloc,
    ceil_div,
    const,
    load,
    local_buffer,
    pointer_buffer,
    quotient,
    seq,
    serial,
    store,
    var,
)
from ...lower import KernelCode
from ...target import CpuTarget
from .elementwise import GRAIN, tiled, unravel
from .register_tile import Vectors, register_tile

PANEL = 32
"""Rows, or columns, that are factored before what is behind them."""
_NEAR = 24 << 10
"""Bytes of a matrix that is kept on the stack."""
_MANY_REGISTERS = 32
_FEW = 8
"""Rows, of one vector each, up to which nothing is called for a matrix."""
_APART = 512
"""Bytes from which on rows are an odd number of vectors apart: at even ones, lines of one column
share few places of a cache."""

Range = tuple[Expr, Expr]
"""The first and how many."""


class Work:
    """Rows of vectors in which a matrix [rows, columns] is worked on; one for each of a batch."""

    def __init__(
        self, code: KernelCode, cpu: CpuTarget, batch: int, shape: tuple[int, int], dtype: DType
    ) -> None:
        self.rows, columns = shape[0], max(1, shape[1])
        self.kind, self.dtype = dtype, dtype.name
        self.lanes = min(cpu.lanes(dtype.itemsize), 1 << (columns - 1).bit_length())
        self.count = ceil_div(columns, self.lanes)
        """Vectors of a row."""
        nbytes = self.count * self.lanes * dtype.itemsize
        self.width = (self.count + (nbytes >= _APART and self.count % 2 == 0)) * self.lanes
        most = 4 if cpu.vector_registers >= _MANY_REGISTERS else 2
        nv = min(most, self.count)
        mr = max(1, (cpu.vector_registers - nv - 1) // nv)
        self._sizes = (self.dtype, self.lanes, mr, nv)
        self.vectors = Vectors(self.dtype, self.lanes)
        whole = (self.rows, self.width)
        self._far = None
        if numel(whole) * dtype.itemsize > _NEAR:
            self._far = code.builder.scratch_buffer((batch, *whole), self.dtype, "work")

    def of(self, matrix: Expr) -> tuple[Memory, list[Stmt]]:
        """The memory for one matrix, and statements that make it all zeros."""
        if self._far is None:
            memory = local_buffer((self.rows, self.width), self.dtype, "work")
            made = [alloc(memory)]
        else:
            memory, made = self._far.part(matrix), []

        def clear(i: Expr) -> Stmt:
            return serial(
                self.width // self.lanes,
                lambda v: store(memory, self.vectors.zero, i, self.at(v)),
                "v",
            )

        return memory, [*made, serial(self.rows, clear)]

    def at(self, vector: Expr) -> Expr:
        """The index of a vector of a row."""
        return self.vectors.at(vector * self.lanes)

    def vector(self, column: Expr) -> Expr:
        """The number of the vector that a column is in."""
        return quotient(column, self.lanes)

    def behind(self, column: Expr) -> Range:
        """The vectors from the one on that a column is in."""
        first = self.vector(column)
        return first, self.count - first

    def along(self, vectors: Range, body: Callable[[Expr], Stmt]) -> Stmt:
        """``body`` for the index of each of some vectors of a row."""
        return serial(vectors[1], lambda v: body(self.at(vectors[0] + v)), "v")

    def subtract(
        self,
        memory: Memory,
        rows: Range,
        vectors: Range,
        terms: Range,
        left: Factor,
        right: tuple[Memory, Expr, Expr] | None = None,
    ) -> Stmt:
        """``memory[i, v] -= left[i, k] * memory[k, v]``, summed over k, of these rows and vectors.

        The terms' rows are others.  ``right``: a memory that is multiplied instead, how many rows
        the term 0 is behind its first one, and how many vectors the vector 0 is.
        """
        source, row, column = (memory, 0, 0) if right is None else right
        if self.count == 1 and self.rows <= _FEW:
            return self._plainly(memory, rows, terms, left, source, row)
        start = (rows[0], vectors[0] * self.lanes)
        first = (terms[0] + row, (vectors[0] + column) * self.lanes)
        addresses = (load(memory, *start), left.at(rows[0], terms[0]), load(source, *first))
        strides = (self._width(memory), left.down, left.along, self._width(source))
        t = tvm().tirx
        helper = _subtract(self._sizes, left.minus)
        return helper.call(*map(t.address_of, addresses), rows[1], vectors[1], terms[1], *strides)

    def _plainly(
        self, memory: Memory, rows: Range, terms: Range, left: Factor, source: Memory, row: Expr
    ) -> Stmt:
        """The same of matrices so small that a call takes longer."""
        whole = self.vectors.at(0)

        def term(i: Expr, k: Expr) -> Stmt:
            own, held = left.at(i, terms[0] + k), load(memory, i, whole)
            product = self.vectors.of(own) * load(source, terms[0] + row + k, whole)
            return store(memory, held + product if left.minus else held - product, i, whole)

        def one(i: Expr) -> Stmt:
            return serial(terms[1], lambda k: term(rows[0] + i, k), "k")

        return serial(rows[1], one, "i")

    @staticmethod
    def _width(memory: Memory) -> int:
        width = memory.shape[-1]
        assert isinstance(width, int)
        return width


@record
class Factor:
    """Elements that rows are multiplied by: ``at(i, k)`` is one, as a load; others lie so far on.

    ``down``: from one row to the next; ``along``: from a term to the next.  ``minus``: theirs are
    added, not subtracted.
    """

    at: Callable[[Expr, Expr], Expr]
    down: int
    along: int
    minus: bool = False


Sizes = tuple[str, int, int, int]
"""A dtype, its lanes, and rows and vectors of a register tile."""


def _subtract(sizes: Sizes, minus: bool) -> Helper:
    """What :meth:`Work.subtract` calls: compiled once for all kernels that do.

    Takes addresses of rows, of their factors and of what is multiplied, how many rows, vectors and
    terms there are, and how far apart rows, factors of rows, factors of terms, and terms are.
    """
    dtype, lanes, mr, nv = sizes

    def make() -> Parts:
        vectors = Vectors(dtype, lanes)
        own, left, right = (pointer_buffer((1,), dtype, name) for name in ("own", "left", "right"))
        counts = [var(name) for name in ("rows", "vectors", "terms")]
        apart = [var(name) for name in ("next", "down", "along", "further")]

        def tile(size: tuple[int, int], i: Expr, v: Expr) -> Stmt:
            def put(r: int, x: int, total: Expr) -> Stmt:
                at = vectors.at((i + r) * apart[0] + (v + x) * lanes)
                held = load(own, at)
                return store(own, held + total if minus else held - total, at)

            return register_tile(
                vectors,
                size,
                counts[2],
                lambda r, k: load(left, (i + r) * apart[1] + k * apart[2]),
                lambda k, x: load(right, vectors.at(k * apart[3] + (v + x) * lanes)),
                lambda r, x: vectors.zero,
                put,
            )

        body = _in_blocks(
            (0, counts[0]),
            mr,
            lambda r, i: _in_blocks((0, counts[1]), nv, lambda x, v: tile((r, x), i, v)),
        )
        return Parts([own.raw, left.raw, right.raw], [*counts, *apart], body)

    sign = "add" if minus else "subtract"
    return Helper(f"{sign}_products_{dtype}_{lanes}_{mr}_{nv}", make)


def _in_blocks(span: Range, size: int, body: Callable[[int, Expr], Stmt]) -> Stmt:
    """``body(size, first)`` for blocks of a range, and ``body(1, ...)`` for what is left."""
    first, count = span
    if size == 1:
        return serial(count, lambda i: body(1, first + i))
    whole = quotient(count, size)
    left = count - whole * size
    return seq(
        serial(whole, lambda q: body(size, first + q * size), "q"),
        serial(left, lambda i: body(1, first + whole * size + i), "i"),
    )


def batch_of(shape: Shape) -> int:
    """How many matrices there are."""
    return numel(shape[:-2])


def by_matrix(
    name: str, lead: Shape, steps: int, body: Callable[[Expr, tuple[Expr, ...]], Stmt]
) -> Stage:
    """``body(number, index)`` for each matrix, of which one takes so many steps."""
    return tiled(
        name, numel(lead), max(1, GRAIN // max(1, steps)), lambda m: body(m, unravel(m, lead))
    )


def reader(code: KernelCode, number: int) -> Callable[..., Stmt]:
    """``read(put, *index)``: hands on an element of an input, 0 where it broadcasts, to ``put``."""
    v = code.anchor.inputs[number]
    shape = code.graph.values[v].shape

    def read(put: Callable[[Expr], Stmt], *index: Expr) -> Stmt:
        scope = Scope()
        own = index[len(index) - len(shape) :]
        at = tuple(0 if n == 1 else i for n, i in zip(shape, own, strict=True))
        return scope.body(put(scope.keep(code.evaluator(scope).read(v, at))))

    return read


def copied(
    read: Callable[..., Stmt],
    memory: Memory,
    index: Sequence[Expr],
    size: tuple[Expr, Expr],
    start: Expr = 0,
) -> Stmt:
    """So many rows, and columns from ``start`` on, of a matrix that is read, copied to memory."""

    def element(i: Expr, j: Expr) -> Stmt:
        return read(lambda x: store(memory, x, i, j), *index, i, start + j)

    return serial(size[0], lambda i: serial(size[1], lambda j: element(i, j), "j"), "i")


def zero(dtype: str) -> Expr:
    """0 of this type."""
    return const(0.0, dtype)
