"""Convolutions of lines, images and volumes, and transposed ones (available as ``nn.functional``).

A line is an image of height one; what a volume is, :mod:`..ops.volumes` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core.arguments import floating
from ..ir.node import Node, apply, once_fitting
from ..ir.op import op_of
from ..ops import build as b
from ..ops import conv as cv
from ..ops import network as net
from ..ops import volumes as vol
from ..ops.moves import padded
from ..tensor import Tensor
from ..tensor.core import node_of
from .spatial import Numbers, batched, image_numbers, like, same_totals, several

_SIDES = ("depth", "height", "width")


def _numbers(
    function: str, argument: str, position: int, value: Any, count: int
) -> tuple[int, ...]:
    """A parameter of a convolution as ``count`` ints; RuntimeError for another number of them."""
    numbers = several(function, argument, position, value, count)
    if len(numbers) != count:
        raise RuntimeError(
            f"expected {argument} to be a single integer value or a list of {count} values to match"
            f" the convolution dimensions, but got {argument}={list(numbers)}"
        )
    return numbers


def _by_side(name: str, numbers: Sequence[int]) -> list[str]:
    """Each of two or three numbers with its name, as PyTorch shows them."""
    return [f"{name}_{side}: {n}" for side, n in zip(_SIDES[-len(numbers) :], numbers, strict=True)]


def _shown(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers))


def _check_ranks(function: str, x: Node, w: Node, stride: tuple[int, ...]) -> None:
    ranks = (len(stride) + 1, len(stride) + 2)
    if len(w.shape) < 3:
        raise RuntimeError("weight should have at least three dimensions")
    if len(x.shape) not in ranks:
        raise RuntimeError(
            f"Expected {ranks[0]}D (unbatched) or {ranks[1]}D (batched) input to {function}, but "
            f"got input of size: {list(x.shape)}"
        )
    rank = len(w.shape)
    if rank != ranks[1] and len(stride) == 1:
        raise RuntimeError(
            f"Expected {rank}-dimensional input for {rank}-dimensional weight {list(w.shape)}, but "
            f"got {len(x.shape)}-dimensional input of size {list(x.shape)} instead"
        )
    if rank != ranks[1]:  # PyTorch takes what the weight is of for the number of dimensions
        raise RuntimeError(
            f"expected stride to be a single integer value or a list of {rank - 2} values to match "
            f"the convolution dimensions, but got stride={list(stride)}"
        )


def _check_numbers(
    w: Node,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    extra: tuple[int, ...] | None,
) -> None:
    """``extra`` is the output padding of a transposed convolution."""
    if min(stride) <= 0:
        raise RuntimeError("non-positive stride is not supported")
    if min(padding) < 0:
        raise RuntimeError("negative padding is not supported")
    if extra is not None and min(extra) < 0:
        raise RuntimeError("negative output_padding is not supported")
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")
    if min(dilation) < 0:
        raise RuntimeError("dilation should be greater than zero")
    if w.shape[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but "
            f"got weight of size {list(w.shape)} instead"
        )
    if w.shape[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size [{list(w.shape)}] instead"
        )


def _check_fit(x: Node, w: Node, offset: Node | None, groups: int, transposed: bool) -> None:
    """Channels of the input and elements of the bias are those that the weight says."""
    shape = x.shape if len(x.shape) == len(w.shape) else (1, *x.shape)
    given = f"Given {'transposed=1' if transposed else f'groups={groups}'}, weight of size "
    needed = w.shape[0] if transposed else w.shape[1] * groups
    if shape[1] != needed:
        raise RuntimeError(
            f"{given}{list(w.shape)}, expected input{list(shape)} to have {needed} channels, but "
            f"got {shape[1]} channels instead"
        )
    made = w.shape[1] * groups if transposed else w.shape[0]
    if offset is not None and offset.shape != (made,):
        given = given if transposed else "Given weight of size "
        raise RuntimeError(
            f"{given}{list(w.shape)}, expected bias to be 1-dimensional with {made} elements, but "
            f"got bias of size {list(offset.shape)} instead"
        )


def _check_types(x: Node, w: Node) -> None:
    if x.dtype is not w.dtype:
        raise RuntimeError(
            f"expected scalar type {x.dtype.torch_name} but found {w.dtype.torch_name}"
        )


def _check_room(x: Node, count: int) -> None:
    if 0 in x.shape[-count:]:
        shape = x.shape if len(x.shape) == count + 2 else (1, *x.shape)
        shown = [*shape[:2], *image_numbers(shape[2:], 1)]
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {shown}"
        )


@once_fitting
def _check(
    nodes: tuple[Node, Node, Node | None],
    function: str,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
) -> None:
    """Refuse what does not fit, in PyTorch's words."""
    x, w, offset = nodes
    count = len(stride)
    _check_ranks(function, x, w, stride)
    if padding == "same" and max(stride) > 1:
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    if isinstance(padding, str) and padding not in ("same", "valid"):
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    if offset is not None and offset.dtype is not x.dtype:
        raise RuntimeError(
            f"Input type ({x.dtype.scalar_name}) and bias type ({offset.dtype.scalar_name}) should "
            "be the same"
        )
    margins = (0,) * count if isinstance(padding, str) else padding
    _check_numbers(w, stride, margins, dilation, groups, None)
    _check_fit(x, w, offset, groups, False)
    kernel = w.shape[2:]
    if padding != "same":
        spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        rooms = [n + 2 * p for n, p in zip(x.shape[-count:], margins, strict=True)]
        if any(span > room for span, room in zip(spans, rooms, strict=True)):
            raise RuntimeError(
                f"Calculated padded input size per channel: ({_shown(rooms)}). Kernel size: "
                f"({_shown(spans)}). Kernel size can't be greater than actual input size"
            )
    _check_types(x, w)
    floating(x.dtype, "compute_columns3d" if count == 3 else "slow_conv2d_cpu")
    if 0 in kernel:
        sizes = _by_side("kernel", image_numbers(kernel, 1))
        shown = f": {_shown(kernel)} (TxHxW)" if count == 3 else f" {' '.join(sizes)}"
        raise RuntimeError(f"kernel size should be greater than zero, but got{shown}")
    if not min(dilation):
        shown_dilation = list(image_numbers(dilation, 1))
        raise RuntimeError(f"dilation should be greater than zero, but got {shown_dilation}")
    _check_room(x, count)


def _convolution(
    function: str,
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: str | Numbers,
    dilation: Numbers,
    groups: int,
) -> Tensor:
    x, w = node_of(function, "input", 1, input), node_of(function, "weight", 2, weight)
    offset = None if bias is None else node_of(function, "bias", 3, bias)
    steps = _numbers(function, "stride", 4, stride, count)
    spread = _numbers(function, "dilation", 6, dilation, count)
    groups = arg.integer(function, "groups", 7, groups)
    margins: str | tuple[int, ...] = (
        padding if isinstance(padding, str) else _numbers(function, "padding", 5, padding, count)
    )
    _check((x, w, offset), function, steps, margins, spread, groups)
    wide = x
    if isinstance(margins, str):
        totals = same_totals(w.shape[2:], spread) if margins == "same" else [0] * count
        # An odd one goes one element more to the end, which only an explicit pad can express.
        wide = padded(x, [n for t in reversed(totals) for n in (0, t % 2)])
        margins = tuple(t // 2 for t in totals)
    wide = batched(wide, count)
    if count == 1:
        steps, spread, margins = (1, *steps), (1, *spread), (0, *margins)
        w = batched(w, 1)
    convolve = vol.conv3d if count == 3 else net.conv2d
    return like(convolve(wide, w, offset, steps, margins, spread, groups), x, count)


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

    See :func:`conv2d`.

    >>> import minitorch_tvm as mt
    >>> conv1d(mt.tensor([[1.0, 2.0, 4.0]]), mt.tensor([[[-1.0, 1.0]]]))
    tensor([[1., 2.]])
    """
    given = stride, padding, dilation, groups
    return _convolution("conv1d", 1, input, weight, bias, *given)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: str | Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input [n, c, h, w] (or [c, h, w]) with weight [o, c / groups, kh, kw].

    ``padding`` adds zeros: numbers, "valid" (none) or "same" (stride 1 only).  Raises RuntimeError
    if shapes, dtypes or parameters do not fit, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> conv2d(mt.arange(9.0).reshape(1, 3, 3), mt.ones(1, 1, 2, 2))
    tensor([[[ 8., 12.],
             [20., 24.]]])
    """
    given = stride, padding, dilation, groups
    return _convolution("conv2d", 2, input, weight, bias, *given)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: str | Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input [n, c, d, h, w] with weight [o, c / groups, kd, kh, kw].

    n may be missing.  See :func:`conv2d`.

    >>> import minitorch_tvm as mt
    >>> conv3d(mt.ones(1, 1, 4, 3, 3), mt.ones(1, 1, 3, 3, 3)).flatten()
    tensor([27., 27.])
    """
    given = stride, padding, dilation, groups
    return _convolution("conv3d", 3, input, weight, bias, *given)


@once_fitting
def _check_transposed(
    nodes: tuple[Node, Node, Node | None],
    function: str,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    extra: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> None:
    x, w, offset = nodes
    count = len(stride)
    _check_ranks(function, x, w, stride)
    _check_numbers(w, stride, padding, dilation, groups, extra)
    _check_fit(x, w, offset, groups, True)
    _check_types(x, w)
    if count == 3 and offset is not None:
        _check_types(x, offset)
    floating(x.dtype, f"slow_conv_transpose{max(count, 2)}d_out_cpu")
    kernel = image_numbers(w.shape[2:], 1)
    empty = not w.shape[1] or (count == 3 and 0 in kernel)
    if 0 in kernel and not empty:
        raise RuntimeError(
            "kernel size should be greater than zero, but got "
            + " ".join(_by_side("kernel", kernel))
        )
    dilation, stride = image_numbers(dilation, 1), image_numbers(stride, 1)
    if not min(dilation):
        shown = ", ".join(_by_side("dilation", dilation))
        raise RuntimeError(f"dilation should be greater than zero, but got {shown}")
    extra = image_numbers(extra, 0)
    if any(e >= max(s, g) for e, s, g in zip(extra, stride, dilation, strict=True)):
        named = (("output_padding", extra), ("stride", stride), ("dilation", dilation))
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            + " ".join(part for name, numbers in named for part in _by_side(name, numbers))
        )
    if empty:
        wanted = "2D or 4D weight tensor expected"
        if count == 3:
            planes = "n_output_plane x n_input_plane x kernel_depth x kernel_height x kernel_width"
            wanted = f"5D ({planes}) tensor expected for weight"
        raise RuntimeError(f"non-empty {wanted}, but got: {[*w.shape[:2], *kernel]}")
    _check_room(x, count)
    size = transposed_size(x.shape[-count:], kernel, stride, padding, dilation, extra)
    if min(size) < 1:
        shown_sizes = [_shown(n) for n in (image_numbers(x.shape[-count:], 1), size)]
        raise RuntimeError(
            f"Given input size per channel: ({shown_sizes[0]}). Calculated output size per "
            f"channel: ({shown_sizes[1]}). Output size is too small"
        )
    if any(e >= s and e for e, s in zip(extra[-2:], stride[-2:], strict=True)):
        raise NotImplementedError(
            f"{function}: output_padding={list(extra[-count:])} is only supported if it is smaller "
            f"than stride={list(stride[-count:])}"
        )


def transposed_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
) -> tuple[int, ...]:
    """Sizes of what a transposed convolution makes; a line's as those of an image of height one."""
    ones, zeros = (size, kernel, stride, dilation), (padding, extra)
    n, k, s, g = (image_numbers(numbers, 1) for numbers in ones)
    p, e = (image_numbers(numbers, 0) for numbers in zeros)
    sides = zip(n, k, s, p, g, e, strict=True)
    return tuple((n - 1) * s - 2 * p + g * (k - 1) + e + 1 for n, k, s, p, g, e in sides)


def _transposed(
    function: str,
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Numbers,
    padding: Numbers,
    output_padding: Numbers,
    groups: int,
    dilation: Numbers,
) -> Tensor:
    x, w = node_of(function, "input", 1, input), node_of(function, "weight", 2, weight)
    offset = None if bias is None else node_of(function, "bias", 3, bias)
    steps = _numbers(function, "stride", 4, stride, count)
    margins = _numbers(function, "padding", 5, padding, count)
    extra = _numbers(function, "output_padding", 6, output_padding, count)
    groups = arg.integer(function, "groups", 7, groups)
    spread = _numbers(function, "dilation", 8, dilation, count)
    _check_transposed((x, w, offset), function, steps, margins, extra, groups, spread)
    steps, spread = image_numbers(steps, 1), image_numbers(spread, 1)
    margins, extra = image_numbers(margins, 0), image_numbers(extra, 0)
    size = transposed_size(x.shape[-count:], w.shape[2:], steps, margins, spread, extra)
    wide = batched(x, count)
    if count == 3:
        y = vol.conv_transpose3d(wide, w, steps, margins, spread, groups, size)
    else:
        op = op_of(cv.ConvGradInput, steps, margins, spread, groups, size)
        y = apply(op, wide, batched(w, count))
    if offset is not None:
        ones = (1,) * len(size)
        y = b.add(y, b.reshape(b.cast(offset, y.dtype), (offset.shape[0], *ones)))
    return like(y, x, count)


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
    return _transposed("conv_transpose1d", 1, input, weight, bias, *given)


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
    return _transposed("conv_transpose2d", 2, input, weight, bias, *given)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Numbers = 1,
    padding: Numbers = 0,
    output_padding: Numbers = 0,
    groups: int = 1,
    dilation: Numbers = 1,
) -> Tensor:
    """The gradient of :func:`conv3d` by its input, as a layer: input [n, c, d, h, w].

    ``weight`` is [c, o / groups, kd, kh, kw], and n may be missing; see :func:`conv_transpose2d`.

    >>> import minitorch_tvm as mt
    >>> conv_transpose3d(mt.ones(1, 1, 2, 1, 1), mt.ones(1, 1, 2, 1, 1)).flatten()
    tensor([1., 2., 1.])
    """
    given = stride, padding, output_padding, groups, dilation
    return _transposed("conv_transpose3d", 3, input, weight, bias, *given)
