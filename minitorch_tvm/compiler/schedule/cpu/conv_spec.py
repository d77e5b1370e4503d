"""The problem statement shared by the convolution schedules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Conv:
    """A conv2d without groups: NCHW activations, OIHW weights."""

    n: int
    c: int
    h: int
    w: int
    o: int
    kh: int
    kw: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    dtype: str

    @property
    def oh(self) -> int:
        return (self.h + 2 * self.padding[0] - self.dilation[0] * (self.kh - 1) - 1) // self.stride[
            0
        ] + 1

    @property
    def ow(self) -> int:
        return (self.w + 2 * self.padding[1] - self.dilation[1] * (self.kw - 1) - 1) // self.stride[
            1
        ] + 1

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return {"float32": 4, "float64": 8}[self.dtype]
