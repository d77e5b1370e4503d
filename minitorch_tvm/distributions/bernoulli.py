"""Yes or no."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.arguments import floating, uncastable
from ..ops import likelihoods as lk
from ..random import default_generator
from ..tensor import Tensor
from ..tensor.creation import arange
from ..tensor.functions import where
from . import constraints
from .families import Binary
from .utils import nodes_of


class Bernoulli(Binary):
    """1 with probability ``probs`` (or 1 / (1 + exp(-``logits``))), else 0.

    Raises ValueError if not one of both is given, and where ``probs`` in memory are outside [0, 1];
    other such probabilities give NaN.

    >>> import minitorch_tvm as mt
    >>> coin = Bernoulli(0.25)
    >>> coin.log_prob(mt.tensor([1.0, 0.0]))
    tensor([-1.3863, -0.2877])
    """

    support = constraints.boolean
    has_enumerate_support = True

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        """The more probable of both; NaN if neither is."""
        p = self.probs
        return where(p == 0.5, float("nan"), (p >= 0.5).to(p.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        p = self.probs.detach().node
        floating(p.dtype, "bernoulli_tensor_cpu_p_")
        shape = tuple(self._extended_shape(sample_shape))
        return Tensor._wrap(lk.binary_draw(p, shape, *default_generator.draw()))

    def log_prob(self, value: Tensor) -> Tensor:
        self._checked(value)
        if not value.is_floating_point():
            raise uncastable(self._param.dtype, value.dtype)
        return Tensor._wrap(lk.binary(*nodes_of(self.logits, value)))

    def entropy(self) -> Tensor:
        return -Tensor._wrap(lk.binary(*nodes_of(self.logits, self.probs)))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self._param.dtype).reshape(-1, *(1,) * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values
