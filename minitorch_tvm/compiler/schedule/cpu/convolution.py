"""Convolutions: from a fused kernel to their schedules."""

from __future__ import annotations

from ....core.shape import Shape, numel
from ....ops import conv as cv
from ...loops import Expr, Stage, Stmt, load
from ...lower import Collapse, KernelCode, accessor, collapse
from ...target import CpuTarget
from .conv import conv_forward_stages, conv_grad_input_stages, conv_grad_weight_stages
from .conv_spec import Access, Conv, Line


def convolution_stages(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of an ungrouped convolution or one of its gradients."""
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
    spec = Conv(
        x[0],
        x[1],
        x[2],
        x[3],
        w[0],
        w[2],
        w[3],
        op.stride,
        op.padding,
        op.dilation,
        code.anchor.dtype.name,
    )
    generator = {
        cv.Conv2d: conv_forward_stages,
        cv.ConvGradInput: conv_grad_input_stages,
        cv.ConvGradWeight: conv_grad_weight_stages,
    }[type(op)]

    # Indices before those that lines have as one: an output's of weights, image and channel.
    ahead = (2, 2, 1) if isinstance(op, cv.ConvGradWeight) else (2, 1, 2)

    def write(a: Expr, b: Expr, c: Expr, d: Expr, value: Expr) -> Stmt:
        return code.finish((a, b, c, d), value)

    def line(v: int, shape: Shape, lead: int) -> Line | None:
        if not code.is_memory(v):
            return None
        memory = code.buffer(v, (*shape[:lead], numel(shape[lead:])))
        return lambda *index: load(memory, *index)

    def write_line() -> Line | None:
        lead = ahead[2]
        merged = collapse(code, out, code.kernel.members)
        last = {next(k for k, g in enumerate(merged.groups) if d in g) for d in range(lead, 4)}
        if len(last) > 1:
            return None
        shapes = Collapse(out, (*((d,) for d in range(lead)), tuple(range(lead, 4))))
        return lambda *index_and_value: code.finish(
            index_and_value[:-1], index_and_value[-1], shapes
        )

    access = Access(
        accessor(code, first),
        accessor(code, second),
        write,
        line(first, p, ahead[0]),
        line(second, q, ahead[1]),
        write_line(),
    )
    return generator(spec, access, code.builder, cpu)
