"""Pooling of lines, images and volumes."""

from __future__ import annotations

from typing import ClassVar

from ..core.arguments import no_indices
from ..tensor import Tensor
from . import functional as F
from .module import Module
from .pool_functions import Sizes
from .spatial import Numbers


class _MaxPool(Module):
    """What these layers share."""

    _function: ClassVar[str]

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        no_indices(self._function, return_indices)
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


_MAX_PLAIN = ("kernel_size", "stride", "padding", "dilation", "ceil_mode"), ()


class MaxPool1d(_MaxPool):
    """Largest element of each window of [n, c, l] (or [c, l]); padding never wins.

    ``stride`` defaults to ``kernel_size``.  ``return_indices=True`` is not supported (ValueError).

    >>> import minitorch_tvm as mt
    >>> mt.nn.MaxPool1d(2)(mt.tensor([[1.0, 3.0, 2.0, 0.0]]))
    tensor([[3., 2.]])
    """

    _plain = _MAX_PLAIN
    _function = "max_pool1d"

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, l] to [n, c, l']."""
        return F.max_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class MaxPool2d(_MaxPool):
    """Largest element of each window of [n, c, h, w] (or [c, h, w]); padding never wins.

    ``stride`` defaults to ``kernel_size``.  ``return_indices=True`` is not supported (ValueError).

    >>> import minitorch_tvm as mt
    >>> mt.nn.MaxPool2d(2)(mt.arange(16.0).reshape(1, 4, 4))
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """

    _plain = _MAX_PLAIN
    _function = "max_pool2d"

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, h', w']."""
        return F.max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


class MaxPool3d(_MaxPool):
    """Largest element of each window of [n, c, d, h, w] (or [c, d, h, w]); see :class:`MaxPool2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.MaxPool3d((1, 2, 2))(mt.arange(8.0).reshape(1, 2, 2, 2)).flatten()
    tensor([3., 7.])
    """

    _plain = _MAX_PLAIN
    _function = "max_pool3d"

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, d, h, w] to [n, c, d', h', w']."""
        return F.max_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )


def _single(value: Numbers) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


class AvgPool1d(Module):
    """Mean of each window of [n, c, l] (or [c, l]).

    Padding counts as zeros unless ``count_include_pad`` is False.  ``stride`` defaults to
    ``kernel_size``.
    """

    _plain = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"), ()

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = _single(kernel_size)
        self.stride = self.kernel_size if stride is None else _single(stride)
        self.padding = _single(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, l] to [n, c, l']."""
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    """What those of images and volumes share."""

    def __init__(
        self,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


_AVG_PLAIN = (
    (
        "kernel_size",
        "stride",
        "padding",
        "ceil_mode",
        "count_include_pad",
        "divisor_override",
    ),
    (),
)


class AvgPool2d(_AvgPool):
    """Mean of each window of [n, c, h, w] (or [c, h, w]).

    Padding counts as zeros unless ``count_include_pad`` is False.  ``stride`` defaults to
    ``kernel_size``.  ``divisor_override`` is what the sums of windows are divided by instead of
    their sizes.

    >>> import minitorch_tvm as mt
    >>> mt.nn.AvgPool2d(2)(mt.arange(16.0).reshape(1, 4, 4))
    tensor([[[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """

    _plain = _AVG_PLAIN

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, h', w']."""
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool3d(_AvgPool):
    """Mean of each window of [n, c, d, h, w] (or [c, d, h, w]); see :class:`AvgPool2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.AvgPool3d((1, 2, 2))(mt.arange(8.0).reshape(1, 2, 2, 2)).flatten()
    tensor([1.5000, 5.5000])
    """

    _plain = _AVG_PLAIN

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, d, h, w] to [n, c, d', h', w']."""
        return F.avg_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class _Adaptive(Module):
    """What layers that are told the size of their result share."""

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Mean of each of ``output_size`` windows of [n, c, l] (or [c, l])."""

    _plain = ("output_size",), ()

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, l] to [n, c, output_size]."""
        return F.adaptive_avg_pool1d(input, self.output_size)  # type: ignore[arg-type]


class AdaptiveAvgPool2d(_Adaptive):
    """Mean of each of ``output_size`` windows of [n, c, h, w] (or [c, h, w]).

    ``output_size`` is (rows, columns) or one number for both; None keeps the input's size.

    >>> import minitorch_tvm as mt
    >>> mt.nn.AdaptiveAvgPool2d(1)(mt.arange(16.0).reshape(1, 4, 4))
    tensor([[[7.5000]]])
    """

    _plain = ("output_size",), ()

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, rows, columns]."""
        return F.adaptive_avg_pool2d(input, self.output_size)


class AdaptiveAvgPool3d(_Adaptive):
    """Mean of each of ``output_size`` windows of [n, c, d, h, w] (or [c, d, h, w]).

    ``output_size`` is (depth, rows, columns) or one number for all; None keeps the input's size.
    """

    _plain = ("output_size",), ()

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, d, h, w] to [n, c, depth, rows, columns]."""
        return F.adaptive_avg_pool3d(input, self.output_size)


class _AdaptiveMaxPool(_Adaptive):
    _function: ClassVar[str]

    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None:
        super().__init__(output_size)
        no_indices(self._function, return_indices)
        self.return_indices = return_indices


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Largest element of each of ``output_size`` windows of [n, c, h, w] (or [c, h, w]).

    Sizes are those of :class:`AdaptiveAvgPool2d`.  ``return_indices=True`` is not supported
    (ValueError).
    """

    _plain = ("output_size",), ()
    _function = "adaptive_max_pool2d"

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, rows, columns]."""
        return F.adaptive_max_pool2d(input, self.output_size)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Largest element of each of ``output_size`` windows of [n, c, d, h, w] (or [c, d, h, w]).

    See :class:`AdaptiveMaxPool2d`.
    """

    _plain = ("output_size",), ()
    _function = "adaptive_max_pool3d"

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, d, h, w] to [n, c, depth, rows, columns]."""
        return F.adaptive_max_pool3d(input, self.output_size)
