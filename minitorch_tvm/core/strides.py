"""Where PyTorch would put a view's elements in its base's memory: strides, in elements.

No memory is shared here (views are recorded).  Strides decide what users can observe: whether a
reshape may alias, whether two elements of a view are one, and what ``stride()`` answers; and they
tell products where to read an operand that is a view.  Everything is a pure function of small
tuples and remembered; None stands for the row-major strides of everything that is no view.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .shape import Shape, contiguous_strides, numel

Strides = tuple[int, ...]

remembered = functools.lru_cache(maxsize=4096)


def actual(shape: Shape, strides: Strides | None) -> Strides:
    """``strides``, spelled out.

    >>> actual((2, 3), None)
    (3, 1)
    """
    return contiguous_strides(shape) if strides is None else strides


@remembered
def contiguous(shape: Shape, strides: Strides) -> bool:
    """True if the elements lie one after the other in row-major order.

    >>> contiguous((1, 2), (7, 1)), contiguous((2, 2), (1, 2))
    (True, False)
    """
    ours = zip(shape, strides, contiguous_strides(shape), strict=True)
    return not numel(shape) or all(n == 1 or a == b for n, a, b in ours)


@remembered
def offset_of(
    shape: Shape, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]
) -> int | None:
    """Elements of a row-major tensor before a region; None if that is not all in one piece.

    >>> offset_of((4, 3), (2, 0), (2, 3), (1, 1)), offset_of((4, 3), (0, 1), (4, 2), (1, 1))
    (6, None)
    """
    inside, offset = False, 0
    for size, n, start, step in zip(sizes, shape, starts, steps, strict=True):
        if inside and size != n:
            return None
        if size > 1:
            if step > 1:
                return None
            inside = True
        offset = offset * n + start
    return offset


@remembered
def overlapping(shape: Shape, strides: Strides) -> bool:
    """True if elements are repeated, so that a write to one would be a write to another.

    >>> overlapping((2, 3), (0, 1)), overlapping((1, 3), (0, 1))
    (True, False)
    """
    repeated = any(n > 1 and stride == 0 for n, stride in zip(shape, strides, strict=True))
    return repeated and numel(shape) > 0


@remembered
def permuted(shape: Shape, strides: Strides | None, dims: tuple[int, ...]) -> Strides:
    """Strides once the dimensions are reordered.

    >>> permuted((2, 3), None, (1, 0))
    (1, 3)
    """
    known = actual(shape, strides)
    return tuple(known[d] for d in dims)


@remembered
def swapped(shape: Shape, strides: Strides | None, dim0: int, dim1: int) -> Strides:
    """Strides once two dimensions (negative ones count from the end) have changed places.

    >>> swapped((2, 3, 4), None, -1, 0)
    (1, 4, 12)
    """
    known = list(actual(shape, strides))
    if known:  # a 0-d tensor has one dimension to name, and no stride
        known[dim0], known[dim1] = known[dim1], known[dim0]
    return tuple(known)


@remembered
def expanded(shape: Shape, strides: Strides | None, target: Shape) -> Strides:
    """Strides once ``shape`` is expanded to ``target``: a repeated dimension does not move.

    >>> expanded((3, 1), None, (2, 3, 4))
    (0, 1, 0)
    """
    if not shape:
        return (0,) * len(target)
    known = actual(shape, strides)
    lead = len(target) - len(shape)
    out = [0 if n != m else s for n, m, s in zip(shape, target[lead:], known, strict=True)]
    for n in reversed(target[:lead]):
        # A new dimension of size one gets the stride that would follow: it is never used.
        out.insert(0, out[0] * target[-len(out)] if n == 1 else 0)
    return tuple(out)


@remembered
def squeezed(shape: Shape, strides: Strides, dims: tuple[int, ...]) -> Strides:
    """Strides without those of the dimensions of size one among ``dims``.

    >>> squeezed((2, 1, 1), (1, 5, 6), (0, 1))
    (1, 6)
    """
    pairs = enumerate(zip(shape, strides, strict=True))
    return tuple(stride for d, (n, stride) in pairs if n != 1 or d not in dims)


@remembered
def unsqueezed(shape: Shape, strides: Strides | None, dim: int) -> Strides | None:
    """Strides once a dimension of size one is inserted before ``dim``.

    >>> unsqueezed((2, 3), (1, 2), 1)
    (1, 6, 2)
    """
    if strides is None and numel(shape):
        return None
    known = actual(shape, strides)
    new = shape[dim] * known[dim] if dim < len(shape) else 1
    return (*known[:dim], new, *known[dim:])


@remembered
def sliced(
    shape: Shape, strides: Strides | None, steps: tuple[int, ...], axes: tuple[int, ...]
) -> Strides:
    """Strides of a region taken with ``steps``: of the dimensions ``axes`` in this order.

    ``~d`` stands for a new dimension in front of dimension d.

    >>> sliced((4, 5, 6), None, (2, 1, 3), (0, ~2, 2))
    (60, 6, 3)
    """
    known = actual(shape, strides)
    ends = (*(n * stride for n, stride in zip(shape, known, strict=True)), 1)
    return tuple(ends[~d] if d < 0 else known[d] * steps[d] for d in axes)


Slices = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Where slices start and stop, and their steps, of each dimension."""


def sliced_again(
    outer: tuple[Sequence[int], Sequence[int]],
    inner: tuple[Sequence[int], Sequence[int]],
    sizes: Sequence[int],
) -> Slices:
    """Slices that take what ``inner`` takes of what ``outer`` does; both are starts and steps.

    ``sizes`` are those of the result.

    >>> sliced_again(((2, 1), (3, 1)), ((1, 0), (2, 1)), (2, 4))
    ((5, 1), (12, 5), (6, 1))
    """
    starts = [i + j * k for i, j, k in zip(outer[0], inner[0], outer[1], strict=True)]
    steps = [i * j for i, j in zip(outer[1], inner[1], strict=True)]
    stops = [i + max(0, (n - 1) * k + 1) for i, n, k in zip(starts, sizes, steps, strict=True)]
    return tuple(starts), tuple(stops), tuple(steps)


@remembered
def viewed(shape: Shape, strides: Strides, target: Shape) -> Strides | None:
    """Strides with which the same memory is seen in shape ``target``; None if there are none.

    ``target`` has as many elements as ``shape``.

    >>> viewed((2, 3, 4), (12, 1, 3), (2, 3, 2, 2)), viewed((2, 3), (1, 2), (6,))
    ((12, 1, 6, 3), None)
    """
    if not shape or not numel(shape):
        return strides if shape == target else contiguous_strides(target)
    # Neighbouring dimensions that are one evenly spaced run of elements, innermost first.
    runs = [(shape[-1], strides[-1])]
    for n, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        size, step = runs[-1]
        if n == 1 or stride == size * step:
            runs[-1] = (size * n, step)
        else:
            runs.append((n, stride))
    out: list[int] = []
    for size, step in runs:  # each must be filled by dimensions of its own
        count = 1
        while len(out) < len(target):
            n = target[-1 - len(out)]
            if count >= size and n != 1:
                break
            out.append(count * step)
            count *= n
        if count != size:
            return None
    return tuple(reversed(out))
