"""Activation functions as modules."""

from __future__ import annotations

import warnings
from typing import Any

from ..tensor import Tensor
from . import functional as F
from . import init
from .activation_functions import check_limits
from .module import Module
from .parameter import Parameter, new_parameter


class _InPlace(Module):
    """Base: no attribute but ``inplace``."""

    _plain = ("inplace",), ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class LeakyReLU(Module):
    """x where it is positive, else ``negative_slope`` times x.

    >>> import minitorch_tvm as mt
    >>> mt.nn.LeakyReLU(0.1)(mt.tensor([-1.0, 2.0]))
    tensor([-0.1000,  2.0000])
    """

    _plain = ("negative_slope", "inplace"), ()

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}" + (", inplace=True" if self.inplace else "")


class SiLU(_InPlace):
    """x times its logistic function; see :func:`functional.silu`."""

    _plain = ("inplace",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.silu(input, self.inplace)


class Mish(_InPlace):
    """x * tanh(softplus(x)); see :func:`functional.mish`."""

    _plain = ("inplace",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.mish(input, self.inplace)


class SELU(_InPlace):
    """The self-normalising activation; see :func:`functional.selu`."""

    _plain = ("inplace",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.selu(input, self.inplace)


class Hardsigmoid(_InPlace):
    """x / 6 + 1 / 2, limited to [0, 1]."""

    _plain = ("inplace",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.hardsigmoid(input, self.inplace)

    def extra_repr(self) -> str:
        return ""


class Hardswish(_InPlace):
    """x times :class:`Hardsigmoid` of x."""

    _plain = ("inplace",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.hardswish(input, self.inplace)

    def extra_repr(self) -> str:
        return ""


class _Alpha(Module):
    """Base: attributes ``alpha`` and ``inplace``."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}" + (", inplace=True" if self.inplace else "")


class ELU(_Alpha):
    """x where it is positive, else ``alpha`` * (exp(x) - 1)."""

    _plain = ("alpha", "inplace"), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.elu(input, self.alpha, self.inplace)


class CELU(_Alpha):
    """x where it is positive, else ``alpha`` * (exp(x / ``alpha``) - 1)."""

    _plain = ("alpha", "inplace"), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.celu(input, self.alpha, self.inplace)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and x itself where beta x > ``threshold``.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Softplus()(mt.zeros(1))
    tensor([0.6931])
    """

    _plain = ("beta", "threshold"), ()

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardtanh(Module):
    """x limited to [``min_val``, ``max_val``].

    ``min_value`` and ``max_value`` are their former names (with a warning).  Raises AssertionError
    unless min_val < max_val.
    """

    _plain = ("min_val", "max_val", "inplace"), ()

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        for old, value in (("min", min_value), ("max", max_value)):
            if value is not None:
                warnings.warn(
                    f"keyword argument `{old}_value` is deprecated and rename to `{old}_val`",
                    FutureWarning,
                    stacklevel=2,
                )
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        self.inplace = inplace
        check_limits(self.min_val, self.max_val)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        text = f"min_val={self.min_val}, max_val={self.max_val}"
        return text + (", inplace=True" if self.inplace else "")


class ReLU6(Hardtanh):
    """x limited to [0, 6]."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.relu6(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softsign(input)


class Tanhshrink(Module):
    """x - tanh(x)."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.tanhshrink(input)


class LogSigmoid(Module):
    """Logarithm of the logistic function, without overflow."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.logsigmoid(input)


class _Shrink(Module):
    """Base: the attribute ``lambd``."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Shrink):
    """0 where |x| <= ``lambd``, else x."""

    _plain = ("lambd",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.hardshrink(input, self.lambd)


class Softshrink(_Shrink):
    """x moved by ``lambd`` towards 0, and 0 where it would pass it."""

    _plain = ("lambd",), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softshrink(input, self.lambd)


class Threshold(Module):
    """x where it is larger than ``threshold``, else ``value``."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        text = f"threshold={self.threshold}, value={self.value}"
        return text + (", inplace=True" if self.inplace else "")


class PReLU(Module):
    """x where it is positive, else ``weight`` times x; the weight is learned.

    ``weight`` has ``num_parameters`` elements, one or as many as channels (dimension 1), and starts
    as ``init``.

    >>> import minitorch_tvm as mt
    >>> mt.nn.PReLU()(mt.tensor([-2.0, 2.0]))
    tensor([-0.5000,  2.0000], grad_fn=<PreluBackward0>)
    """

    weight: Parameter
    _plain = (), ("weight",)

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = new_parameter((num_parameters,), device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to ``init``."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """The first half of x along ``dim``, times the logistic function of the second."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Half the size of ``input`` along ``dim``."""
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmin(Module):
    """Softmax of -x along ``dim``."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softmin(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


__all__ = [
    "CELU",
    "ELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "Mish",
    "PReLU",
    "ReLU6",
    "SiLU",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanhshrink",
    "Threshold",
]


class ReLU(Module):
    """max(x, 0), elementwise.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ReLU()(mt.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    _plain = ("inplace",), ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.relu(input, self.inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Tanh(Module):
    """Hyperbolic tangent, elementwise."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return input.tanh()


class Sigmoid(Module):
    """1 / (1 + exp(-x)), elementwise."""

    _plain = (), ()

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return input.sigmoid()


class GELU(Module):
    """x times the standard normal distribution function at x, elementwise.

    ``approximate="tanh"`` uses the approximation by tanh (:func:`functional.gelu`).

    >>> import minitorch_tvm as mt
    >>> mt.nn.GELU()(mt.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """

    _plain = ("approximate",), ()

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class RReLU(Module):
    """Slopes on the left are drawn from [lower, upper] in training; see :func:`functional.rrelu`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.RReLU(0.0, 0.5).eval()(mt.tensor([-8.0, 8.0]))
    tensor([-2.,  8.])
    """

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + ", inplace=True" * self.inplace


class Softmax(Module):
    """exp(x) normalised to sum to one along ``dim``.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Softmax(dim=0)(mt.zeros(4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.softmax(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax2d(Module):
    """Softmax over the channels of [n, c, h, w] (or [c, h, w]), at each place by itself.

    Raises ValueError for other ranks.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Softmax2d()(mt.zeros(1, 4, 1, 1)).flatten()
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.ndim}D instead")
        return F.softmax(input, -3)


class LogSoftmax(Module):
    """Logarithm of the softmax along ``dim``."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.log_softmax(input, self.dim, _stacklevel=5)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"
