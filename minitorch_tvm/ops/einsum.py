"""Sums of products by Einstein's notation: products of two run as matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import dtype as dt
from ..core.arguments import unsupported
from ..core.shape import numel
from ..ir.node import Node, apply
from . import build as b
from . import derived as d
from .composite import composite

Labels = tuple[str, ...]
_ELLIPSIS = "..."


def _subscripts(text: str, start: int, where: str) -> Labels:
    """The subscripts of one operand, or the output, with "..." for an ellipsis.

    ``start`` is where the text begins in the equation, for messages.
    """
    labels: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == ".":
            if _ELLIPSIS in labels:
                twice = (
                    "but an ellipsis (...) was already found"
                    if where == "output"
                    else "for which an ellipsis was already found"
                )
                raise RuntimeError(f"einsum(): found '.' for {where} {twice}")
            if text[at : at + 3] != _ELLIPSIS:
                raise RuntimeError(
                    f"einsum(): found '.' for {where} that is not part of any ellipsis"
                )
            labels.append(_ELLIPSIS)
            at += 3
            continue
        if letter != " ":
            if not (letter.isascii() and letter.isalpha()):
                raise RuntimeError(
                    f"einsum(): invalid subscript given at index {start + at} in the equation "
                    "string, subscripts must be in [a-zA-Z]"
                )
            labels.append(letter)
        at += 1
    return tuple(labels)


def _parsed(equation: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Labels], Labels]:
    """A label per dimension of each operand and of the output.

    Dimensions under an ellipsis are ".0", ".1" and so on, counted from the right.
    """
    left, arrow, right = equation.partition("->")
    terms: list[Labels] = []
    start = 0
    for number, text in enumerate(left.split(",")):
        if number >= len(shapes):
            raise RuntimeError(
                "einsum(): fewer operands were provided than specified in the equation"
            )
        terms.append(_subscripts(text, start, f"operand {number}"))
        start += len(text) + 1
    if len(terms) < len(shapes):
        raise RuntimeError("einsum(): more operands were provided than specified in the equation")
    widest = 0
    spread: list[Labels] = []
    for number, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        count = len(shape) - sum(label != _ELLIPSIS for label in labels)
        if count < 0 or (count and _ELLIPSIS not in labels):
            more = "is more than" if _ELLIPSIS in labels else "does not match"
            none = "" if _ELLIPSIS in labels else " and no ellipsis was given"
            raise RuntimeError(
                "einsum(): the number of subscripts in the equation "
                f"({len(shape) - count}) {more} the number of dimensions ({len(shape)}) for "
                f"operand {number}{none}"
            )
        widest = max(widest, count)
        spread.append(_spread(labels, count))
    if arrow:
        output = _spread(_subscripts(right, len(left) + 2, "output"), widest)
    else:
        found = [label for labels in terms for label in labels]
        once = sorted(x for x in set(found) if found.count(x) == 1 and x != _ELLIPSIS)
        output = (*_spread((_ELLIPSIS,), widest), *once)
    for label in output:
        if output.count(label) > 1:
            raise RuntimeError(
                f"einsum(): output subscript {label} appears more than once in the output"
            )
        if not any(label in labels for labels in spread):
            raise RuntimeError(
                f"einsum(): output subscript {label} does not appear in the equation for any "
                "input operand"
            )
    return spread, output


def _spread(labels: Labels, count: int) -> Labels:
    dims = tuple(f".{i}" for i in reversed(range(count)))
    return tuple(x for label in labels for x in (dims if label == _ELLIPSIS else (label,)))


def _check_sizes(terms: Sequence[Labels], shapes: Sequence[tuple[int, ...]]) -> None:
    sizes: dict[str, int] = {}
    for number, (labels, shape) in enumerate(zip(terms, shapes, strict=True)):
        own: dict[str, int] = {}
        for label, n in zip(labels, shape, strict=True):
            if own.setdefault(label, n) != n:
                raise RuntimeError(
                    f"einsum(): subscript {label} is repeated for operand {number} but the sizes "
                    f"don't match, {n} != {own[label]}"
                )
        for label, n in own.items():
            seen = sizes.setdefault(label, n)
            if seen == 1:
                sizes[label] = n
            elif n not in (1, seen):
                raise RuntimeError(
                    f"einsum(): subscript {_ELLIPSIS if label[0] == '.' else label} has size {n} "
                    f"for operand {number} which does not broadcast with previously seen size "
                    f"{seen}"
                )


def _moved(x: Node, labels: Labels, order: Labels) -> Node:
    return x if labels == order else b.permute(x, [labels.index(label) for label in order])


def _diagonal(x: Node, labels: Labels) -> tuple[Node, Labels]:
    """x where subscripts that are repeated have one value."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            row, column = (b.iota(x.shape, axis, dt.int32) for axis in (first, second))
            truth = x.dtype is dt.bool_
            y = b.cast(x, dt.uint8) if truth else x
            y = b.sum(b.where(b.eq(row, column), y, b.full_like(y, 0)), (second,), False)
            x = b.cast(y, dt.bool_) if truth else y
            labels = (*labels[:second], *labels[second + 1 :])
    return x, labels


def _summed(x: Node, labels: Labels, kept: set[str]) -> tuple[Node, Labels]:
    dims = [i for i, label in enumerate(labels) if label not in kept]
    if not dims:
        return x, labels
    return d.sum(x, dims), tuple(label for label in labels if label in kept)


def _stretched(x: Node, labels: Labels, y: Node, others: Labels) -> tuple[Node, Labels]:
    """x without dimensions of size one for which y has more."""
    sizes = dict(zip(others, y.shape, strict=True))
    keep = [i for i, label in enumerate(labels) if x.shape[i] != 1 or sizes.get(label, 1) == 1]
    return b.reshape(x, tuple(x.shape[i] for i in keep)), tuple(labels[i] for i in keep)


def _product(x: Node, xs: Labels, y: Node, ys: Labels, kept: set[str]) -> tuple[Node, Labels]:
    """Product of two operands, summed over the subscripts that nobody else needs."""
    (x, xs), (y, ys) = _stretched(x, xs, y, ys), _stretched(y, ys, x, xs)
    x, xs = _summed(x, xs, kept | set(ys))
    y, ys = _summed(y, ys, kept | set(xs))
    batch = tuple(label for label in xs if label in ys and label in kept)
    inner = tuple(label for label in xs if label in ys and label not in kept)
    left = tuple(label for label in xs if label not in ys)
    right = tuple(label for label in ys if label not in xs)
    sizes = {**dict(zip(xs, x.shape, strict=True)), **dict(zip(ys, y.shape, strict=True))}

    def shape(*labels: str) -> tuple[int, ...]:
        return tuple(sizes[label] for label in labels)

    if not inner:
        rows = b.reshape(_moved(x, xs, batch + left), shape(*batch, *left) + (1,) * len(right))
        columns = _moved(y, ys, batch + right)
        columns = b.reshape(columns, shape(*batch) + (1,) * len(left) + shape(*right))
        return d.mul(rows, columns), batch + left + right
    if x.dtype is not y.dtype:
        raise RuntimeError(
            f"expected scalar type {x.dtype.torch_name} but found {y.dtype.torch_name}"
        )
    if x.dtype is dt.bool_:
        raise unsupported("bmm", x.dtype)
    if not (left or right):
        terms = b.mul(_moved(x, xs, batch + inner), _moved(y, ys, batch + inner))
        return b.sum(terms, range(len(batch), len(batch + inner)), False), batch
    m, k, n = (numel(shape(*labels)) for labels in (left, inner, right))
    ta, tb = xs == batch + inner + left, ys == batch + right + inner
    rows = x if ta else _moved(x, xs, batch + left + inner)
    columns = y if tb else _moved(y, ys, batch + inner + right)
    rows = b.reshape(rows, shape(*batch) + ((k, m) if ta else (m, k)))
    columns = b.reshape(columns, shape(*batch) + ((n, k) if tb else (k, n)))
    labels = batch + left + right
    return b.reshape(b.matmul(rows, columns, ta, tb), shape(*labels)), labels


def _einsum(*operands: Node | str) -> Node:
    *nodes, equation = operands
    xs = [x for x in nodes if isinstance(x, Node)]
    shapes = [x.shape for x in xs]
    terms, output = _parsed(str(equation), shapes)
    _check_sizes(terms, shapes)
    result, labels = _diagonal(xs[0], terms[0])
    for number in range(1, len(xs)):
        later = {label for term in terms[number + 1 :] for label in term}
        other, others = _diagonal(xs[number], terms[number])
        result, labels = _product(result, labels, other, others, later | set(output))
    result, labels = _summed(result, labels, set(output))
    result = _moved(result, labels, output)
    return d.clone(result) if result in xs else result


def einsum(equation: str, operands: Sequence[Node]) -> Node:
    """Sum of products of the operands; two at a time, from left to right."""
    return apply(composite("Einsum", _einsum, equation), *operands)


def contracted(x: Node, y: Node, dims: Sequence[int], others: Sequence[int]) -> Node:
    """Sum of products over pairs of dimensions; x's other dimensions come before those of y."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    first, second = list(letters[: len(x.shape)]), list(letters[len(x.shape) :][: len(y.shape)])
    for i, j in zip(dims, others, strict=True):
        second[j] = first[i]
    kept = [s for i, s in enumerate(first) if i not in dims]
    kept += [s for j, s in enumerate(second) if j not in others]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(kept)}", (x, y))
