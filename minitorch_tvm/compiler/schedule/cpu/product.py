"""Matrix products: from a fused kernel to the tiled schedules."""

from __future__ import annotations

from ....core.shape import Shape, numel
from ....ops import elementwise as ew
from ....ops.matmul import Matmul
from ...loops import Expr, Stage, Stmt
from ...lower import Accessor, KernelCode, accessor
from ...streams import passing_result
from ...target import CpuTarget
from ...triangles import TriangularMatmul
from .gemm import Gemm, gemm_stages
from .gemm_triangles import ALL, Triangles


def product(code: KernelCode, cpu: CpuTarget) -> list[Stage] | None:
    """Stages of a floating point matrix product."""
    if code.kernel.anchor is None or not isinstance(code.anchor.op, Matmul):
        return None
    if not code.anchor.dtype.is_floating_point:
        return None
    op = code.anchor.op
    left, right = code.anchor.inputs
    a, b = code.graph.values[left], code.graph.values[right]
    batch, m, n, k = op.sizes(a.shape, b.shape)

    def operand(v: int, own: tuple[int, ...], flip: bool) -> Accessor:
        read = accessor(code, v)

        def element(bt: Expr, i: Expr, j: Expr) -> Expr:
            lead = _leading(bt, batch)[len(batch) - len(own) :]
            head = tuple(0 if size == 1 else e for size, e in zip(own, lead, strict=True))
            return read(*head, j, i) if flip else read(*head, i, j)

        return element

    def write(bt: Expr, i: Expr, j: Expr, value: Expr) -> Stmt:
        return code.finish((*_leading(bt, batch), i, j), value)

    behind = [v for v in (*code.kernel.members, *code.kernel.inlined) if v > code.kernel.anchor]
    (a_pitch, a_turned), (b_pitch, b_turned) = _pitch(code, left), _pitch(code, right)
    spec = Gemm(
        numel(batch),
        m,
        n,
        k,
        code.anchor.dtype.name,
        op.ta != a_turned,
        op.tb != b_turned,
        a_pitch=a_pitch,
        b_pitch=b_pitch,
        a_batched=numel(a.shape[:-2]) > 1,
        b_batched=numel(b.shape[:-2]) > 1,
        costly=any(isinstance(code.graph.values[v].op, (ew.Float, ew.Div)) for v in behind),
        triangles=_triangles(op),
    )
    return gemm_stages(
        spec,
        operand(left, a.shape[:-2], op.ta),
        operand(right, b.shape[:-2], op.tb),
        write,
        code.builder,
        cpu,
        passing_result(code, cpu),
    )


def _triangles(op: Matmul) -> Triangles:
    if not isinstance(op, TriangularMatmul):
        return ALL
    return Triangles(op.left, op.right, op.result)


def _leading(flat: Expr, batch: Shape) -> tuple[Expr, ...]:
    """Index of the ``flat``-th product of a batch, by differences.

    By remainders, ``flat // 3 * 30 + flat % 3 * 10``, TVM's simplifier, which LLVM's code
    generator asks, fails for some sums with "Literal value ... exceeds range of int32".
    """
    out: list[Expr] = []
    rest = numel(batch)
    for n in batch:
        if n == 1:
            out.append(0)
            continue
        rest //= n
        place = flat // rest if rest > 1 else flat
        out.append(place)
        if rest > 1:
            flat = flat - place * rest
    return tuple(out)


def _pitch(code: KernelCode, v: int) -> tuple[int | None, bool]:
    """Elements of memory between the lines of matrices that are read in place, else None.

    Also whether those lines are the matrices' columns.
    """
    strides = code.strides(v)
    if strides is not None:
        height, width = code.graph.values[v].shape[-2:]
        down, along = strides[-2:]
        if (width == 1 or along == 1) and (height == 1 or down >= width):
            return (width if height == 1 else down), False
        if (height == 1 or down == 1) and (width == 1 or along >= height):
            return (height if width == 1 else along), True
    return None, False
