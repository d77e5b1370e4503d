"""Activations that are methods: hardshrink and prelu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.arguments import floating, number
from ..core.shape import numel
from ..ops import activations as act
from ..ops import build as b
from .core import TensorBase, node_of

if TYPE_CHECKING:
    from .tensor import Tensor


class Activations(TensorBase):
    """Activations, of :class:`minitorch_tvm.Tensor`; others are in ``nn.functional``."""

    __slots__ = ()

    def hardshrink(self, lambd: float = 0.5) -> Tensor:
        """0 where |self| <= ``lambd``, else self.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([-1.0, 0.25, 1.0]).hardshrink()
        tensor([-1.,  0.,  1.])
        """
        floating(self.dtype, "hardshrink_cpu")
        return self._wrap(act.hardshrink(self.node, number("hardshrink", "lambd", 1, lambd)))

    def prelu(self, weight: Tensor) -> Tensor:
        """self where it is positive, else weight * self (He et al. 2015).

        ``weight`` has one element, or one per channel (dimension 1).  Raises RuntimeError where it
        does not fit.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[-1.0, -1.0]]).prelu(mt.tensor([0.5, 2.0]))
        tensor([[-0.5000, -2.0000]])
        """
        x, w = self.node, node_of("prelu", "weight", 1, weight)
        if x.dtype is not w.dtype:
            raise RuntimeError(
                f"prelu: Type promoting not supported. Got {x.dtype.torch_name} and "
                f"{w.dtype.torch_name}"
            )
        count = numel(w.shape)
        channels = x.shape[1] if len(x.shape) > 1 else 1
        if count != 1 and not x.shape:
            raise RuntimeError("Not allow zero-dim input tensor.")
        if count not in (1, channels):
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{count} and channel size = {channels}."
            )
        if len(w.shape) > 1:
            raise RuntimeError(
                "prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = "
                f"{len(w.shape)}"
            )
        floating(x.dtype, "prelu_cpu")
        spread = () if count == 1 else (channels, *(1,) * (len(x.shape) - 2))
        return self._wrap(act.prelu(x, b.reshape(w, spread)))
