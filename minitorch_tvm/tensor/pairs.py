"""What functions return that give several tensors, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .tensor import Tensor


class ValuesIndices(NamedTuple):
    """Result of ``max(dim)``, ``min(dim)``, ``sort``, ``topk`` and the like."""

    values: Tensor
    indices: Tensor


class MinMax(NamedTuple):
    """Result of ``aminmax``."""

    min: Tensor
    max: Tensor


class CholeskyInfo(NamedTuple):
    """Result of ``linalg.cholesky_ex``."""

    L: Tensor
    info: Tensor


class InverseInfo(NamedTuple):
    """Result of ``linalg.inv_ex``."""

    inverse: Tensor
    info: Tensor


class SolutionInfo(NamedTuple):
    """Result of ``linalg.solve_ex``."""

    result: Tensor
    info: Tensor


class SignLogDet(NamedTuple):
    """Result of ``slogdet``."""

    sign: Tensor
    logabsdet: Tensor


class Pivoted(NamedTuple):
    """Result of ``linalg.lu_factor``."""

    LU: Tensor
    pivots: Tensor


class PivotedInfo(NamedTuple):
    """Result of ``linalg.lu_factor_ex``."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class Eliminated(NamedTuple):
    """Result of ``linalg.lu``."""

    P: Tensor
    L: Tensor
    U: Tensor


class TriangularSolution(NamedTuple):
    """Result of ``triangular_solve``."""

    solution: Tensor
    cloned_coefficient: Tensor


class OrthogonalTriangular(NamedTuple):
    """Result of ``qr``."""

    Q: Tensor
    R: Tensor


class Eigen(NamedTuple):
    """Result of ``linalg.eigh``."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SingularValues(NamedTuple):
    """Result of ``linalg.svd``."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SingularVectors(NamedTuple):
    """Result of ``svd``."""

    U: Tensor
    S: Tensor
    V: Tensor


class LeastSquares(NamedTuple):
    """Result of ``linalg.lstsq``."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor
