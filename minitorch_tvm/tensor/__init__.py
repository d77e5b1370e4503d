"""Tensors and the functions that make and combine them."""

from .core import TensorBase
from .creation import as_tensor, from_numpy, tensor
from .tensor import Tensor

__all__ = ["Tensor", "TensorBase", "as_tensor", "from_numpy", "tensor"]
