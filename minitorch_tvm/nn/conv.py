"""Conv2d."""

from __future__ import annotations

import math
from typing import Any

from ..tensor import Tensor
from . import functional as F
from . import init
from .functional import IntPair, pair
from .module import Module
from .parameter import Parameter, new_parameter

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class Conv2d(Module):
    """Cross-correlation over images [n, in_channels, h, w] (or without n).

    ``weight`` is [out_channels, in_channels / groups, kh, kw], ``bias`` [out_channels]; both start
    as U(-1/sqrt(fan), 1/sqrt(fan)) with fan = in_channels / groups * kh * kw.  ``padding`` takes
    numbers, "valid" (none) or "same" (output as large as the input; stride 1 only).

    Raises ValueError for arguments that do not fit together and for every ``padding_mode`` but
    "zeros".

    >>> import minitorch_tvm as mt
    >>> mt.nn.Conv2d(1, 8, 3, padding=1)(mt.ones(2, 1, 28, 28)).shape
    torch.Size([2, 8, 28, 28])
    """

    weight: Parameter
    bias: Parameter | None
    _plain = ("stride", "padding", "dilation", "groups"), ("weight", "bias")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: str | IntPair = 0,
        dilation: IntPair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        self.stride = pair(stride, "stride")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}"
                )
            if padding == "same" and self.stride != (1, 1):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {_PADDING_MODES}, but got {padding_mode=}"
            )
        if padding_mode != "zeros":
            raise ValueError(f"only padding_mode='zeros' is supported, but got {padding_mode=}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = pair(kernel_size, "kernel_size")
        self.padding = padding if isinstance(padding, str) else pair(padding, "padding")
        self.dilation = pair(dilation, "dilation")
        self.groups = groups
        self.padding_mode = padding_mode
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = new_parameter(shape, device, dtype)
        if bias:
            self.bias = new_parameter((out_channels,), device, dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        fan = math.prod(self.weight.shape[1:])
        if self.bias is not None and fan:
            init.uniform_(self.bias, -1.0 / math.sqrt(fan), 1.0 / math.sqrt(fan))

    def forward(self, input: Tensor) -> Tensor:
        """[n, in_channels, h, w] to [n, out_channels, h', w']."""
        return F.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0, 0):
            text += f", padding={self.padding}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text
