"""What softmax and attention share: weights whose gradient needs nothing but themselves."""

from __future__ import annotations

from ..core.record import record
from ..ir.build import Build
from ..ir.node import Node, apply
from ..ir.op import Kind, Spec, intern
from ..ir.te import TE, Tensor
from . import build as b
from . import elementwise as ew


@record(eq=False)
class Weights(ew.Clone, kind=Kind.INJECTIVE):
    """weights(y, x) -> y, with the cotangent of y = softmax(x) along ``axis``::

        dx = y * (ct - sum(ct * y))

    Going back through quotient, sum and exponential would keep the exponentials for it as well.
    Canonicalisation removes the op, as every copy.
    """

    axis: int

    def infer(self, *inputs: Spec) -> Spec:
        return inputs[0]

    def compute(self, te: TE, *xs: Tensor) -> Tensor:
        return super().compute(te, xs[0])

    def vjp(self, f: Build, ct: Node, y: Node, *xs: Node) -> tuple[Node | None, ...]:
        mean = f.sum(f.mul(ct, y), (self.axis,), True)
        return None, f.mul(y, f.sub(ct, mean))


# Elements from which one division for all and a product for each are faster than divisions: fewer
# are a vector or two, which would wait for it.
_SHARED_DIVISION = 17


def weights(exponentials: Node, x: Node, axis: int, total: Node | None = None) -> Node:
    """exponentials / their sum along ``axis`` (or ``total``), where they are exp(x + a shift).

    Of more than 16 they are multiplied by the sum's reciprocal, one more rounding.  It is a normal
    number: the largest exponential is 1.
    """
    if total is None:
        total = b.sum(exponentials, (axis,), True)
    if exponentials.shape[axis] < _SHARED_DIVISION:
        y = b.div(exponentials, total)
    else:
        y = b.mul(exponentials, b.div(b.full_like(total, 1.0), total))
    return apply(intern(Weights(axis)), y, x)
