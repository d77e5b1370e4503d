"""Stores that go around the caches, for results that would only take up room there.

A store to a line that a core does not have fetches the line first: a large result crosses the bus
to memory twice, once for nothing, and drives out what would be read again.  Processors have stores
of whole lines that do neither; LLVM takes them for stores marked ``nontemporal``.  TVM cannot mark
one, but links a few lines of LLVM's own language to a function that asks for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..core.tvm_api import tvm
from ..ir.node import Leaf
from ..ir.op import Op
from ..ops import elementwise as ew
from ..ops import movement as mv
from .loops import (
    LINE_BYTES,
    Expr,
    Memory,
    Stage,
    Stmt,
    alloc,
    const,
    load,
    local_buffer,
    ramp,
    seq,
    storing,
    vectorized,
    written,
)
from .lower import KernelCode
from .target import CpuTarget

LINE = LINE_BYTES // 4
"""Elements that :func:`streamed` takes at once."""
LARGER = 16
"""So many times as much makes a tile, for its end waits for what it has streamed."""
# Results of so many second-level caches are not near when they are read again, unless the
# third-level cache holds them.  Of one that is larger than these bytes a core has but a share.
_FAR, _SHARE = 8, 32 << 20
# Instructions per vector, as it were, and the most beside which such stores are worth while: with
# more, a core waits for each, and takes up to twice as long as with others (measured in C, too).
_DIVISION, _EXP, _LONG, _MOST = 8, 20, 100, 24
_PLACES = (Leaf, mv.Reshape, mv.Expand, mv.Full)
_TYPES = {"float32": "float", "int32": "i32"}  # LLVM's names
_ANY = [False]  # whether anything was streamed, for each :func:`closed` that is at work

Around = Callable[[Memory], bool]
"""Whether what is stored to some memory goes around the caches."""


def far_bytes(cpu: CpuTarget) -> int:
    """Size of results from which on stores to them go around the caches."""
    return max(_FAR * cpu.l2_bytes, min(cpu.l3_bytes, _SHARE))


def _is_large(memory: Memory, least: int) -> bool:
    """True for memory of ``least`` bytes and a type that :func:`streamed` knows."""
    return memory.dtype in _TYPES and memory.count * 4 >= least


def far_results(code: KernelCode, computed: Iterable[int], cpu: CpuTarget) -> Around | None:
    """Which results of a kernel no cache could keep; None if none shall go around the caches.

    Not where results are near, or written over what is read, nor beside long arithmetic:
    ``computed`` are the values that one pass over the elements computes.
    """
    values = code.graph.values
    far = functools.partial(_is_large, least=far_bytes(cpu))
    any_ = any(far(code.buffer(v)) for v in code.kernel.stores)
    if not any_ or code.overwrites or not _is_light(values[v].op for v in computed):
        return None
    return far


def passing_result(code: KernelCode, cpu: CpuTarget) -> Around | None:
    """A large product that a kernel uses to change something in place, and gives, too; else None.

    Such as a gradient beside its parameter: nobody else in the program reads it, and in the last
    cache it would take the place of what the next step reads, parameters and their moments.  Of a
    type that :func:`streamed` knows, and whose rows are whole lines.
    """
    kernel, anchor = code.kernel, code.anchor
    if not code.passes:
        return None
    assert kernel.anchor is not None
    gradient = code.buffer(kernel.anchor)
    whole_lines = anchor.shape[-1] % LINE == 0
    if not whole_lines or not _is_large(gradient, cpu.l2_bytes):
        return None
    return lambda memory: bool(memory.raw.same_as(gradient.raw))


def _is_light(ops: Iterable[Op]) -> bool:
    """True if a core computes these for a vector in less time than memory takes for a line."""

    def instructions(op: Op) -> int:
        if not isinstance(op, ew.Float):
            return 1 if op.elementwise or isinstance(op, _PLACES) else _LONG
        if isinstance(op, ew.Exp):
            return _EXP
        return _DIVISION if isinstance(op, (ew.Div, ew.Sqrt)) else _LONG

    return sum(map(instructions, ops)) <= _MOST


@functools.cache
def _imported() -> str:
    """A line's store around the caches, and what orders such stores, as LLVM writes it.

    Lines in memory that starts no line are stored as ever.
    """
    stores = "\n".join(
        f"""
define linkonce_odr void @mtvm_stream_{dtype}(ptr %to, <{LINE} x {kind}> %line) alwaysinline {{
  %address = ptrtoint ptr %to to i64
  %beside = and i64 %address, {LINE_BYTES - 1}
  %starts = icmp eq i64 %beside, 0
  br i1 %starts, label %around, label %through
around:
  store <{LINE} x {kind}> %line, ptr %to, align {LINE_BYTES}, !nontemporal !0
  ret void
through:
  store <{LINE} x {kind}> %line, ptr %to, align 4
  ret void
}}"""
        for dtype, kind in _TYPES.items()
    )
    return f"""{stores}
define linkonce_odr void @mtvm_streamed() alwaysinline {{
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""


def _call(name: str, *arguments: Expr) -> Stmt:
    t = tvm().tirx
    call = t.Evaluate(t.call_extern("void", name, *arguments))
    return t.AttrStmt(const(0), "pragma_import_llvm", tvm().ir.StringImm(_imported()), call)


def streamed(body: Callable[[Expr], Stmt], first: Expr, around: Around) -> Stmt:
    """``body(i)`` for the :data:`LINE` numbers from ``first`` on, as vectors.

    What it stores to other memory than it loads goes ``around`` the caches.  Others may read it
    behind the stage (see :func:`closed`).
    """
    found = [(m, element) for m, element in written(lambda: body(first)) if around(m)]
    lines = {m.raw: local_buffer((LINE,), m.dtype, "line") for m, _ in found}

    def lane(v: Expr) -> Stmt:
        def instead(memory: Memory, value: Expr) -> Stmt | None:
            line = lines.get(memory.raw)
            return None if line is None else tvm().tirx.BufferStore(line.raw, value, [v])

        return storing(instead, lambda: body(first + v))

    stores = []
    for memory, element in found:
        _ANY[-1] = True
        vector = load(lines[memory.raw], ramp(0, LINE))
        address = tvm().tirx.address_of(element)
        stores.append(_call(f"mtvm_stream_{memory.dtype}", address, vector))
    whole = vectorized(LINE, lane, wide=True)
    return seq([alloc(line) for line in lines.values()], whole, stores)


def closed(make: Callable[[], list[Stage] | None]) -> list[Stage] | None:
    """The stages that ``make`` builds; what they have streamed is there when they end."""
    _ANY.append(False)
    try:
        stages = make()
    finally:
        any_ = _ANY.pop()
    if stages is None or not any_:
        return stages
    return [replace(s, body=seq(s.body, _call("mtvm_streamed"))) for s in stages]
