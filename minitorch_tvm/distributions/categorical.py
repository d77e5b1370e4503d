"""One of several classes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.shape import Size
from ..ir.node import Node
from ..nn.functional import log_softmax
from ..ops import build as b
from ..ops import likelihoods as lk
from ..ops import sampling
from ..random import default_generator
from ..tensor import Tensor
from ..tensor.creation import arange, full
from ..tensor.gathering import checked
from . import constraints
from .constraints import Constraint
from .families import Chances
from .utils import at_hand, is_whole, nodes_of


class Categorical(Chances):
    """Class numbers 0 .. n-1 (int64) with the probabilities in the last dimension of a tensor.

    Either ``probs``, which are divided by their sum, or ``logits``, logarithms of probabilities up
    to a constant.  Drawing evaluates nothing, other than ``multinomial``: where what was given is
    not in memory, NaN gives any class and log-probabilities of NaN.

    Raises ValueError if not one of both is given, for 0-d tensors, and for what is in memory and
    no such thing: negative or infinite ``probs``, none above zero, NaN.  :meth:`log_prob` raises
    ValueError for classes that are not there, at the next evaluation if they are still to be
    computed.

    >>> import minitorch_tvm as mt
    >>> policy = Categorical(logits=mt.tensor([[0.0, 0.0], [2.0, -100.0]]))
    >>> action = policy.sample()
    >>> action.shape, action[1]
    (torch.Size([2]), tensor(0))
    >>> policy.log_prob(mt.tensor([1, 1]))
    tensor([  -0.6931, -102.0000])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.simplex,
        "logits": constraints.real_vector,
    }
    has_enumerate_support = True
    is_binary = False

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, given = self._given(probs, logits)
        if not given.dim():
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        (x,) = nodes_of(given)
        if name == "logits":
            self.logits = log_softmax(Tensor._wrap(x), dim=-1)
        else:
            self.probs = Tensor._wrap(lk.shares(x))
        self._raw = given
        super().__init__(given.shape[:-1], validate_args=validate_args)
        del self._raw

    def _check_parameters(self) -> None:
        # What was given tells before it is normalised, which is recorded, whether it can be.
        array = at_hand(self._raw)
        if array is None or not array.size:
            return
        name = "probs" if "probs" in vars(self) else "logits"
        with np.errstate(invalid="ignore"):
            if name == "logits":
                fine = np.isfinite(array.max(-1)).all()
            else:
                total = array.sum(-1)
                fine = (array >= 0).all() and ((total > 0) & np.isfinite(total)).all()
        if not fine:
            condition = f"satisfy the constraint {self.arg_constraints[name]},"
            raise self._wrong_parameter(name, getattr(self, name), condition)

    @property
    def _classes(self) -> int:
        return self._param.shape[-1]

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Constraint:
        return constraints.integer_interval(0, self._classes - 1)

    @property
    def mean(self) -> Tensor:
        """NaN: numbers of classes have none."""
        return full(self._batch_shape, float("nan"), dtype=self._param.dtype)

    @property
    def variance(self) -> Tensor:
        """NaN."""
        return self.mean

    @property
    def mode(self) -> Tensor:
        return self._param.argmax(dim=-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        samples, known = tuple(Size(sample_shape)), vars(self)
        # By what was given: what is impossible has a logarithm, too, and would be drawn by that.
        logits = "probs" not in known
        x = known["logits" if logits else "probs"].node
        return Tensor._wrap(sampling.classes(x, logits, samples, *default_generator.draw()))

    def log_prob(self, value: Tensor) -> Tensor:
        return Tensor._wrap(lk.category(self.logits.node, self._positions(value)))

    def _positions(self, value: Tensor) -> Node:
        if self._validate_args:
            self._check_shape(value) if is_whole(value) else self._validate_sample(value)
        wrong = functools.partial(self._no_class, value)
        return checked(b.cast(value.node, dt.int64), Bounds(0, self._classes, wrong))

    def _no_class(self, value: Tensor, position: int) -> Exception:
        if not self._validate_args:
            return RuntimeError(
                f"index {position} is out of bounds for dimension {len(self._batch_shape)} with "
                f"size {self._classes}"
            )
        if at_hand(value) is not None:
            return self._outside(value)
        # In the middle of an evaluation, which cannot print values.
        return ValueError(
            f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be "
            f"within the support ({self.support}) of the distribution {type(self).__name__}, but "
            f"found invalid values:\n{position}"
        )

    def entropy(self) -> Tensor:
        return Tensor._wrap(lk.category_entropy(self.logits.node, self.probs.node))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._classes).reshape(-1, *(1,) * len(self._batch_shape))
        return values.expand(-1, *self._batch_shape) if expand else values
