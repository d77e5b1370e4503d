"""Overwriting arena ranges whose value is dead (``MTVM_POISON=1``).

A plan that frees a range too early may go unnoticed as long as nobody reuses it.  With poison every
range is filled with 0xFF bytes (NaN for floats, -1 for integers) as soon as its last reader has
run, and the whole arena before the first kernel, so that a late or an early read shows.
"""

from __future__ import annotations

from ..ir.program import ARENA_SLOT
from .assemble import Functions, Place, StageCall
from .loops import const, pointer_buffer, store
from .plan import Plan
from .schedule.cpu.elementwise import GRAIN, tiled


def _fill(functions: Functions, offset: int, nbytes: int) -> StageCall:
    words = pointer_buffer((nbytes // 4,), "int32", "poison")
    stage = tiled("poison", nbytes // 4, GRAIN, lambda i: store(words, const(-1), i))
    function, _, (numbers,) = functions.of(stage)
    place = Place(ARENA_SLOT, offset, nbytes)
    return StageCall(stage.tiles, function, (place,), numbers=numbers)


def before_all(functions: Functions, memory: Plan) -> list[StageCall]:
    """Fill the whole arena."""
    return [_fill(functions, 0, memory.arena_bytes)] if memory.arena_bytes else []


def after_kernel(functions: Functions, memory: Plan, k: int) -> list[StageCall]:
    """Fill the ranges that nobody reads after kernel ``k``."""
    dead = [p for p in memory.placements if p.last == k and p.nbytes]
    return [_fill(functions, p.offset, p.nbytes) for p in dead]
