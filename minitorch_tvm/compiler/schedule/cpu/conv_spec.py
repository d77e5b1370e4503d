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
        """Output height; 0 where the kernel is larger than the padded input."""
        return self._outputs(0, self.h, self.kh)

    @property
    def ow(self) -> int:
        """Output width; 0 where the kernel is larger than the padded input."""
        return self._outputs(1, self.w, self.kw)

    def _outputs(self, axis: int, inputs: int, kernel: int) -> int:
        reach = self.dilation[axis] * (kernel - 1) + 1
        return max((inputs + 2 * self.padding[axis] - reach) // self.stride[axis] + 1, 0)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return {"float32": 4, "float64": 8}[self.dtype]
