"""Images in other sizes (available as ``nn.functional``)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.arguments import flag, unsupported
from ..core.dtype import DType
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops.elementary import stepwise
from ..ops.gather import take
from ..ops.grid import cubic_weights
from ..sites import of_any_size
from ..tensor import Tensor
from ..tensor.core import node_of
from .lines import adaptive_avg_pool1d
from .pool_functions import adaptive_avg_pool2d, adaptive_avg_pool3d

_MODES = "nearest | linear | bilinear | bicubic | trilinear | lanczos | area | nearest-exact"


def _scale(n: int, out: int, factor: float | None) -> float:
    """Input elements per output element."""
    return 1.0 / factor if factor is not None and factor > 0 else n / out


@functools.lru_cache(maxsize=1024)
def _as_often(n: int, out: int, scale: float, half: float, dtype: DType) -> bool:
    """Whether every element comes as often: of some multiples rounding makes it one more or less.

    In PyTorch these have it, too.
    """
    kind = np.dtype(dtype.name).type
    places = (np.arange(out, dtype=kind) + kind(half)) * kind(scale)
    return bool((places.astype(np.int64) == np.arange(out) // (out // n)).all())


def _nearest(
    x: Node, axis: int, out: int, factor: float | None, exact: bool, any_size: bool
) -> Node:
    n = x.shape[axis]
    if out == n and factor in (None, 1.0) and not any_size:
        return x
    kind = dt.float64 if x.dtype is dt.float64 else dt.float32
    scale, half = _scale(n, out, factor), 0.5 if exact else 0.0
    fixed = factor is not None or not any_size
    if fixed and out % n == 0 and _as_often(n, out, scale, half, kind):
        lead, behind = x.shape[: axis + 1], x.shape[axis + 1 :]
        column = b.reshape(x, (*lead, 1, *behind))
        return b.reshape(b.expand(column, (*lead, out // n, *behind)), (*lead[:-1], out, *behind))
    place = b.cast(b.iota((out,), 0, dt.int64), kind)
    if exact:
        place = b.add(place, b.full_like(place, half))
    place = b.mul(place, b.full_like(place, scale))
    index = b.cast(place, dt.int64)  # which truncates
    return take(x, apply(b.MINIMUM, index, b.full_like(index, n - 1)), axis)


def _places(x: Node, axis: int, out: int, factor: float | None, corners: bool) -> Node:
    """Where elements of the result are among those along ``axis``; outside, too, if not corners."""
    n = x.shape[axis]
    place = b.cast(b.iota((out,), 0, dt.int64), x.dtype)
    if corners:
        return b.mul(place, b.full_like(place, (n - 1) / (out - 1) if out > 1 else 0.0))
    half = b.full_like(place, 0.5)
    scale = b.full_like(place, _scale(n, out, factor))
    return b.sub(b.mul(b.add(place, half), scale), half)


def _linear(x: Node, axis: int, out: int, factor: float | None, corners: bool) -> Node:
    n = x.shape[axis]
    if out == n:
        return x
    place = _places(x, axis, out, factor, corners)
    if not corners:
        place = apply(b.MAXIMUM, place, b.full_like(place, 0.0))
    last = b.full((), n - 1, dt.int64)
    low = apply(b.MINIMUM, b.cast(place, dt.int64), last)
    high = apply(b.MINIMUM, b.add(low, b.full_like(low, 1)), last)
    weight = b.sub(place, b.cast(low, x.dtype))
    weight = apply(b.MINIMUM, apply(b.MAXIMUM, weight, b.full_like(weight, 0.0)), _one(weight))
    weight = b.reshape(weight, (out, *(1,) * (len(x.shape) - 1 - axis)))
    left = b.mul(take(x, low, axis), b.sub(_one(weight), weight))
    return b.add(left, b.mul(take(x, high, axis), weight))


def _cubic(x: Node, axis: int, out: int, factor: float | None, corners: bool) -> Node:
    """Cubic convolution of four neighbours (Keys 1981); beyond the edges are their elements."""
    n = x.shape[axis]
    place = _places(x, axis, out, factor, corners)
    low = apply(stepwise("floor"), place)
    first = b.cast(low, dt.int64)
    zero, last = b.full_like(first, 0), b.full_like(first, n - 1)
    total: Node | None = None
    for i, weight in enumerate(cubic_weights(b.sub(place, low)), -1):
        at = b.add(first, b.full_like(first, i))
        near = take(x, apply(b.MINIMUM, apply(b.MAXIMUM, at, zero), last), axis)
        term = b.mul(near, b.reshape(weight, (out, *(1,) * (len(x.shape) - 1 - axis))))
        total = term if total is None else b.add(total, term)
    assert total is not None
    return total


def _one(x: Node) -> Node:
    return b.full_like(x, 1.0)


def _sizes(
    x: Node, size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[list[int], list[float | None]]:
    """Output sizes, and the factors by which positions are computed."""
    spatial = list(x.shape[2:])
    form = "Please provide input tensor in (N, C, d1, d2, ...,dK) format and "
    both = "must have the same number of spatial dimensions, but got input with spatial dimensions "
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        if isinstance(size, Sequence):
            if len(size) != len(spatial):
                raise ValueError(
                    f"Input and output {both}of {spatial} and output size of {size}. {form}output "
                    "size in (o1, o2, ...,oK) format."
                )
            return [int(n) for n in size], [None] * len(spatial)
        return [int(size)] * len(spatial), [None] * len(spatial)
    if scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    if isinstance(scale_factor, Sequence):
        if len(scale_factor) != len(spatial):
            raise ValueError(
                f"Input and scale_factor {both}of {spatial} and scale_factor of shape "
                f"{scale_factor}. {form}scale_factor in (s1, s2, ...,sK) format."
            )
        factors = [float(f) for f in scale_factor]
    else:
        factors = [float(scale_factor)] * len(spatial)
    sizes = [math.floor(n * f) for n, f in zip(spatial, factors, strict=True)]
    return sizes, [None] * len(spatial) if recompute else list(factors)


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input [n, c, h, w] in another size: ``size``, or sizes times ``scale_factor``.

    Lines [n, c, l] and volumes [n, c, d, h, w] are as welcome.  ``mode`` is "nearest",
    "nearest-exact", "area", "bilinear" (of lines "linear", of volumes "trilinear"), or "bicubic" of
    images.  ``align_corners`` makes corner elements keep their values in the last four.
    ``recompute_scale_factor`` takes positions from the sizes, not from ``scale_factor``.  Raises
    NotImplementedError for other modes and ranks and for ``antialias``, ValueError where arguments
    do not fit together.

    >>> import minitorch_tvm as mt
    >>> interpolate(mt.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    x = node_of("interpolate", "input", 1, input)
    if mode in ("nearest", "area", "nearest-exact"):
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | "
                "bilinear | bicubic | trilinear"
            )
    elif align_corners is None:
        align_corners = False
    sizes, factors = _sizes(x, size, scale_factor, recompute_scale_factor)
    rank = len(x.shape)
    if antialias and (rank != 4 or mode not in ("bilinear", "bicubic", "lanczos")):
        raise ValueError(
            "Anti-alias option is restricted to bilinear, bicubic, and lanczos modes and requires "
            "a 4-D tensor as input"
        )
    if antialias:
        raise NotImplementedError("interpolate: antialias=True is not supported")
    if mode == "lanczos" and rank == 4:
        raise NotImplementedError(f"interpolate: mode={mode!r} is not supported")
    needed = {"linear": 3, "bilinear": 4, "trilinear": 5}.get(mode, rank)
    if needed != rank and rank in (3, 4, 5):
        raise NotImplementedError(f"Got {rank}D input, but {mode} mode needs {needed}D input")
    flat = mode in ("bicubic", "lanczos") and rank != 4
    if rank not in (3, 4, 5) or flat or mode not in _MODES.split(" | "):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got {rank}D) for the modes: "
            f"{_MODES} (got {mode})"
        )
    if min(*sizes, *x.shape[2:]) <= 0 and mode != "area":
        pairs = [
            ", ".join(f"{name}: {n}" for name, n in zip("DHW"[5 - rank :], of, strict=True))
            for of in (x.shape[2:], sizes)
        ]
        raise RuntimeError(
            f"Input and output sizes should be greater than 0, but got input ({pairs[0]}) output "
            f"({pairs[1]})"
        )
    if mode == "area":
        pools = {3: adaptive_avg_pool1d, 4: adaptive_avg_pool2d, 5: adaptive_avg_pool3d}
        return pools[rank](input, sizes)
    nearest = mode.startswith("nearest")
    name = f"upsample_{mode}{rank - 2}d"
    corners = align_corners is not None and flag(name, "align_corners", 3, align_corners)
    if not (x.dtype.is_floating_point or (nearest and x.dtype is dt.uint8)):
        kind = "nearest" if nearest else mode
        kernel = f"upsample_{kind}{rank - 2}d{'_channels_last' if rank == 4 else ''}"
        if rank == 5:
            kernel = f"compute_indices_weights_{'nearest' if nearest else 'linear'}"
        raise unsupported(kernel, x.dtype)
    any_size = nearest and of_any_size(name, x.shape, *sizes)
    for axis, (n, factor) in enumerate(zip(sizes, factors, strict=True), 2):
        if nearest:
            x = _nearest(x, axis, n, factor, mode == "nearest-exact", any_size)
        elif mode == "bicubic":
            x = _cubic(x, axis, n, factor, corners)
        else:
            x = _linear(x, axis, n, factor, corners)
    return Tensor._wrap(x)


def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The former name of :func:`interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def _blocks(name: str, x: Node, argument: str, factor: int) -> None:
    arg.integer(name, argument, 2, factor)
    if len(x.shape) < 3:
        raise RuntimeError(
            f"{name} expects input to have at least 3 dimensions, but got input with "
            f"{len(x.shape)} dimension(s)"
        )
    if factor <= 0:
        raise RuntimeError(f"{name} expects a positive {argument}, but got {factor}")


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., c r**2, h, w] to [..., c, h r, w r]: channels become pixels (Shi et al. 2016).

    Raises RuntimeError if r**2 does not divide the channels.
    """
    x, r = node_of("pixel_shuffle", "input", 1, input), upscale_factor
    _blocks("pixel_shuffle", x, "upscale_factor", r)
    *lead, c, h, w = x.shape
    if c % r**2:
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={c} is not divisible by {r**2}"
        )
    k = len(lead)
    parts = b.reshape(x, (*lead, c // r**2, r, r, h, w))
    moved = b.permute(parts, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return Tensor._wrap(b.reshape(moved, (*lead, c // r**2, h * r, w * r)))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """The reverse of :func:`pixel_shuffle`: [..., c, h r, w r] to [..., c r**2, h, w]."""
    x, r = node_of("pixel_unshuffle", "input", 1, input), downscale_factor
    _blocks("pixel_unshuffle", x, "downscale_factor", r)
    *lead, c, h, w = x.shape
    for what, n, axis in (("height", h, -2), ("width", w, -1)):
        if n % r:
            raise RuntimeError(
                f"pixel_unshuffle expects {what} to be divisible by downscale_factor, but "
                f"input.size({axis})={n} is not divisible by {r}"
            )
    k = len(lead)
    parts = b.reshape(x, (*lead, c, h // r, r, w // r, r))
    moved = b.permute(parts, (*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return Tensor._wrap(b.reshape(moved, (*lead, c * r**2, h // r, w // r)))
