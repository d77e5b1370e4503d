"""Normal distributions."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.arguments import floating
from ..ir.node import apply
from ..ops import build as b
from ..ops import likelihoods as lk
from ..random import default_generator
from ..tensor import Tensor
from .families import LocationScale
from .utils import nodes_of


class Normal(LocationScale):
    """Normal distributions of mean ``loc`` and standard deviation ``scale``.

    Raises ValueError where a scale in memory is not positive, NotImplementedError when integers
    are to be drawn.

    >>> import minitorch_tvm as mt
    >>> normal = Normal(mt.zeros(2), mt.tensor([1.0, 2.0]))
    >>> normal
    Normal(loc: torch.Size([2]), scale: torch.Size([2]))
    >>> normal.log_prob(mt.zeros(2))
    tensor([-0.9189, -1.6121])
    """

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        floating(self.loc.dtype, "normal_kernel_cpu")
        draws = [*default_generator.draw(), *default_generator.draw()]
        shape = tuple(self._extended_shape(sample_shape))
        loc, scale = nodes_of(self.loc, self.scale)
        return Tensor._wrap(lk.normal_draw(loc, scale, draws, shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return Tensor._wrap(lk.normal(*nodes_of(self._checked(value), self.loc, self.scale)))

    def cdf(self, value: Tensor) -> Tensor:
        x, loc, scale = nodes_of(self._checked(value), self.loc, self.scale)
        return Tensor._wrap(apply(b.NORMAL_CDF, b.div(b.sub(x, loc), scale)))

    def icdf(self, value: Tensor) -> Tensor:
        p, loc, scale = nodes_of(value, self.loc, self.scale)
        return Tensor._wrap(b.add(loc, b.mul(scale, lk.normal_quantile(p))))

    def entropy(self) -> Tensor:
        return Tensor._wrap(lk.normal_entropy(*nodes_of(self.scale)))
