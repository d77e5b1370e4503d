"""What kernels on whole matrices share: memory to work in, and products that are subtracted.

A matrix is worked on in rows of whole vectors, zeros behind what there is of them.  A tile owns
some matrices of a batch; one matrix is not divided among threads.  What takes n**3 steps is sums of
products in register tiles; the rest, of which a panel of some rows or columns is large enough to
make n**2 times its size, goes along rows, in vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.dtype import DType
from ....core.shape import Shape, numel
from ...dialect import Scope
from ...loops import (
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    ceil_div,
    const,
    load,
    local_buffer,
    quotient,
    seq,
    serial,
    store,
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
        self._nv = min(most, self.count)
        self._mr = max(1, min(self.rows, (cpu.vector_registers - self._nv - 1) // self._nv))
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
        left: Callable[[Expr, Expr], Expr],
        right: Callable[[Expr, Expr], Expr] | None = None,
    ) -> Stmt:
        """``memory[i, v] -= left(i, k) * memory[k, v]``, summed over k, of these rows and vectors.

        The terms' rows are others.  ``right(k, v)``: what is multiplied instead of rows of memory.
        """
        if right is None:

            def right(k: Expr, v: Expr) -> Expr:
                return load(memory, k, self.at(v))

        multiplied = right

        def tile(mr: int, nv: int, i: Expr, v: Expr) -> Stmt:
            def put(r: int, x: int, total: Expr) -> Stmt:
                at = (i + r, self.at(v + x))
                return store(memory, load(memory, *at) - total, *at)

            return register_tile(
                self.vectors,
                (mr, nv),
                terms[1],
                lambda r, k: left(i + r, terms[0] + k),
                lambda k, x: multiplied(terms[0] + k, v + x),
                lambda r, x: self.vectors.zero,
                put,
            )

        single = isinstance(rows[1], int) and rows[1] == 1
        return _in_blocks(
            rows,
            1 if single else self._mr,
            lambda mr, i: _in_blocks(vectors, self._nv, lambda nv, v: tile(mr, nv, i, v)),
        )


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


def zero(dtype: str) -> Expr:
    """0 of this type."""
    return const(0.0, dtype)
