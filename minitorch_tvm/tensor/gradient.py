"""What a tensor has of its gradient: ``.grad``, or the promise of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import autograd, lazy
from ..autograd.engine import Afterwards
from ..core.dtype import DType
from ..core.handle import RemovableHandle
from ..core.shape import Size
from ..ir.node import MODE, Node
from ..ir.tape import Promise
from ..ops import build as b

if TYPE_CHECKING:
    from .tensor import Tensor


_ATTEMPTS = 1000


class Gradient:
    """The part of a tensor that knows its gradient."""

    __slots__ = ("_gradient",)

    _gradient: Tensor | Promise | None

    if TYPE_CHECKING:  # of the tensor
        _wrap: Any
        _hooked: Any
        is_leaf: Any

        @property
        def shape(self) -> Size: ...

        @property
        def dtype(self) -> DType: ...

    @property
    def _grad(self) -> Tensor | None:
        """As :attr:`grad`, unchecked.  What is owed is recorded only now."""
        gradient = self._gradient
        for _ in range(_ATTEMPTS):  # another thread may do a step meanwhile
            if not isinstance(gradient, Promise):
                self._tell(gradient is None)
                return gradient
            self._settle()
            gradient = self._gradient
        raise RuntimeError("another thread keeps changing this gradient: let it finish its step")

    @_grad.setter
    def _grad(self, value: Tensor | None) -> None:
        self._tell(False)
        self._gradient = value

    def _tell(self, missing: bool) -> None:
        """Tell whoever watches what the first look finds; what is replaced does not matter."""
        capture = MODE.trace.capture
        if capture is not None:
            capture.gradient(self, missing)

    def _settle(self) -> None:
        gradient = self._gradient
        if isinstance(gradient, Promise):
            with lazy.exclusive():
                gradient.settle()

    @property
    def grad(self) -> Tensor | None:
        """Accumulated gradient; None before the first :meth:`backward`."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not isinstance(value, Gradient):
                raise TypeError(
                    f"assigned grad expected to be a Tensor or None but got grad of type "
                    f"{type(value).__name__}"
                )
            if value.shape != self.shape:
                raise RuntimeError(
                    f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor "
                    f"of size '{list(self.shape)}'. Please ensure that the gradient and the tensor "
                    "are the same size"
                )
            if value.dtype is not self.dtype:
                raise RuntimeError(
                    f"attempting to assign a gradient with dtype '{value.dtype.scalar_name}' to a "
                    f"tensor with grad_dtype '{self.dtype.torch_name}'. The gradient must match "
                    "the tensor's grad_dtype (defaults to the tensor's dtype)."
                )
        self._grad = value

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(self)`` when ``backward()`` has added to this leaf's :attr:`grad`.

        Returns a handle whose ``remove()`` detaches the hook.  Raises RuntimeError for results of
        operations and for tensors that require no grad.

        >>> import minitorch_tvm as mt
        >>> x = mt.ones(2, requires_grad=True)
        >>> _ = x.register_post_accumulate_grad_hook(lambda leaf: print(leaf.grad))
        >>> (x * 3).sum().backward()
        tensor([3., 3.])
        """
        if not self.is_leaf:
            raise RuntimeError(
                "post accumulate grad hooks cannot be registered on non-leaf tensors"
            )
        return self._hooked(Afterwards(hook))

    def _clear_grad(self, set_to_none: bool) -> None:
        """Drop ``.grad``, or set it to zero and make it forget how it was computed."""
        if set_to_none:
            self._grad = None
            return
        gradient = self._grad
        if gradient is None:
            return
        if gradient.requires_grad:
            gradient.detach_()
        with autograd.no_grad():
            gradient.zero_()

    def _accumulate_grad(self, ct: Node) -> None:
        if self._grad is None:
            self._grad = self._wrap(ct)
            return
        with autograd.set_grad_enabled(ct.requires_grad):
            self._grad._assign(b.add(self._grad.node, ct), "grad")

    def __getstate__(self) -> object:
        self._settle()  # a copy would wait in vain
        return super().__getstate__()
