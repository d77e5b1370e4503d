"""Convolutions of lines, images and volumes, and transposed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ..core.shape import Size
from ..tensor import Tensor
from . import functional as F
from . import init
from .convolutions import transposed_size
from .module import Module
from .parameter import Parameter, new_parameter
from .spatial import Numbers, same_totals


class _Conv(Module):
    """What these layers share."""

    weight: Parameter
    bias: Parameter | None
    _dims: ClassVar[int] = 1
    _transposed: ClassVar[bool] = False

    def _set_up(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers,
        padding: str | Numbers,
        dilation: Numbers,
        output_padding: Numbers,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any,
        dtype: Any,
    ) -> None:
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._numbers(kernel_size, "kernel_size")
        self.stride = self._numbers(stride, "stride")
        self.padding = padding if isinstance(padding, str) else self._numbers(padding, "padding")
        self.dilation = self._numbers(dilation, "dilation")
        self.output_padding = self._numbers(output_padding, "output_padding")
        self.groups = groups
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}"
                )
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if self._transposed and padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {self._get_name()}')
        modes = ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ValueError(f"padding_mode must be one of {modes}, but got {padding_mode=}")
        rows, columns = out_channels, in_channels // groups
        if self._transposed:
            rows, columns = in_channels, out_channels // groups
        self.weight = new_parameter((rows, columns, *self.kernel_size), device, dtype)
        own = new_parameter((out_channels,), device, dtype) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def _numbers(self, value: Numbers, name: str) -> tuple[int, ...]:
        """One for each dimension; TypeError where there is another number of them, or no int."""
        parts = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if len(parts) == 1:
            parts *= self._dims
        whole = all(hasattr(n, "__index__") and not isinstance(n, bool) for n in parts)
        if len(parts) != self._dims or not whole:
            words = ("one int", "two ints", "three ints")[self._dims - 1]
            raise TypeError(f"{name} must be an int or a tuple of {words}, but got {value!r}")
        return tuple(int(n) for n in parts)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        fan = math.prod(self.weight.shape[1:])
        if self.bias is not None and fan:
            init.uniform_(self.bias, -1.0 / math.sqrt(fan), 1.0 / math.sqrt(fan))

    def extra_repr(self) -> str:
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        zeros, ones = (0,) * self._dims, (1,) * self._dims
        for name, usual in (
            ("padding", zeros),
            ("dilation", ones),
            ("output_padding", zeros),
            ("groups", 1),
        ):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        text += "" if self.bias is not None else ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"


class _Correlation(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: str | Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = in_channels, out_channels, kernel_size, stride, padding, dilation
        self._set_up(*shape, 0, groups, bias, padding_mode, device, dtype)

    def _around(self, input: Tensor) -> tuple[Tensor, str | tuple[int, ...]]:
        """``input`` with what is around it, and the zeros that are still to be put there."""
        if self.padding_mode == "zeros":
            return input, self.padding
        zeros = (0,) * self._dims
        if isinstance(self.padding, str):
            same = same_totals(self.weight.shape[2:], self.dilation)
            totals = same if self.padding == "same" else zeros
            both = [n for t in reversed(totals) for n in (t // 2, t - t // 2)]
        else:
            both = [n for n in reversed(self.padding) for _ in "12"]
        return F.pad(input, both, self.padding_mode), zeros


_PLAIN = ("stride", "padding", "dilation", "groups", "padding_mode"), ("weight", "bias")


class Conv1d(_Correlation):
    """Cross-correlation over lines [n, in_channels, l] (or without n).

    ``weight`` is [out_channels, in_channels / groups, k]; the rest is as in :class:`Conv2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Conv1d(2, 8, 3, padding=1)(mt.ones(5, 2, 28)).shape
    torch.Size([5, 8, 28])
    """

    _plain = _PLAIN

    def forward(self, input: Tensor) -> Tensor:
        """[n, in_channels, l] to [n, out_channels, l']."""
        x, zeros = self._around(input)
        return F.conv1d(x, self.weight, self.bias, self.stride, zeros, self.dilation, self.groups)


class Conv2d(_Correlation):
    """Cross-correlation over images [n, in_channels, h, w] (or without n).

    ``weight`` is [out_channels, in_channels / groups, kh, kw], ``bias`` [out_channels]; both start
    as U(-1/sqrt(fan), 1/sqrt(fan)) with fan = in_channels / groups * kh * kw.  ``padding`` takes
    numbers, "valid" (none) or "same" (output as large as the input; stride 1 only), and
    ``padding_mode`` says what is there: "zeros", or a mode of :func:`functional.pad`.

    Raises ValueError for arguments that do not fit together.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Conv2d(1, 8, 3, padding=1)(mt.ones(2, 1, 28, 28)).shape
    torch.Size([2, 8, 28, 28])
    """

    _dims = 2
    _plain = _PLAIN

    def forward(self, input: Tensor) -> Tensor:
        """[n, in_channels, h, w] to [n, out_channels, h', w']."""
        x, zeros = self._around(input)
        return F.conv2d(x, self.weight, self.bias, self.stride, zeros, self.dilation, self.groups)


class Conv3d(_Correlation):
    """Cross-correlation over volumes [n, in_channels, d, h, w] (or without n).

    ``weight`` is [out_channels, in_channels / groups, kd, kh, kw]; the rest is as in
    :class:`Conv2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Conv3d(1, 8, 3, padding=1)(mt.ones(2, 1, 9, 28, 28)).shape
    torch.Size([2, 8, 9, 28, 28])
    """

    _dims = 3
    _plain = _PLAIN

    def forward(self, input: Tensor) -> Tensor:
        """[n, in_channels, d, h, w] to [n, out_channels, d', h', w']."""
        x, zeros = self._around(input)
        return F.conv3d(x, self.weight, self.bias, self.stride, zeros, self.dilation, self.groups)


class _ConvTranspose(_Conv):
    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = in_channels, out_channels, kernel_size, stride, padding, dilation
        self._set_up(*shape, output_padding, groups, bias, padding_mode, device, dtype)

    def _extra(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """The output padding that gives ``output_size``."""
        if output_size is None:
            return self.output_padding
        dims = self._dims
        skipped = input.ndim - dims
        wanted = list(output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[skipped:]
        if len(wanted) != dims:
            raise ValueError(
                f"ConvTranspose{dims}D: for {input.ndim}D input, output_size must have {dims} or "
                f"{input.ndim} elements (got {len(wanted)})"
            )
        assert not isinstance(self.padding, str)
        numbers = self.kernel_size, self.stride, self.padding, self.dilation, (0,) * dims
        least = [*transposed_size(input.shape[skipped:], *numbers)[-dims:]]
        most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
        if any(not a <= n <= z for a, n, z in zip(least, wanted, most, strict=True)):
            raise ValueError(
                f"requested an output size of {output_size}, but valid sizes range from {least} to "
                f"{most} (for an input of {Size(input.shape[2:])})"
            )
        return tuple(n - a for n, a in zip(wanted, least, strict=True))

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """[n, in_channels, ...] to [n, out_channels, ...]."""
        convolve = getattr(F, f"conv_transpose{self._dims}d")
        before = self.weight, self.bias, self.stride, self.padding
        extra = self._extra(input, output_size)
        result: Tensor = convolve(input, *before, extra, self.groups, self.dilation)
        return result


class ConvTranspose1d(_ConvTranspose):
    """The gradient of a :class:`Conv1d` by its input, as a layer; see :class:`ConvTranspose2d`."""


class ConvTranspose2d(_ConvTranspose):
    """The gradient of a convolution by its input, as a layer: it makes images larger.

    ``weight`` is [in_channels, out_channels / groups, kh, kw], ``bias`` [out_channels]; both start
    as U(-1/sqrt(fan), 1/sqrt(fan)) with fan = out_channels / groups * kh * kw.  ``output_padding``,
    or the ``output_size`` that ``forward`` is given, chooses among the sizes that a convolution of
    that ``stride`` would make equal.  See :func:`functional.conv_transpose2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ConvTranspose2d(8, 1, 2, stride=2)(mt.ones(5, 8, 7, 7)).shape
    torch.Size([5, 1, 14, 14])
    """

    _dims = 2


class ConvTranspose3d(_ConvTranspose):
    """The gradient of a :class:`Conv3d` by its input, as a layer; see :class:`ConvTranspose2d`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.ConvTranspose3d(8, 1, 2, stride=2)(mt.ones(5, 8, 3, 7, 7)).shape
    torch.Size([5, 1, 6, 14, 14])
    """

    _dims = 3
