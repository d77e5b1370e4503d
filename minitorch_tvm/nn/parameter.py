"""Parameter: a tensor that modules count among their parameters, at first perhaps without shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtype as dt
from ..core.arguments import bounded, flag, several
from ..core.device import require_cpu
from ..core.errors import called
from ..ir.node import Node, leaf
from ..ops.movement import Full
from ..runtime.memory import buffer_of
from ..tensor import Tensor
from ..tensor.formatting import render


def _own_leaf(t: Tensor) -> Node:
    """A leaf with the value of ``t``, on the same memory where ``t`` has any."""
    node = t.node
    if isinstance(node.op, Full) and node.pending:
        # mt.zeros and friends: no program is compiled just to fill memory.
        array = np.full(node.shape, node.op.value, node.dtype.numpy)
        return leaf(buffer_of(array, node.dtype), node.shape, node.dtype)
    if node.pending:  # evaluating what is at hand would evaluate all else that is pending, too
        t.realize("parameter")
        node = t.node
    if node.buffer is None:  # a number that became a 0-d tensor
        return leaf(buffer_of(np.asarray(node.value), node.dtype), (), node.dtype)
    return leaf(node.buffer, node.shape, node.dtype)


class Parameter(Tensor):
    """A tensor that a :class:`Module` counts among its parameters when it is assigned to one.

    ``Parameter(data, requires_grad=True)`` takes its value from the tensor ``data``, which is
    evaluated if it is pending, and stands on the same memory until one of the two is written.
    Raises TypeError if ``data`` is not a tensor, RuntimeError if its dtype cannot require grad.

    >>> import minitorch_tvm as mt
    >>> Parameter(mt.zeros(2))
    Parameter containing:
    tensor([0., 0.], requires_grad=True)
    """

    __slots__ = ()

    _grad_is_copied = False

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True) -> None:
        if data is None:
            node = leaf(buffer_of(np.empty(0), dt.float32), (0,), dt.float32)
        elif isinstance(data, Tensor):
            node = _own_leaf(data)
        else:
            raise TypeError(f"Parameter expects a Tensor, but got {type(data).__name__}")
        flag("_make_subclass", "require_grad", 3, requires_grad)
        if requires_grad and not node.dtype.is_floating_point:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        self._attach(node)
        if requires_grad:
            self.requires_grad_()

    def __repr__(self) -> str:
        return f"Parameter containing:\n{render(self)}"


def new_parameter(shape: tuple[int, ...], device: Any, dtype: Any) -> Parameter:
    """A realised parameter of zeros (float32 by default), to be initialised by its layer.

    Raises TypeError for sizes that are no ints, RuntimeError for negative ones, and for devices
    other than the CPU as ``require_cpu``.
    """
    shape = bounded(several("empty", "size", 1, shape))
    require_cpu(device, "empty")
    kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
    return Parameter(Tensor._wrap(leaf(buffer_of(np.zeros(shape), kind), shape, kind)))


_NO_SHAPE = (
    "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
    "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. "
    "Call `forward` to initialize the parameters before accessing their attributes."
)
_NO_USE = (
    "Attempted to use an uninitialized parameter in {}. This error happens when you are using a "
    "`LazyModule` or explicitly manipulating `torch.nn.parameter.UninitializedParameter` objects. "
    "When using LazyModules Call `forward` with a dummy batch to initialize the parameters before "
    "calling torch functions"
)
_KNOWN = frozenset({"detach", "device", "dtype", "grad", "is_leaf", "materialize", "requires_grad"})
"""What can be asked of a tensor that has no shape yet."""


class Uninitialized(Tensor):
    """A tensor that has no shape yet, but a dtype: nothing else can be asked of it."""

    __slots__ = ()

    def __new__(cls, requires_grad: bool = False, device: Any = None, dtype: Any = None) -> Any:
        require_cpu(device, "empty")
        kind = dt.float32 if dtype is None else dt.as_dtype(dtype)
        empty = Tensor._wrap(leaf(buffer_of(np.empty(0), kind), (0,), kind))
        made = Parameter(empty, requires_grad) if issubclass(cls, Parameter) else empty
        made.__class__ = cls
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN or (name.startswith("_") and name != "_array"):
            return object.__getattribute__(self, name)
        if name == "shape":
            raise RuntimeError(_NO_SHAPE)
        code = called() if name == "node" else None
        raise ValueError(_NO_USE.format(name if code is None else code.co_name))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = copied = type(self)(self.requires_grad, dtype=self.dtype)
        return copied

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def is_leaf(self) -> bool:
        """True."""
        return True

    @property  # type: ignore[misc]  # nothing sets it before there is a shape
    def requires_grad(self) -> bool:
        """Whether it will be differentiated by."""
        return self._node.requires_grad

    @property  # type: ignore[misc]
    def grad(self) -> None:
        """None."""
        return None

    def detach(self) -> Any:
        """This object."""
        return self

    def _clear_grad(self, set_to_none: bool) -> None:
        pass

    def _convert(self, dtype: dt.DType) -> None:
        self._attach(type(self)(self.requires_grad, dtype=dtype)._node)

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become a tensor of zeros in this shape; its identity stays."""
        kind = self.dtype if dtype is None else dt.as_dtype(dtype)
        value = new_parameter(tuple(shape), device, kind).detach()
        wanted = self.requires_grad
        object.__setattr__(self, "__class__", Parameter if isinstance(self, Parameter) else Tensor)
        self._attach(value._node)
        if wanted:
            self.requires_grad_()


class UninitializedParameter(Uninitialized, Parameter):
    """A parameter whose shape is not known yet, of a layer such as :class:`nn.LazyLinear`.

    ``materialize(shape)`` makes it a :class:`Parameter` of zeros.  Its shape is a RuntimeError
    until then, and other use of it a ValueError.

    >>> p = UninitializedParameter()
    >>> p
    <UninitializedParameter>
    >>> p.materialize((2, 3))
    >>> p.shape
    torch.Size([2, 3])
    """

    __slots__ = ()

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        return super().__new__(cls, requires_grad, device, dtype)


class UninitializedBuffer(Uninitialized):
    """A buffer whose shape is not known yet; see :class:`UninitializedParameter`."""

    __slots__ = ()


def is_lazy(param: Any) -> bool:
    """Whether a tensor has no shape yet."""
    return isinstance(param, Uninitialized)
