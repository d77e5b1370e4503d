"""Geometric distributions."""

from __future__ import annotations

from collections.abc import Sequence

from .. import random as rng
from ..ops import likelihoods as lk
from ..tensor import Tensor
from ..tensor.creation import zeros_like
from ..tensor.functions import where
from . import constraints
from .families import Binary
from .utils import (
    at_hand,
    nodes_of,
)


class Geometric(Binary):
    """How many trials fail before the first success, each of which has probability ``probs``.

    Or ``logits``, log(p / (1 - p)).  Raises ValueError if not one of both is given, and where
    ``probs`` in memory are outside (0, 1].

    >>> import minitorch_tvm as mt
    >>> Geometric(0.5).log_prob(mt.tensor([0.0, 1.0]))
    tensor([-0.6931, -1.3863])
    """

    support = constraints.nonnegative_integer

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if "probs" in vars(self):
            array = at_hand(self.probs)
            if array is not None and not (array > 0).all():
                raise self._wrong_parameter(
                    "probs", self.probs, "be positive", self.probs[self.probs <= 0]
                )

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        return zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        p = self.probs.detach()
        shape = tuple(self._extended_shape(sample_shape))
        # Successes that come at a rate of -log(1 - p) come in a trial of length 1 with p.
        wait = Tensor._wrap(rng.exponential(shape, p.dtype))
        return (wait / -(-p).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        p = self.probs
        certain = (p == 1) & (value == 0)
        return value * (-where(certain, 0.0, p)).log1p() + p.log()

    def entropy(self) -> Tensor:
        return -Tensor._wrap(lk.binary(*nodes_of(self.logits, self.probs))) / self.probs
