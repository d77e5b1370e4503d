"""Unfold, Fold, ChannelShuffle and LocalResponseNorm."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensor import Tensor
from . import functional as F
from .module import Module

_Sizes = int | Sequence[int]


class Unfold(Module):
    """The windows of images [n, c, h, w] as columns; see :func:`functional.unfold`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Unfold((2, 3))(mt.zeros(2, 5, 3, 4)).shape
    torch.Size([2, 30, 4])
    """

    def __init__(
        self,
        kernel_size: _Sizes,
        dilation: _Sizes = 1,
        padding: _Sizes = 0,
        stride: _Sizes = 1,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c * kernel, windows]."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """Images of which columns are the windows, added up; see :func:`functional.fold`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Fold((4, 5), (2, 2))(mt.zeros(1, 12, 12)).shape
    torch.Size([1, 3, 4, 5])
    """

    def __init__(
        self,
        output_size: _Sizes,
        kernel_size: _Sizes,
        dilation: _Sizes = 1,
        padding: _Sizes = 0,
        stride: _Sizes = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        """[n, c * kernel, windows] to [n, c, h, w]."""
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )


class ChannelShuffle(Module):
    """Channels of all groups in turn; see :func:`functional.channel_shuffle`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ChannelShuffle(2)
    ChannelShuffle(groups=2)
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class LocalResponseNorm(Module):
    """Channels divided by the size of their neighbours; see :func:`functional.local_response_norm`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.LocalResponseNorm(2)
    LocalResponseNorm(2, alpha=0.0001, beta=0.75, k=1.0)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, input: Tensor) -> Tensor:
        """Same shape as ``input``."""
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
