"""One of several classes, as a vector that has a one at its place."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.shape import Size
from ..nn.functional import one_hot
from ..tensor import Tensor
from ..tensor.creation import eye
from . import constraints
from .categorical import Categorical
from .distribution import Distribution


class OneHotCategorical(Distribution):
    """As :class:`Categorical`, of vectors with a one at the class and zeros elsewhere.

    >>> import minitorch_tvm as mt
    >>> OneHotCategorical(mt.tensor([0.0, 1.0])).sample()
    tensor([0., 1.])
    """

    arg_constraints = Categorical.arg_constraints
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits, validate_args)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def logits(self) -> Tensor:
        """Logarithms of probabilities."""
        return self._categorical.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities."""
        return self._categorical.probs

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return self._categorical.param_shape

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return self._vector(self._categorical.mode)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def _vector(self, position: Tensor) -> Tensor:
        return one_hot(position, self._event_shape[0]).to(self._categorical._param.dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._vector(self._categorical.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(self._checked(value).argmax(dim=-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = eye(n, dtype=self._categorical._param.dtype)
        values = values.reshape(n, *(1,) * len(self._batch_shape), n)
        return values.expand(n, *self._batch_shape, n) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Its samples pass gradients on to the probabilities as if they were these.

    (Y. Bengio, N. Léonard, A. Courville, Estimating or Propagating Gradients Through Stochastic
    Neurons for Conditional Computation, 2013.)

    >>> import minitorch_tvm as mt
    >>> logits = mt.zeros(2, requires_grad=True)
    >>> choice = OneHotCategoricalStraightThrough(logits=logits).rsample()
    >>> (choice * mt.tensor([2.0, 0.0])).sum().backward()
    >>> logits.grad
    tensor([ 0.5000, -0.5000])
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
