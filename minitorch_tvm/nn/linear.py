"""Identity, Linear and Bilinear."""

from __future__ import annotations

import math
import warnings
from typing import Any

from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter, new_parameter


class Identity(Module):
    """Returns its input; takes and ignores any arguments.

    >>> Identity(54, unused=True)(3)
    3
    """

    _plain = (), ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """``input``."""
        return input


class Linear(Module):
    """x @ weight.T + bias on the last dimension.

    ``weight`` is [out_features, in_features], ``bias`` [out_features]; both start as
    U(-1/sqrt(in_features), 1/sqrt(in_features)).

    >>> import minitorch_tvm as mt
    >>> layer = mt.nn.Linear(3, 2)
    >>> layer(mt.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    weight: Parameter
    bias: Parameter | None
    _plain = (), ("weight", "bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = new_parameter((out_features, in_features), device, dtype)
        if bias:
            self.bias = new_parameter((out_features,), device, dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        if 0 in self.weight.shape:
            warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        else:
            init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1.0 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        own = self._parameters
        try:  # a third of what finding them as attributes takes
            weight, bias = own["weight"], own["bias"]
        except KeyError:
            weight, bias = self.weight, self.bias
        return F.linear(input, weight, bias)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Bilinear(Module):
    """input1 @ weight[k] @ input2 for each of ``out_features``, + bias.

    ``weight`` is [out_features, in1_features, in2_features]; it and ``bias`` start as
    U(-1/sqrt(in1_features), 1/sqrt(in1_features)).  Raises ValueError unless ``in1_features`` is
    positive.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Bilinear(2, 3, 4)(mt.ones(5, 2), mt.ones(5, 3)).shape
    torch.Size([5, 4])
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got (in1_features={in1_features})")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = new_parameter((out_features, in1_features, in2_features), device, dtype)
        if bias:
            self.bias = new_parameter((out_features,), device, dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """[..., in1_features] and [..., in2_features] to [..., out_features]."""
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
