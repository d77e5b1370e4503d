"""Special functions by the names that ``torch.special`` has for them.

>>> import minitorch_tvm as mt
>>> mt.special.expit(mt.tensor([0.0])), mt.special.gammaln(mt.tensor([5.0]))
(tensor([0.5000]), tensor([3.1781]))
"""

from __future__ import annotations

from typing import Any

from .ops import build as b
from .ops import derived as d
from .tensor import Tensor
from .tensor.core import node_of
from .tensor.elementwise_functions import exp2, expm1, log1p, round
from .tensor.functions import erf, log_softmax, sigmoid
from .tensor.functions import softmax as _softmax
from .tensor.reduction_functions import logsumexp
from .tensor.special_functions import digamma, erfc, erfinv, lgamma, logit, mvlgamma, sinc, xlogy

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "log1p",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlogy",
]

expit = sigmoid
gammaln = lgamma
psi = digamma
multigammaln = mvlgamma


def ndtr(input: Tensor) -> Tensor:
    """The chance that a standard normal variable is below ``input``.

    >>> import minitorch_tvm as mt
    >>> ndtr(mt.tensor([-1.0, 0.0]))
    tensor([0.1587, 0.5000])
    """
    return Tensor._wrap(d.unary_float(b.NORMAL_CDF, node_of("special_ndtr", "input", 1, input)))


def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """exp(input) normalised along ``dim``; ``dtype`` converts the input first."""
    return _softmax(input, dim, dtype)
