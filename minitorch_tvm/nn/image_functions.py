"""Windows of images, images read at computed places, channels (available as ``nn.functional``)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..core import arguments as arg
from ..core.arguments import floating
from ..ir.node import Node
from ..ops import arranging as ar
from ..ops import build as b
from ..ops import derived as d
from ..ops import grid as gr
from ..ops import powers
from ..ops.moves import padded
from ..tensor import Tensor
from ..tensor.core import node_of

_Sizes = int | Sequence[int]


def _pair(function: str, name: str, position: int, value: Any) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)):
        value = (value, value)
    numbers = arg.several(function, name, position, tuple(value))
    if len(numbers) != 2:
        raise RuntimeError(f"It is expected {name} equals to 2, but got size {len(numbers)}")
    return numbers[0], numbers[1]


def _windows(
    function: str, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> tuple[tuple[int, int], ...]:
    """Kernel, dilation, padding and stride, each twice; RuntimeError if one makes no sense."""
    kernel = _pair(function, "kernel_size", 2, kernel_size)
    apart = _pair(function, "dilation", 3, dilation)
    around = _pair(function, "padding", 4, padding)
    step = _pair(function, "stride", 5, stride)
    if min(kernel) <= 0:
        raise RuntimeError(
            "kernel size should be greater than zero, but got kernel_height: "
            f"{kernel[0]} kernel_width: {kernel[1]}"
        )
    for name, pair in (("dilation", apart), ("stride", step)):
        if min(pair) <= 0:
            raise RuntimeError(
                f"{name} should be greater than zero, but got {name}_height: {pair[0]} "
                f"{name}_width: {pair[1]}"
            )
    if min(around) < 0:
        raise RuntimeError(
            f"padding should be non-negative, but got pad_height: {around[0]} pad_width: "
            f"{around[1]}"
        )
    return kernel, apart, around, step


def _counts(size: Sequence[int], windows: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    found = [
        (n + 2 * p - s * (k - 1) - 1) // step + 1
        for n, k, s, p, step in zip(size, *windows, strict=True)
    ]
    return found[0], found[1]


def unfold(
    input: Tensor,
    kernel_size: _Sizes,
    dilation: _Sizes = 1,
    padding: _Sizes = 0,
    stride: _Sizes = 1,
) -> Tensor:
    """The windows of images [n, c, h, w] as columns, [n, c * kernel, windows]; n may be missing.

    Raises RuntimeError where there is no window, NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> unfold(mt.arange(4.0).reshape(1, 1, 2, 2), (1, 2))
    tensor([[[0., 2.],
             [1., 3.]]])
    """
    x = node_of("im2col", "input", 1, input)
    windows = _windows("im2col", kernel_size, dilation, padding, stride)
    rank = len(x.shape)
    if rank < 3:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got 2)"
        )
    if rank > 4 or 0 in x.shape[-3:]:
        raise RuntimeError(
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero "
            f"dimensions for input, but got: {list(x.shape)}"
        )
    kernel, apart, around, step = windows
    oh, ow = _counts(x.shape[-2:], windows)
    if min(oh, ow) < 1:
        raise RuntimeError(
            f"Given input with spatial size {tuple(x.shape[-2:])}, kernel_size={kernel}, "
            f"dilation={apart}, padding={around}, calculated shape of the array of sliding blocks "
            f"as ({oh}, {ow}), but its components must be at least one."
        )
    floating(x.dtype, "im2col_out_cpu")
    images = x if rank == 4 else b.reshape(x, (1, *x.shape))
    images = padded(images, (around[1], around[1], around[0], around[0]))
    rows, columns = ((n, kernel[k], step[k], apart[k]) for k, n in enumerate((oh, ow)))
    found = ar.image_to_columns(images, rows, columns)
    return Tensor._wrap(found if rank == 4 else b.reshape(found, found.shape[1:]))


def fold(
    input: Tensor,
    output_size: _Sizes,
    kernel_size: _Sizes,
    dilation: _Sizes = 1,
    padding: _Sizes = 0,
    stride: _Sizes = 1,
) -> Tensor:
    """Images of which each element is the sum of what columns, as of :func:`unfold`, have there.

    Raises RuntimeError where the columns are not those of such images.

    >>> import minitorch_tvm as mt
    >>> fold(mt.ones(1, 2, 2), (1, 3), (1, 2))
    tensor([[[[1., 2., 1.]]]])
    """
    x = node_of("col2im", "input", 1, input)
    size = _pair("col2im", "output_size", 2, output_size)
    windows = _windows("col2im", kernel_size, dilation, padding, stride)
    rank = len(x.shape)
    if rank not in (2, 3) or 0 in x.shape[-2:]:
        raise RuntimeError(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and "
            f"non-zero dimensions for input, but got: {list(x.shape)}"
        )
    kernel, apart, around, step = windows
    rows_in, count = x.shape[-2:]
    if rows_in % (kernel[0] * kernel[1]):
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, "
            f"but got input.size(1)={rows_in} and kernel_size={kernel}."
        )
    oh, ow = _counts(size, windows)
    given = f"Given output_size={size}, kernel_size={kernel}, dilation={apart}, "
    given += f"padding={around}, stride={step}, "
    if oh * ow != count or min(oh, ow) < 1:
        raise RuntimeError(
            f"{given}expected size of input's dimension 2 to match the calculated number of "
            f"sliding blocks {oh} * {ow} = {oh * ow}, but got input.size(2)={count}."
        )
    floating(x.dtype, "col2im_out_cpu")
    columns_in = x if rank == 3 else b.reshape(x, (1, *x.shape))
    height, width = (n + 2 * p for n, p in zip(size, around, strict=True))
    rows, columns = ((n, kernel[k], step[k], apart[k]) for k, n in enumerate((oh, ow)))
    image = ar.columns_to_image(columns_in, rows, columns, height, width)
    image = padded(image, (-around[1], -around[1], -around[0], -around[0]))
    return Tensor._wrap(image if rank == 3 else b.reshape(image, image.shape[1:]))


# --- images at computed places ------------------------------------------------------------------

_CORNERS = (
    "Default {} and {} behavior has changed to align_corners=False since 1.3.0. Please specify "
    "align_corners=True if the old behavior is desired. See the documentation of grid_sample for "
    "details."
)


def _corners(function: str, position: int, align_corners: bool | None) -> bool:
    if align_corners is None:
        warnings.warn(_CORNERS.format("grid_sample", "affine_grid"), stacklevel=3)
        return False
    return arg.flag(function, "align_corners", position, align_corners)


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Images [n, c, h, w] at the places ``grid`` [n, oh, ow, 2]: [n, c, oh, ow].

    Places are (across, down), from -1 to 1, which are the centres of the outer pixels if
    ``align_corners``, else their edges.  ``mode`` is bilinear, nearest or bicubic; beyond the edges
    are zeros, the pixels at the edge (border), or mirrored ones (reflection).  Of volumes
    [n, c, d, h, w] places [n, od, oh, ow, 3] are (across, down, deep), and there is no bicubic mode
    (RuntimeError).  Raises NotImplementedError for integers.

    >>> import minitorch_tvm as mt
    >>> image = mt.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> grid_sample(image, mt.tensor([[[[0.0, 0.0], [1.0, -1.0]]]]), align_corners=True)
    tensor([[[[2.5000, 2.0000]]]])
    """
    for name, value, known, last in (
        ("mode", mode, ("bilinear", "nearest", "bicubic"), " or "),
        ("padding_mode", padding_mode, ("zeros", "border", "reflection"), ", or "),
    ):
        if value not in known:
            choices = f"'{known[0]}', '{known[1]}'{last}'{known[2]}'"
            raise ValueError(
                f"nn.functional.grid_sample(): expected {name} to be {choices}, but got: '{value}'"
            )
    corners = _corners("grid_sampler", 5, align_corners)
    x, places = node_of("grid_sampler", "input", 1, input), node_of("grid_sampler", "grid", 2, grid)
    sizes = f"but got input with sizes {list(x.shape)} and grid with sizes {list(places.shape)}"
    if x.shape[:1] != places.shape[:1]:
        raise RuntimeError(
            f"grid_sampler(): expected grid and input to have same batch size, {sizes}"
        )
    rank = len(x.shape)
    if places.shape[-1:] != (rank - 2,):
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {rank - 2} in last dimension, but got "
            f"grid with sizes {list(places.shape)}"
        )
    if rank not in (4, 5) or len(places.shape) != rank:
        wanted = 5 if rank == 5 else 4
        raise RuntimeError(
            f"grid_sampler(): expected {wanted}D input and grid with same number of dimensions, "
            f"{sizes}"
        )
    if rank == 5 and mode == "bicubic":
        raise RuntimeError("grid_sampler(): bicubic interpolation only supports 4D input")
    for axis in range(2, rank):
        if not x.shape[axis]:
            raise RuntimeError(
                "grid_sampler(): expected input to have non-empty spatial dimensions, but input "
                f"has sizes {list(x.shape)} with dimension {axis} being empty"
            )
    if x.dtype is not places.dtype:
        raise RuntimeError(
            f"expected scalar type {x.dtype.torch_name} but found {places.dtype.torch_name}"
        )
    floating(x.dtype, "grid_sampler3d_cpu" if rank == 5 else "grid_sampler_2d_cpu_kernel_impl")
    return Tensor._wrap(gr.sample(x, places, mode, padding_mode, corners))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Where :func:`grid_sample` reads images of ``size`` [n, c, h, w] to map them by ``theta``.

    ``theta`` [n, 2, 3] are affine maps of places (across, down, 1); for volumes [n, c, d, h, w]
    they are [n, 3, 4], of (across, down, deep, 1).

    >>> import minitorch_tvm as mt
    >>> same = mt.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> affine_grid(same, (1, 1, 1, 2), align_corners=False)
    tensor([[[[-0.5000,  0.0000],
              [ 0.5000,  0.0000]]]])
    """
    x = node_of("affine_grid", "theta", 1, theta)
    shape = tuple(size)
    if not x.dtype.is_floating_point:
        raise ValueError(
            f"Expected theta to have floating point type, but got torch.{x.dtype.name}"
        )
    if len(shape) not in (4, 5):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, "
            f"respectively. Got size {shape}."
        )
    rows = len(shape) - 2
    if len(x.shape) != 3 or x.shape[-2:] != (rows, rows + 1):
        raise ValueError(
            f"Expected a batch of {rows}D affine matrices of shape Nx{rows}x{rows + 1} for size "
            f"{shape}. Got {theta.shape}."
        )
    corners = _corners("affine_grid_generator", 3, align_corners)
    if min(shape) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {shape}")
    if shape[0] != x.shape[0]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{shape[0]}, {rows + 1}] but got: [{x.shape[0]}, {rows + 1}]."
        )
    return Tensor._wrap(gr.affine(x, shape[2:], corners))


# --- channels -----------------------------------------------------------------------------------


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels (dimension 1) of all groups in turn: the first of each, then the second of each.

    >>> import minitorch_tvm as mt
    >>> channel_shuffle(mt.arange(4.0).reshape(1, 4, 1), 2).flatten()
    tensor([0., 2., 1., 3.])
    """
    x = node_of("channel_shuffle", "input", 1, input)
    count = arg.integer("channel_shuffle", "groups", 2, groups)
    if len(x.shape) <= 2:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(x.shape)}"
        )
    if count <= 0:
        raise RuntimeError(
            f"Number of groups to divide channels in must be positive. Value of groups:{count}"
        )
    n, c, *rest = x.shape
    if c % count:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {c} channels and {count} groups."
        )
    parts = b.reshape(x, (n, count, c // count, *rest))
    turned = b.permute(parts, (0, 2, 1, *range(3, len(parts.shape))))
    return Tensor._wrap(b.reshape(turned, x.shape))


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """input / (k + alpha * mean of squares of ``size`` neighbouring channels) ** beta.

    Channels are dimension 1; beyond them are zeros (Krizhevsky, Sutskever, Hinton 2012).  Raises
    ValueError for less than three dimensions.

    >>> import minitorch_tvm as mt
    >>> local_response_norm(mt.ones(1, 1, 1), 2, alpha=2.0, beta=1.0)
    tensor([[[0.5000]]])
    """
    x = node_of("local_response_norm", "input", 1, input)
    if len(x.shape) < 3:
        raise ValueError(
            "Expected 3D or higher dimensionality                          input (got "
            f"{len(x.shape)} dimensions)"
        )
    if 0 in x.shape:
        return input
    count = arg.integer("local_response_norm", "size", 2, size)
    if count <= 0:
        raise RuntimeError(f"local_response_norm: size must be positive, but got {count}")
    square = d.cast_float(d.mul(x, x))
    behind = [0, 0] * (len(x.shape) - 2)
    wide = padded(square, (*behind, count // 2, (count - 1) // 2))
    mean = _neighbours(wide, x.shape[1], count)
    scale = powers.pow(d.add(d.mul(mean, float(alpha)), float(k)), float(beta))
    return Tensor._wrap(d.div(x, scale))


def _neighbours(x: Node, channels: int, count: int) -> Node:
    """Means of so many channels from each on."""
    total = b.narrow(x, 1, 0, channels)
    for k in range(1, count):
        total = b.add(total, b.narrow(x, 1, k, k + channels))
    return b.div(total, b.full_like(total, float(count)))
