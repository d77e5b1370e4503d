"""Pooling of images and of volumes (available as ``nn.functional``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import floating, no_indices, unsupported
from ..ir.node import Node, once_fitting
from ..ops import network as net
from ..ops import pool as pl
from ..ops import volumes as vol
from ..sites import of_any_size
from ..tensor import Tensor
from ..tensor.core import node_of
from .spatial import Numbers, batched, has_stride, like, several

Sizes = int | Sequence[int | None] | None


def _numbers(
    function: str, argument: str, position: int, value: Any, count: int
) -> tuple[int, ...]:
    """A parameter of a pooling as ``count`` ints; RuntimeError for another number of them."""
    numbers = several(function, argument, position, value, count)
    if len(numbers) == count:
        return numbers
    either = "" if function == "avg_pool3d" else " either"
    must = {"stride": f"{either} be omitted,", "dilation": " be either"}.get(
        argument, f"{either} be"
    )
    words = {2: "two", 3: "three"}[count]
    raise RuntimeError(
        f"{function}: {argument} must{must} a single int, or a tuple of {words} ints"
    )


def _by_side(letters: str, numbers: Sequence[int]) -> str:
    """Each number with its name, as PyTorch shows them."""
    sides = "THW"[-len(numbers) :]
    return " ".join(f"{letters}{side}: {n}" for side, n in zip(sides, numbers, strict=True))


def _window(
    function: str,
    count: int,
    x: Node,
    kernel_size: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
) -> net.Window:
    """(kernel, stride, padding, dilation) of a pooling of x; RuntimeError if they do not fit."""
    kernel = _numbers(function, "kernel_size", 2, kernel_size, count)
    steps = _numbers(function, "stride", 3, stride, count) if has_stride(stride) else kernel
    margins = _numbers(function, "padding", 4, padding, count)
    spread = _numbers(function, "dilation", 5, dilation, count)
    arg.flag(function, "ceil_mode", 6 if "max" in function else 5, ceil_mode)
    _check_window((x,), function, kernel, steps, margins, spread, ceil_mode)
    return kernel, steps, margins, spread


@once_fitting
def _check_window(
    nodes: tuple[Node],
    function: str,
    kernel: tuple[int, ...],
    steps: tuple[int, ...],
    margins: tuple[int, ...],
    spread: tuple[int, ...],
    ceil_mode: bool,
) -> None:
    x, count = nodes[0].shape, len(kernel)
    ranks = f"{count + 1}D or {count + 2}D"
    if len(x) not in (count + 1, count + 2):
        raise RuntimeError(f"non-empty {ranks} (batch mode) tensor expected for input")
    if 0 in steps:
        raise RuntimeError("stride should not be zero")
    for name, letter, numbers in (
        ("kernel size", "k", kernel),
        ("stride", "d", steps),
        ("dilation", "dilation", spread),
    ):
        if min(numbers) <= 0:
            raise RuntimeError(
                f"{name} should be greater than zero, but got {_by_side(letter, numbers)}"
            )
    for p, k, s in zip(margins, kernel, spread, strict=True):
        if p < 0:
            raise RuntimeError(f"pad must be non-negative, but got pad: {p}")
        if 2 * p > k:
            raise RuntimeError(
                "pad should be at most half of effective kernel size, but got "
                f"pad={p}, kernel_size={k} and dilation={s}"
            )
    if 0 in x[-count - 1 :]:
        if count == 2:
            raise RuntimeError(
                f"Expected {ranks} (batch mode) tensor with optional 0 dim batch size for input, "
                f"but got:{list(x)}"
            )
        where = "max_pool3d_with_indices_out_cpu_template" if "max" in function else function
        raise RuntimeError(
            f"{where}(): Expected input's non-batch dimensions to have positive length, but input "
            f"has a shape of {list(x)} and non-batch dimension 0 has length zero!"
        )
    size = x[-count:]
    if function == "avg_pool3d" and any(n < k for n, k in zip(size, kernel, strict=True)):
        raise RuntimeError(
            f"input image ({_by_side('', size)}) smaller than kernel size ({_by_side('k', kernel)})"
        )
    out = pl.pooled_size(size, kernel, steps, margins, spread, ceil_mode)
    if min(out) < 1:
        shown = ["x".join(map(str, (x[-count - 1], *n))) for n in (size, out)]
        raise RuntimeError(
            f"Given input size: ({shown[0]}). Calculated output size: ({shown[1]}). Output size is "
            "too small"
        )


def _max_pool(
    function: str,
    count: int,
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
    return_indices: bool,
) -> Tensor:
    no_indices(function, return_indices)
    x = node_of(function, "input", 1, input)
    window = _window(function, count, x, kernel_size, stride, padding, dilation, ceil_mode)
    if x.dtype is dt.bool_:
        raise unsupported(function, x.dtype)
    images = batched(x, count)
    if count == 3:
        return like(vol.max_pool3d(images, window, ceil_mode), x, count)
    remembers = window[1] == (2, 2) and of_any_size(function, images.shape)
    return like(net.max_pool2d(images, window, ceil_mode, remembers), x, count)


def max_pool2d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Largest element of each window of [n, c, h, w] (or [c, h, w]).

    ``stride`` defaults to ``kernel_size``; padding never wins.  Raises RuntimeError for sizes that
    do not fit, NotImplementedError for bool, ValueError for ``return_indices=True``.

    >>> import minitorch_tvm as mt
    >>> max_pool2d(mt.arange(16.0).reshape(1, 4, 4), 2)
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """
    given = kernel_size, stride, padding, dilation, ceil_mode, return_indices
    return _max_pool("max_pool2d", 2, input, *given)


def max_pool3d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Largest element of each window of [n, c, d, h, w] (or [c, d, h, w]); see :func:`max_pool2d`.

    >>> import minitorch_tvm as mt
    >>> max_pool3d(mt.arange(8.0).reshape(1, 2, 2, 2), 2)
    tensor([[[[7.]]]])
    """
    given = kernel_size, stride, padding, dilation, ceil_mode, return_indices
    return _max_pool("max_pool3d", 3, input, *given)


def _avg_pool(
    function: str,
    count: int,
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    x = node_of(function, "input", 1, input)
    divisor = 0
    if divisor_override is not None:
        divisor = arg.integer(function, "divisor_override", 7, divisor_override)
        if not divisor:
            raise RuntimeError("divisor must be not zero")
    window = _window(function, count, x, kernel_size, stride, padding, 1, ceil_mode)
    arg.flag(function, "count_include_pad", 6, count_include_pad)
    floating(x.dtype, "avg_pool3d_out_frame" if count == 3 else "avg_pool2d")
    pool = vol.avg_pool3d if count == 3 else net.avg_pool2d
    y = pool(batched(x, count), window, ceil_mode, count_include_pad, divisor)
    return like(y, x, count)


def avg_pool2d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window of [n, c, h, w] (or [c, h, w]).

    Padding counts as zeros unless ``count_include_pad`` is False.  ``divisor_override`` is what the
    sums of windows are divided by instead of their sizes.  Raises RuntimeError for sizes that do
    not fit, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> avg_pool2d(mt.arange(16.0).reshape(1, 4, 4), 2)
    tensor([[[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """
    given = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    return _avg_pool("avg_pool2d", 2, input, *given)


def avg_pool3d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window of [n, c, d, h, w] (or [c, d, h, w]); see :func:`avg_pool2d`.

    >>> import minitorch_tvm as mt
    >>> avg_pool3d(mt.arange(8.0).reshape(1, 2, 2, 2), 2)
    tensor([[[[3.5000]]]])
    """
    given = kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    return _avg_pool("avg_pool3d", 3, input, *given)


def _adaptive(function: str, count: int, x: Node, output_size: Sizes) -> tuple[int, ...]:
    """What an adaptive pooling is to make of x; RuntimeError where that is impossible."""
    sizes: Sequence[Any] = (output_size,) * count
    if not isinstance(output_size, int) and isinstance(output_size, Sequence):
        sizes = output_size
    given = tuple([n if m is None else m for n, m in zip(x.shape[-count:], sizes, strict=False)])
    out = arg.several(function, "output_size", 2, given)
    _check_adaptive((x,), function, count, len(sizes), out)
    return out


@once_fitting
def _check_adaptive(
    nodes: tuple[Node], function: str, count: int, given: int, out: tuple[int, ...]
) -> None:
    x, mean = nodes[0], "avg" in function
    if len(x.shape) not in (count + 1, count + 2):
        raise RuntimeError(
            f"{function}(): Expected {count + 1}D or {count + 2}D tensor, but "
            f"got{'' if mean else ':'} {list(x.shape)}"
        )
    rank = len(x.shape)
    spatial = range(rank - count, rank) if function == "adaptive_avg_pool2d" else range(1, rank)
    for axis in spatial:
        if not x.shape[axis]:
            raise RuntimeError(
                f"{function}(): Expected input to have non-zero size for non-batch dimensions, but "
                f"input has sizes {list(x.shape)} with dimension {axis} being empty"
            )
    if given != count:
        wrong = "output_size must be" if mean else "internal error: output_size.size() must be"
        raise RuntimeError(f"{function}{':' if mean else '():'} {wrong} {count}")
    if mean and min(out) < 0:
        shown = ", ".join(map(str, out[:2])) + "".join(f",{n}" for n in out[2:])
        raise RuntimeError(
            f"{function}: elements of output_size must be greater than or equal to 0 but received "
            f"{{{shown}}}"
        )
    arg.bounded((*x.shape[:-count], *out))
    floating(x.dtype, f"{function}_cpu" if count == 3 else function)


def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """Means of [n, c, h, w] (or [c, h, w]) over a grid of ``output_size`` windows.

    ``output_size`` is (rows, columns) or one number for both; None keeps the input's size.  Windows
    are as even as possible and overlap where the sizes do not divide.  Raises RuntimeError for
    negative sizes and for inputs of other ranks.

    >>> import minitorch_tvm as mt
    >>> adaptive_avg_pool2d(mt.arange(16.0).reshape(1, 4, 4), 1)
    tensor([[[7.5000]]])
    """
    x = node_of("adaptive_avg_pool2d", "input", 1, input)
    rows, columns = _adaptive("adaptive_avg_pool2d", 2, x, output_size)
    return like(net.adaptive_avg_pool2d(batched(x, 2), (rows, columns)), x, 2)


def adaptive_avg_pool3d(input: Tensor, output_size: Sizes) -> Tensor:
    """Means of [n, c, d, h, w] over a grid of ``output_size`` windows.

    n may be missing; see :func:`adaptive_avg_pool2d`.

    >>> import minitorch_tvm as mt
    >>> adaptive_avg_pool3d(mt.arange(8.0).reshape(1, 2, 2, 2), (2, 1, 1)).flatten()
    tensor([1.5000, 5.5000])
    """
    x = node_of("adaptive_avg_pool3d", "input", 1, input)
    depth, rows, columns = _adaptive("adaptive_avg_pool3d", 3, x, output_size)
    return like(vol.adaptive_avg_pool3d(batched(x, 3), (depth, rows, columns)), x, 3)


def adaptive_max_pool2d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Tensor:
    """Largest elements of [n, c, h, w] (or [c, h, w]) over a grid of ``output_size`` windows.

    The windows are those of :func:`adaptive_avg_pool2d`.  Raises ValueError for
    ``return_indices=True``.

    >>> import minitorch_tvm as mt
    >>> adaptive_max_pool2d(mt.arange(16.0).reshape(1, 4, 4), (1, 2))
    tensor([[[13., 15.]]])
    """
    no_indices("adaptive_max_pool2d", return_indices)
    x = node_of("adaptive_max_pool2d", "input", 1, input)
    rows, columns = _adaptive("adaptive_max_pool2d", 2, x, output_size)
    return like(net.adaptive_max_pool2d(batched(x, 2), (rows, columns)), x, 2)


def adaptive_max_pool3d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Tensor:
    """Largest elements of [n, c, d, h, w] over a grid of ``output_size`` windows.

    n may be missing; see :func:`adaptive_max_pool2d`.

    >>> import minitorch_tvm as mt
    >>> adaptive_max_pool3d(mt.arange(8.0).reshape(1, 2, 2, 2), (2, 1, 1)).flatten()
    tensor([3., 7.])
    """
    no_indices("adaptive_max_pool3d", return_indices)
    x = node_of("adaptive_max_pool3d", "input", 1, input)
    depth, rows, columns = _adaptive("adaptive_max_pool3d", 3, x, output_size)
    return like(vol.adaptive_max_pool3d(batched(x, 3), (depth, rows, columns)), x, 3)
