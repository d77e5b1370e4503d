"""Upsample, PixelShuffle and PixelUnshuffle."""

from __future__ import annotations

from collections.abc import Sequence

from ..tensor import Tensor
from . import functional as F
from .module import Module


class Upsample(Module):
    """Lines, images [n, c, h, w] or volumes in another size; see :func:`functional.interpolate`.

    >>> import minitorch_tvm as mt
    >>> mt.nn.Upsample(scale_factor=2, mode="bilinear")(mt.zeros(1, 3, 4, 5)).shape
    torch.Size([1, 3, 8, 10])
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor: float | Sequence[float] | None
        if isinstance(scale_factor, Sequence):
            self.scale_factor = tuple(float(f) for f in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """[n, c, h, w] to [n, c, h', w']."""
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        if self.scale_factor is not None:
            text = f"scale_factor={self.scale_factor!r}"
        else:
            text = f"size={self.size!r}"
        return f"{text}, mode={self.mode!r}"


class PixelShuffle(Module):
    """[..., c r**2, h, w] to [..., c, h r, w r], with r = ``upscale_factor``.

    >>> import minitorch_tvm as mt
    >>> mt.nn.PixelShuffle(2)(mt.arange(4.0).reshape(1, 4, 1, 1))
    tensor([[[[0., 1.],
              [2., 3.]]]])
    """

    _plain = ("upscale_factor",), ()

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """[..., c r**2, h, w] to [..., c, h r, w r]."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """The reverse of :class:`PixelShuffle`."""

    _plain = ("downscale_factor",), ()

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """[..., c, h r, w r] to [..., c r**2, h, w]."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"
