"""The Tensor: a handle on one value of the lazy graph, and on its memory once computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from .. import autograd, lazy
from ..core import arguments as arg
from ..core import dtype as dt
from ..core import strides as st
from ..core.dtype import DType
from ..core.handle import RemovableHandle
from ..core.shape import Size, numel, without_leading, wrap_dim
from ..core.switches import channels_last, check_format, contiguous_format
from ..ir.node import LEAF_HOOKS, MODE, WATCHED, Node, leaf
from ..ops import build as b
from ..ops import derived as d
from ..runtime.memory import buffer_of
from . import at_once, history, indexing, literals
from .copies import Copies
from .sharing import Memory, is_of_leaf, memory_of, settled, shows_all, take, through, whole

if TYPE_CHECKING:
    from .tensor import Tensor

Number = bool | int | float


class TensorBase(Copies):
    """State of a tensor: its value, views of it, gradients and evaluation.

    The final class, with operators and methods, is :class:`minitorch_tvm.Tensor`.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_detached",
        "_memory",
        "_node",
        "_replay",
        "_seen",
        "_strides",
        "_version",
        "_write",
    )

    _replay: Callable[[Node], Node]
    _write: Callable[[Node, Node], Node]
    _seen: int  # version of the base that has been read
    _detached: bool  # shares the memory of its base, but not its history
    _memory: weakref.ref[Memory] | None  # what views of this tensor hold, once there were some

    # numpy leaves mixed arithmetic to this class
    __array_priority__: ClassVar[int] = 1000

    def _attach(self, node: Node) -> None:
        self._node = node
        self._gradient = None
        self._version = 0
        self._strides: st.Strides | None = None  # None: row-major
        self._base: Memory | None = None
        # The others are those of a view, see _view: they are set where there is a base.
        if node.pending:
            lazy.track(self, node)

    @staticmethod
    def _wrap(node: Node) -> Tensor:
        """A tensor on ``node``."""
        raise NotImplementedError

    @property
    def node(self) -> Node:
        """The value this tensor stands for now (a view follows its base)."""
        if WATCHED:
            self._watched()
        memory = self._base
        if memory is not None:
            base = memory.holder
            if self._seen != base._version or base._base is not None:
                self._follow(base)
        return self._node

    def _watched(self) -> None:
        """Tell who watches this thread that this tensor is used."""
        capture = MODE.trace.capture
        if capture is not None:
            capture.read(self)

    # --- views and in-place -----------------------------------------------------------------

    def _follow(self, base: Tensor) -> None:
        """Read ``base`` again if it has been written to."""
        further = base._base
        if further is not None:
            if self._detached and shows_all(base):
                self._base, self._seen = further, -1
                self._follow(further.holder)
                return
            base._follow(further.holder)
        if self._seen == base._version:
            return
        old = self._node
        with autograd.set_grad_enabled(old.requires_grad or MODE.trace.grad_enabled):
            new = self._replay(base._node)
        if old.grad_leaf:  # a detached leaf stays one when its memory changes
            new = history.without_history(new)
            self._mark_leaf(new, old)
        elif self._detached and old.requires_grad:
            new = history.with_history(new, old)
        else:
            history.move_owner(old, new)
        self._node = new
        self._seen = base._version
        self._version += 1
        lazy.track(self, new)

    def _view(
        self,
        replay: Callable[[Node], Node],
        write: Callable[[Node, Node], Node],
        strides: st.Strides | None,
        detached: bool = False,
    ) -> Tensor:
        """A tensor that shows part of this one: ``replay`` reads it, ``write`` puts it back.

        ``strides`` are those of PyTorch's view (None: row-major).  Its base is the tensor whose
        history it shares, itself no view unless it is ``detached``; that of a detached one is the
        tensor that has the memory.
        """
        node = self.node
        seen = replay(node)
        if seen is node and node.requires_grad:
            # Hooks, .grad and history belong to one tensor: another needs a value of its own.
            seen = d.clone(node)
        t = self._wrap(seen)
        t._strides = strides
        base: TensorBase = self
        while base._base is not None and (detached or not base._detached):
            replay, write = through(base, replay, write)
            base = base._base.holder
        t._base, t._replay, t._write = memory_of(base), replay, write
        t._seen, t._detached = base._version, detached
        return t

    def _assign(self, new: Node, name: str) -> Self:
        """Give this tensor the value ``new``: what every in-place method ends in."""
        old = self.node
        if MODE.trace.grad_enabled and old.grad_leaf:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation."
            )
        if new.shape != old.shape:
            if numel(new.shape) != numel(old.shape) or len(new.shape) > len(old.shape):
                raise RuntimeError(
                    f"output with shape {list(old.shape)} doesn't match the broadcast shape "
                    f"{list(new.shape)}"
                )
            new = b.reshape(new, old.shape)
        if new.dtype is not old.dtype:
            if new.dtype.category > old.dtype.category:
                raise arg.uncastable(new.dtype, old.dtype)
            new = b.cast(new, old.dtype)
        if self._strides is not None and st.overlapping(old.shape, self._strides):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor "
                "refers to a single memory location. Please clone() the tensor before performing "
                "the operation."
            )
        if MODE.trace.grad_enabled and old.requires_grad and is_of_leaf(self):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation."
            )
        del old  # references to it are counted
        self._put(new)
        return self

    def _put(self, new: Node) -> None:
        """Write ``new`` to this tensor and to what has its memory."""
        if self._base is None or settled(self):
            self._rebind(new)
            return
        base = self._base.holder
        if not self._detached:
            region = indexing.region_of(self)
            if region is None or not at_once.store(base, region, new, self):
                base._put(self._write(base.node, new))
            return
        own = new.requires_grad or self._node.requires_grad
        if own:
            self._rebind(new)
        with autograd.no_grad():
            base._put(self._write(base.node, new))
        if own:
            self._seen = base._version

    def _rebind(self, new: Node) -> None:
        if WATCHED:
            self._watched()
        old = self._node
        if new is old:
            return
        if lazy.doubtful():
            lazy.require_sound((new,), now=False)
            lazy.written(self, old)
        if (
            MODE.trace.grad_enabled
            and old.requires_grad
            and not (old.grad_leaf or new.requires_grad)
        ):
            new = history.written_over(new, old)
        donor = old if old.buffer is not None else old.donor
        shared = donor is not None and donor.buffer.shared
        enabled = MODE.trace.grad_enabled
        stray = new.requires_grad and not enabled  # history that no_grad() keeps out
        if old.requires_grad and not (old.grad_leaf or enabled):
            new = history.with_history(new, old)
        elif old.grad_leaf or new.grad_leaf or not new.inputs or shared or stray:
            # The new value becomes this tensor's own: it may be marked, and take over memory.
            keep = new.requires_grad and not (old.grad_leaf or stray)
            new = d.clone(new) if keep else history.without_history(new)
        if old.grad_leaf:
            self._mark_leaf(new, old)
        elif new.origin is new:
            history.move_owner(old, new)
        new.donor = donor
        old.donor = None  # one value at most takes over memory
        self._node = new
        self._version += 1
        lazy.track(self, new)

    def _adopt(self, new: Node) -> None:
        """Stand for ``new``, the same value with another history."""
        self._node = new
        lazy.track(self, new)

    def _unwritten(self, old: Node) -> None:
        """Be again what this was before it was written to."""
        new = self._node
        if old.pending:
            old.donor, new.donor = new.donor, None
        self._node = old
        self._version += 1
        if old.pending:
            MODE.trace.handles.append(weakref.ref(self))

    def _become(self, new: Node) -> None:
        """As :meth:`_put`, unrecorded, for a value that nobody else holds; not for results."""
        if self._base is not None:
            self._assign(new, "step")
            return
        old = self._node
        if old.grad_leaf:
            self._mark_leaf(new, old)
        if old.buffer is None:
            new.donor, old.donor = old.donor, None
        else:
            new.donor = old
        self._node = new
        self._version += 1
        lazy.track(self, new)

    def _mark_leaf(self, new: Node, old: Node) -> None:
        """Make ``new`` the leaf that ``old`` was: gradients go to this tensor's ``.grad``."""
        new.mark(requires_grad=True, grad_leaf=True)
        new.owner = weakref.ref(self)
        new.hooks = old.hooks

    # --- facts ------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """Sizes of the dimensions."""
        return Size(self._node.shape)

    def size(self, dim: int | None = None) -> Size | int:
        """The shape, or one of its sizes."""
        if dim is None:
            return self.shape
        return self.shape[wrap_dim(arg.integer("size", "dim", 1, dim), self.ndim)]

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._node.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._node.shape)

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        return numel(self._node.shape)

    nelement = numel

    def element_size(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.numel() * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """True for float32 and float64."""
        return self.dtype.is_floating_point

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Elements of memory from one index to the next, per dimension or in one of them.

        Those of PyTorch for a chain of views; results of operations are row-major.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2, 3).T.stride()
        (1, 3)
        """
        steps = st.actual(self._node.shape, self._strides)
        if dim is None:
            return steps
        return steps[wrap_dim(arg.integer("stride", "dim", 1, dim), self.ndim)]

    def is_contiguous(self, *, memory_format: Any = contiguous_format) -> bool:
        """True if the elements are in row-major order: of all tensors but some views."""
        check_format("is_contiguous", memory_format)
        if memory_format is channels_last:
            return self.ndim == 4 and cast("Tensor", self).permute(0, 2, 3, 1).is_contiguous()
        known = self._strides
        return known is None or st.contiguous(self._node.shape, known)

    def contiguous(self, *, memory_format: Any = None) -> Tensor:
        """This tensor if its elements are in row-major order, else a copy that is."""
        check_format("contiguous", memory_format, self.ndim)
        return cast("Tensor", self) if self.is_contiguous() else self._wrap(d.clone(self.node))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    # --- autograd ---------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """True if gradients are recorded for this tensor."""
        return self.node.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Start (or stop) recording gradients for this leaf; returns self.

        Raises RuntimeError for dtypes that are not floating point, and when a result of recorded
        operations is told to stop.
        """
        if not isinstance(requires_grad, bool):
            raise arg.wrong_kind("requires_grad_", "requires_grad", 1, "bool", requires_grad)
        node = self.node
        if requires_grad and not node.dtype.is_floating_point:
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        if not self.is_leaf:
            if not requires_grad:
                raise RuntimeError(
                    "you can only change requires_grad flags of leaf variables. If you want to "
                    "use a computed variable in a subgraph that doesn't require differentiation "
                    "use var_no_grad = var.detach()."
                )
            return self
        if requires_grad and not node.grad_leaf:
            # Other tensors may stand on this value; only this one becomes a leaf.
            node = history.detached(node)
            self._mark_leaf(node, self._node)
            self._node = node
            lazy.track(self, node)
        elif not requires_grad:
            node.mark(requires_grad=False, grad_leaf=False)
            node.owner = None
        return self

    @property
    def is_leaf(self) -> bool:
        """True unless this tensor is the result of operations that record gradients."""
        node = self.node
        return not node.requires_grad or node.grad_leaf

    @property
    def grad_fn(self) -> str | None:
        """Name of the operation that made this tensor, as PyTorch prints it; None for leaves."""
        return None if self.is_leaf else f"<{self.node.origin.op.grad_name}>"

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add d(self)/d(leaf) to the ``.grad`` of every leaf that this tensor depends on.

        ``gradient`` (same shape) weights the elements and may be left out for a scalar.

        >>> import minitorch_tvm as mt
        >>> x = mt.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([2., 4.])
        """
        autograd.backward(self, gradient, retain_graph, create_graph, inputs)

    def retain_grad(self) -> None:
        """Also keep ``.grad`` of this non-leaf tensor."""
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        self.node.origin.owner = weakref.ref(self)

    def register_hook(self, hook: Callable[[Any], Tensor | None]) -> RemovableHandle:
        """Call ``hook(grad)`` when this tensor's gradient is known; a returned tensor replaces it.

        It is None where all that reads this tensor are a user's functions that return None for it.
        Returns a handle whose ``remove()`` detaches the hook.
        """

        def call(ct: Node | None) -> Node | None:
            result = hook(None if ct is None else self._wrap(ct))
            return None if result is None else result.node

        return self._hooked(call)

    def _hooked(self, call: Callable[[Node | None], Node | None]) -> RemovableHandle:
        node = self.node.origin
        if not node.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if node.hooks is None:
            node.hooks = []
        # A leaf hands this list on when it is updated in place, so removal works after updates.
        hooks = node.hooks
        hooks.append(call)
        if node.grad_leaf:
            LEAF_HOOKS["changes"] += 1

        def remove() -> None:
            if call in hooks:
                hooks.remove(call)
                if node.grad_leaf:
                    LEAF_HOOKS["changes"] += 1

        return RemovableHandle(remove)

    def detach(self) -> Tensor:
        """This tensor's value without history; shares data with it (in-place writes show)."""
        return self._view(history.detached, whole, self._strides, True)

    def detach_(self) -> Self:
        """Drop this tensor's history: it becomes a leaf that requires no grad; returns self.

        Raises RuntimeError for a view.
        """
        if self._base is not None and not self._detached:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        node = self.node
        if node.requires_grad:
            self._node = history.detached(node)
            self._version += 1
            lazy.track(self, self._node)
        return self

    @property
    def data(self) -> Tensor:
        """As :meth:`detach`; writing to it changes this tensor, but not its history.

        Assigning to it gives this tensor the memory of another one, for a leaf also of another
        shape or dtype; views of it and what :meth:`detach` and ``data`` gave before keep the old
        one.  Raises RuntimeError where shape or dtype would no longer fit a tensor's history.

        >>> import minitorch_tvm as mt
        >>> w, other = mt.nn.Parameter(mt.ones(2)), mt.zeros(2)
        >>> before = w.data
        >>> w.data = other
        >>> w.data.add_(3), other, before
        (tensor([3., 3.]), tensor([3., 3.]), tensor([1., 1.]))
        """
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, TensorBase):
            raise TypeError(f"Variable data has to be a tensor, but got {type(value).__name__}")
        node, old = value.node, self.node
        if not self.is_leaf and node.spec != old.spec:
            raise RuntimeError(
                f"the data of a tensor with history must remain {old.spec}, but got {node.spec}"
            )
        if lazy.doubtful():
            lazy.require_sound((node,))
        take(self, value)

    # --- evaluation -------------------------------------------------------------------------

    def realize(self, reason: str = "realize") -> Self:
        """Compute this tensor (and everything else pending) now; returns self."""
        lazy.evaluate([self.node], reason)
        return self

    def _array(self, reason: str) -> np.ndarray[Any, Any]:
        node = self.node
        if MODE.trace.capture is not None:
            MODE.trace.capture.refuse(f"{reason} reads values")
        if node.pending:
            lazy.evaluate([node], reason)
        if node.buffer is None:
            return np.asarray(node.value, node.dtype.numpy)
        return node.buffer.numpy(node.shape, node.dtype)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a numpy array on the same memory (evaluates).

        Raises RuntimeError for tensors that require grad.
        """
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() "
                "instead."
            )
        return self._array("numpy")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> Number:
        """The value of a one-element tensor as a Python number (evaluates)."""
        if self.numel() != 1:
            raise RuntimeError(
                f"a Tensor with {self.numel()} elements cannot be converted to Scalar"
            )
        return self._array("item").item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers (evaluates)."""
        return self._array("tolist").tolist()

    def __bool__(self) -> bool:
        if self.numel() == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        if self.numel() != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        return bool(self._array("bool").item())

    def _number(self) -> Number:
        if self.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return self.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __index__(self) -> int:
        if self.dtype.category is not dt.Category.INT or self.ndim:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if not self.ndim else object.__format__(self, spec)

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool((self._array("contains") == value).any())

    def __getitem__(self, index: Any) -> Tensor:
        return self._part(indexing.parse(self._node.shape, index))

    def _part(self, region: indexing.Region) -> Tensor:
        shape, known = self._node.shape, self._strides
        if known is not None:
            region = region.at_front(known)
        owner, whole = self._owned(region)
        return owner._view(whole.read, whole.write, region.strides(shape, known))

    def _owned(self, region: indexing.Region) -> tuple[TensorBase, indexing.Region]:
        """The same elements as a region of the base, where histories do not part; else given."""
        node, memory = self.node, self._base
        if memory is None or self._detached:
            return self, region
        base = memory.holder
        if MODE.trace.grad_enabled and (node.requires_grad or base._node.requires_grad):
            return self, region
        outer = indexing.region_of(self)
        whole = None if outer is None else indexing.region_in(outer, region)
        return (self, region) if whole is None else (base, whole)

    def __setitem__(self, index: Any, value: Any) -> None:
        region = indexing.parse(self._node.shape, index)
        if not isinstance(value, (TensorBase, bool, int, float, np.generic, np.ndarray)):
            kind = f"torch.{self.dtype.torch_name}Tensor"
            raise TypeError(f"can't assign a {type(value).__name__} to a {kind}")
        owner, whole = self._owned(region)
        if isinstance(value, TensorBase) and owner._shows(value, whole):
            return
        source = self._operand(value)
        if at_once.store(owner, whole, source, None if owner is self else self):
            return
        if not isinstance(source, Node):
            if isinstance(source, int) and not -(1 << 63) <= source < 1 << 63:
                raise ValueError("Overflow when unpacking long long")
            source = d.lift(source, self.dtype)
        target = self._part(region)
        filled = b.expand(_drop_leading(source, len(region.shape)), region.shape)
        target._assign(b.cast(filled, self.dtype), "__setitem__")

    def _shows(self, view: TensorBase, region: indexing.Region) -> bool:
        """True at the end of ``self[index] += 1``, whose view has written to the region already."""
        memory = view._base
        follows = memory is not None and memory.holder is self and view._seen != self._version
        recorded = view.node.requires_grad or self._node.requires_grad
        return follows and not recorded and indexing.region_of(view) == region

    def _operand(self, value: Any) -> Node | Number:
        if isinstance(value, TensorBase):
            return value.node
        if isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray):
            return leaf_of(value, None)
        raise TypeError(f"expected a Tensor or a number, but got {type(value).__name__}")


def _drop_leading(x: Node, rank: int) -> Node:
    """Remove leading dimensions of size one beyond ``rank`` (PyTorch's rule for assignment)."""
    return b.reshape(x, without_leading(x.shape, rank))


def tensor_of(function: str, argument: str, position: int, value: Any) -> Tensor:
    """An argument that must be a tensor; TypeError for anything else."""
    if not isinstance(value, TensorBase):
        raise arg.wrong_kind(function, argument, position, "Tensor", value)
    return cast("Tensor", value)


def input_of(function: str, value: Any) -> Tensor:
    """The first argument of a free function, which is called ``input``."""
    return tensor_of(function, "input", 1, value)


def node_of(function: str, argument: str, position: int, value: Any) -> Node:
    """The value of an argument that must be a tensor; TypeError for anything else."""
    if not isinstance(value, TensorBase):
        raise arg.wrong_kind(function, argument, position, "Tensor", value)
    return value.node


def leaf_of(data: Any, dtype: DType | None) -> Node:
    """A leaf with a copy of ``data`` (numbers, nested sequences, arrays, tensors).

    Raises ValueError for ragged sequences and integers beyond 64 bits, TypeError for arrays of
    foreign types, RuntimeError for other objects and for numbers that ``dtype`` cannot hold.
    """
    if isinstance(data, TensorBase):
        array = data.detach().numpy()
    elif isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
    else:
        array, dtype = literals.array_of(data, dtype)
    kind = dt.from_numpy(array.dtype.newbyteorder("=")) if dtype is None else dtype
    if array.dtype.kind not in "biuf":
        raise TypeError(f"can't convert np.ndarray of type {array.dtype}")
    if array.dtype == kind.numpy:
        return leaf(buffer_of(array, kind), array.shape, kind)
    with np.errstate(invalid="ignore", over="ignore"):
        return leaf(buffer_of(array, kind), array.shape, kind)
