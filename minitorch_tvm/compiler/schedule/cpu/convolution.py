"""Convolutions: from a fused kernel to their schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ....core.shape import Shape, numel
from ....ops import conv as cv
from ...loops import Builder, Expr, Stage, Stmt, load
from ...lower import Collapse, KernelCode, accessor, collapse
from ...target import CpuTarget
from .conv import conv_forward_stages, conv_grad_input_stages, conv_grad_weight_stages
from .conv_groups import each_group
from .conv_spec import Access, Conv, Line


def convolution(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a convolution or one of its gradients."""
    op = code.anchor.op
    assert isinstance(op, cv.ConvBase)
    first, second = code.anchor.inputs
    p, q = code.graph.values[first].shape, code.graph.values[second].shape
    out = code.anchor.shape
    if isinstance(op, cv.Conv2d):
        x, w = p, q
    elif isinstance(op, cv.ConvGradInput):
        x, w = out, q
    else:
        x, w = p, out
    inputs, outputs = w[1], w[0] // op.groups
    spec = Conv(
        x[0],
        inputs,
        x[2],
        x[3],
        outputs,
        w[2],
        w[3],
        op.stride,
        op.padding,
        op.dilation,
        code.anchor.dtype.name,
        op.groups,
    )
    generator = {
        cv.Conv2d: conv_forward_stages,
        cv.ConvGradInput: conv_grad_input_stages,
        cv.ConvGradWeight: conv_grad_weight_stages,
    }[type(op)]

    if op.groups > 1:
        cpu = replace(cpu, matrix_unit=False)  # its tiles are of 32 channels

    # Of the operands and the result, the dimension in which groups follow each other, and how much
    # of it is one group's; behind it are those that lines have as one.
    images = ((1, inputs), (1, outputs))
    (left, right), result = {
        cv.Conv2d: ((images[0], (0, outputs)), images[1]),
        cv.ConvGradInput: ((images[1], (0, outputs)), images[0]),
        cv.ConvGradWeight: (images, (0, outputs)),
    }[type(op)]

    def line(v: int, shape: Shape, lead: int) -> Line | None:
        if not code.is_memory(v):
            return None
        memory = code.buffer(v, (*shape[:lead], numel(shape[lead:])))
        return lambda *index: load(memory, *index)

    def write_line(lead: int) -> Line | None:
        merged = collapse(code, out, code.kernel.members)
        last = {next(k for k, g in enumerate(merged.groups) if d in g) for d in range(lead, 4)}
        if len(last) > 1:
            return None
        shapes = Collapse(out, (*((d,) for d in range(lead)), tuple(range(lead, 4))))
        return lambda *index_and_value: code.finish(
            index_and_value[:-1], index_and_value[-1], shapes
        )

    lines = (
        line(first, p, left[0] + 1),
        line(second, q, right[0] + 1),
        write_line(result[0] + 1),
    )

    def write(a: Expr, b: Expr, c: Expr, d: Expr, value: Expr) -> Stmt:
        return code.finish((a, b, c, d), value)

    def stages(group: Expr, builder: Builder) -> list[Stage] | None:
        def own(function: Line, place: tuple[int, int]) -> Line:
            """``function`` of an index in the group."""
            dimension, size = place
            if op.groups == 1:
                return function

            def shifted(*index: Expr) -> Any:
                of_all = group * size + index[dimension]
                return function(*index[:dimension], of_all, *index[dimension + 1 :])

            return shifted

        every = zip(lines, (left, right, result), strict=True)
        access = Access(
            own(accessor(code, first), left),
            own(accessor(code, second), right),
            own(write, result),
            *(None if f is None else own(f, place) for f, place in every),
        )
        return generator(spec, access, builder, cpu)

    return each_group(op.groups, stages, code.builder)
