"""Shape arithmetic shared by all ops, with PyTorch's error texts.

Shapes are plain tuples of ints everywhere below the Tensor class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

Shape = tuple[int, ...]

MOST_ELEMENTS = (1 << 31) - 1
"""Of a tensor in memory: kernels count in 32 bits."""


class Size(tuple[int, ...]):
    """A shape as users see it: a tuple that prints as PyTorch's and counts its elements.

    >>> Size((2, 3)).numel()
    6
    >>> Size((2, 3, 4))[:2] + (1,)
    torch.Size([2, 3, 1])
    """

    __slots__ = ()

    def numel(self) -> int:
        """Number of elements of a tensor of this shape."""
        return math.prod(self)

    # Parts, sums and repetitions of shapes are shapes, as ``x.shape[:-1].numel()`` needs it.

    def __getitem__(self, where: Any) -> Any:
        found = tuple.__getitem__(self, where)
        return Size(found) if isinstance(where, slice) else found

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, tuple):
            kind = type(other).__name__
            raise TypeError(f"can only concatenate tuple (not {kind}) to torch.Size")
        return Size((*self, *other))

    def __radd__(self, other: Any) -> Any:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return Size(tuple.__mul__(self, count))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"


def numel(shape: Shape) -> int:
    """Number of elements of a tensor of this shape (1 for a 0-d tensor)."""
    return math.prod(shape)


def broadcast(a: Shape, b: Shape) -> Shape:
    """Broadcast two shapes (numpy's and PyTorch's rule).

    Raises RuntimeError naming the first mismatching dimension counted from the right.
    """
    if a == b:
        return a
    rank = max(len(a), len(b))
    out = [0] * rank
    for i in range(1, rank + 1):
        x = a[-i] if i <= len(a) else 1
        y = b[-i] if i <= len(b) else 1
        if x != y and x != 1 and y != 1:
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) "
                f"at non-singleton dimension {rank - i}"
            )
        out[-i] = y if x == 1 else x
    return tuple(out)


def wrap_dim(dim: int, rank: int) -> int:
    """Map a possibly negative dimension to 0..rank-1 (a 0-d tensor accepts 0 and -1).

    Raises IndexError in PyTorch's words; ValueError for an int beyond 64 bits.
    """
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        if not -(1 << 63) <= dim < 1 << 63:
            raise ValueError("Overflow when unpacking long long")
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {dim})"
        )
    return dim + bound if dim < 0 else dim


def wrap_dims(dims: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Normalise the ``dim`` argument of a reduction to a sorted tuple; None means all."""
    if dims is None:
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    wrapped = [wrap_dim(d, rank) for d in dims]
    if len(set(wrapped)) != len(wrapped):
        twice = next(d for d in wrapped if wrapped.count(d) > 1)
        raise RuntimeError(f"dim {twice} appears multiple times in the list of dims")
    if rank == 0:
        return ()
    return tuple(sorted(wrapped)) if wrapped else tuple(range(rank))


def reduced(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    """Shape after reducing over ``dims`` (already wrapped)."""
    if keepdim:
        return tuple(1 if i in dims else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in dims)


@functools.lru_cache(maxsize=4096)
def infer_reshape(shape: Shape, target: Shape) -> Shape:
    """Resolve a single -1 in ``target`` and check the element count.

    Raises RuntimeError in PyTorch's words.
    """
    total = numel(shape)
    out = list(target)
    unknown = [i for i, n in enumerate(out) if n == -1]
    if len(unknown) > 1:
        raise RuntimeError("only one dimension can be inferred")
    for i, n in enumerate(out):
        if n < -1:
            raise RuntimeError(f"invalid shape dimension {n} at index {i} of shape {out}")
    if unknown:
        known = math.prod(n for n in out if n != -1)
        if known == 0:
            if total == 0:
                raise RuntimeError(
                    f"cannot reshape tensor of 0 elements into shape {list(target)} because the "
                    "unspecified dimension size -1 can be any value and is ambiguous"
                )
            raise RuntimeError(f"shape '{list(target)}' is invalid for input of size {total}")
        out[unknown[0]] = total // known
    if math.prod(out) != total:
        raise RuntimeError(f"shape '{list(target)}' is invalid for input of size {total}")
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def check_permutation(dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """``dims`` as a permutation of 0..rank-1; raises RuntimeError in PyTorch's words."""
    if len(dims) != rank:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {rank} is not equal "
            f"to len(dims) = {len(dims)}"
        )
    wrapped = [wrap_dim(d, rank) for d in dims]
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError("permute(): duplicate dims are not allowed.")
    return tuple(wrapped)


@functools.lru_cache(maxsize=4096)
def swapped_dims(rank: int, dim0: int, dim1: int) -> tuple[int, ...]:
    """The order of dimensions in which two have changed places.

    >>> swapped_dims(3, 0, 2)
    (2, 1, 0)
    """
    dims = list(range(rank))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return tuple(dims)


@functools.lru_cache(maxsize=4096)
def squeezed(shape: Shape, dims: int | tuple[int, ...] | None) -> Shape:
    """``shape`` without its sizes of one (all of them, or those listed)."""
    chosen = wrap_dims(dims, len(shape))
    return tuple(n for i, n in enumerate(shape) if n != 1 or i not in chosen)


@functools.lru_cache(maxsize=4096)
def unsqueezed(shape: Shape, dim: int) -> Shape:
    """``shape`` with a size of one inserted."""
    at = wrap_dim(dim, len(shape) + 1)
    return (*shape[:at], 1, *shape[at:])


def without_leading(shape: Shape, rank: int) -> Shape:
    """Without the dimensions beyond ``rank`` in front, if these have size one.

    >>> without_leading((1, 1, 3), 2), without_leading((2, 3), 1)
    ((1, 3), (2, 3))
    """
    extra = max(0, len(shape) - rank)
    return shape[extra:] if all(n == 1 for n in shape[:extra]) else shape


@functools.lru_cache(maxsize=4096)
def flattened(shape: Shape, start: int, end: int) -> Shape:
    """``shape`` with the dimensions start..end merged."""
    first, last = wrap_dim(start, len(shape)), wrap_dim(end, len(shape))
    if first > last:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not shape:
        return (1,)
    return (*shape[:first], numel(shape[first : last + 1]), *shape[last + 1 :])


def split_sizes(n: int, axis: int, wanted: int | Sequence[int]) -> list[int]:
    """Sizes of the pieces of a dimension of ``n``.  Raises RuntimeError if they do not fit."""
    if not isinstance(wanted, int):
        sizes = list(wanted)
        if sum(sizes) != n or any(size < 0 for size in sizes):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size "
                f"at dimension {axis}), but got split_sizes={sizes}"
            )
        return sizes
    if wanted < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={wanted}")
    if wanted == 0:
        if n:
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {n}"
            )
        return [0]
    return [min(wanted, n - i) for i in range(0, n, wanted)] or [0]


@functools.lru_cache(maxsize=4096)
def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)
