"""Whether positions are within their bounds, told by native code.

Class labels and indices are tested before a program reads by them, in every step.  In numpy that
took a tenth of what Python does between two steps under ``mt.compile``, as numpy's code and objects
are no longer in the core's cache then; here it is one more function of every program.
"""

from __future__ import annotations

from typing import Any

from ..core.tvm_api import tvm
from ..ir.program import WITHIN
from .loops import (
    Expr,
    Stmt,
    alloc,
    bind,
    const,
    load,
    local_buffer,
    on_cpu,
    pointer_buffer,
    pointer_type,
    ramp,
    seq,
    serial,
    splat,
    store,
    var,
)
from .target import CpuTarget

_KIND = "uint64"
_TURN = 4  # vectors in a turn of the loop


def within_function(machine: CpuTarget) -> Any:
    """``within(address, count, low, end, spared)``: 1 if every int64 from the address on is
    ``spared`` or at least ``low`` and below ``end``, which is above ``low``, else 0.

    Less ``low``, as unsigned numbers, those below it are the largest.  LLVM does not optimise it,
    so it is written in vectors.
    """
    t = tvm()
    names = ("address", "count", "low", "end", "spared")
    arguments = [var(name, "int64") for name in names]
    address, count, *others = arguments
    (low, know_low), (end, know_end), (spared, know_spared) = (
        bind(name, x.astype(_KIND)) for name, x in zip(names[2:], others, strict=True)
    )
    positions = pointer_buffer((1,), _KIND, "positions", wide=True)
    memory = t.ir.Call("tirx.reinterpret", [address], ret_ty=pointer_type(_KIND))
    lanes = machine.lanes(8)
    worst = local_buffer((lanes,), _KIND, "worst")

    def add(first: Expr, n: int, times: int = 1) -> Stmt:
        """See how far elements are above ``low``: not at all, if they are spared."""

        def each(x: Expr) -> Expr:
            return splat(x, n) if n > 1 else x

        place = ramp(0, n) if n > 1 else const(0)
        total, known = load(worst, place), []
        for i in range(times):
            at = first + n * i
            x, know = bind("x", load(positions, ramp(at, n) if n > 1 else at))
            above = t.tirx.Select(x.equal(each(spared)), each(const(0, _KIND)), x - each(low))
            total, know_total = bind("total", t.tirx.Max(total, above))
            known += [know, know_total]
        return seq(known, store(worst, total, place))

    def join(i: Expr) -> Stmt:
        return store(worst, t.tirx.Max(load(worst, const(0)), load(worst, i)), const(0))

    turn = const(_TURN * lanes, "int64")
    turns, know_turns = bind("turns", t.tirx.truncdiv(count, turn))
    whole, know_whole = bind("whole", turns * turn)
    body = seq(
        t.tirx.DeclBuffer(positions.raw, data=memory),
        [know_low, know_end, know_spared, know_turns, know_whole],
        alloc(worst),
        store(worst, splat(const(0, _KIND), lanes), ramp(0, lanes)),
        serial(turns, lambda i: add(i * turn, lanes, _TURN), wide=True),
        serial(count - whole, lambda i: add(whole + i, 1), wide=True),
        serial(lanes, join),
        t.tirx.Return((load(worst, const(0)) < end - low).astype("int32")),
    )
    return (
        t.tirx.PrimFunc(arguments, on_cpu(body), t.ir.PrimType("int32"))
        .with_attr("s_tir", True)
        .with_attr("global_symbol", WITHIN)
    )
