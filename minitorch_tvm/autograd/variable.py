"""``Variable``, which wrapped a tensor before tensors had gradients themselves."""

from __future__ import annotations

from typing import Any

from ..ir.node import Node


class _Tensors(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(getattr(instance, "_node", None), Node)


class Variable(metaclass=_Tensors):
    """``Variable(data)`` is ``data.detach()``; every tensor is an instance.

    Raises TypeError if ``data`` is no tensor, RuntimeError if its dtype cannot require grad.

    >>> import minitorch_tvm as mt
    >>> Variable(mt.ones(2), requires_grad=True)
    tensor([1., 1.], requires_grad=True)
    """

    def __new__(cls, data: Any, requires_grad: bool = False) -> Any:
        if not isinstance(getattr(data, "_node", None), Node):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        if requires_grad and not data.dtype.is_floating_point:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        return data.detach().requires_grad_(requires_grad)
