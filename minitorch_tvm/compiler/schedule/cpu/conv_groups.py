"""Convolutions in groups: each group is a convolution of its own channels and weights.

Their schedules are those of one group.  Which group that is, is one more thing that the number of a
tile tells, and each group has its own part of the memory in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....core.tvm_api import tvm
from ...loops import Builder, Expr, Memory, Stage, Stmt, parallel_stage, seq, var
from .conv_layout import div, maximum, mod


class _Parts(Builder):
    """Memory of a ``group``, which is a part of what ``whole`` makes for all ``groups``."""

    def __init__(self, whole: Builder, groups: int, group: Expr) -> None:
        super().__init__(whole.scratch)
        self._groups, self._group = groups, group

    def scratch_buffer(self, shape: Sequence[int], dtype: str, name: str) -> Memory:
        return super().scratch_buffer((self._groups, *shape), dtype, name).part(self._group)


def each_group(
    groups: int, make: Callable[[Expr, Builder], list[Stage] | None], builder: Builder
) -> list[Stage] | None:
    """The stages that ``make(group, builder)`` builds, for every group from 0 on.

    They may differ in nothing but what they read and write.
    """
    if groups == 1:
        return make(0, builder)
    group = var("group")
    stages = make(group, _Parts(builder, groups, group))
    return None if stages is None else [_repeated(stage, groups, group) for stage in stages]


def _repeated(stage: Stage, groups: int, group: Expr) -> Stage:
    assert stage.queue is stage.turn is None, "its tiles are not alike"
    bind = tvm().tirx.Bind

    def body(tile: Expr) -> Stmt:
        # Groups change from tile to tile: the number of others, in which batches differ, is not
        # part of the code.
        index = maximum(tile, 0)
        return seq(
            bind(stage.tile, div(index, groups)), bind(group, mod(index, groups)), stage.body
        )

    made = parallel_stage(stage.name, stage.tiles * groups, body)
    return replace(stage, tiles=made.tiles, tile=made.tile, body=made.body)
