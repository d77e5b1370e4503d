"""Methods that compare elements in order, count them, and reduce what goes to one place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from ..core import arguments as arg
from ..core import dtype as dt
from ..core.bounds import Bounds
from ..core.dtype import DType
from ..core.shape import numel, wrap_dim
from ..core.spelling import numpy_names
from ..ir.node import Node, apply
from ..ops import build as b
from ..ops import derived as d
from ..ops import norms
from ..ops import order as od
from ..ops import picking as pk
from ..ops import products as pr
from ..ops import scan as sc
from ..ops import scattering as sg
from .advanced import flat_nonzero
from .arranging import Arranging
from .core import Number, TensorBase, node_of
from .gathering import checked, values_of
from .pairs import MinMax, ValuesIndices
from .sorts import groups, lengths

if TYPE_CHECKING:
    from .tensor import Tensor

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


class Ordering(Arranging):
    """What :class:`minitorch_tvm.Tensor` offers for running extremes, quantiles and counts.

    >>> import minitorch_tvm as mt
    >>> mt.tensor([1.0, 3.0, 2.0]).cummax(0).values
    tensor([1., 3., 3.])
    """

    __slots__ = ()

    # --- running extremes -------------------------------------------------------------------

    @numpy_names
    def cummax(self, dim: int) -> ValuesIndices:
        """(values, indices) of the largest element up to each along ``dim``; from a NaN on NaN.

        Of equal ones the last.
        """
        return self._leaders("cummax", dim, False)

    @numpy_names
    def cummin(self, dim: int) -> ValuesIndices:
        """(values, indices) of the lowest elements up to each along ``dim``, as :meth:`cummax`."""
        return self._leaders("cummin", dim, True)

    def _leaders(self, name: str, dim: int, lowest: bool) -> ValuesIndices:
        x = self.node
        axis = wrap_dim(arg.integer(name, "dim", 1, dim), len(x.shape))
        if not x.shape:
            return ValuesIndices(self._wrap(d.clone(x)), self._wrap(b.full((), 0, dt.int64)))
        return self._at(self._wrap(sc.leader(x, axis, lowest)), axis)

    @numpy_names
    def cumsum_(self, dim: int, *, dtype: DType | None = None) -> Self:
        """:meth:`cumsum` in place, in this tensor's dtype."""
        self._own_dtype("cumsum", dtype)
        return self._assign(self.cumsum(dim, dtype=self.dtype).node, "cumsum_")

    @numpy_names
    def cumprod_(self, dim: int, *, dtype: DType | None = None) -> Self:
        """:meth:`cumprod` in place, in this tensor's dtype."""
        self._own_dtype("cumprod", dtype)
        return self._assign(self.cumprod(dim, dtype=self.dtype).node, "cumprod_")

    def _own_dtype(self, name: str, dtype: DType | None) -> None:
        own = self.dtype
        if dtype is not None and dtype is not own:
            raise RuntimeError(
                f"Bad in-place call: input tensor dtype {own.scalar_name} and output tensor dtype "
                f"{dtype.scalar_name} should match"
            )
        if own is dt.bool_:
            raise arg.unsupported(f"{name}_out_cpu", own)

    @numpy_names
    def logcumsumexp(self, dim: int) -> Tensor:
        """Logarithms of the sums of e ** self up to each element along ``dim``, without overflow.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([100.0, 100.0]).logcumsumexp(0)
        tensor([100.0000, 100.6931])
        """
        x = self.node
        axis = wrap_dim(arg.integer("logcumsumexp", "dim", 1, dim), len(x.shape))
        arg.floating(x.dtype, "logcumsumexp_out_cpu")
        if not numel(x.shape) or not x.shape:
            return self._wrap(d.clone(x))
        return self._wrap(sc.cumulative_logsumexp(x, axis))

    @numpy_names
    def aminmax(self, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
        """(min, max) along ``dim``, or of all elements; elements that tie share the gradient."""
        x = self.node
        arg.flag("aminmax", "keepdim", None, keepdim)
        if dim is None:
            if not numel(x.shape):
                raise RuntimeError(
                    "aminmax(): cannot compute aminmax over an empty dimension as the operation "
                    "has no identity."
                )
        else:
            dim = arg.integer("aminmax", "dim", 1, dim)
            axis = wrap_dim(dim, len(x.shape))
            if x.shape and not x.shape[axis]:
                raise IndexError(f"aminmax: Expected reduction dim {axis} to have non-zero size.")
        low, high = (d.extremum(x, dim, keepdim, k, "aminmax") for k in (True, False))
        return MinMax(self._wrap(low), self._wrap(high))

    # --- quantiles --------------------------------------------------------------------------

    def msort(self) -> Tensor:
        """The elements in ascending order along dimension 0."""
        return self.sort(0).values

    @numpy_names
    def mode(self, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """(values, indices) of the most frequent element along ``dim``: the lowest, its last place.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([3, 1, 3, 1, 2]).mode()
        ValuesIndices(values=tensor(1), indices=tensor(3))
        """
        x = self.node
        axis = wrap_dim(arg.integer("mode", "dim", 1, dim), len(x.shape))
        arg.flag("mode", "keepdim", 2, keepdim)
        if not x.shape:
            return self._at(self.argsort(), 0)
        if not x.shape[axis]:
            raise IndexError(f"mode(): Expected reduction dim {axis} to have non-zero size.")
        return self._single(self._wrap(od.most_frequent(x, axis)), axis, keepdim)

    @numpy_names
    def nanmedian(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """As :meth:`median`, of what is not NaN; NaN if that is nothing."""
        x = self.node
        arg.flag("nanmedian", "keepdim", 2, keepdim)
        if not x.dtype.is_floating_point or not numel(x.shape):
            return self.median(dim, keepdim)
        if dim is None:
            return self._wrap(b.reshape(x, (numel(x.shape),))).nanmedian(0).values
        axis = wrap_dim(arg.integer("nanmedian", "dim", 1, dim), len(x.shape))
        if not x.shape:
            return self._at(self.argsort(), 0)
        return self._single(self._wrap(od.middle_present(x, axis)), axis, keepdim)

    @numpy_names
    def quantile(
        self,
        q: float | Tensor,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Tensor:
        """What a part ``q`` of the elements along ``dim`` (of all, without it) is not above.

        ``q`` is a number in [0, 1], or a vector of them, which is the first dimension of the
        result.  Between two elements the result is on a line, or as ``interpolation`` says: lower,
        higher, midpoint or nearest.  NaN if there is one.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1.0, 2.0, 4.0]).quantile(mt.tensor([0.5, 0.75]))
        tensor([2., 3.])
        """
        return self._quantile("quantile", q, dim, keepdim, interpolation)

    @numpy_names
    def nanquantile(
        self,
        q: float | Tensor,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Tensor:
        """As :meth:`quantile`, of what is not NaN; NaN if that is nothing."""
        return self._quantile("nanquantile", q, dim, keepdim, interpolation)

    def _quantile(self, name: str, q: Any, dim: Any, keepdim: bool, method: str) -> Tensor:
        x = self.node
        if not isinstance(q, (TensorBase, int, float)):
            rest = 'int dim = None, bool keepdim = False, *, str interpolation = "linear"'
            raise arg.no_such_form(name, [q], [f"({k} q, {rest})" for k in ("Tensor", "float")])
        arg.flag(name, "keepdim", 3, keepdim)
        arg.text(name, "interpolation", None, method)
        if not numel(x.shape):
            raise RuntimeError("quantile() input tensor must be non-empty")
        if not isinstance(q, TensorBase) and not 0 <= q <= 1:
            raise RuntimeError(f"quantile() q must be in the range [0, 1] but got {q:g}")
        part = d.lift(float(q), x.dtype) if isinstance(q, (int, float)) else q.node
        if len(part.shape) > 1:
            raise RuntimeError("quantile() q must be a scalar or 1D tensor")
        if not x.dtype.is_floating_point:
            raise RuntimeError("quantile() input tensor must be either float or double dtype")
        if part.dtype is not x.dtype:
            raise RuntimeError("quantile() q tensor must be same dtype as the input tensor")
        if method not in _METHODS:
            raise RuntimeError(
                "quantile() interpolation must be one of linear, lower, higher, midpoint or "
                f"nearest, but got {method}"
            )
        rank = len(x.shape)
        axis = None if dim is None else wrap_dim(arg.integer(name, "dim", 2, dim), rank)
        if axis is None or not rank:
            line, kept = b.reshape(x, (numel(x.shape),)), (1,) * rank
        else:
            line = b.permute(x, [*(k for k in range(rank) if k != axis), axis])
            kept = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        if isinstance(q, TensorBase):
            part = _inside(part)
        found = od.quantile(line, b.reshape(part, (numel(part.shape),)), method, name[0] == "n")
        last = len(found.shape) - 1
        count = found.shape[last]
        shape = kept if keepdim else found.shape[:last]
        found = b.permute(found, [last, *range(last)])
        return self._wrap(b.reshape(found, (count, *shape) if part.shape else shape))

    # --- counting ---------------------------------------------------------------------------

    def histc(self, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
        """How many elements are in each of ``bins`` equal parts of [min, max], as their dtype.

        Where both are equal, the ends are the lowest and the largest element.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1.0, 2.0, 1.0]).histc(4, 0, 3)
        tensor([0., 2., 1., 0.])
        """
        x = self.node
        arg.floating(x.dtype, "histogram_cpu")
        count = arg.integer("histc", "bins", 1, bins)
        if count <= 0:
            raise RuntimeError(
                f"torch.histogram(): bins must be > 0, but got {count} for dimension 0"
            )
        min, max = arg.number("histc", "min", 2, min), arg.number("histc", "max", 3, max)
        if max < min:
            raise RuntimeError("torch.histc: max must be larger than min")
        if not (math.isfinite(min) and math.isfinite(max)):
            raise RuntimeError(f"torch.histc: range of [{min:g}, {max:g}] is not finite")
        line = b.reshape(apply(b.DETACH, x), (numel(x.shape),))
        if min == max:
            low, high = od.bounds(line)
            if line.shape[0]:
                low = _finite(low, high)
        else:
            low, high = (d.lift(float(v), x.dtype) for v in (min, max))
        return self._wrap(od.histogram(line, low, high, count))

    def unique_consecutive(
        self, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
    ) -> Any:
        """The elements, or entries of ``dim``, that differ from the one before (evaluates).

        Then, if asked for, where each is among them, and how many there are in a row.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([1, 1, 2, 1]).unique_consecutive()
        tensor([1, 2, 1])
        """
        x = self.node
        if dim is None:
            axis, line = 0, b.reshape(x, (numel(x.shape),))
        else:
            axis = wrap_dim(arg.integer("unique_consecutive", "dim", 3, dim), len(x.shape))
            line = x if x.shape else b.reshape(x, (1,))
            if 0 in line.shape[:axis] + line.shape[axis + 1 :]:
                raise RuntimeError(
                    "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
                    "applied"
                )
        arg.flag("unique_consecutive", "return_inverse", None, return_inverse)
        arg.flag("unique_consecutive", "return_counts", None, return_counts)
        new = od.slices_differ(line, axis)
        starts = flat_nonzero(new, line)
        found = [pk.pick(line, [starts], [(axis, 1)])]
        if return_inverse:
            inverse = groups(new)
            found.append(b.reshape(inverse, x.shape) if dim is None else inverse)
        if return_counts:
            found.append(lengths(starts, line.shape[axis]))
        results = tuple(self._wrap(node) for node in found)
        return results if len(results) > 1 else results[0]

    # --- covariances ------------------------------------------------------------------------

    def cov(
        self,
        *,
        correction: int = 1,
        fweights: Tensor | None = None,
        aweights: Tensor | None = None,
    ) -> Tensor:
        """Covariances of the rows of a matrix, see :func:`minitorch_tvm.cov`."""
        x = self.node
        if len(x.shape) > 2:
            raise RuntimeError(
                "cov(): expected input to have two or fewer dimensions but got an input with "
                f"{len(x.shape)} dimensions"
            )
        if x.dtype is dt.bool_:
            raise RuntimeError("cov(): bool dtype is not supported for input")
        line = b.reshape(x, (1, numel(x.shape))) if len(x.shape) < 2 else x
        line = d.cast_float(line)
        count = line.shape[1]
        weights = _observations("fweights", fweights, count)
        importance = _observations("aweights", aweights, count)
        product = weights if importance is None else importance
        if weights is not None and importance is not None:
            product = d.mul(weights, importance)
        if product is not None and count and not values_of(product, "cov").any():
            raise RuntimeError("cov(): weights sum to zero, can't be normalized")
        free = arg.integer("cov", "correction", 2, correction)
        found = od.covariance(line, product, importance, float(free))
        return self._wrap(b.reshape(found, ()) if found.shape == (1, 1) else found)

    def corrcoef(self) -> Tensor:
        """Correlation coefficients of the rows of a matrix: covariances of lengths 1.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 0.0]]).corrcoef()
        tensor([[ 1.0000, -0.9820],
                [-0.9820,  1.0000]])
        """
        if self.ndim > 2:
            raise RuntimeError(
                "corrcoef(): expected input to have two or fewer dimensions but got an input with "
                f"{self.ndim} dimensions"
            )
        shared = self.cov()
        if not shared.ndim:
            return shared / shared
        spread = shared.diagonal().sqrt()
        return (shared / spread[:, None] / spread).clip(-1, 1)

    # --- products and norms -----------------------------------------------------------------

    def vdot(self, other: Tensor) -> Tensor:
        """Sum of products of two vectors of one dtype."""
        return self._wrap(pr.dot(self.node, node_of("vdot", "other", 1, other)))

    def kron(self, other: Tensor) -> Tensor:
        """Each element of this tensor times all of ``other``, in its place."""
        x, y = self.node, node_of("kron", "other", 1, other)
        rank = max(len(x.shape), len(y.shape))
        sizes = [(1,) * (rank - len(n.shape)) + n.shape for n in (x, y)]
        coarse = b.reshape(x, tuple(k for n in sizes[0] for k in (n, 1)))
        fine = b.reshape(y, tuple(k for n in sizes[1] for k in (1, n)))
        shape = tuple(n * m for n, m in zip(*sizes, strict=True))
        return self._wrap(b.reshape(d.mul(coarse, fine), shape))

    def dist(self, other: Tensor, p: float = 2) -> Tensor:
        """Norm of order ``p`` of self - other, which broadcast.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([3.0, 0.0]).dist(mt.tensor([0.0, 4.0]))
        tensor(5.)
        """
        x, y = self.node, node_of("dist", "other", 1, other)
        distance = d.sub(x, y)
        if not distance.dtype.is_floating_point:
            raise RuntimeError(
                "norm(): input dtype should be either floating point or complex. Got "
                f"{distance.dtype.torch_name} instead."
            )
        power = float(arg.number("dist", "p", 2, p))
        return self._wrap(norms.vector_norm(distance, power, None, False))

    @numpy_names
    def renorm(self, p: float, dim: int, maxnorm: float) -> Tensor:
        """Entries of ``dim`` whose norm of order ``p`` is above ``maxnorm``, made as short as that.

        >>> import minitorch_tvm as mt
        >>> mt.tensor([[3.0, 4.0], [0.3, 0.4]]).renorm(2, 0, 1.0)
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
        """
        x, power = self.node, float(arg.number("renorm", "p", 1, p))
        axis_given = arg.integer("renorm", "dim", 2, dim)
        limit = float(arg.number("renorm", "maxnorm", 3, maxnorm))
        if not power > 0:
            raise RuntimeError("renorm: non-positive-norm not supported")
        if limit < 0:
            raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {limit:g}")
        if len(x.shape) < 2:
            raise RuntimeError(
                f"renorm: input needs at least 2 dimensions, got {len(x.shape)} dimensions"
            )
        axis = wrap_dim(axis_given, len(x.shape))
        dims = [k for k in range(len(x.shape)) if k != axis]
        length = norms.vector_norm(x, power, dims, True)
        return self._wrap(od.renorm(x, length, d.lift(limit, x.dtype)))

    @numpy_names
    def renorm_(self, p: float, dim: int, maxnorm: float) -> Self:
        """:meth:`renorm` in place."""
        return self._assign(self.renorm(p, dim, maxnorm).node, "renorm_")

    # --- what goes to one place -------------------------------------------------------------

    @numpy_names
    def scatter_reduce(
        self, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
    ) -> Tensor:
        """A copy in which all that :meth:`scatter` writes to one place is reduced to one value.

        ``reduce`` is sum, prod, mean, amax or amin.  What was there counts, too, unless
        ``include_self`` is False.

        >>> import minitorch_tvm as mt
        >>> mt.zeros(2).scatter_reduce(0, mt.tensor([0, 0, 1]), mt.tensor([1.0, 5.0, -1.0]), "amax")
        tensor([5., 0.])
        """
        source = node_of("scatter_reduce", "src", 3, src)
        arg.text("scatter_reduce", "reduce", 4, reduce)
        arg.flag("scatter_reduce", "include_self", None, include_self)
        if reduce not in sg.REDUCTIONS:
            raise RuntimeError(
                "reduce argument must be either sum, prod, mean, amax or amin, got " + reduce
            )
        if not source.shape and isinstance(index, TensorBase) and index.ndim > 1:
            raise RuntimeError("Index tensor must have the same number of dimensions as src tensor")
        if self.dtype is dt.bool_ and reduce == "mean":
            raise arg.unsupported("scatter_gather_tensor_cpu_reduce_mean", self.dtype)

        def write(x: Node, places: Node, values: Node, axis: int) -> Node:
            values = values if values.shape else b.reshape(values, (1,) * len(places.shape))
            return sg.scatter_reduce(x, places, values, axis, reduce, include_self)

        return self._scattered("scatter", dim, index, source, write)

    @numpy_names
    def scatter_reduce_(
        self, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
    ) -> Self:
        """:meth:`scatter_reduce` in place."""
        new = self.scatter_reduce(dim, index, src, reduce, include_self=include_self)
        return self._assign(new.node, "scatter_reduce_")

    @numpy_names
    def index_reduce(
        self, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
    ) -> Tensor:
        """A copy in which entries of ``source`` are multiplied, averaged or compared per place.

        Entry k of ``dim`` goes to entry ``index[k]``.  ``reduce`` is prod, mean, amax or amin.
        Raises IndexError for positions outside [0, size).
        """
        arg.text("index_reduce", "reduce", 4, reduce)
        arg.flag("index_reduce", "include_self", None, include_self)
        if reduce not in ("prod", "mean", "amax", "amin"):
            raise RuntimeError(
                "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got "
                f"{reduce}."
            )
        x, places, terms, axis = self._by_index("index_reduce", dim, index, source)
        column = tuple(n if k == axis else 1 for k, n in enumerate(terms.shape))
        places = b.expand(b.reshape(places, column), terms.shape)
        new = sg.scatter_reduce(x, places, terms, axis, reduce, include_self)
        return self._wrap(b.reshape(new, self._node.shape))

    @numpy_names
    def index_reduce_(
        self, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
    ) -> Self:
        """:meth:`index_reduce` in place."""
        new = self.index_reduce(dim, index, source, reduce, include_self=include_self)
        return self._assign(new.node, "index_reduce_")


def _observations(name: str, weights: Any, count: int) -> Node | None:
    """Weights of as many observations; RuntimeError unless they are some."""
    if weights is None:
        return None
    x = node_of("cov", name, 3, weights)
    if len(x.shape) > 1:
        raise RuntimeError(
            f"cov(): expected {name} to have one or fewer dimensions but got {name} with "
            f"{len(x.shape)} dimensions"
        )
    floating = name == "aweights"
    if floating != x.dtype.is_floating_point or x.dtype is dt.bool_:
        kind = "floating point" if floating else "integral"
        raise RuntimeError(
            f"cov(): expected {name} to have {kind} dtype but got {name} with "
            f"{x.dtype.torch_name} dtype"
        )
    if numel(x.shape) != count:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the "
            f"input but got {numel(x.shape)} != {count}"
        )
    values = values_of(x, "cov")
    if values.size and values.min() < 0:
        raise RuntimeError(f"cov(): {name} cannot be negative")
    return b.reshape(x, (count,))


def _inside(q: Node) -> Node:
    """``q``, which is NaN or raises RuntimeError, soon or later, unless it is in [0, 1]."""
    zero, one = b.full_like(q, 0.0), b.full_like(q, 1.0)
    fine = b.logical_and(b.le(zero, q), b.le(q, one))
    return _required(fine, q, "quantile() q values must be in the range [0, 1]")


def _finite(low: Node, high: Node) -> Node:
    """``low``; raises RuntimeError unless both bounds are finite."""
    infinite = b.full_like(low, math.inf)
    fine = b.logical_and(b.lt(d.neg(infinite), low), b.lt(high, infinite))
    return _required(fine, low, "torch.histc: the elements' range is not finite")


def _required(fine: Node, value: Node, text: str) -> Node:
    """``value``, NaN where it is not ``fine``, for which RuntimeError is raised, soon or later."""
    bounds = Bounds(1, 2, lambda _: RuntimeError(text))
    flag = checked(b.cast(fine, dt.int64), bounds)
    return b.where(b.cast(flag, dt.bool_), value, b.full_like(value, math.nan))
