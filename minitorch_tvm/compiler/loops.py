"""A small vocabulary for building loop nests directly in TVM's IR.

A schedule turns a kernel into :class:`Stage` objects.  A stage is one parallel loop over tiles;
the build step makes each stage a private native function ``stage(pointers..., tile)`` and calls it
from the program's single entry, with a barrier after each stage.  Stages may hold serial loops,
small ``local`` buffers (registers or stack) and vector statements, but never a parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.tvm_api import tvm

Expr = Any  # tvm PrimExpr
Stmt = Any
Buffer = Any
Var = Any


@dataclass
class Stage:
    """``for tile in parallel(tiles): body``, where body uses the variable ``tile``."""

    name: str
    tiles: int
    tile: Var
    body: Stmt


@dataclass
class Builder:
    """Collects what one kernel needs beside its inputs and outputs.

    ``scratch`` buffers live in the arena while the kernel runs and are shared by its stages.
    """

    scratch: list[Buffer] = field(default_factory=list)

    def scratch_buffer(self, shape: Sequence[int], dtype: str, name: str) -> Buffer:
        """A new arena-backed buffer, uninitialised, 64-byte aligned."""
        buffer = pointer_buffer(shape, dtype, f"{name}{len(self.scratch)}")
        self.scratch.append(buffer)
        return buffer


def const(value: float | int, dtype: str = "int32") -> Expr:
    """A literal."""
    return tvm().tirx.const(value, dtype)


def var(name: str, dtype: str = "int32") -> Var:
    """A fresh scalar variable."""
    return tvm().tirx.Var(name, dtype)


def pointer_buffer(shape: Sequence[int], dtype: str, name: str) -> Buffer:
    """A compact row-major buffer that reaches the stage function as a raw pointer."""
    extents = [const(n, "int64" if n >= 1 << 31 else "int32") for n in shape] or [const(1)]
    return tvm().tirx.decl_buffer(extents, dtype, name)


def local_buffer(shape: Sequence[int], dtype: str, name: str) -> Buffer:
    """A small buffer of the stage itself; declare it with :func:`alloc` before its first use."""
    return tvm().tirx.decl_buffer([const(n) for n in shape], dtype, name, scope="local")


def alloc(buffer: Buffer) -> Stmt:
    """The statement that brings a local buffer to life (scope: the rest of the sequence).

    The annotation makes it stack memory, which LLVM promotes to registers; otherwise TVM asks its
    workspace pool for it at run time, every time the statement is reached.
    """
    return tvm().tirx.AllocBuffer(buffer, {"disable_lower_builtin": const(1, "bool")})


def load(buffer: Buffer, *index: Expr) -> Expr:
    """``buffer[index]``; the last index may be a :func:`ramp`."""
    return tvm().tirx.BufferLoad(buffer, [_index(i) for i in index] or [const(0)])


def store(buffer: Buffer, value: Expr, *index: Expr) -> Stmt:
    """``buffer[index] = value``; the last index may be a :func:`ramp`."""
    return tvm().tirx.BufferStore(buffer, value, [_index(i) for i in index] or [const(0)])


def _index(value: Expr) -> Expr:
    return const(value) if isinstance(value, int) else value


def ramp(base: Expr, lanes: int) -> Expr:
    """The index vector base, base+1, ..., base+lanes-1."""
    return tvm().tirx.Ramp(_index(base), const(1), const(lanes))


def splat(value: Expr, lanes: int) -> Expr:
    """A vector with ``value`` in every lane."""
    return tvm().tirx.Broadcast(value, const(lanes))


def seq(*statements: Stmt | Sequence[Stmt]) -> Stmt:
    """Run statements in order (nested lists are flattened)."""
    flat: list[Stmt] = []
    for s in statements:
        if isinstance(s, (list, tuple)):
            flat.extend(s)
        else:
            flat.append(s)
    return flat[0] if len(flat) == 1 else tvm().tirx.SeqStmt(flat)


def _loop(extent: Expr, body: Callable[[Var], Stmt], name: str, kind: str) -> Stmt:
    if isinstance(extent, int) and extent == 1 and kind != "VECTORIZED":
        return body(const(0))
    v = var(name)
    t = tvm().tirx
    return t.For(v, const(0), _index(extent), getattr(t.ForKind, kind), body(v))


def serial(extent: Expr, body: Callable[[Var], Stmt], name: str = "i") -> Stmt:
    """``for v in range(extent): body(v)``; LLVM vectorises and unrolls innermost loops itself."""
    return _loop(extent, body, name, "SERIAL")


def unrolled(extent: int, body: Callable[[Var], Stmt], name: str = "u") -> Stmt:
    """As :func:`serial`, fully unrolled before LLVM sees it."""
    return _loop(extent, body, name, "UNROLLED")


def vectorized(extent: int, body: Callable[[Var], Stmt], name: str = "v") -> Stmt:
    """As :func:`serial`, executed as vectors of ``extent`` lanes."""
    return _loop(extent, body, name, "VECTORIZED")


def grid(extents: Sequence[Expr], body: Callable[..., Stmt], names: str = "i") -> Stmt:
    """Nested serial loops, the last extent innermost."""

    def nest(depth: int, index: tuple[Expr, ...]) -> Stmt:
        if depth == len(extents):
            return body(*index)
        return serial(extents[depth], lambda v: nest(depth + 1, (*index, v)), f"{names}{depth}")

    return nest(0, ())


def bind(name: str, value: Expr) -> tuple[Var, Stmt]:
    """A variable for ``value`` and the statement that computes it."""
    v = tvm().tirx.Var(name, value.ty)
    return v, tvm().tirx.Bind(v, value)


def cell(name: str, value: Expr) -> tuple[Expr, list[Stmt]]:
    """A name for ``value`` that TVM does not substitute, and the statements that compute it.

    TVM's simplifier replaces variables bound to arithmetic by their value wherever they are used,
    so a chain in which every value is used twice would double in size at every step.  A cell of
    local memory stops that; LLVM turns it back into a register.
    """
    if is_load(value):
        v, statement = bind(name, value)
        return v, [statement]
    memory = local_buffer((1,), str(value.ty.dtype), name)
    return load(memory, 0), [alloc(memory), store(memory, value, 0)]


def is_load(value: Expr) -> bool:
    """True for an element read from a buffer."""
    return isinstance(value, tvm().ir.TensorLoad)


def free_buffers(body: Stmt) -> list[Buffer]:
    """Buffers that a statement uses but does not define."""
    t = tvm().tirx
    # The tile variable is undefined too, and the analysis also reports variables of TVM's blocks.
    undefined = t.analysis.undefined_vars(body, [])
    return [v for v in undefined if isinstance(v.ty, t.buffer.BufferType)]


def when(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """``if condition: then else: otherwise``."""
    return tvm().tirx.IfThenElse(condition, then, otherwise)


def minimum(a: Expr, b: Expr) -> Expr:
    """Smaller of two index expressions."""
    return tvm().tirx.min(_index(a), _index(b))


def parallel_stage(name: str, tiles: int, body: Callable[[Var], Stmt]) -> Stage:
    """A stage from a function of its tile variable."""
    tile = var("tile")
    return Stage(name, tiles, tile, body(tile))
