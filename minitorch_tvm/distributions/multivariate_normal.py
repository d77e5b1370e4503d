"""Normal distributions of vectors whose elements depend on each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from ..core.shape import broadcast
from ..linalg import cholesky, solve_triangular
from ..tensor import Tensor
from ..tensor.creation import eye
from ..tensor.factor_functions import cholesky_inverse
from ..tensor.sampling import randn
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .utils import lazy_property

_NAMES = ("covariance_matrix", "precision_matrix", "scale_tril")


class MultivariateNormal(Distribution):
    """Normal distributions of vectors of mean ``loc`` [*b, d].

    Given is one of ``covariance_matrix``, its inverse ``precision_matrix``, and ``scale_tril``, the
    lower triangle l [*b, d, d] of l l.T = covariance; the others are made when they are asked for.
    Of a matrix the factor is made at once, which evaluates (see :func:`linalg.cholesky`).

    Raises ValueError where arguments in memory are not positive definite, or not triangles with a
    positive diagonal, or unless exactly one is given; LinAlgError of matrices without a factor.

    >>> import minitorch_tvm as mt
    >>> pair = MultivariateNormal(mt.zeros(2), mt.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> pair.log_prob(mt.zeros(2))
    tensor(-2.3872)
    >>> pair.variance, pair.sample((3,)).shape
    (tensor([2.0000, 2.0000]), torch.Size([3, 2]))
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")
        matrices = zip(_NAMES, (covariance_matrix, precision_matrix, scale_tril), strict=True)
        given = [(name, matrix) for name, matrix in matrices if matrix is not None]
        if len(given) != 1:
            raise ValueError(
                "Exactly one of covariance_matrix or precision_matrix or scale_tril may be "
                "specified."
            )
        ((name, matrix),) = given
        if matrix.ndim < 2:
            what = "scale_tril matrix" if name == "scale_tril" else name
            raise ValueError(
                f"{what} must be at least two-dimensional, with optional leading batch dimensions"
            )
        batch = broadcast(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1]))
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        self.loc = loc.expand((*batch, -1))
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)
        # As it was given, not once for each of the batch; in a tuple, which expand() leaves alone.
        self._known = (_factor(name, matrix),)

    @property
    def _factor(self) -> Tensor:
        return self._known[0]

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The lower triangle l of l l.T = covariance."""
        return self._matrix(self._factor)

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance of each pair of elements."""
        return self._matrix(self._factor @ self._factor.mT)

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return self._matrix(cholesky_inverse(self._factor))

    def _matrix(self, x: Tensor) -> Tensor:
        return x.expand((*self._batch_shape, *self._event_shape, *self._event_shape))

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        own = self._factor.square().sum(-1)
        return own.expand((*self._batch_shape, *self._event_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        standard = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + (self._factor @ standard.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        distance = squared_distance(self._factor, self._checked(value) - self.loc)
        scale = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (scale + distance) - log_of_size(self._factor)

    def entropy(self) -> Tensor:
        own = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (own + log_of_size(self._factor)).expand(self._batch_shape)


def _factor(name: str, matrix: Tensor) -> Tensor:
    """l of l l.T = covariance, from one of three."""
    if name == "scale_tril":
        return matrix
    if name == "covariance_matrix":
        return cholesky(matrix)
    # Of the inverse u.T u: with rows and columns in the other order a factor is an upper triangle.
    upper = cholesky(matrix.flip((-2, -1))).flip((-2, -1)).mT
    identity = eye(matrix.shape[-1], dtype=matrix.dtype)
    return solve_triangular(upper, identity, upper=False)


def log_of_size(factor: Tensor) -> Tensor:
    """Half of the logarithm of a covariance's determinant, by its factor."""
    return factor.diagonal(0, -2, -1).log().sum(-1)


def squared_distance(factor: Tensor, x: Tensor) -> Tensor:
    """Of vectors from 0, in standard deviations (P. Mahalanobis, 1936)."""
    if factor.ndim == 2:  # one system for all
        d = x.shape[-1]
        columns = solve_triangular(factor, x.reshape(-1, d).mT, upper=False)
        return columns.square().sum(0).reshape(x.shape[:-1])
    return solve_triangular(factor, x.unsqueeze(-1), upper=False).square().sum((-2, -1))
