"""The problem statement shared by the convolution schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.record import record
from .conv_layout import Load4, Write4

Line = Callable[..., Any]


@record
class Conv:
    """A conv2d, of one group if there are several: NCHW activations, OIHW weights."""

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
    groups: int = 1  # that are computed side by side

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


@record
class Access:
    """What a convolution reads and writes: an element of an operand, or of the result.

    ``left_line``, ``right_line`` and ``write_line`` do the same with all of the last indices as
    one, the pixel of images, or the channel and tap of weights.  They are None for an operand that
    does not lie in memory as it is, and where what is computed behind the convolution needs these
    indices apart.
    """

    left: Load4
    right: Load4
    write: Write4
    left_line: Line | None = None
    right_line: Line | None = None
    write_line: Line | None = None
