"""Convolutions and pooling along one dimension, and transposed convolutions.

(Available as ``nn.functional``.)  A line is an image of height one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import floating, no_indices, one_or_several, unsupported
from ..ir.node import Node, apply
from ..ir.op import op_of
from ..ops import build as b
from ..ops import conv as cv
from ..ops import network as net
from ..tensor import Tensor
from ..tensor.core import node_of
from .pad_functions import padded

Numbers = int | Sequence[int]


def _several(function: str, argument: str, position: int, value: Any, count: int) -> list[int]:
    """A parameter of a convolution as ``count`` ints."""
    numbers = one_or_several(function, argument, position, value)
    if isinstance(numbers, int):
        return [numbers] * count
    if len(numbers) not in (1, count):
        raise RuntimeError(
            f"expected {argument} to be a single integer value or a list of {count} values to match"
            f" the convolution dimensions, but got {argument}={list(numbers)}"
        )
    return [numbers[0]] * count if len(numbers) == 1 else list(numbers)


def _check(function: str, x: Node, w: Node, count: int, numbers: dict[str, list[int]]) -> None:
    if len(w.shape) < 3:
        raise RuntimeError("weight should have at least three dimensions")
    ranks = (count + 1, count + 2)
    if len(x.shape) not in ranks:
        raise RuntimeError(
            f"Expected {ranks[0]}D (unbatched) or {ranks[1]}D (batched) input to {function}, but "
            f"got input of size: {list(x.shape)}"
        )
    if len(w.shape) != ranks[1]:
        rank = len(w.shape)
        raise RuntimeError(
            f"Expected {rank}-dimensional input for {rank}-dimensional weight {list(w.shape)}, but "
            f"got {len(x.shape)}-dimensional input of size {list(x.shape)} instead"
        )
    if min(numbers["stride"]) <= 0:
        raise RuntimeError("non-positive stride is not supported")
    if min(numbers["dilation"]) <= 0:
        raise RuntimeError(f"dilation should be greater than zero, but got {numbers['dilation']}")
    if min(numbers.get("padding", [0])) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(numbers.get("output_padding", [0])) < 0:
        raise RuntimeError("negative output_padding is not supported")
    if numbers["groups"][0] <= 0:
        raise RuntimeError("non-positive groups is not supported")
    groups = numbers["groups"][0]
    if w.shape[0] % groups:
        short = w.shape[0] < groups
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be "
            f"{f'at least {groups}' if short else f'divisible by {groups}'} at dimension 0, but "
            f"got weight of size [{list(w.shape)}] instead"
        )


def _types(x: Node, w: Node) -> None:
    if x.dtype is not w.dtype:
        raise RuntimeError(
            f"expected scalar type {x.dtype.torch_name} but found {w.dtype.torch_name}"
        )


def _tall(x: Node, axis: int) -> Node:
    """x with a dimension of one in front of the last."""
    return b.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def _flat(y: Node, batched: bool) -> Tensor:
    """[n, c, 1, l] as [n, c, l] or [c, l]."""
    n, c, _, length = y.shape
    return Tensor._wrap(b.reshape(y, (n, c, length) if batched else (c, length)))


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: str | Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input [n, c, l] (or [c, l]) with weight [o, c / groups, k].

    ``padding`` adds zeros: a number, "valid" (none) or "same" (stride 1 only).  Raises RuntimeError
    if shapes, dtypes or parameters do not fit.
    """
    x, w = node_of("conv1d", "input", 1, input), node_of("conv1d", "weight", 2, weight)
    offset = None if bias is None else node_of("conv1d", "bias", 3, bias)
    (step,) = _several("conv1d", "stride", 4, stride, 1)
    (spread,) = _several("conv1d", "dilation", 6, dilation, 1)
    groups = arg.integer("conv1d", "groups", 7, groups)
    numbers = {"stride": [step], "dilation": [spread], "groups": [groups]}
    margin = 0
    if not isinstance(padding, str):
        (margin,) = _several("conv1d", "padding", 5, padding, 1)
        numbers["padding"] = [margin]
    _check("conv1d", x, w, 1, numbers)
    _types(x, w)
    batched = len(x.shape) == 3
    lines = x if batched else b.reshape(x, (1, *x.shape))
    if w.shape[1] * groups != lines.shape[1]:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(w.shape)}, expected "
            f"input{list(lines.shape)} to have {w.shape[1] * groups} channels, but got "
            f"{lines.shape[1]} channels instead"
        )
    if padding == "same":
        if step != 1:
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        total = spread * (w.shape[2] - 1)
        margin = total // 2
        if total % 2:
            lines = padded(lines, (0, 1), 0.0)
    elif isinstance(padding, str) and padding != "valid":
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    span, room = spread * (w.shape[2] - 1) + 1, lines.shape[2] + 2 * margin
    if span > room:
        raise RuntimeError(
            f"Calculated padded input size per channel: ({room}). Kernel size: ({span}). Kernel "
            "size can't be greater than actual input size"
        )
    y = net.conv2d(
        _tall(lines, 2), _tall(w, 2), offset, (1, step), (0, margin), (1, spread), groups
    )
    return _flat(y, batched)


def _transposed(
    function: str,
    count: int,
    x: Node,
    w: Node,
    offset: Node | None,
    numbers: dict[str, list[int]],
) -> Tensor:
    _check(function, x, w, count, numbers)
    _types(x, w)
    floating(x.dtype, "slow_conv_transpose2d_out_cpu")
    groups = numbers["groups"][0]
    batched = len(x.shape) == count + 2
    images = x if batched else b.reshape(x, (1, *x.shape))
    if images.shape[1] != w.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(w.shape)}, expected "
            f"input{list(images.shape)} to have {w.shape[0]} channels, but got {images.shape[1]} "
            "channels instead"
        )
    if offset is not None and offset.shape != (w.shape[1] * groups,):
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(w.shape)}, expected bias to be 1-dimensional"
            f" with {w.shape[1] * groups} elements, but got bias of size {list(offset.shape)} "
            "instead"
        )
    stride, padding, extra, dilation = (
        ([usual] if count == 1 else []) + numbers[name]
        for name, usual in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1))
    )
    if any(e >= max(s, g) for e, s, g in zip(extra, stride, dilation, strict=True)):
        named = (("output_padding", extra), ("stride", stride), ("dilation", dilation))
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            + " ".join(f"{n}_height: {v[0]} {n}_width: {v[1]}" for n, v in named)
        )
    if any(e >= s and e for e, s in zip(extra, stride, strict=True)):
        raise NotImplementedError(
            f"{function}: output_padding={extra[-count:]} is only supported if it is smaller than "
            f"stride={stride[-count:]}"
        )
    if count == 1:
        images, w = _tall(images, 2), _tall(w, 2)
    size = tuple(
        (n - 1) * s - 2 * p + g * (k - 1) + e + 1
        for n, s, p, g, k, e in zip(
            images.shape[2:], stride, padding, dilation, w.shape[2:], extra, strict=True
        )
    )
    if min(size) < 1:
        shown = [" x ".join(map(str, n[-count:])) for n in (images.shape[2:], size)]
        raise RuntimeError(
            f"Given input size per channel: ({shown[0]}). Calculated output size per channel: "
            f"({shown[1]}). Output size is too small"
        )
    step, margin, spread = ((v[0], v[1]) for v in (stride, padding, dilation))
    y = apply(op_of(cv.ConvGradInput, step, margin, spread, groups, size), images, w)
    if offset is not None:
        y = b.add(y, b.reshape(b.cast(offset, y.dtype), (offset.shape[0], 1, 1)))
    if count == 1:
        return _flat(y, batched)
    return Tensor._wrap(y if batched else b.reshape(y, y.shape[1:]))


def _transposed_from(
    function: str, count: int, input: Tensor, weight: Tensor, bias: Tensor | None, *given: Any
) -> Tensor:
    x, w = node_of(function, "input", 1, input), node_of(function, "weight", 2, weight)
    offset = None if bias is None else node_of(function, "bias", 3, bias)
    stride, padding, output_padding, groups, dilation = given
    numbers = {
        "stride": _several(function, "stride", 4, stride, count),
        "padding": _several(function, "padding", 5, padding, count),
        "output_padding": _several(function, "output_padding", 6, output_padding, count),
        "groups": [arg.integer(function, "groups", 7, groups)],
        "dilation": _several(function, "dilation", 8, dilation, count),
    }
    return _transposed(function, count, x, w, offset, numbers)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Tensor:
    """The gradient of :func:`conv2d` by its input, as a layer: input [n, c, h, w] (or [c, h, w]).

    ``weight`` is [c, o / groups, kh, kw]; the result's height is (h - 1) * stride - 2 * padding +
    dilation * (kh - 1) + output_padding + 1.  Raises RuntimeError where shapes, dtypes or
    parameters do not fit, NotImplementedError unless ``output_padding`` is smaller than ``stride``.

    >>> import minitorch_tvm as mt
    >>> conv_transpose2d(mt.ones(1, 1, 1, 1), mt.ones(1, 1, 2, 2))
    tensor([[[[1., 1.],
              [1., 1.]]]])
    """
    given = stride, padding, output_padding, groups, dilation
    return _transposed_from("conv_transpose2d", 2, input, weight, bias, *given)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Tensor:
    """:func:`conv_transpose2d` along one dimension: input [n, c, l], weight [c, o / groups, k]."""
    given = stride, padding, output_padding, groups, dilation
    return _transposed_from("conv_transpose1d", 1, input, weight, bias, *given)


def _one(function: str, argument: str, position: int, value: Any) -> int:
    numbers = one_or_several(function, argument, position, value)
    if isinstance(numbers, int):
        return numbers
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


def _image(x: Node) -> Node:
    """[n, c, l] or [c, l] as [n, c, 1, l]."""
    return b.reshape(x, (*((1,) if len(x.shape) == 2 else ()), *x.shape[:-1], 1, x.shape[-1]))


def max_pool1d(
    input: Tensor,
    kernel_size: Numbers,
    stride: Numbers | None = None,
    padding: Numbers = 0,
    dilation: Numbers = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    """Largest element of each window of [n, c, l] (or [c, l]); see :func:`max_pool2d`."""
    no_indices("max_pool1d", return_indices)
    x = node_of("max_pool1d", "input", 1, input)
    if len(x.shape) not in (2, 3) or 0 in x.shape[-2:]:
        raise RuntimeError(
            "max_pool1d: Expected 2D or 3D (batch mode) tensor with optional 0 dim batch size for "
            f"input, but got:{list(x.shape)}"
        )
    kernel = _one("max_pool1d", "kernel_size", 2, kernel_size)
    own = stride is not None and stride not in ((), [])
    step = _one("max_pool1d", "stride", 3, stride) if own else kernel
    margin = _one("max_pool1d", "padding", 4, padding)
    spread = _one("max_pool1d", "dilation", 5, dilation)
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
    return _flat(net.max_pool2d(_image(x), window, ceil_mode), len(x.shape) == 3)


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
    """Mean of each window of [n, c, l] (or [c, l]); see :func:`avg_pool2d`."""
    x = node_of("avg_pool1d", "input", 1, input)
    _ranks("avg_pool1d", x)
    kernel = _one("avg_pool1d", "kernel_size", 2, kernel_size)
    own = stride is not None and stride not in ((), [])
    step = _one("avg_pool1d", "stride", 3, stride) if own else kernel
    margin = _one("avg_pool1d", "padding", 4, padding)
    if kernel <= 0 or step <= 0 or margin < 0:
        raise RuntimeError(
            "avg_pool1d: kernel_size and stride must be positive and padding must not be negative, "
            f"but got {kernel}, {step} and {margin}"
        )
    floating(x.dtype, "avg_pool2d")
    window = ((1, kernel), (1, step), (0, margin), (1, 1))
    y = net.avg_pool2d(_image(x), window, ceil_mode, count_include_pad)
    return _flat(y, len(x.shape) == 3)


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
    return _flat(net.adaptive_avg_pool2d(_image(x), (1, size)), len(x.shape) == 3)


def adaptive_max_pool2d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor:
    """Largest elements of [n, c, h, w] (or [c, h, w]) over a grid of ``output_size`` windows.

    Sizes must divide the input's (NotImplementedError); None keeps one.
    """
    no_indices("adaptive_max_pool2d", return_indices)
    x = node_of("adaptive_max_pool2d", "input", 1, input)
    if len(x.shape) not in (3, 4):
        raise RuntimeError(
            f"adaptive_max_pool2d(): Expected 3D or 4D tensor, but got: {list(x.shape)}"
        )
    if x.dtype is dt.bool_:
        raise unsupported("adaptive_max_pool2d", x.dtype)
    sizes = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
    if len(sizes) != 2:
        raise RuntimeError("adaptive_max_pool2d(): internal error: output_size.size() must be 2")
    given = [n if m is None else m for n, m in zip(x.shape[-2:], sizes, strict=True)]
    out = arg.several("adaptive_max_pool2d", "output_size", 2, given)
    if any(m < 1 or n % m for n, m in zip(x.shape[-2:], out, strict=True)):
        raise NotImplementedError(
            f"adaptive_max_pool2d: output_size={tuple(out)} is only supported if it divides the "
            f"input's size {tuple(x.shape[-2:])}"
        )
    kernel = (x.shape[-2] // out[0], x.shape[-1] // out[1])
    images = x if len(x.shape) == 4 else b.reshape(x, (1, *x.shape))
    y = net.max_pool2d(images, (kernel, kernel, (0, 0), (1, 1)), False)
    return Tensor._wrap(y if len(x.shape) == 4 else b.reshape(y, y.shape[1:]))
