"""Views in place: the methods after which a tensor shows its own memory in another shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .. import lazy
from ..core import arguments as arg
from ..core.arguments import Dims
from ..core.shape import wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import MODE
from .sharing import is_of_leaf, left_behind, show
from .views import Views

if TYPE_CHECKING:
    from .tensor import Tensor


class Shapes(Views):
    """What changes the shape of a :class:`minitorch_tvm.Tensor`, and none of its elements.

    Memory is shared as before: what was a view of the tensor still is one of what it shows.

    Raises RuntimeError where gradients are recorded and the tensor is a leaf that requires one, and
    NotImplementedError for such a leaf elsewhere: there, assign to ``data``.

    >>> import minitorch_tvm as mt
    >>> x = mt.zeros(2, 3)
    >>> row = x[0]
    >>> x.t_().add_(1).shape, row
    (torch.Size([3, 2]), tensor([1., 1., 1.]))
    """

    __slots__ = ()

    @numpy_names
    def unsqueeze_(self, dim: int) -> Self:
        """Insert a dimension of size one, in place."""
        axis = wrap_dim(arg.integer("unsqueeze_", "dim", 1, dim), self.ndim + 1)
        return self._show_as("unsqueeze_", self.unsqueeze(axis))

    @numpy_names
    def squeeze_(self, dim: Dims = None) -> Self:
        """Drop dimensions of size one (all, or those listed), in place."""
        return self._show_as("squeeze_", self.squeeze(arg.dims("squeeze_", dim)))

    def transpose_(self, dim0: int, dim1: int) -> Self:
        """Swap two dimensions, in place."""
        first = arg.integer("transpose_", "dim0", 1, dim0)
        second = arg.integer("transpose_", "dim1", 2, dim1)
        return self._show_as("transpose_", self.transpose(first, second))

    def swapdims_(self, dim0: int, dim1: int) -> Self:
        """As :meth:`transpose_`."""
        first = arg.integer("swapdims_", "dim0", 1, dim0)
        return self.transpose_(first, arg.integer("swapdims_", "dim1", 2, dim1))

    def swapaxes_(self, axis0: int, axis1: int) -> Self:
        """As :meth:`transpose_`."""
        first = arg.integer("swapaxes_", "axis0", 1, axis0)
        return self.transpose_(first, arg.integer("swapaxes_", "axis1", 2, axis1))

    def t_(self) -> Self:
        """Transpose a matrix in place (vectors stay as they are)."""
        if self.ndim > 2:
            raise RuntimeError(
                f"t_() expects a tensor with <= 2 dimensions, but self is {self.ndim}D"
            )
        return self._show_as("t_", self.t())

    def _show_as(self, name: str, view: Tensor) -> Self:
        """Be ``view``, which is one of this tensor."""
        old = self.node
        if old.grad_leaf:
            if MODE.trace.grad_enabled:
                raise RuntimeError(
                    "a leaf Variable that requires grad is being used in an in-place operation."
                )
            raise NotImplementedError(
                f"{name}() of a leaf that requires grad: assign a view of its data to its data"
            )
        if MODE.trace.grad_enabled and old.requires_grad and is_of_leaf(self):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation."
            )
        if view is self:
            return self
        if MODE.trace.capture is not None:
            MODE.trace.capture.refuse("it changes a shape in place")
        # It becomes a view of a tensor that keeps the shape, as are all others that were its views.
        if self._base is None or self._detached:
            left_behind(self)
        show(self, view, detached=False)
        self._node = view._node
        self._version += 1
        lazy.track(self, self._node)
        return self
