"""Methods that multiply vectors and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ..core.arguments import number
from ..ir.node import Node
from ..ops import products as pr
from .core import Number, TensorBase, node_of

if TYPE_CHECKING:
    from .tensor import Tensor


class Products(TensorBase):
    """Products of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> mt.zeros(2).addmv(mt.ones(2, 3), mt.ones(3), alpha=2)
    tensor([6., 6.])
    """

    __slots__ = ()

    def dot(self, tensor: Tensor) -> Tensor:
        """Sum of products of two vectors of one dtype."""
        return self._wrap(pr.dot(self.node, node_of("dot", "tensor", 1, tensor)))

    def outer(self, vec2: Tensor) -> Tensor:
        """self[i] * vec2[j] of two vectors."""
        return self._wrap(pr.outer(self.node, node_of("outer", "vec2", 1, vec2)))

    ger = outer

    def mv(self, vec: Tensor) -> Tensor:
        """Product of a matrix and a vector."""
        return self._wrap(pr.mv(self.node, node_of("mv", "vec", 1, vec)))

    def inner(self, other: Tensor) -> Tensor:
        """Sums of products along the last dimensions of both."""
        return self._wrap(pr.inner(self.node, node_of("inner", "other", 1, other)))

    def addmm(self, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """beta * self + alpha * mat1 @ mat2; of a beta of 0, self does not count."""
        given = factors("addmm", ("mat1", "mat2"), mat1, mat2, beta, alpha)
        return self._wrap(pr.addmm(self.node, *given))

    def addmv(self, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
        """beta * self + alpha * mat @ vec; of a beta of 0, self does not count."""
        given = factors("addmv", ("mat", "vec"), mat, vec, beta, alpha)
        return self._wrap(pr.addmv(self.node, *given))

    def baddbmm(
        self, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor:
        """beta * self + alpha * batch1 @ batch2, a product per entry of the batches."""
        given = factors("baddbmm", ("batch1", "batch2"), batch1, batch2, beta, alpha)
        return self._wrap(pr.baddbmm(self.node, *given))

    def addmm_(self, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Self:
        """self = beta * self + alpha * mat1 @ mat2."""
        return self._assign(self.addmm(mat1, mat2, beta=beta, alpha=alpha).node, "addmm_")

    def baddbmm_(
        self, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Self:
        """self = beta * self + alpha * batch1 @ batch2."""
        value = self.baddbmm(batch1, batch2, beta=beta, alpha=alpha)
        return self._assign(value.node, "baddbmm_")


def factors(
    function: str,
    names: tuple[str, str],
    first: Any,
    second: Any,
    beta: Any,
    alpha: Any,
    position: int = 1,
) -> tuple[Node, Node, Number, Number]:
    """Two operands of a product, the first at a position, and its scales.

    TypeError for one of a wrong kind.
    """
    return (
        node_of(function, names[0], position, first),
        node_of(function, names[1], position + 1, second),
        number(function, "beta", None, beta),
        number(function, "alpha", None, alpha),
    )
