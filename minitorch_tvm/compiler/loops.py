"""A small vocabulary for building loop nests directly in TVM's IR.

A schedule turns a kernel into :class:`Stage` objects.  A stage is one parallel loop over tiles;
the build step makes each stage a private native function ``stage(pointers..., tile)`` and calls it
from the program's single entry, with a barrier after each stage.  Stages may hold serial loops,
small ``local`` buffers (registers or stack) and vector statements, but never a parallel loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from ..core.record import record
from ..core.shape import MOST_ELEMENTS
from ..core.tvm_api import tvm

Expr = Any  # tvm PrimExpr
Stmt = Any
Var = Any


@record
class Parts:
    """What a function is made of: it takes buffers' addresses, then numbers."""

    buffers: Sequence[Any]  # TVM's
    numbers: Sequence[Var]
    body: Stmt


@record
class Helper:
    """A function that stages call by its name; it is compiled once for all that do.

    Equal names mean equal functions, whatever program, as long as machine and settings are equal.
    """

    name: str
    make: Callable[[], Parts] = field(compare=False)

    def call(self, *arguments: Expr) -> Stmt:
        """Call it with addresses, then numbers."""
        _CALLED[self.name] = self
        t = tvm().tirx
        return t.Evaluate(t.call_extern("int32", self.name, *map(_index, arguments)))


_CALLED: dict[str, Helper] = {}
"""By name, since a stage was made."""


def called() -> tuple[Helper, ...]:
    """Those that have been called since the last time somebody asked."""
    found = tuple(_CALLED.values())
    _CALLED.clear()
    return found


@record(frozen=False)
class Stage:
    """``for tile in parallel(tiles): body``, where body uses the variable ``tile``.

    ``helpers`` are those that the body calls, which has been built just before.

    With ``queue``, the body runs once per thread: it computes ``tile`` and then the tiles that it
    takes from there (:func:`.queues.stage_with_start`).  With ``turn``, the :func:`number` of the
    last one, the stage runs ``turns`` times, and is told 0, 1, ... for it.
    """

    name: str
    tiles: int
    tile: Var
    body: Stmt
    helpers: tuple[Helper, ...] = field(default_factory=called)
    queue: Var | None = None
    turn: Var | None = None
    turns: int = 1


@record(frozen=False)
class Builder:
    """Collects what one kernel needs beside its inputs and outputs.

    ``scratch`` buffers live in the arena while the kernel runs and are shared by its stages.
    """

    scratch: list[Memory] = field(default_factory=list)

    def scratch_buffer(self, shape: Sequence[int], dtype: str, name: str) -> Memory:
        """A new arena-backed buffer, uninitialised, 64-byte aligned."""
        buffer = pointer_buffer(shape, dtype, f"{name}{len(self.scratch)}")
        self.scratch.append(buffer)
        return buffer


def const(value: float | int, dtype: str = "int32") -> Expr:
    """A literal."""
    # Not so for floats, of which -0.0 equals 0.0.
    return _integer(value, dtype) if type(value) is int else tvm().tirx.const(value, dtype)


@functools.lru_cache(maxsize=1024)
def _integer(value: int, dtype: str) -> Expr:
    return tvm().tirx.const(value, dtype)


_WIDER = {"int32": "int64", "uint32": "uint64", "int64": "int128"}


def wrapped(operation: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """A sum, difference or product of elements; that of integers wraps around.

    Of integers of 32 bits and more TVM's simplifier assumes that nothing overflows, as it is with
    positions, and has LLVM assume it, too.  With twice as many bits it is so, and what LLVM makes
    of that is one instruction on as many bits as there were.
    """
    dtype = str(a.ty.dtype)
    name, lanes = dtype.partition("x")[::2]
    wider = _WIDER.get(name)
    if wider is None:
        return operation(a, b)
    wide = f"{wider}x{lanes}" if lanes else wider
    return operation(a.astype(wide), b.astype(wide)).astype(dtype)


def var(name: str, dtype: str = "int32") -> Var:
    """A fresh scalar variable."""
    return tvm().tirx.Var(name, dtype)


_TOLD = "="


def number(value: int, name: str = "n") -> Expr:
    """A number that a stage is told when it runs: stages that differ in such share one function.

    Sizes are such numbers where that costs nothing, so that what was compiled for one batch size
    serves others.  The name of the variable tells the value: on TVM's objects, of which every
    access makes another of Python's, nothing can be kept.
    """
    assert value >= 0, f"{name} is {value}"  # else it would be masked, see :func:`below`
    if value > NEAR:
        raise RuntimeError(f"a kernel counts at most {NEAR} elements or rows, not {value}")
    return var(f"{name}{_TOLD}{value}")


# LLVM is told no more than which of these a number stays below, or so many fewer would share code.
_BELOW = (20, 26)  # powers of two


def below(value: Expr, most: int) -> Expr:
    """``value``, which is not negative, nor more than ``most``, as LLVM can see.

    Of a position that may be any number LLVM must assume that it wraps around: it then computes
    each address by itself.
    """
    if isinstance(value, int):
        return value
    bits = next((n for n in _BELOW if most < 1 << n), None)
    return value if bits is None else value & const((1 << bits) - 1)


def told(variables: Sequence[Any]) -> list[tuple[Var, int]]:
    """Those of the variables that are a :func:`number`, and what they are."""
    found = [(v, str(v.name).partition(_TOLD)[2]) for v in variables]
    return [(v, int(value)) for v, value in found if value]


@record(eq=False)
class Memory:
    """A row-major block of elements: one-dimensional for TVM, of any shape for the schedules.

    Indices are flattened here, when an access is built.  Left to TVM, that needs its simplifier,
    which also rewrites floating point arithmetic (x - x to 0, x != x to False, x * 0 to 0).

    Of a position in 32 bits LLVM believes that it may wrap around, once it has taken the sum apart:
    it tests for that before vectors, and goes element by element, or gathers, if it does.
    """

    raw: Any
    shape: tuple[Expr, ...]  # numbers, or expressions of a :func:`number`
    dtype: str
    count: int  # of elements
    wide: bool = False  # positions are computed in 64 bits
    overwritten: bool = False  # results take its place, element by element
    start: Expr = 0  # position of the first element

    def same_as(self, other: Memory | Any) -> bool:
        """True if both are one block (``other`` may be TVM's buffer)."""
        return bool(self.raw.same_as(other.raw if isinstance(other, Memory) else other))

    @property
    def local(self) -> bool:
        """True for memory of the stage itself."""
        return bool(self.raw.scope() == "local")

    @cached_property
    def strides(self) -> tuple[Expr, ...]:
        """Elements between neighbours along each dimension."""
        found: list[Expr] = [1]
        for n in self.shape[:0:-1]:
            found.append(n * found[-1] if isinstance(n, int) else found[-1] * n)
        return tuple(found[::-1])[: len(self.shape)]

    @cached_property
    def _line(self) -> bool:
        """Whether an index is the position."""
        return (len(self.shape), self.wide, type(self.start)) == (1, False, int) and not self.start

    def part(self, index: Expr) -> Memory:
        """What lies at ``index`` of the first dimension."""
        shape, count = self.shape[1:], self.count // self.shape[0]
        if self.wide:
            index = index.astype("int64")
        return replace(self, shape=shape, count=count, start=self.start + index * count)

    @property
    def line(self) -> Memory:
        """All of the memory in one row, by positions of 64 bits, such as :meth:`flat` gives: LLVM
        sees which are some apart."""
        return replace(self, shape=(self.count,), wide=True, start=0)

    def flat(self, index: Sequence[Expr]) -> Expr:
        """Position of an element, or of a vector if the last index is a ramp."""
        if self._line and len(index) == 1:
            return _index(index[0])
        wide = self.wide
        constant = 0
        terms: list[Expr] = []
        if isinstance(self.start, int):
            constant = self.start
        else:
            terms.append(self.start.astype("int64") if wide else self.start)
        lanes = 0
        t = tvm().tirx
        for stride, i in zip(self.strides, index, strict=True):
            if isinstance(i, int) and (isinstance(stride, int) or not i):
                constant += i * stride if i else 0
                continue
            if type(i) is t.Ramp:
                lanes, i = int(i.lanes), i.base
            if isinstance(i, int):
                i = const(i)
            if wide:
                i = i.astype("int64")
            if isinstance(stride, int):
                stride = const(stride, "int64" if wide else "int32") if stride != 1 else None
            elif wide:
                stride = stride.astype("int64")
            terms.append(i if stride is None else i * stride)
        total = terms[0] if terms else const(constant, "int64" if wide else "int32")
        for term in terms[1:]:
            total = total + term
        if terms and constant:
            total = total + const(constant, "int64" if wide else "int32")
        return t.Ramp(total, const(1), const(lanes)) if lanes else total


def pointer_type(dtype: str) -> Any:
    """TVM's type of a pointer to elements."""
    t = tvm().ir
    return t.PointerType(t.PrimType(dtype))


# Elements of memory that a function is given: positions of 32 bits reach them all, or do not.
NEAR, _FAR = MOST_ELEMENTS, 1 << 62


def _memory(shape: Sequence[int], dtype: str, name: str, scope: str, wide: bool = False) -> Memory:
    count = extent = math.prod(shape)
    wide = wide or count > NEAR
    if not scope:
        extent = _FAR if count > NEAR else NEAR  # no code depends on it, so none is to differ
    size = const(max(extent, 1), "int64" if wide else "int32")
    raw = tvm().tirx.decl_buffer([size], dtype, name, scope=scope, layout=None)
    return Memory(raw, tuple(shape), dtype, count, wide)


def pointer_buffer(shape: Sequence[int], dtype: str, name: str, wide: bool = False) -> Memory:
    """Memory that reaches the stage function as a raw pointer.

    An input may be aligned to its elements only: TVM assumes no more of a pointer.
    """
    return _memory(shape, dtype, name, "", wide)


def local_buffer(shape: Sequence[int], dtype: str, name: str) -> Memory:
    """Memory of the stage itself; declare it with :func:`alloc` before its first use."""
    return _memory(shape, dtype, name, "local")


def view(element: Expr, name: str) -> tuple[Memory, Stmt]:
    """Memory from ``element`` on (which is a load), as one line, and the statement declaring it.

    Its elements are so many bytes from one register.  Of indices computed in 32 bits LLVM must
    assume that they wrap around: rows of a matrix would need a register each.

    Only of memory that the stage does not write: TVM tells LLVM that memory of different names is
    not the same, and stores that nothing seems to read are left out.
    """
    t = tvm()
    dtype = str(element.ty.dtype)
    memory = local_buffer((_ANY,), dtype, name)
    pointer = t.ir.PointerType(t.ir.PrimType(dtype), "local")
    data = t.ir.Call("tirx.reinterpret", [t.tirx.address_of(element)], ret_ty=pointer)
    return memory, t.tirx.DeclBuffer(memory.raw, data=data)


# The stack of a user's thread may be small: a larger block comes from TVM's workspace pool.
_STACK_BYTES = 48 << 10
LINE_BYTES, PAGE_BYTES = 64, 4096
"""Of the caches, and of memory."""
_ANY = 1 << 30  # elements of a view
SHORTEST = 4
"""Lanes of a vector."""


def alloc(buffer: Memory) -> Stmt:
    """The statement that brings local memory to life (scope: the rest of the sequence).

    Small buffers are marked as stack memory, which LLVM promotes to registers; left to itself, TVM
    asks its workspace pool for them at run time, every time the statement is reached.
    """
    t = tvm()
    itemsize = max(1, int(t.DataType(buffer.dtype).bits) // 8)
    size = buffer.count * itemsize
    if size > _STACK_BYTES:
        return t.tirx.AllocBuffer(buffer.raw)
    on_stack = {"disable_lower_builtin": const(1, "bool")}
    if size <= LINE_BYTES:
        return t.tirx.AllocBuffer(buffer.raw, on_stack)
    # TVM aligns to 16 bytes only, unless elements need more: lines.  LLVM packs bools in vectors.
    kind = "uint8" if buffer.dtype == "bool" else buffer.dtype
    lines = t.tirx.decl_buffer(
        [const(-(-size // LINE_BYTES))],
        f"{kind}x{LINE_BYTES // itemsize}",
        buffer.raw.name,
        scope="local",
        layout=None,
    )
    pointer = t.ir.PointerType(t.ir.PrimType(buffer.dtype), "local")
    data = t.ir.Call("tirx.reinterpret", [lines.data], ret_ty=pointer)
    return seq(t.tirx.AllocBuffer(lines, on_stack), t.tirx.DeclBuffer(buffer.raw, data=data))


_READS: list[list[tuple[Memory, Expr]]] = []
"""What expressions that are being built load, for whoever asks."""
_NAMED: list[list[Any]] = []
"""Variables and local memory that statements around an expression set."""
_WRITES: list[list[tuple[Memory, Expr]]] = []
"""The elements that statements store."""
_INSTEAD: list[Callable[[Memory, Expr], Stmt | None]] = []
"""What takes the place of a statement that stores a value, if anything does."""


def load(buffer: Memory, *index: Expr) -> Expr:
    """``buffer[index]``; the last index may be a :func:`ramp`."""
    element = tvm().tirx.BufferLoad(buffer.raw, [buffer.flat(index)])
    if _READS and not buffer.local:
        _READS[-1].append((buffer, element))
    return element


def store(buffer: Memory, value: Expr, *index: Expr) -> Stmt:
    """``buffer[index] = value``; the last index may be a :func:`ramp`."""
    if _WRITES and not buffer.local:
        _WRITES[-1].append((buffer, tvm().tirx.BufferLoad(buffer.raw, [buffer.flat(index)])))
    if _INSTEAD and not buffer.local:
        instead = _INSTEAD[-1](buffer, value)
        if instead is not None:
            return instead
    return tvm().tirx.BufferStore(buffer.raw, value, [buffer.flat(index)])


def load_first(element: Expr, lanes: int, count: Expr) -> Expr:
    """A vector from ``element`` on (which is a load) with zeros behind the first ``count`` lanes.

    What would be there need not exist.
    """
    t = tvm().tirx
    dtype = str(element.ty.dtype)
    inside = ramp(0, lanes) < splat(count, lanes)
    vector, zero = f"{dtype}x{lanes}", splat(const(0.0, dtype), lanes)
    # From LLVM 22 on, alignment is no operand; left out, it is a byte.
    return t.call_llvm_intrin(vector, "llvm.masked.load", t.address_of(element), inside, zero)


def prefetch(element: Expr, *, write: bool = False, beyond: int = 0, nearest: bool = True) -> Stmt:
    """Ask for the cache line of an element, which need not exist; to ``write`` it, if so.

    Or of what is so many bytes ``beyond`` one that is loaded, too: that is in the same register.
    Into the ``nearest`` cache, or the second-level one, which can wait for more lines at a time.
    """
    t = tvm().tirx
    address = t.address_of(element)
    if beyond:
        address = t.handle_add_byte_offset(address, beyond)
    access, level, data = const(int(write)), const(3 if nearest else 2), const(1)
    call = t.call_llvm_intrin("void", "llvm.prefetch", address, access, level, data)
    return t.Evaluate(call)


def ask(
    make: Callable[[], object], least: int = 0, beyond: bool = False, nearest: bool = True
) -> list[Stmt]:
    """Ask for the cache lines that an expression which ``make`` builds will load.

    Of memory of at least so many elements, and where the expression is not needed to know the
    place.  ``beyond``: it may be for an element that does not exist; then nothing is loaded to find
    out a place.  A line that will be overwritten is asked for to that end: read first, it would be
    taken from another core's cache twice.
    """
    _READS.append([])
    _NAMED.append([])
    try:
        make()
    finally:
        found, named = _READS.pop(), _NAMED.pop()
    asks = []
    for memory, element in found:
        if memory.count < least:
            continue
        statement = prefetch(element, write=memory.overwritten, nearest=nearest)
        used = tvm().tirx.analysis.undefined_vars(statement, [])
        loaded = [m.raw for m, _ in found if not m.raw.same_as(memory.raw)] if beyond else []
        if not any(v.same_as(name) for v in used for name in (*named, *loaded)):
            asks.append(statement)
    return asks


def written(make: Callable[[], object]) -> list[tuple[Memory, Expr]]:
    """The elements that statements which ``make`` builds store, in memory that they do not load."""
    _WRITES.append([])
    _READS.append([])
    try:
        make()
    finally:
        found, read = _WRITES.pop(), _READS.pop()
    loaded = {buffer.raw for buffer, _ in read}
    return [(buffer, element) for buffer, element in found if buffer.raw not in loaded]


def ask_to_write(make: Callable[[], object]) -> list[Stmt]:
    """Ask for the cache lines that statements which ``make`` builds will store, and not load."""
    return [prefetch(element, write=True) for _, element in written(make)]


def storing(instead: Callable[[Memory, Expr], Stmt | None], make: Callable[[], Stmt]) -> Stmt:
    """What ``make`` builds, with ``instead(memory, value)`` for its stores to other than local
    memory where that is not None."""
    _INSTEAD.append(instead)
    try:
        return make()
    finally:
        _INSTEAD.pop()


def _index(value: Expr) -> Expr:
    return const(value) if isinstance(value, int) else value


def ramp(base: Expr, lanes: int) -> Expr:
    """The index vector base, base+1, ..., base+lanes-1."""
    return tvm().tirx.Ramp(_index(base), const(1), const(lanes))


def splat(value: Expr, lanes: int) -> Expr:
    """A vector with ``value`` in every lane."""
    return tvm().tirx.Broadcast(value, const(lanes))


def lanes_of(vector: Expr, first: int, count: int) -> Expr:
    """``count`` lanes of a vector from ``first`` on; one lane is a scalar."""
    return tvm().tirx.Shuffle([vector], [const(first + i) for i in range(count)])


def seq(*statements: Stmt | Sequence[Stmt]) -> Stmt:
    """Run statements in order (nested lists are flattened); none at all do nothing."""
    flat: list[Stmt] = []
    for s in statements:
        flat.extend(s if isinstance(s, (list, tuple)) else (s,))
    if not flat:
        return tvm().tirx.Evaluate(const(0))
    return flat[0] if len(flat) == 1 else tvm().tirx.SeqStmt(flat)


def _loop(
    extent: Expr,
    body: Callable[[Var], Stmt],
    name: str,
    kind: str,
    dtype: str = "int32",
    first: Expr = 0,
) -> Stmt:
    start = const(first, dtype) if isinstance(first, int) else first
    if isinstance(extent, int) and extent == 1 and kind != "VECTORIZED":
        return body(start)
    v = var(name, dtype)
    t = tvm().tirx
    size = const(extent, dtype) if isinstance(extent, int) else extent
    return t.For(v, start, size, getattr(t.ForKind, kind), body(v))


def serial(
    extent: Expr,
    body: Callable[[Var], Stmt],
    name: str = "i",
    *,
    first: Expr = 0,
    wide: bool = False,
) -> Stmt:
    """``for v in range(first, first + extent): body(v)``; ``wide``: of 64 bits, not 32.

    LLVM vectorises and unrolls innermost loops itself.
    """
    return _loop(extent, body, name, "SERIAL", "int64" if wide else "int32", first)


def unrolled(extent: int, body: Callable[[Var], Stmt], name: str = "u") -> Stmt:
    """As :func:`serial`, fully unrolled before LLVM sees it."""
    return _loop(extent, body, name, "UNROLLED")


def vectorized(
    extent: int, body: Callable[[Var], Stmt], name: str = "v", wide: bool = False
) -> Stmt:
    """As :func:`serial`, executed as vectors of ``extent`` lanes.

    For memory whose positions are ``wide``, the variable is: of a lane that it must first make
    wider, TVM would not see that positions follow one another.
    """

    def lane(v: Var) -> Stmt:
        _LANES.append((v, extent))
        try:
            return body(v)
        finally:
            _LANES.pop()

    return _loop(extent, lane, name, "VECTORIZED", "int64" if wide else "int32")


def in_vectors(
    extent: int,
    lanes: int,
    body: Callable[[Expr], Stmt],
    *,
    rolled: bool = False,
    wide: bool = False,
) -> Stmt:
    """``for v in range(extent): body(v)`` in vectors, and what these leave in shorter ones.

    ``rolled``: LLVM is not to know how many are left in the end, or it would take elements of the
    next outer loop, which lie apart, for its vectors; but that they are few, or it would look, each
    time, whether they are enough for vectors of their own.
    ``wide``: see :func:`vectorized`.
    """
    whole, rest = extent // lanes, extent % lanes
    parts: list[Stmt] = []

    def vector(size: int, first: Expr) -> Stmt:
        return vectorized(size, lambda v: body(first + v), wide=wide)

    if whole:
        parts.append(serial(whole, lambda i: vector(lanes, i * lanes)))
    while rest >= SHORTEST:
        size = 1 << (rest.bit_length() - 1)
        parts.append(vector(size, const(extent - rest)))
        rest -= size
    if rest:
        count = minimum(rest, number(rest, "rest")) if rolled else rest
        parts.append(serial(count, lambda v: body(extent - rest + v)))
    return seq(parts)


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
    if _NAMED:
        _NAMED[-1].append(v)
    return v, tvm().tirx.Bind(v, value)


_LANES: list[tuple[Var, int]] = []
"""Loops of vectors around the statement that is being built, and their lanes."""


def cell(name: str, value: Expr) -> tuple[Expr, list[Stmt]]:
    """A name for ``value`` that TVM cannot see through, and the statements that compute it.

    TVM's passes replace a variable bound to arithmetic by its value wherever they analyse it, so a
    chain in which every value is used twice would double in size at every step.  A cell of local
    memory stops that; LLVM turns it back into a register.  In a loop of vectors every lane has a
    cell of its own.
    """
    if not _LANES and isinstance(value, tvm().ir.TensorLoad):
        v, statement = bind(name, value)
        return v, [statement]
    lane, lanes = _LANES[-1] if _LANES else (0, 1)
    memory = local_buffer((lanes,), str(value.ty.dtype), name)
    if _NAMED:
        _NAMED[-1].append(memory.raw)
    return load(memory, lane), [alloc(memory), store(memory, value, lane)]


def on_cpu(body: Stmt) -> Stmt:
    """Tell which device local buffers live on: TVM asks its pool for the large ones."""
    attribute, zero = tvm().tirx.AttrStmt, const(0)
    return attribute(zero, "device_id", zero, attribute(zero, "device_type", const(1), body))


def importing(text: str, body: Stmt) -> Stmt:
    """``body``; the module that it is in has what LLVM's ``text`` says, too."""
    t = tvm()
    return t.tirx.AttrStmt(const(0), "pragma_import_llvm", t.ir.StringImm(text), body)


def free_variables(body: Stmt) -> tuple[list[Any], list[tuple[Var, int]]]:
    """TVM's buffers that a statement uses but does not define, and the numbers that it is told."""
    t = tvm().tirx
    # The tile variable is undefined too, and the analysis also reports variables of TVM's blocks.
    undefined = t.analysis.undefined_vars(body, [])
    buffers = [v for v in undefined if isinstance(v.ty, t.buffer.BufferType)]
    return buffers, told([v for v in undefined if isinstance(v, tvm().ir.Var)])


def count_statements(body: Stmt) -> int:
    """How many statements there are that are not made of others."""
    t = tvm().tirx
    several, around, choice = t.SeqStmt, (t.For, t.While, t.AttrStmt), t.IfThenElse
    count, waiting = 0, [body]
    while waiting:
        statement = waiting.pop()
        kind = type(statement)
        if kind is several:
            waiting.extend(statement.seq)
        elif kind in around:
            waiting.append(statement.body)
        elif kind is choice:
            waiting.append(statement.then_case)
            if statement.else_case is not None:
                waiting.append(statement.else_case)
        else:
            count += 1
    return count


def when(condition: Expr, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
    """``if condition: then else: otherwise``."""
    return tvm().tirx.IfThenElse(condition, then, otherwise)


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below ``a / b``."""
    return -(-a // b)


def quotient(a: Expr, b: Expr) -> Expr:
    """``a // b`` of index expressions that are not negative: where ``b`` is a :func:`number`.

    Rounding down, as ``//`` does, is a dozen instructions where LLVM knows neither.
    """
    if isinstance(b, int) and b == 1:
        return a
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return tvm().tirx.truncdiv(_index(a), _index(b))


def minimum(a: Expr, b: Expr) -> Expr:
    """Smaller of two index expressions."""
    return tvm().tirx.min(_index(a), _index(b))


def maximum(a: Expr, b: Expr) -> Expr:
    """Larger of two index expressions."""
    return tvm().tirx.max(_index(a), _index(b))


def parallel_stage(name: str, tiles: int, body: Callable[[Var], Stmt]) -> Stage:
    """A stage from a function of its tile variable."""
    tile = var("tile")
    return Stage(name, tiles, tile, body(tile))
