"""Functions that tell what a tensor is."""

from __future__ import annotations

from typing import Any

from .core import tensor_of
from .tensor import Tensor


def numel(input: Tensor) -> int:
    """Number of elements."""
    return tensor_of("numel", "input", 1, input).numel()


def is_floating_point(input: Tensor) -> bool:
    """True for tensors of float32 and float64."""
    return tensor_of("is_floating_point", "input", 1, input).is_floating_point()


def is_complex(input: Tensor) -> bool:
    """False: there are no complex tensors."""
    return tensor_of("is_complex", "input", 1, input).is_complex()


def is_nonzero(input: Tensor) -> bool:
    """Whether a tensor of one element is not zero (evaluates)."""
    return bool(tensor_of("is_nonzero", "input", 1, input))


def clone(input: Tensor) -> Tensor:
    """A copy that keeps the history."""
    return tensor_of("clone", "input", 1, input).clone()


def detach(input: Tensor) -> Tensor:
    """The value without history; shares data with ``input``."""
    return tensor_of("detach", "input", 1, input).detach()


def typename(obj: Any) -> str:
    """The name of a tensor's legacy type, or of an object's class with its module.

    >>> import minitorch_tvm as mt
    >>> typename(mt.zeros(1)), typename(3)
    ('torch.FloatTensor', 'int')
    """
    if isinstance(obj, Tensor):
        return f"torch.{obj.dtype.torch_name}Tensor"
    kind = obj if isinstance(obj, type) or hasattr(obj, "__qualname__") else type(obj)
    module = getattr(kind, "__module__", "")
    prefix = "" if module in ("", "builtins", None) else f"{module}."
    return prefix + str(kind.__qualname__)
