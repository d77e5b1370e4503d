"""Methods that make factors of matrices, and what is found by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import arguments as arg
from ..ops import build as b
from . import solving as so
from . import spectral as sp
from .core import TensorBase, node_of
from .pairs import OrthogonalTriangular, SignLogDet, SingularVectors, TriangularSolution

if TYPE_CHECKING:
    from .tensor import Tensor


class Factors(TensorBase):
    """Determinants, inverses and the like of :class:`minitorch_tvm.Tensor`.

    >>> import minitorch_tvm as mt
    >>> mt.tensor([[2.0, 0.0], [0.0, 4.0]]).det()
    tensor(8.)
    """

    __slots__ = ()

    def cholesky(self, upper: bool = False) -> Tensor:
        """The Cholesky factor of positive definite matrices, see :func:`linalg.cholesky`."""
        x = so.matrices("cholesky", self.node)
        arg.floating(x.dtype, "cholesky_cpu")
        return self._wrap(so.cholesky("cholesky", x, arg.flag("cholesky", "upper", 1, upper)))

    def cholesky_solve(self, input2: Tensor, upper: bool = False) -> Tensor:
        """Solutions x of a x = self, ``input2`` a Cholesky factor of a."""
        factor = node_of("cholesky_solve", "input2", 1, input2)
        high = arg.flag("cholesky_solve", "upper", 2, upper)
        return self._wrap(so.cholesky_solve(self.node, factor, high))

    def cholesky_inverse(self, upper: bool = False) -> Tensor:
        """Inverses of the matrices of which these are Cholesky factors."""
        high = arg.flag("cholesky_inverse", "upper", 1, upper)
        return self._wrap(so.cholesky_inverse(self.node, high))

    def triangular_solve(
        self,
        A: Tensor,
        upper: bool = True,
        transpose: bool = False,
        unitriangular: bool = False,
    ) -> TriangularSolution:
        """(x of A x = self, A), A a triangle; ``transpose``: of A.T x = self."""
        a = node_of("triangular_solve", "A", 1, A)
        high = arg.flag("triangular_solve", "upper", 2, upper)
        turned = arg.flag("triangular_solve", "transpose", 3, transpose)
        unit = arg.flag("triangular_solve", "unitriangular", 4, unitriangular)
        found = so.triangular_solve(self.node, a, high, turned, unit)
        return TriangularSolution(*map(self._wrap, found))

    def inverse(self) -> Tensor:
        """Inverses of square matrices, see :func:`linalg.inv`."""
        return self._wrap(so.inverse_of(self.node))

    def det(self) -> Tensor:
        """Determinants of square matrices, see :func:`linalg.det`."""
        return self._wrap(so.determinant(self.node))

    def slogdet(self) -> SignLogDet:
        """(sign, logarithm of the size) of determinants, see :func:`linalg.slogdet`."""
        return SignLogDet(*map(self._wrap, so.sign_and_log("linalg.slogdet", self.node)))

    def logdet(self) -> Tensor:
        """Logarithms of determinants: -inf of 0, NaN of what is less."""
        return self._wrap(so.log_determinant(self.node))

    def matrix_power(self, n: int) -> Tensor:
        """Products of ``n`` times the same square matrices, see :func:`linalg.matrix_power`."""
        return self._wrap(so.matrix_power(self.node, arg.integer("matrix_power", "n", 1, n)))

    def qr(self, some: bool = True) -> OrthogonalTriangular:
        """(Q, R), see :func:`linalg.qr`; not ``some``: as many columns of Q as rows."""
        reduced = arg.flag("qr", "some", 1, some)
        found = sp.qr(self.node, "reduced" if reduced else "complete")
        return OrthogonalTriangular(*map(self._wrap, found))

    def svd(self, some: bool = True, compute_uv: bool = True) -> SingularVectors:
        """(U, S, V) of U S V.T, see :func:`linalg.svd`; not ``some``: full matrices.

        Without ``compute_uv`` U and V are zeros.
        """
        x = self.node
        reduced = arg.flag("svd", "some", 1, some)
        wanted = arg.flag("svd", "compute_uv", 2, compute_uv)
        if len(x.shape) < 2:
            raise RuntimeError(
                f"linalg.svd: input should have at least 2 dimensions, but has {len(x.shape)} "
                "dimensions instead"
            )
        if not wanted:
            squares = [b.full((*x.shape[:-2], n, n), 0.0, x.dtype) for n in x.shape[-2:]]
            values = self._wrap(sp.singular_values(x))
            return SingularVectors(self._wrap(squares[0]), values, self._wrap(squares[1]))
        u, s, v = map(self._wrap, sp.svd(x, not reduced))
        return SingularVectors(u, s, v.mT)

    def pinverse(self, rcond: float = 1e-15) -> Tensor:
        """Pseudoinverses, see :func:`linalg.pinv`."""
        limit = arg.number("pinverse", "rcond", 1, rcond)
        return self._wrap(sp.pinv(self.node, 0.0, limit, False))
