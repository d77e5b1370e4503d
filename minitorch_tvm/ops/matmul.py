"""Matrix product in its four transpose forms."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.record import record
from ..core.shape import Shape, broadcast, numel
from ..ir.build import Build
from ..ir.node import Node
from ..ir.op import Kind, Op, Spec
from ..ir.te import TE, Expr, Tensor


@record(eq=False)
class Matmul(Op, kind=Kind.COMPLEX):
    """matmul(a: t[*b, m, k], b: t[*b, k, n]) -> t[*b, m, n].

    ``ta`` says that a is stored as [k, m], ``tb`` that b is stored as [n, k]; neither is ever
    transposed in memory.  Leading dimensions broadcast.
    """

    ta: bool
    tb: bool

    def sizes(self, a: Shape, b: Shape) -> tuple[Shape, int, int, int]:
        """(batch shape, m, n, k) of two operand shapes."""
        m, k = (a[-1], a[-2]) if self.ta else (a[-2], a[-1])
        n = b[-2] if self.tb else b[-1]
        return broadcast(a[:-2], b[:-2]), m, n, k

    def infer(self, *inputs: Spec) -> Spec:
        a, b = inputs
        rows = (a.shape[-1], a.shape[-2]) if self.ta else a.shape[-2:]
        columns = (b.shape[-1], b.shape[-2]) if self.tb else b.shape[-2:]
        if rows[1] != columns[0] and len(b.shape) > 2:
            batches = numel(broadcast(a.shape[:-2], b.shape[:-2]))
            raise RuntimeError(
                "Expected size for first two dimensions of batch2 tensor to be: "
                f"[{batches}, {rows[1]}] but got: [{batches}, {columns[0]}]."
            )
        if rows[1] != columns[0]:
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied ({rows[0]}x{rows[1]} and "
                f"{columns[0]}x{columns[1]})"
            )
        batch, m, n, _ = self.sizes(a.shape, b.shape)
        single = len(b.shape) == 2
        if a.dtype is not b.dtype:
            raise RuntimeError(
                "expected m1 and m2 to have the same dtype, but got: "
                f"{a.dtype.scalar_name} != {b.dtype.scalar_name}"
                if single
                else f"expected scalar type {a.dtype.torch_name} but found {b.dtype.torch_name}"
            )
        if a.dtype is dt.bool_:
            raise unsupported("addmm_impl_cpu_" if single else "bmm", a.dtype)
        return Spec((*batch, m, n), a.dtype)

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        a, b = xs
        batch, m, n, k = self.sizes(a.shape, b.shape)

        def read(x: Tensor, lead: tuple[Expr, ...], i: Expr, j: Expr) -> Expr:
            own = lead[len(lead) - len(x.shape) + 2 :]
            head = tuple(0 if s == 1 else e for s, e in zip(x.shape[:-2], own, strict=True))
            return x[(*head, i, j)]

        def product(i: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            *lead, row, column = i
            p = r[0]
            left = read(a, tuple(lead), *((p, row) if self.ta else (row, p)))
            right = read(b, tuple(lead), *((column, p) if self.tb else (p, column)))
            return te.mul(left, right)

        return te.reduce("sum", (*batch, m, n), a.dtype, [k], product)

    def reference(self, np: ModuleType, *xs: Any) -> Any:
        a, b = xs
        return np.matmul(
            np.swapaxes(a, -1, -2) if self.ta else a, np.swapaxes(b, -1, -2) if self.tb else b
        )

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        a, b = xs
        # With A, B the logical operands: dA = ct B', dB = A' ct; where an operand is stored
        # transposed, its cotangent is too.
        d_a = d_b = None
        if a.requires_grad:
            d = f.matmul(b, ct, self.tb, True) if self.ta else f.matmul(ct, b, False, not self.tb)
            d_a = f.unbroadcast(d, a.shape)
        if b.requires_grad:
            d = f.matmul(ct, a, True, self.ta) if self.tb else f.matmul(a, ct, not self.ta, False)
            d_b = f.unbroadcast(d, b.shape)
        return d_a, d_b
