"""Factors, systems of equations and norms, as ``torch.linalg`` has them.

Matrices are the last two dimensions, [*b, m, n]; those before are batches.  float32 and float64.

>>> import minitorch_tvm as mt
>>> mt.linalg.norm(mt.tensor([[3.0, 4.0], [0.0, 0.0]]))
tensor(5.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .core import arguments as arg
from .core import dtype as dt
from .core.arguments import Dims
from .core.dtype import DType
from .core.errors import LinAlgError
from .core.spelling import numpy_names
from .ops import build as b
from .ops import factors as fa
from .ops import norms
from .tensor import Tensor
from .tensor import solving as so
from .tensor import spectral as sp
from .tensor.core import node_of, tensor_of
from .tensor.pairs import (
    CholeskyInfo,
    Eigen,
    Eliminated,
    InverseInfo,
    LeastSquares,
    OrthogonalTriangular,
    Pivoted,
    PivotedInfo,
    SignLogDet,
    SingularValues,
    SolutionInfo,
)
from .tensor.reductions import power_of

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "inv_ex",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "vector_norm",
]

_wrap = Tensor._wrap


@numpy_names
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """Cross products of vectors of three elements along ``dim``; other dimensions broadcast.

    Raises RuntimeError unless both have three elements there.
    """
    x = tensor_of("linalg_cross", "input", 1, input)
    y = tensor_of("linalg_cross", "other", 2, other)
    return x._cross(y, arg.integer("linalg_cross", "dim", 3, dim))


@numpy_names
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum of |x|**ord)**(1 / ord) over ``dim`` (all if None); of 0, inf and -inf the limit.

    Raises RuntimeError for integers, and for negative orders and inf of no elements.
    """
    node = node_of("linalg_vector_norm", "input", 1, x)
    dims = arg.dims("linalg_vector_norm", dim, 3)
    return Tensor._wrap(norms.vector_norm(node, power_of(ord), dims, keepdim, dtype))


@numpy_names
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Norm of the matrices in two dimensions: "fro", or 1, -1, inf, -inf of sums.

    Of 2 and -2 it is the largest and the lowest singular value, of "nuc" the sum of all.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.matrix_norm(mt.tensor([[3.0, 0.0], [0.0, -4.0]]), "nuc")
    tensor(7.)
    """
    node = node_of("linalg_matrix_norm", "input", 1, A)
    return _wrap(sp.matrix_norm(node, ord, dim, keepdim, dtype))


@numpy_names
def norm(
    A: Tensor,
    ord: Any = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Norm of a vector, or with ``ord`` and two dimensions of matrices; of all elements by default.

    Raises what :func:`vector_norm` and :func:`matrix_norm` raise.
    """
    node = node_of("linalg_norm", "input", 1, A)
    dims = arg.dims("linalg_norm", dim, 3)
    if isinstance(dims, tuple) and len(dims) not in (1, 2):
        raise RuntimeError(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {list(dims)}"
        )
    if ord is None:
        return vector_norm(A, 2, dims, keepdim, dtype=dtype)
    rank = len(node.shape)
    if dims is None and rank not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{rank}D."
        )
    pair: Any = (-2, -1) if dims is None else dims
    two = rank == 2 if dims is None else isinstance(dims, tuple) and len(dims) == 2
    if two or isinstance(ord, str):
        return matrix_norm(A, ord, pair, keepdim, dtype=dtype)
    return vector_norm(A, ord, dims, keepdim, dtype=dtype)


# --- factors ------------------------------------------------------------------------------------


def cholesky(input: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle l [*b, n, n] of l l.T = input; ``upper``: the upper one u of u.T u.

    Only that triangle of the input is read.  Whether all is well is found out at once: raises
    LinAlgError, a RuntimeError, where a matrix is not positive definite (:func:`cholesky_ex` does
    not), and RuntimeError unless they are square and of floating point numbers.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.cholesky(mt.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    x = so.real("linalg.cholesky", node_of("linalg_cholesky", "input", 1, input))
    high = arg.flag("linalg_cholesky", "upper", None, upper)
    return _wrap(so.cholesky("linalg.cholesky", x, high))


def cholesky_ex(input: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyInfo:
    """(L, info): :func:`cholesky`, and in int32 the order of the first minor that is not positive.

    0 where there is none.  Nothing is evaluated unless ``check_errors``.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.cholesky_ex(mt.tensor([[1.0, 2.0], [2.0, 1.0]])).info
    tensor(2, dtype=mt.int32)
    """
    x = so.real("linalg.cholesky", node_of("linalg_cholesky_ex", "input", 1, input))
    high = arg.flag("linalg_cholesky_ex", "upper", None, upper)
    check = arg.flag("linalg_cholesky_ex", "check_errors", None, check_errors)
    return CholeskyInfo(*map(_wrap, so.cholesky_info("linalg.cholesky_ex", x, high, check)))


def solve_triangular(
    input: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """x of a x = B, of a triangle a [*b, n, n] and B [*b, n, m]; not ``left``: of x a = B.

    Of the input only that triangle is read; ``unitriangular``: ones are taken for its diagonal.
    Leading dimensions broadcast.  Zeros on the diagonal give what dividing by zero gives.

    >>> import minitorch_tvm as mt
    >>> a = mt.tensor([[2.0, 1.0], [0.0, 4.0]])
    >>> mt.linalg.solve_triangular(a, mt.tensor([[4.0], [8.0]]), upper=True)
    tensor([[1.],
            [2.]])
    """
    a = node_of("linalg_solve_triangular", "input", 1, input)
    x = node_of("linalg_solve_triangular", "B", 2, B)
    given = {"upper": upper, "left": left, "unitriangular": unitriangular}
    for name, flag in given.items():
        arg.flag("linalg_solve_triangular", name, None, flag)
    return _wrap(so.solve_triangular(a, x, upper, left, unitriangular))


def lu_factor(A: Tensor, *, pivot: bool = True) -> Pivoted:
    """(LU, pivots) of matrices [*b, m, n], by elimination with row exchanges.

    LU holds both triangles, without the ones of l's diagonal; with each of the rows in turn, that
    of its pivot was exchanged (int32, counted from 1).  Raises RuntimeError where u has a zero on
    its diagonal, which is found out at once, and without ``pivot``.
    """
    both, pivots, _, info = _eliminated("linalg_lu_factor", A, pivot)
    return Pivoted(_wrap(so.lu_sound(both, info)), _wrap(pivots))


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> PivotedInfo:
    """(LU, pivots, info): :func:`lu_factor`, and where the first zero of u's diagonal is, or 0."""
    both, pivots, _, info = _eliminated("linalg_lu_factor_ex", A, pivot)
    if arg.flag("linalg_lu_factor_ex", "check_errors", None, check_errors):
        both = so.lu_sound(both, info)
    return PivotedInfo(_wrap(both), _wrap(pivots), _wrap(b.cast(info, dt.int32)))


def _eliminated(function: str, x: Tensor, pivot: bool) -> tuple[Any, Any, Any, Any]:
    if not arg.flag(function, "pivot", None, pivot):
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on the CPU")
    where = "linalg.lu" if function == "linalg_lu" else "torch.lu_factor"
    return so.lu(where, node_of(function, "A", 1, x))


def lu(A: Tensor, *, pivot: bool = True) -> Eliminated:
    """(P, L, U) of A = P L U: a permutation, and triangles [*b, m, k] and [*b, k, n].

    k is the smaller of m and n.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.lu(mt.tensor([[1.0, 2.0], [2.0, 2.0]])).U
    tensor([[2., 2.],
            [0., 1.]])
    """
    both, _, order, _ = _eliminated("linalg_lu", A, pivot)
    m, n = both.shape[-2:]
    k, rank = min(m, n), len(both.shape)
    low = b.narrow(both, rank - 1, 0, k)
    low = fa.triangle(low, False, 0.0)
    eye = b.narrow(fa.identity(max(m, 1), both), 1, 0, k)
    upper = fa.triangle(b.narrow(both, rank - 2, 0, k), True)
    return Eliminated(*map(_wrap, (fa.permutation(order, both.dtype), b.add(low, eye), upper)))


def qr(A: Tensor, mode: str = "reduced") -> OrthogonalTriangular:
    """(Q, R) of A = Q R: orthonormal columns [*b, m, k] and a triangle [*b, k, n].

    k is the smaller of m and n, or m of mode "complete"; of mode "r" Q is empty.  By Householder's
    reflections, which make no diagonal element of R positive but those with zeros below.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.qr(mt.tensor([[3.0], [4.0]]))
    OrthogonalTriangular(Q=tensor([[-0.6000],
            [-0.8000]]), R=tensor([[-5.]]))
    """
    x = node_of("linalg_qr", "A", 1, A)
    kind = arg.text("linalg_qr", "mode", 2, mode)
    return OrthogonalTriangular(*map(_wrap, sp.qr(x, kind)))


def eigh(input: Tensor, UPLO: str = "L") -> Eigen:
    """(eigenvalues [*b, n] in ascending order, eigenvectors as columns) of symmetric matrices.

    Only the lower triangle is read, or the upper one of ``UPLO`` "U".  Which sign an eigenvector
    has, and which are chosen where eigenvalues are equal, is not said; gradients are only those of
    what does not depend on it.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.eigh(mt.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
    tensor([1., 3.])
    """
    x = node_of("linalg_eigh", "input", 1, input)
    return Eigen(*map(_wrap, sp.eigh(x, arg.text("linalg_eigh", "UPLO", 2, UPLO))))


def eigvalsh(input: Tensor, UPLO: str = "L") -> Tensor:
    """Eigenvalues of symmetric matrices in ascending order, see :func:`eigh`."""
    x = node_of("linalg_eigvalsh", "input", 1, input)
    return _wrap(sp.eigvalsh(x, arg.text("linalg_eigvalsh", "UPLO", 2, UPLO)))


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SingularValues:
    """(U, S, Vh) of A = U S Vh: orthonormal columns, singular values, and orthonormal rows.

    S [*b, k] is in descending order, k the smaller of m and n.  U is [*b, m, m] and Vh [*b, n, n],
    or [*b, m, k] and [*b, k, n] without ``full_matrices``.  Signs, and vectors of equal values, are
    not said.  Raises RuntimeError for a ``driver``, of which there is none.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.svd(mt.tensor([[3.0, 0.0], [0.0, -4.0]])).S
    tensor([4., 3.])
    """
    x = node_of("linalg_svd", "A", 1, A)
    full = arg.flag("linalg_svd", "full_matrices", 2, full_matrices)
    _no_driver("svd", driver)
    return SingularValues(*map(_wrap, sp.svd(x, full)))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """Singular values [*b, k] of matrices in descending order, see :func:`svd`."""
    x = node_of("linalg_svdvals", "A", 1, A)
    _no_driver("svd", driver)
    return _wrap(sp.singular_values(x))


def _no_driver(function: str, driver: str | None) -> None:
    if driver is not None:
        raise RuntimeError(
            f"torch.linalg.{function}: keyword argument `driver=` is only supported on CUDA inputs "
            "with cuSOLVER backend."
        )


# --- systems of equations -----------------------------------------------------------------------


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """x of A x = B, of square matrices [*b, n, n] and B [*b, n, m], or a vector for each, [*b, n].

    Not ``left``: of x A = B.  Leading dimensions broadcast.  Raises LinAlgError where A is
    singular, which is found out at once, and RuntimeError for shapes and dtypes that do not fit.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.solve(mt.tensor([[0.0, 2.0], [1.0, 0.0]]), mt.tensor([4.0, 3.0]))
    tensor([3., 2.])
    """
    y, info = _solved("linalg_solve", A, B, left)
    return _wrap(so.sound(y, info, A.shape[-1], so.singular("torch.linalg.solve")))


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> SolutionInfo:
    """(result, info): :func:`solve`, and where elimination has found a zero (int32), or 0."""
    y, info = _solved("linalg_solve_ex", A, B, left)
    if arg.flag("linalg_solve_ex", "check_errors", None, check_errors):
        y = so.sound(y, info, A.shape[-1], so.singular("torch.linalg.solve_ex"))
    return SolutionInfo(_wrap(y), _wrap(b.cast(info, dt.int32)))


def _solved(function: str, A: Tensor, B: Tensor, left: bool) -> tuple[Any, Any]:
    a, x = node_of(function, "A", 1, A), node_of(function, "B", 2, B)
    return so.solve(a, x, arg.flag(function, "left", None, left))


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices.

    Raises LinAlgError where there is none, which is found out at once.  To solve a system,
    :func:`solve` is faster and more accurate.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.inv(mt.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor([[0.0000, 1.0000],
            [0.5000, 0.0000]])
    """
    return _wrap(so.inverse_of(node_of("linalg_inv", "A", 1, A)))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseInfo:
    """(inverse, info): :func:`inv`, and where elimination has found a zero (int32), or 0."""
    y, info = so.inverse(node_of("linalg_inv_ex", "A", 1, A))
    if arg.flag("linalg_inv_ex", "check_errors", None, check_errors):
        y = so.sound(y, info, A.shape[-1], so.no_inverse("linalg.inv_ex"))
    return InverseInfo(_wrap(y), _wrap(b.cast(info, dt.int32)))


def det(A: Tensor) -> Tensor:
    """Determinants [*b] of square matrices.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.det(mt.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor(-2.)
    """
    return _wrap(so.determinant(node_of("linalg_det", "A", 1, A)))


def slogdet(A: Tensor) -> SignLogDet:
    """(sign, logabsdet) of determinants: 1, 0 or -1, and the logarithms of their sizes.

    Where a determinant is too large for a number its logarithm is not.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.slogdet(-mt.eye(3)).sign
    tensor(-1.)
    """
    x = node_of("linalg_slogdet", "A", 1, A)
    return SignLogDet(*map(_wrap, so.sign_and_log("linalg.slogdet", x)))


# --- products -----------------------------------------------------------------------------------


def matrix_power(input: Tensor, n: int) -> Tensor:
    """Products of ``n`` times the same square matrices; of inverses if ``n`` is negative.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.matrix_power(mt.tensor([[1.0, 1.0], [0.0, 1.0]]), 5)
    tensor([[1., 5.],
            [0., 1.]])
    """
    x = node_of("linalg_matrix_power", "input", 1, input)
    return _wrap(so.matrix_power(x, arg.integer("linalg_matrix_power", "n", 2, n)))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order that takes the fewest multiplications.

    The first and the last may be vectors.  Raises RuntimeError for shapes that do not fit.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.multi_dot([mt.ones(2, 3), mt.ones(3, 4), mt.ones(4)])
    tensor([12., 12.])
    """
    for i, given in enumerate(tensors):
        if not isinstance(given, Tensor):
            kind = type(given).__name__
            raise TypeError(f"expected Tensor as element {i} in argument 0, but got {kind}")
    xs = [given.node for given in tensors]
    count = len(xs)
    if count < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {count}")
    ranks = [len(x.shape) for x in xs]
    for place, which in ((0, "first"), (-1, "last")):
        if ranks[place] not in (1, 2):
            raise RuntimeError(
                f"multi_dot(): the {which} tensor must be 1D or 2D but got {ranks[place]}D"
            )
    shapes = [x.shape for x in xs]
    first, last = ranks[0] == 1, ranks[-1] == 1
    if first:
        xs[0] = b.reshape(xs[0], (1, *xs[0].shape))
    if last:
        xs[-1] = b.reshape(xs[-1], (*xs[-1].shape, 1))
    for i, x in enumerate(xs):
        if len(x.shape) != 2:
            raise RuntimeError(f"multi_dot(): tensor {i} must be 2D but got {len(x.shape)}D")
        if x.dtype is not xs[0].dtype:
            names = [n.dtype.scalar_name for n in (xs[0], x)]
            raise RuntimeError(
                "multi_dot(): all tensors must have be the same dtype but tensor 0 is "
                f"{names[0]} and tensor {i} {names[1]}"
            )
    for i in range(count - 1):
        if xs[i].shape[1] != xs[i + 1].shape[0]:
            raise RuntimeError(
                f"multi_dot(): tensors {i} and {i + 1} with shapes {list(shapes[i])} and "
                f"{list(shapes[i + 1])} cannot be multiplied"
            )
    y = so.multi_dot(xs)
    shape = y.shape[1:] if first else y.shape
    return _wrap(b.reshape(y, shape[:-1] if last else shape))


# --- by singular values -------------------------------------------------------------------------


def _limit(value: Tensor | float | None) -> Any:
    return value.node if isinstance(value, Tensor) else value


def pinv(
    input: Tensor,
    rcond: Tensor | float | None = None,
    hermitian: bool = False,
    *,
    atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
) -> Tensor:
    """Pseudoinverses [*b, n, m] of matrices: (A.T A)**-1 A.T of independent columns.

    Singular values up to ``atol``, or ``rtol`` times the largest, count as 0; by default up to what
    rounding errors make of a 0.  ``rcond`` is another name of ``rtol``.  ``hermitian``: of
    symmetric matrices, of which the lower triangle is read.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.pinv(mt.tensor([[2.0], [0.0]]))
    tensor([[0.5000, 0.0000]])
    """
    x = node_of("linalg_pinv", "input", 1, input)
    symmetric = arg.flag("linalg_pinv", "hermitian", 3, hermitian)
    relative = rcond if rtol is None else rtol
    return _wrap(sp.pinv(x, _limit(atol), _limit(relative), symmetric))


def matrix_rank(
    input: Tensor,
    tol: Tensor | float | None = None,
    hermitian: bool = False,
    *,
    atol: Tensor | float | None = None,
    rtol: Tensor | float | None = None,
) -> Tensor:
    """How many singular values are more than a 0 with rounding errors (int64), see :func:`pinv`.

    ``tol`` is ``atol`` without an ``rtol``.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.matrix_rank(mt.ones(3, 2))
    tensor(1)
    """
    x = node_of("linalg_matrix_rank", "input", 1, input)
    symmetric = arg.flag("linalg_matrix_rank", "hermitian", 3, hermitian)
    if tol is not None:
        atol, rtol = tol, 0.0
    return _wrap(sp.matrix_rank(x, _limit(atol), _limit(rtol), symmetric))


def cond(input: Tensor, p: float | str | None = None) -> Tensor:
    """Condition numbers of matrices: the norm times that of the inverse, inf if there is none.

    Of None and 2 the largest over the lowest singular value, also of matrices that are not square.

    >>> import minitorch_tvm as mt
    >>> mt.linalg.cond(mt.tensor([[1.0, 0.0], [0.0, 4.0]]))
    tensor(4.)
    """
    return _wrap(sp.cond(node_of("linalg_cond", "input", 1, input), p))


def lstsq(
    input: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares:
    """(solution, residuals, rank, singular_values): of all x the one that makes A x - b shortest.

    Where several do, the shortest.  ``driver`` "gelsy" (the default) tells ranks, and takes for 0
    what is up to ``rcond`` times the largest singular value; "gels" is faster, for matrices of full
    rank, and tells sums of squared residuals if there are more rows than columns.  What is not told
    is empty.  Raises NotImplementedError for "gelsd" and "gelss".

    >>> import minitorch_tvm as mt
    >>> a, b = mt.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), mt.tensor([[1.0], [3.0], [5.0]])
    >>> mt.linalg.lstsq(a, b).solution
    tensor([[1.0000],
            [2.0000]])
    """
    x, y = node_of("linalg_lstsq", "input", 1, input), node_of("linalg_lstsq", "b", 2, b)
    kind = "gelsy" if driver is None else arg.text("linalg_lstsq", "driver", None, driver)
    limit = None if rcond is None else float(arg.number("linalg_lstsq", "rcond", 3, rcond))
    return LeastSquares(*map(_wrap, sp.lstsq(x, y, limit, kind)))
