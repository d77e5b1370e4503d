"""Free functions with PyTorch's names: factors of matrices, and what is found by them."""

from __future__ import annotations

from ..core import arguments as arg
from . import solving as so
from .core import input_of, node_of
from .pairs import OrthogonalTriangular, SignLogDet, SingularVectors, TriangularSolution
from .tensor import Tensor

_wrap = Tensor._wrap


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor of positive definite matrices, see :func:`linalg.cholesky`."""
    return input_of("cholesky", input).cholesky(upper)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """x of a x = B, [*b, n, m], where a [*b, n, n] is L L.T, or L.T L if ``upper``.

    Leading dimensions broadcast.  Raises RuntimeError for shapes and dtypes that do not fit.

    >>> import minitorch_tvm as mt
    >>> mt.cholesky_solve(mt.tensor([[4.0]]), mt.tensor([[2.0]]))
    tensor([[1.]])
    """
    x = node_of("cholesky_solve", "B", 1, B)
    factor = node_of("cholesky_solve", "L", 2, L)
    return _wrap(so.cholesky_solve(x, factor, arg.flag("cholesky_solve", "upper", 3, upper)))


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of L L.T, or of L.T L if ``upper``.

    Raises LinAlgError where there is a zero on the diagonal of L.
    """
    factor = node_of("cholesky_inverse", "L", 1, L)
    return _wrap(so.cholesky_inverse(factor, arg.flag("cholesky_inverse", "upper", 2, upper)))


def triangular_solve(
    b: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> TriangularSolution:
    """(x of A x = b, A), see :func:`linalg.solve_triangular`; ``transpose``: of A.T x = b."""
    return input_of("triangular_solve", b).triangular_solve(A, upper, transpose, unitriangular)


def inverse(input: Tensor) -> Tensor:
    """Inverses of square matrices, see :func:`linalg.inv`."""
    return input_of("inverse", input).inverse()


def det(input: Tensor) -> Tensor:
    """Determinants of square matrices, see :func:`linalg.det`."""
    return input_of("det", input).det()


def slogdet(input: Tensor) -> SignLogDet:
    """(sign, logarithm of the size) of determinants, see :func:`linalg.slogdet`."""
    return input_of("slogdet", input).slogdet()


def logdet(input: Tensor) -> Tensor:
    """Logarithms of determinants of square matrices: -inf of 0, NaN of what is less.

    >>> import minitorch_tvm as mt
    >>> mt.logdet(mt.eye(2))
    tensor(0.)
    """
    return input_of("logdet", input).logdet()


def matrix_power(input: Tensor, n: int) -> Tensor:
    """Products of ``n`` times the same square matrices, see :func:`linalg.matrix_power`."""
    return input_of("matrix_power", input).matrix_power(n)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, in the order that takes the fewest multiplications.

    >>> import minitorch_tvm as mt
    >>> mt.chain_matmul(mt.ones(2, 3), mt.ones(3, 4), mt.ones(4, 1))
    tensor([[12.],
            [12.]])
    """
    if len(matrices) == 1:
        return input_of("chain_matmul", matrices[0])
    xs = [node_of("chain_matmul", "matrices", i + 1, x) for i, x in enumerate(matrices)]
    for x in xs:
        if len(x.shape) != 2:
            raise RuntimeError(f"Tensor dimension is {len(x.shape)}, expected 2 instead.")
    return _wrap(so.multi_dot(xs))


def qr(input: Tensor, some: bool = True) -> OrthogonalTriangular:
    """(Q, R), see :func:`linalg.qr`; not ``some``: as many columns of Q as rows."""
    return input_of("qr", input).qr(some)


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SingularVectors:
    """(U, S, V) of U S V.T, see :func:`linalg.svd`; not ``some``: full matrices."""
    return input_of("svd", input).svd(some, compute_uv)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """Pseudoinverses, see :func:`linalg.pinv`; ``rcond`` is its ``rtol``."""
    return input_of("pinverse", input).pinverse(rcond)
