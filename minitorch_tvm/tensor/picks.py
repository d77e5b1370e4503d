"""Methods that read and write elements at positions that are computed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.shape import broadcast, numel, wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import picking as pk
from . import advanced
from .core import Number, TensorBase, node_of
from .gathering import checked, out_of_range
from .views import Views

if TYPE_CHECKING:
    from .tensor import Tensor

Operand = Any


def _out_of_bounds(dim: int, size: int) -> Bounds:
    def error(position: int) -> Exception:
        return RuntimeError(
            f"index {position} is out of bounds for dimension {dim} with size {size}"
        )

    return Bounds(0, size, error)


def _integers(function: str, index: Node) -> None:
    if index.dtype not in (dt.int32, dt.int64):
        raise RuntimeError(f"{function}(): Expected dtype int32/int64 for index")


def _lines(*nodes: Node) -> list[Node]:
    """Nodes of which 0-d ones become vectors of one element."""
    return [x if x.shape else b.reshape(x, (1,)) for x in nodes]


_overwrite = functools.partial(pk.scatter, add=False)
_add = functools.partial(pk.scatter, add=True)


def _same_rank(x: Node, index: Node, name: str) -> None:
    if max(1, len(index.shape)) != max(1, len(x.shape)):
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {name} tensor")


class Picks(Views):
    """What :class:`minitorch_tvm.Tensor` offers for elements at computed positions.

    >>> import minitorch_tvm as mt
    >>> scores = mt.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    >>> scores.gather(1, mt.tensor([[2], [0]]))
    tensor([[3.],
            [4.]])
    """

    __slots__ = ()

    # --- indices ----------------------------------------------------------------------------

    def _write_at(self, index: Any, value: Any) -> None:
        """``self[index] = value`` where the index holds positions or masks."""
        if not isinstance(value, (TensorBase, bool, int, float, np.generic, np.ndarray)):
            kind = f"torch.{self.dtype.torch_name}Tensor"
            raise TypeError(f"can't assign a {type(value).__name__} to a {kind}")
        source = self._operand(value)
        if isinstance(source, int) and not -(1 << 63) <= source < 1 << 63:
            raise ValueError("Overflow when unpacking long long")
        region, new = advanced.written(self, index, source)
        whole = region.shape == self._node.shape == region.sizes
        target = cast("Tensor", self) if whole else self._part(region)
        target._assign(new, "__setitem__")

    def index_put(
        self, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
    ) -> Tensor:
        """A copy with ``values`` (which broadcast) written at ``indices``, or added to them.

        ``indices`` are tensors of positions, or masks, of the first dimensions.  What is written
        to one place several times counts the last time.
        """
        if not isinstance(indices, (tuple, list)):
            raise arg.wrong_kind("index_put_", "indices", 1, "tuple of Tensors", indices)
        for i, t in enumerate(indices):
            if not isinstance(t, TensorBase):
                raise TypeError(
                    f"expected Tensor as element {i} in argument 0, but got {type(t).__name__}"
                )
        source = node_of("index_put_", "values", 2, values)
        arg.flag("index_put_", "accumulate", 3, accumulate)
        return self._wrap(advanced.index_put(self.node, indices, source, accumulate))

    def index_put_(
        self, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
    ) -> Self:
        """:meth:`index_put` in place."""
        return self._assign(self.index_put(indices, values, accumulate).node, "index_put_")

    # --- along one dimension ----------------------------------------------------------------

    @numpy_names
    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Elements at ``index`` (int32 or int64, of as many dimensions) along ``dim``.

        For a matrix and ``dim`` 1: result[i, j] = self[i, index[i, j]].  The index is no larger
        than this tensor in the other dimensions.  Raises RuntimeError for positions outside
        [0, size), at the next evaluation if they are still to be computed.
        """
        x, places = self.node, node_of("gather", "index", 2, index)
        _integers("gather", places)
        axis = wrap_dim(arg.integer("gather", "dim", 1, dim), len(x.shape))
        if not numel(places.shape):
            none = b.slice(b.reshape(x, (numel(x.shape),)), (0,), (0,), (1,))
            return self._wrap(b.reshape(none, places.shape))  # which keeps the history
        _same_rank(x, places, "input")
        shape = places.shape
        x, places = _lines(x, places)
        for d_, (n, size) in enumerate(zip(places.shape, x.shape, strict=True)):
            if d_ != axis and n > size:
                raise RuntimeError(
                    f"Size does not match at dimension {d_} expected index {list(shape)} to be no "
                    f"larger than self {list(x.shape)} apart from dimension {axis}"
                )
        places = checked(places, _out_of_bounds(axis, x.shape[axis]))
        return self._wrap(b.reshape(pk.gather(x, places, axis), shape))

    @numpy_names
    def take_along_dim(self, indices: Tensor, dim: int | None = None) -> Tensor:
        """As :meth:`gather`, but other dimensions broadcast; without ``dim`` of all elements."""
        places = node_of("take_along_dim", "indices", 1, indices)
        name = "torch.take_along_dim()"
        if places.dtype is not dt.int64:
            raise RuntimeError(
                f"{name}: dtype of indices should be Long but got {places.dtype.torch_name}"
            )
        x = self.node
        if dim is None:
            flat = self._wrap(b.reshape(x, (numel(x.shape),)))
            line = self._wrap(b.reshape(places, (numel(places.shape),)))
            return flat.gather(0, line)
        if len(x.shape) != len(places.shape):
            raise RuntimeError(
                f"{name}: input and indices should have the same number of dimensions, but got "
                f"{len(x.shape)} dimensions for input, and {len(places.shape)} dimensions for "
                "indices"
            )
        axis = wrap_dim(arg.integer("take_along_dim", "dim", 2, dim), len(x.shape))
        if not x.shape:
            return self.gather(axis, indices)
        other = [list(s) for s in (x.shape, places.shape)]
        for shape in other:
            shape[axis] = 1
        together = list(broadcast(tuple(other[0]), tuple(other[1])))
        together[axis] = x.shape[axis]
        wide = self._wrap(b.expand(x, tuple(together)))
        together[axis] = places.shape[axis]
        return wide.gather(axis, self._wrap(b.expand(places, tuple(together))))

    def _scattered(self, name: str, dim: int, index: Any, source: Node, write: Any) -> Tensor:
        """What ``write`` makes of (this, positions, source, dimension), which are checked."""
        x, places = self.node, node_of(name, "index", 2, index)
        axis = wrap_dim(arg.integer(name, "dim", 1, dim), len(x.shape))
        _integers(name, places)
        if x.dtype is not source.dtype:
            raise RuntimeError(f"{name}(): Expected self.dtype to be equal to src.dtype")
        if not numel(places.shape):
            return self._wrap(write(x, places, source, axis))
        shape = x.shape
        _same_rank(x, places, "self")
        x, places = _lines(x, places)
        bad = [i for i, n in enumerate(places.shape) if i != axis and n > x.shape[i]]
        text = (
            f"Expected index {list(places.shape)} to be no larger than self {list(x.shape)} apart "
            f"from dimension {axis}"
        )
        if isinstance(source, Node) and source.shape:
            if len(source.shape) != len(places.shape):
                wrap_dim(dim, len(source.shape))
                raise RuntimeError(
                    "Index tensor must have the same number of dimensions as src tensor"
                )
            if bad or any(n > m for n, m in zip(places.shape, source.shape, strict=True)):
                raise RuntimeError(f"{text} and to be no larger size than src {list(source.shape)}")
        elif bad:
            raise RuntimeError(text)
        places = checked(places, _out_of_bounds(axis, x.shape[axis]))
        return self._wrap(b.reshape(write(x, places, source, axis), shape))

    @numpy_names
    def scatter(
        self,
        dim: int,
        index: Tensor,
        src: Tensor | Number | None = None,
        *,
        value: Number | None = None,
        reduce: str | None = None,
    ) -> Tensor:
        """A copy with ``src`` (or a number) written at ``index`` along ``dim``.

        For a matrix and ``dim`` 1: result[i, index[i, j]] = src[i, j]; the last counts where
        several go to one place.  Raises RuntimeError for positions outside [0, size) and
        NotImplementedError for a ``reduce``; sums are :meth:`scatter_add`.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2, 3).scatter(1, mt.tensor([[2], [0]]), 1.0)
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
        """
        if reduce is not None:
            raise NotImplementedError("scatter(): reduce is not supported; sums are scatter_add()")
        given = value if src is None else src
        if isinstance(given, TensorBase):
            node = given.node
            if not node.shape and len(index.shape):
                raise RuntimeError(
                    "Index tensor must have the same number of dimensions as src tensor"
                )
            return self._scattered("scatter", dim, index, node, _overwrite)
        if not isinstance(given, (bool, int, float)):
            forms = ("Tensor src", "Number value")
            texts = [f"(int dim, Tensor index, {form})" for form in forms]
            raise arg.no_such_form("scatter", [dim, index, given], texts)
        number = d.lift(given, self.dtype)
        return self._scattered("scatter", dim, index, number, _overwrite)

    @numpy_names
    def scatter_(
        self,
        dim: int,
        index: Tensor,
        src: Tensor | Number | None = None,
        *,
        value: Number | None = None,
        reduce: str | None = None,
    ) -> Self:
        """:meth:`scatter` in place."""
        new = self.scatter(dim, index, src, value=value, reduce=reduce)
        return self._assign(new.node, "scatter_")

    @numpy_names
    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """A copy with ``src`` added at ``index`` along ``dim``, as of :meth:`scatter`."""
        source = node_of("scatter_add", "src", 3, src)
        return self._scattered("scatter", dim, index, source, _add)

    @numpy_names
    def scatter_add_(self, dim: int, index: Tensor, src: Tensor) -> Self:
        """:meth:`scatter_add` in place."""
        return self._assign(self.scatter_add(dim, index, src).node, "scatter_add_")

    def _by_index(
        self, name: str, dim: int, index: Any, source: Any
    ) -> tuple[Node, Node, Node, int]:
        """(this, positions, what goes there, dimension), checked, of which none is 0-d."""
        x, places = self.node, node_of(name, "index", 2, index)
        terms = node_of(name, "source", 3, source)
        axis = wrap_dim(arg.integer(name, "dim", 1, dim), len(x.shape))
        if len(places.shape) > 1:
            raise IndexError(
                f"{name}_(): Index is supposed to be a vector, but got dim: "
                f"{len(places.shape)} with type: {places.dtype.torch_name} and size: "
                f"{list(places.shape)}"
            )
        if places.dtype not in (dt.int32, dt.int64):
            raise RuntimeError(
                f"{name}_(): Expected dtype int32/int64 for index but got: "
                f"{places.dtype.torch_name}"
            )
        if x.dtype is not terms.dtype:
            raise RuntimeError(
                f"{name}_(): self ({x.dtype.torch_name}) and source "
                f"({terms.dtype.torch_name}) must have the same scalar type"
            )
        shape = x.shape
        x, places, terms = _lines(x, places, terms)
        count = places.shape[0]
        if len(terms.shape) <= axis or terms.shape[axis] != count:
            size = terms.shape[axis] if axis < len(terms.shape) else 1
            raise RuntimeError(
                f"{name}_(): Number of indices ({count}) should be equal to source.size(dim): "
                f"({size}), for dim: {axis}"
            )
        if (*x.shape[:axis], count, *x.shape[axis + 1 :]) != terms.shape:
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified "
                f"dimension. Got self.shape = {list(shape)} source.shape = {list(terms.shape)}"
            )
        places = checked(places, Bounds(0, x.shape[axis], out_of_range))
        return x, places, terms, axis

    @numpy_names
    def index_add(self, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
        """A copy with alpha * ``source`` added to the entries ``index`` (a vector) of ``dim``.

        Raises IndexError for positions outside [0, size).
        """
        x, places, terms, axis = self._by_index("index_add", dim, index, source)
        if alpha != 1:
            terms = d.mul(terms, alpha)
            if terms.dtype is not x.dtype:
                raise RuntimeError(
                    "For integral input tensors, argument alpha must not be a floating point "
                    "number."
                )
        new = pk.put(x, terms, [places], [(axis, 1)], True)
        return self._wrap(b.reshape(new, self._node.shape))

    @numpy_names
    def index_add_(self, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Self:
        """:meth:`index_add` in place."""
        new = self.index_add(dim, index, source, alpha=alpha)
        return self._assign(new.node, "index_add_")

    @numpy_names
    def index_copy(self, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """A copy with ``source`` written to the entries ``index`` (int64, a vector) of ``dim``.

        Of what is written to one entry several times the last counts.  Raises IndexError for
        positions outside [0, size).

        >>> import minitorch_tvm as mt
        >>> mt.zeros(3, 2).index_copy(0, mt.tensor([2, 0]), mt.tensor([[1.0, 2], [3, 4]]))
        tensor([[3., 4.],
                [0., 0.],
                [1., 2.]])
        """
        x, places = self.node, node_of("index_copy", "index", 2, index)
        new = node_of("index_copy", "source", 3, source)
        axis = wrap_dim(arg.integer("index_copy", "dim", 1, dim), len(x.shape))
        if len(places.shape) > 1:
            raise IndexError(
                f"index_copy_(): Index should have dimension 1 or 0 (got {len(places.shape)})"
            )
        count = numel(places.shape)
        if not new.shape and count != 1:
            raise IndexError(
                f"index_copy_(): When source is scalar, index should have one element (got {count})"
            )
        if x.shape and new.shape and len(x.shape) != len(new.shape):
            raise IndexError(
                "index_copy_(): When source and destination are not scalars, their dimensionality "
                f"must match. Source dimensionality ({len(new.shape)}), destination "
                f"dimensionality ({len(x.shape)})"
            )
        if places.dtype is not dt.int64:
            raise RuntimeError(
                f"index_copy_(): Expected a long tensor for index, but got "
                f"{places.dtype.torch_name}"
            )
        if x.dtype is not new.dtype:
            raise RuntimeError(
                "index_copy_(): self and source expected to have the same dtype, but got (self) "
                f"{x.dtype.torch_name} and (source) {new.dtype.torch_name}"
            )
        of_x, of_new = (n.shape[:axis] + n.shape[axis + 1 :] for n in (x, new))
        if of_x != of_new:
            raise RuntimeError(
                "index_copy_(): Source/destination tensor must have same slice shapes. "
                f"Destination slice shape: {' '.join(map(str, of_x))} at dimension {axis} and "
                f"source slice shape: {' '.join(map(str, of_new))} at dimension 0."
            )
        shape = x.shape
        x, places, new = _lines(x, places, new)
        if new.shape[axis] != count:
            raise IndexError(
                f"index_copy_(): Number of indices ({count}) should be equal to source.size(dim) "
                f"({new.shape[axis]})"
            )
        size = x.shape[axis]

        def outside(bad: int) -> Exception:
            return IndexError(
                f"index_copy_(): index {bad} is out of bounds for dimension {axis} with size {size}"
            )

        places = checked(places, Bounds(0, size, outside))
        return self._wrap(b.reshape(pk.put(x, new, [places], [(axis, 1)], False), shape))

    @numpy_names
    def index_copy_(self, dim: int, index: Tensor, source: Tensor) -> Self:
        """:meth:`index_copy` in place."""
        return self._assign(self.index_copy(dim, index, source).node, "index_copy_")

    # --- masks and flat positions -----------------------------------------------------------

    def masked_select(self, mask: Tensor) -> Tensor:
        """The elements where ``mask`` (bool, both broadcast) holds, as a vector.

        The mask is evaluated, as the shape of the result depends on it.
        """
        chosen, x = node_of("masked_select", "mask", 1, mask), self.node
        if chosen.dtype is not dt.bool_:
            raise RuntimeError("masked_select: expected BoolTensor for mask")
        shape = broadcast(x.shape, chosen.shape)
        everywhere = self._wrap(b.expand(chosen, shape))
        return self._wrap(advanced.read(b.expand(x, shape), everywhere))

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """Where elements are not zero, int64 [count, dimensions]; or a tensor per dimension.

        Evaluates this tensor, as the shape of the result depends on it.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[0, 3], [4, 0]]).nonzero()
        tensor([[0, 1],
                [1, 0]])
        """
        x = self.node
        mask = b.cast(x, dt.bool_)
        if as_tuple:
            return tuple(map(self._wrap, advanced.nonzero_along(mask)))
        return self._wrap(advanced.nonzero(mask))

    def take(self, index: Tensor) -> Tensor:
        """The elements at ``index`` (int64), counted in row-major order, from the end if negative.

        Raises IndexError for positions out of range.
        """
        x, places = self.node, node_of("take", "index", 1, index)
        if places.dtype is not dt.int64:
            name = places.dtype.torch_name
            raise RuntimeError(f"take(): Expected a long tensor for index, but got {name}")
        size = numel(x.shape)
        if not size and numel(places.shape):
            raise IndexError("take(): tried to take from an empty tensor")

        def error(position: int) -> Exception:
            return IndexError(
                f"out of range: tried to access index {position} on a tensor of {size} elements."
            )

        places = checked(places, Bounds(-size, size, error))
        return self._wrap(pk.pick(b.reshape(x, (size,)), [places], [(0, 1)]))
