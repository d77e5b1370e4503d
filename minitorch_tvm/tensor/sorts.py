"""Methods that need elements in order: running sums, sorting, counting, drawing."""

from __future__ import annotations

import builtins
import math
from typing import TYPE_CHECKING, Any

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.dtype import DType
from ..core.shape import numel, wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import Node
from ..ops import build as b
from ..ops import derived as d
from ..ops import order as od
from ..ops import picking as pk
from ..ops import sampling as sa
from ..ops import scan as sc
from ..random import Generator, default_generator
from .advanced import flat_nonzero
from .core import node_of
from .gathering import values_of
from .moves import Moves
from .pairs import ValuesIndices

if TYPE_CHECKING:
    from .tensor import Tensor


def groups(new: Node) -> Node:
    """The number of each entry's group, of where groups begin."""
    return b.sub(sc.cumulative_sum(b.cast(new, dt.int64), 0), b.full((), 1, dt.int64))


def lengths(starts: Node, n: int) -> Node:
    """Of groups of ``n`` entries, of the positions at which they begin."""
    count = starts.shape[0]
    if not count:
        return starts
    ends = b.cat([b.narrow(starts, 0, 1, count), b.full((1,), n, dt.int64)], 0)
    return b.sub(ends, starts)


class Sorts(Moves):
    """What :class:`minitorch_tvm.Tensor` offers where the order of elements counts.

    >>> import minitorch_tvm as mt
    >>> mt.tensor([3, 1, 2]).sort().indices
    tensor([1, 2, 0])
    """

    __slots__ = ()

    # --- running sums -----------------------------------------------------------------------

    @numpy_names
    def cumsum(self, dim: int, *, dtype: DType | None = None) -> Tensor:
        """Sums of the elements up to each along ``dim``; integers and bools sum as int64.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1.0, 2.0, 3.0]).cumsum(0)
        tensor([1., 3., 6.])
        """
        return self._running("cumsum", dim, dtype, sc.cumulative_sum)

    @numpy_names
    def cumprod(self, dim: int, *, dtype: DType | None = None) -> Tensor:
        """Products of the elements up to each along ``dim``; integers and bools as int64."""
        return self._running("cumprod", dim, dtype, sc.cumulative_product)

    def _running(self, name: str, dim: int, dtype: DType | None, function: Any) -> Tensor:
        x = self.node
        axis = wrap_dim(arg.integer(name, "dim", 1, dim), len(x.shape))
        if dtype is None:
            kind = x.dtype if x.dtype.is_floating_point else dt.int64
        else:
            kind = dt.as_dtype(dtype)
        if kind is dt.bool_:
            raise NotImplementedError(f"{name}(): a running sum of dtype bool is not supported")
        y = b.cast(x, kind)
        return self._wrap(function(y, axis) if x.shape else d.clone(y))

    # --- sorting ----------------------------------------------------------------------------

    @numpy_names
    def argsort(self, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
        """Positions (int64) along ``dim`` in the order of the elements; NaN counts as largest.

        Equal elements always keep their order, so ``stable`` changes nothing.
        """
        x = self.node
        axis = wrap_dim(arg.integer("argsort", "dim", 1, dim), len(x.shape))
        arg.flag("argsort", "descending", 2, descending)
        arg.flag("argsort", "stable", None, stable)
        if not x.shape:
            return self._wrap(b.full((), 0, dt.int64))
        return self._wrap(sc.argsort(x, axis, descending))

    @numpy_names
    def sort(
        self, dim: int = -1, descending: bool = False, *, stable: bool | None = None
    ) -> ValuesIndices:
        """(values, indices) in order along ``dim``; NaN counts as largest.

        Equal elements always keep their order, so ``stable`` changes nothing.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([0.5, 2.0, 1.0]).sort(descending=True).values
        tensor([2.0000, 1.0000, 0.5000])
        """
        axis = wrap_dim(arg.integer("sort", "dim", 1, dim), self.ndim)
        arg.flag("sort", "descending", 2, descending)
        if stable is not None:
            arg.flag("sort", "stable", None, stable)
        return self._at(self.argsort(axis, descending), axis)

    def _at(self, indices: Tensor, axis: builtins.int) -> ValuesIndices:
        """The elements at positions known to be inside, and these."""
        x = self.node
        values = pk.gather(x, indices.node, axis) if x.shape else d.clone(x)
        return ValuesIndices(self._wrap(values), indices)

    def _ordered(self, axis: builtins.int, number: builtins.int) -> Tensor:
        """The position of one element of the ascending order along a dimension, which is kept."""
        if not self.ndim:
            return self.argsort()
        order = self._wrap(sc.argsort(self.node, axis, False, number + 1))
        return order[(slice(None),) * axis + (slice(number, number + 1),)]

    @numpy_names
    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> ValuesIndices:
        """(values, indices) of the ``k`` largest (or smallest) along ``dim``, always in order.

        Raises RuntimeError for a ``k`` outside [0, size], and for bools.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1.0, 4.0, 2.0]).topk(2).values
        tensor([4., 2.])
        """
        count = arg.integer("topk", "k", 1, k)
        axis = wrap_dim(arg.integer("topk", "dim", 2, dim), self.ndim)
        arg.flag("topk", "largest", 3, largest)
        arg.flag("topk", "sorted", 4, sorted)
        if not 0 <= count <= (self.shape[axis] if self.ndim else 1):
            raise RuntimeError("selected index k out of range")
        if self.dtype is dt.bool_:
            raise RuntimeError("topk does not support bool dtypes on CPU")
        if count == 1 and self.ndim and largest:  # argmin takes NaN for the smallest
            return self._at(self._wrap(b.argmax(self.node, axis, True)), axis)
        if not self.ndim:
            return self._at(self.argsort(), 0)
        return self._at(self._wrap(sc.argsort(self.node, axis, largest, count)), axis)

    @numpy_names
    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """(values, indices) of the ``k``-th smallest element along ``dim``, counted from 1."""
        number = arg.integer("kthvalue", "k", 1, k)
        axis = wrap_dim(arg.integer("kthvalue", "dim", 2, dim), self.ndim)
        arg.flag("kthvalue", "keepdim", 3, keepdim)
        if not 1 <= number <= (self.shape[axis] if self.ndim else 1):
            raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {axis}")
        if self.dtype is dt.bool_:
            raise arg.unsupported("kthvalue_cpu", self.dtype)
        return self._single(self._ordered(axis, number - 1), axis, keepdim)

    def _single(self, indices: Tensor, axis: builtins.int, keepdim: bool) -> ValuesIndices:
        """The elements at one position per line, with that dimension or without."""
        pair = self._at(indices, axis)
        if keepdim or not self.ndim:
            return pair
        return ValuesIndices(pair.values.squeeze(axis), pair.indices.squeeze(axis))

    @numpy_names
    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """The element in the middle, the lower one of two; NaN if there is one.

        With ``dim`` a (values, indices) pair.
        """
        x = self.node
        arg.flag("median", "keepdim", 2, keepdim)
        if x.dtype is dt.bool_:
            raise arg.unsupported("median_cpu", x.dtype)
        if dim is None:
            if not numel(x.shape):
                if not x.dtype.is_floating_point:
                    raise NotImplementedError("median(): integers without elements have no median")
                return self._wrap(b.full((), math.nan, x.dtype))
            return self._wrap(b.reshape(x, (numel(x.shape),))).median(0).values
        axis = wrap_dim(arg.integer("median", "dim", 1, dim), len(x.shape))
        if not x.shape:
            return self._at(self.argsort(), 0)
        n = x.shape[axis]
        if not n:
            raise IndexError(f"median(): Expected reduction dim {axis} to have non-zero size.")
        if not x.dtype.is_floating_point:
            return self._single(self._ordered(axis, (n - 1) // 2), axis, keepdim)
        order = self.argsort(axis)
        missing = b.sum(b.cast(b.ne(x, x), dt.int64), (axis,), True)  # they come last
        middle, some = b.full((), (n - 1) // 2, dt.int64), b.lt(b.full((), 0, dt.int64), missing)
        place = b.where(some, b.sub(b.full((), n, dt.int64), missing), middle)
        return self._single(self._wrap(pk.gather(order.node, place, axis)), axis, keepdim)

    # --- counting ---------------------------------------------------------------------------

    def unique(
        self,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> Any:
        """The different elements in ascending order, each once (evaluates).

        Or the different entries of ``dim``, in the order of the first elements that differ.  Then,
        if asked for, where each element (entry) of this tensor is among them, and how often each
        occurs.  Every NaN is different, and the largest.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([3, 1, 3]).unique(return_counts=True)
        (tensor([1, 3]), tensor([1, 2]))
        >>> mt.tensor([[2, 1], [0, 5], [2, 1]]).unique(dim=0)
        tensor([[0, 5],
                [2, 1]])
        """
        x, axis = self.node, 0
        arg.flag("unique_dim", "sorted", None, sorted)
        arg.flag("unique_dim", "return_inverse", None, return_inverse)
        arg.flag("unique_dim", "return_counts", None, return_counts)
        if dim is None:
            keys = x = b.reshape(x, (numel(x.shape),))
        else:
            axis = wrap_dim(arg.integer("unique_dim", "dim", 2, dim), len(x.shape))
            keys = self._keys(axis)
        n = keys.shape[0]
        order = sc.argsort(keys, 0, False)
        line = pk.gather(keys, order, 0)
        new = od.slices_differ(line, 0)
        # Else the elements would be sorted a second time, for each number of different ones.
        starts = flat_nonzero(new, line, *([order] if return_inverse or dim is not None else []))
        first = pk.pick(line if dim is None else order, [starts], [(0, 1)])
        found = [first if dim is None else pk.pick(x, [first], [(axis, 1)])]
        if return_inverse:
            inverse = pk.scatter(b.full((n,), 0, dt.int64), order, groups(new), 0, False)
            found.append(b.reshape(inverse, self.shape) if dim is None else inverse)
        if return_counts:
            found.append(lengths(starts, n))
        results = tuple(self._wrap(node) for node in found)
        return results if len(results) > 1 else results[0]

    def _keys(self, axis: int) -> Node:
        """Numbers in whose order the entries of a dimension are, equal where those are."""
        shape = self.shape
        if not shape:
            raise IndexError("Dimension specified as 0 but tensor has no dimensions")
        if 0 in (*shape[:axis], *shape[axis + 1 :]):
            raise RuntimeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
                "applied"
            )
        order = [axis, *[k for k in range(len(shape)) if k != axis]]
        rows = b.permute(self.node, order)
        return od.row_ranks(b.reshape(rows, (shape[axis], numel(shape) // max(1, shape[axis]))))

    def bincount(self, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each of 0, 1, ... occurs in a vector of integers (evaluates it).

        With ``weights``, the sums of these: float32 or float64.
        """
        x = self.node
        minlength = arg.integer("bincount", "minlength", 2, minlength)
        if minlength < 0:
            raise RuntimeError("minlength should be >= 0")
        if x.dtype.is_floating_point or x.dtype is dt.bool_:
            raise arg.unsupported("bincount_cpu", x.dtype)
        values = values_of(x, "bincount") if len(x.shape) == 1 else None
        if values is None or (values.size and values.min() < 0):
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(int(values.max()) + 1 if values.size else 0, minlength)
        terms = b.full(x.shape, 1, dt.int64)
        if weights is not None:
            terms = node_of("bincount", "weights", 1, weights)
            if terms.shape != x.shape:
                raise RuntimeError("weights should be 1-d and have the same length as input")
            terms = terms if terms.dtype.is_floating_point else b.cast(terms, dt.float64)
        zeros = b.full((size,), 0, terms.dtype)
        return self._wrap(pk.put(zeros, terms, [b.cast(x, dt.int64)], [(0, 1)], True))

    # --- drawing ----------------------------------------------------------------------------

    def multinomial(
        self,
        num_samples: int,
        replacement: bool = False,
        *,
        generator: Generator | None = None,
    ) -> Tensor:
        """Positions (int64) drawn with these weights, of a vector or of each row of a matrix.

        Weights need not sum to one.  They are evaluated, as wrong ones raise RuntimeError here:
        negative or infinite ones, NaN, or none above zero.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([0.0, 3.0]).multinomial(2, replacement=True)
        tensor([1, 1])
        """
        x = self.detach().node
        if len(x.shape) not in (1, 2):
            raise RuntimeError("prob_dist must be 1 or 2 dim")
        if not x.dtype.is_floating_point:
            raise RuntimeError(
                "multinomial only supports floating-point dtypes for input, got: "
                f"{x.dtype.torch_name}"
            )
        count = arg.integer("multinomial", "num_samples", 1, num_samples)
        arg.flag("multinomial", "replacement", 2, replacement)
        if count <= 0:
            raise RuntimeError("cannot sample n_sample <= 0 samples")
        n = x.shape[-1]
        if not replacement and count > n:
            raise RuntimeError(
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
            )
        rows = b.reshape(x, (numel(x.shape[:-1]), n))
        shape = (*x.shape[:-1], count)
        if not rows.shape[0]:
            return self._wrap(b.full(shape, 0, dt.int64))
        once = count == 1 or not replacement
        if not n:
            raise sa.no_weights()
        source = generator or default_generator
        if once:
            drawn = sa.without_replacement(rows, source.bits(rows.shape), count)
        else:
            drawn = sa.with_replacement(rows, source.bits((rows.shape[0], count)))
        drawn = b.reshape(drawn, shape)
        _require_weights(rows, once, drawn)
        return self._wrap(drawn)


def _require_weights(rows: Node, once: bool, drawn: Node) -> None:
    """Evaluate weights, and what is drawn in the same program; RuntimeError unless they are some.

    Most draws are looked at next, as actions are.
    """
    flaw = int(values_of(sa.flaw(rows), "multinomial", drawn))
    if flaw == 1:
        raise sa.no_weights()
    if flaw and once:
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if flaw:
        entry = "= infinity or NaN" if flaw == 2 else "< 0"
        raise RuntimeError(
            f"invalid multinomial distribution (encountering probability entry {entry})"
        )
