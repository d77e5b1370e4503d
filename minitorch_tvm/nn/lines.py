"""Pooling along one dimension (available as ``nn.functional``).

A line is an image of height one.
"""

from __future__ import annotations

from typing import Any

from ..core.arguments import flag, floating, no_indices, unsupported
from ..ir.node import Node
from ..ops import network as net
from ..tensor import Tensor
from ..tensor.core import node_of
from .spatial import Numbers, batched, has_stride, like, several


def _one(function: str, argument: str, position: int, value: Any) -> int:
    numbers = several(function, argument, position, value, 1)
    if len(numbers) != 1:
        if function == "max_pool1d":
            raise RuntimeError(
                f"max_pool1d() {argument} must be an int, list of ints or tuple of ints of size 1 "
                f"but got size {len(numbers)}"
            )
        raise RuntimeError(
            f"{function}() argument '{argument}' should contain one int (got {len(numbers)})"
        )
    return numbers[0]


def max_pool1d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Largest element of each window of [n, c, l] (or [c, l]); see :func:`max_pool2d`.

    >>> import minitorch_tvm as mt
    >>> max_pool1d(mt.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[3., 2.]])
    """
    no_indices("max_pool1d", return_indices)
    x = node_of("max_pool1d", "input", 1, input)
    if len(x.shape) not in (2, 3) or 0 in x.shape[-2:]:
        raise RuntimeError(
            "max_pool1d: Expected 2D or 3D (batch mode) tensor with optional 0 dim batch size for "
            f"input, but got:{list(x.shape)}"
        )
    kernel = _one("max_pool1d", "kernel_size", 2, kernel_size)
    step = _one("max_pool1d", "stride", 3, stride) if has_stride(stride) else kernel
    margin = _one("max_pool1d", "padding", 4, padding)
    spread = _one("max_pool1d", "dilation", 5, dilation)
    flag("max_pool1d", "ceil_mode", 6, ceil_mode)
    for name, value in (("kernel_size", kernel), ("stride", step), ("dilation", spread)):
        if value <= 0:
            raise RuntimeError(f"max_pool1d() {name} must be greater than zero, but got {value}")
    if margin < 0:
        raise RuntimeError(f"max_pool1d() padding must be non-negative, but got {margin}")
    if 2 * margin > kernel:
        raise RuntimeError(
            "max_pool1d() padding should be at most half of kernel size, but got "
            f"padding={margin} and kernel_size={kernel}"
        )
    room = x.shape[-1] + 2 * margin - spread * (kernel - 1) - 1
    count = (room + (step - 1 if ceil_mode else 0)) // step + 1
    if count < 1:
        raise RuntimeError(f"max_pool1d() Invalid computed output size: {count}")
    if not x.dtype.is_floating_point:
        raise unsupported("max_pool1d_impl", x.dtype)
    window = ((1, kernel), (1, step), (0, margin), (1, spread))
    return like(net.max_pool2d(batched(x, 1), window, ceil_mode), x, 1)


def _ranks(function: str, x: Node) -> None:
    if len(x.shape) not in (2, 3):
        raise RuntimeError(
            f"Expected 2 to 3 dimensions, but got {len(x.shape)}-dimensional tensor for argument #1"
            f" 'self' (while checking arguments for {function})"
        )


def avg_pool1d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Mean of each window of [n, c, l] (or [c, l]); see :func:`avg_pool2d`.

    >>> import minitorch_tvm as mt
    >>> avg_pool1d(mt.tensor([[1.0, 3.0, 2.0, 0.0]]), 2)
    tensor([[2., 1.]])
    """
    x = node_of("avg_pool1d", "input", 1, input)
    _ranks("avg_pool1d", x)
    kernel = _one("avg_pool1d", "kernel_size", 2, kernel_size)
    step = _one("avg_pool1d", "stride", 3, stride) if has_stride(stride) else kernel
    margin = _one("avg_pool1d", "padding", 4, padding)
    flag("avg_pool1d", "ceil_mode", 5, ceil_mode)
    flag("avg_pool1d", "count_include_pad", 6, count_include_pad)
    if kernel <= 0 or step <= 0 or margin < 0:
        raise RuntimeError(
            "avg_pool1d: kernel_size and stride must be positive and padding must not be negative, "
            f"but got {kernel}, {step} and {margin}"
        )
    floating(x.dtype, "avg_pool2d")
    window = ((1, kernel), (1, step), (0, margin), (1, 1))
    return like(net.avg_pool2d(batched(x, 1), window, ceil_mode, count_include_pad), x, 1)


def adaptive_avg_pool1d(input: Tensor, output_size: Numbers) -> Tensor:
    """Means of [n, c, l] (or [c, l]) over ``output_size`` windows; see :func:`adaptive_avg_pool2d`.

    >>> import minitorch_tvm as mt
    >>> adaptive_avg_pool1d(mt.tensor([[1.0, 2.0, 3.0, 4.0]]), 2)
    tensor([[1.5000, 3.5000]])
    """
    x = node_of("adaptive_avg_pool1d", "input", 1, input)
    _ranks("adaptive_avg_pool1d", x)
    if output_size is None:
        raise TypeError(
            "adaptive_avg_pool1d(): argument 'output_size' (position 2) must be tuple of ints, not "
            "NoneType"
        )
    size = _one("adaptive_avg_pool1d", "output_size", 2, output_size)
    if size < 0:
        raise RuntimeError(
            "adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 but "
            f"received {{1, {size}}}"
        )
    floating(x.dtype, "adaptive_avg_pool2d")
    return like(net.adaptive_avg_pool2d(batched(x, 1), (1, size)), x, 1)
