"""Methods about where a tensor is and what it is made of, and those that make tensors like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.device import CPU, Device, no_cuda, require_cpu
from ..core.dtype import DType
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from .conversion import no_accelerator, target, unpinned
from .core import Number, TensorBase, leaf_of
from .filling import filled, size_of
from .legacy import OfDtype

if TYPE_CHECKING:
    from .tensor import Tensor


class Placement(TensorBase):
    """What :class:`minitorch_tvm.Tensor` says of its memory, and how it is moved and converted.

    >>> import minitorch_tvm as mt
    >>> x = mt.zeros(2, 3, dtype=mt.float64)
    >>> x.device, x.new_ones(2).dtype, x.to(mt.device("cpu")) is x
    (device(type='cpu'), mt.float64, True)
    """

    __slots__ = ()

    @property
    def device(self) -> Device:
        """Where the data lives: always ``device("cpu")``."""
        return CPU

    @property
    def is_cpu(self) -> bool:
        """True."""
        return True

    @property
    def is_cuda(self) -> bool:
        """False."""
        return False

    @property
    def is_sparse(self) -> bool:
        """False: there are no sparse tensors."""
        return False

    @property
    def is_quantized(self) -> bool:
        """False: there are no quantized tensors."""
        return False

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    def get_device(self) -> int:
        """-1, as for all tensors on the CPU."""
        return -1

    def is_pinned(self, device: Any = None) -> bool:
        """False."""
        return False

    def pin_memory(self, device: Any = None) -> Tensor:
        """Raises RuntimeError: there is no accelerator to pin memory for."""
        raise no_accelerator()

    def is_signed(self) -> bool:
        """True for float32, float64, int32 and int64."""
        return not (self.dtype.is_unsigned or self.dtype is dt.bool_)

    def is_complex(self) -> bool:
        """False."""
        return False

    def ndimension(self) -> int:
        """Number of dimensions."""
        return self.ndim

    @property
    def retains_grad(self) -> bool:
        """True for a result of operations that keeps its ``.grad`` (:meth:`retain_grad`)."""
        if self.is_leaf:
            return False
        owner = self.node.origin.owner
        return owner is not None and owner() is self

    def data_ptr(self) -> int:
        """Address of the first element in memory (evaluates).

        It is for comparing: an update may move a tensor.  Raises NotImplementedError for views,
        which may be computed anew instead of standing in their base's memory.
        """
        if self._base is not None and not self._detached:
            raise NotImplementedError("data_ptr() of a view is not supported")
        return int(self._array("data_ptr").ctypes.data)

    # --- conversion -------------------------------------------------------------------------

    def to(self, *args: Any, **options: Any) -> Tensor:
        """Convert to a dtype, to another tensor's dtype, or to a device, of which there is the CPU.

        ``to(device=None, dtype=None, non_blocking=False, copy=False)``, ``to(dtype, ...)`` or
        ``to(other, ...)``.  Returns this tensor if it is as wanted, unless ``copy``.
        ``non_blocking`` changes nothing.  Raises AssertionError for CUDA, RuntimeError for other
        devices.

        >>> import minitorch_tvm as mt
        >>> device = mt.device("cuda" if mt.cuda.is_available() else "cpu")
        >>> mt.ones(2).to(device, mt.int64, non_blocking=True)
        tensor([1, 1])
        """
        if len(args) == 1 and not options:  # most calls, and those of every step
            (dtype,) = args
            if isinstance(dtype, DType):
                if dtype is self._node.dtype:
                    return cast("Tensor", self)
                return self._wrap(b.cast(self.node, dtype))
            if dtype is CPU or (isinstance(dtype, str) and dtype == "cpu"):
                return cast("Tensor", self)
        dtype, copy = target(args, options, len(self._node.shape))
        if dtype is not None and dtype is not self.dtype:
            return self._wrap(b.cast(self.node, dtype))
        return self._wrap(d.clone(self.node)) if copy else cast("Tensor", self)

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Convert to ``dtype``; without it, the name of the tensor's type: "torch.FloatTensor".

        ``dtype`` may be that name, or the class of it, too.
        """
        if dtype is None:
            return f"torch.{self.dtype.torch_name}Tensor"
        if isinstance(dtype, str):
            known = {f"torch.{kind.torch_name}Tensor": kind for kind in dt.ALL}
            if dtype not in known:
                raise ValueError(f"invalid type: '{dtype}'")
            dtype = known[dtype]
        return self.to(dt.as_dtype(dtype.kind if isinstance(dtype, OfDtype) else dtype))

    def byte(self) -> Tensor:
        """Convert to uint8."""
        return self.to(dt.uint8)

    def cpu(self) -> Tensor:
        """This tensor."""
        return cast("Tensor", self)

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Tensor:
        """Raises AssertionError: there is only the CPU."""
        raise no_cuda()

    # --- others like this one ---------------------------------------------------------------

    def _new(self, node: Node, device: Any, requires_grad: bool, pin_memory: bool) -> Tensor:
        require_cpu(device, "new")
        unpinned(pin_memory)
        if requires_grad and not node.dtype.is_floating_point:
            raise RuntimeError(
                "Only Tensors of floating point and complex dtype can require gradients"
            )
        t = self._wrap(node)
        return t.requires_grad_() if requires_grad else t

    def _kind(self, dtype: Any) -> DType:
        return self.dtype if dtype is None else dt.as_dtype(dtype)

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """A tensor with a copy of ``data`` and (by default) this tensor's dtype."""
        return self._new(leaf_of(data, self._kind(dtype)), device, requires_grad, pin_memory)

    def new_full(
        self,
        size: Any,
        fill_value: Number,
        *,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """A tensor of that size with ``fill_value`` everywhere and (by default) this dtype."""
        shape = arg.bounded(arg.several("new_full", "size", 1, size))
        node = filled("new_full", shape, fill_value, self._kind(dtype))
        return self._new(node, device, requires_grad, pin_memory)

    def new_zeros(
        self,
        *sizes: Any,
        size: Any = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Zeros of that size, with (by default) this tensor's dtype."""
        node = b.full(size_of("new_zeros", sizes, size), 0, self._kind(dtype))
        return self._new(node, device, requires_grad, pin_memory)

    def new_ones(
        self,
        *sizes: Any,
        size: Any = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """Ones of that size, with (by default) this tensor's dtype."""
        node = b.full(size_of("new_ones", sizes, size), 1, self._kind(dtype))
        return self._new(node, device, requires_grad, pin_memory)

    def new_empty(
        self,
        *sizes: Any,
        size: Any = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        pin_memory: bool = False,
    ) -> Tensor:
        """As :meth:`new_zeros`: memory is never handed out uninitialised."""
        node = b.full(size_of("new_empty", sizes, size), 0, self._kind(dtype))
        return self._new(node, device, requires_grad, pin_memory)
