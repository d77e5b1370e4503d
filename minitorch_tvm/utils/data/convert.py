"""The one place where the data layer touches Tensor; everything else here works on numpy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minitorch_tvm import lazy
from minitorch_tvm.core import errors
from minitorch_tvm.ir.node import MODE
from minitorch_tvm.tensor import Tensor, from_numpy
from minitorch_tvm.utils.data.arrays import AnyArray, aligned


def to_array(value: Tensor | AnyArray) -> AnyArray:
    """The memory behind ``value`` as a numpy array (gradients are not followed)."""
    if not isinstance(value, Tensor):
        return value
    # detach() records a node, which a dataset read sample by sample would pile up.
    return value.detach().numpy() if value.requires_grad else value.numpy()


def to_tensor(array: AnyArray) -> Tensor:
    """A Tensor over ``array``'s memory, which is copied first only when it is not aligned."""
    return from_numpy(aligned(array))


def to_tensors(tree: Any) -> Any:
    """``tree`` with every numpy array in it replaced by a Tensor.

    Mappings, namedtuples, tuples and lists keep their type where it can be rebuilt; strings,
    numbers and unknown objects pass unchanged.
    """
    return map_tree(to_tensor, tree)


def computing(collate_fn: Callable[..., Any]) -> Callable[..., Any]:
    """``collate_fn``, but all tensors of its result are computed.

    What pads sentences, say, is another program for every batch.  Left to be computed with the step
    that reads the batch, it would make that another program each time, too.
    """
    named = collate_fn.func if isinstance(collate_fn, functools.partial) else collate_fn
    code = getattr(named, "__code__", None)

    records = False  # whether the last batch had to be computed

    def computed(samples: Any) -> Any:
        nonlocal records
        trace = MODE.trace
        # Not where nothing may be, nor where somebody watches what is recorded.
        free = not trace.forbidden and trace.capture is None
        if free and records:
            lazy.evaluate(reason="batch")  # what the last step has left is not of this program
        batch = collate_fn(samples)
        pending = [t.node for t in _tensors(batch) if t.node.pending] if free else []
        records = bool(pending)
        if pending:
            with errors.at(None if code is None else (code, 0)):
                lazy.evaluate(pending, "batch")
        return batch

    return computed


def _tensors(tree: Any) -> Iterator[Tensor]:
    waiting, seen = [tree], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))  # it may be in itself
            waiting.extend(value.values() if isinstance(value, Mapping) else value)


def default_convert(data: Any) -> Any:
    """What a loader does to a sample when ``batch_size=None``: numpy becomes Tensor.

    Numpy scalars count as arrays, Python numbers stay Python numbers.
    """
    return map_tree(lambda leaf: to_tensor(np.asarray(leaf)), data, scalars=True)


def map_tree(fn: Callable[[Any], Any], tree: Any, *, scalars: bool = False) -> Any:
    """Apply ``fn`` to the numeric arrays (and, if asked, numpy scalars) of a nested structure."""
    leaf = isinstance(tree, np.ndarray) or (scalars and isinstance(tree, np.generic))
    if leaf:
        return tree if tree.dtype.kind in "USO" else fn(tree)
    if isinstance(tree, Mapping):
        return rebuild(tree, {k: map_tree(fn, v, scalars=scalars) for k, v in tree.items()})
    if isinstance(tree, (str, bytes, Tensor)) or not isinstance(tree, Sequence):
        return tree
    return rebuild(tree, [map_tree(fn, v, scalars=scalars) for v in tree])


def rebuild(like: Any, content: Any) -> Any:
    """``content`` (a dict or a list) in the container type of ``like``, if that type allows it."""
    kind = type(like)
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return kind(*content)
    try:
        return kind(content)
    except TypeError:
        return content  # such as a range, or a mapping whose constructor wants other arguments
