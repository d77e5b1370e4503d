"""From a list of samples to one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitorch_tvm.tensor import Tensor
from minitorch_tvm.utils.data.arrays import AnyArray, pooled_empty
from minitorch_tvm.utils.data.convert import rebuild, to_array, to_tensors


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples along a new first axis, as PyTorch's function of the same name.

    =========================  ============================================================
    samples                    batch
    =========================  ============================================================
    Tensors, numpy arrays      Tensor ``[b, *shape]`` of the same dtype (gradients are cut)
    Python floats              float64 Tensor ``[b]``
    Python ints, bools         int64, bool Tensor ``[b]``
    str, bytes                 the samples as they came
    mappings, namedtuples      the same type, each field collated
    tuples                     a list, one collated entry per position
    other sequences            the same type, one collated entry per position
    =========================  ============================================================

    Raises:
        RuntimeError: shapes or lengths of the samples differ.
        TypeError: a sample of a kind that cannot be batched.
        IndexError: ``batch`` is empty.

    >>> x, y = default_collate([(0.5, 1), (1.5, 2)])
    >>> x.tolist(), y.tolist()
    ([0.5, 1.5], [1, 2])
    """
    return to_tensors(collate_arrays(batch))


def collate_arrays(batch: Sequence[Any]) -> Any:
    """:func:`default_collate` up to, but not including, the conversion to Tensors."""
    if len(batch) == 0:
        raise IndexError("default_collate: the batch is empty, so its structure is unknown")
    first = batch[0]
    if isinstance(first, (Tensor, np.ndarray, np.generic)):
        return _stack([np.asarray(to_array(sample)) for sample in batch])
    if isinstance(first, float):
        return np.asarray(batch, dtype=np.float64)
    if isinstance(first, int):
        return _integers(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return rebuild(first, {key: collate_arrays([s[key] for s in batch]) for key in first})
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [collate_arrays(column) for column in zip(*batch, strict=True)]
        plain = isinstance(first, tuple) and not hasattr(first, "_fields")
        return columns if plain else rebuild(first, columns)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first)}"
    )


def _stack(arrays: list[AnyArray]) -> AnyArray:
    first = arrays[0]
    if first.dtype.kind not in "biufc":
        raise TypeError(
            "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
            f"found {first.dtype}"
        )
    for entry, array in enumerate(arrays):
        if array.shape != first.shape:
            raise RuntimeError(
                "stack expects each tensor to be equal size, but got "
                f"{list(first.shape)} at entry 0 and {list(array.shape)} at entry {entry}"
            )
    out = pooled_empty((len(arrays), *first.shape), np.result_type(*{a.dtype for a in arrays}))
    return np.stack(arrays, out=out)


def _integers(batch: Sequence[Any]) -> AnyArray:
    """bools stay bool, ints become int64; a float among them makes the default float32."""
    array = np.asarray(batch)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind == "b":
        return array
    return np.asarray(batch, dtype=np.int64)  # raises OverflowError for what does not fit
