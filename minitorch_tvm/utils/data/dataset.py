"""Datasets: anything with ``__getitem__`` and ``__len__``, or anything that can be iterated."""

from __future__ import annotations

import bisect
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any, Generic, TypeVar

import numpy as np

from minitorch_tvm.core.arguments import wrong_kind
from minitorch_tvm.random import Generator, default_generator
from minitorch_tvm.tensor import Tensor
from minitorch_tvm.utils.data.arrays import AnyArray, IntArray, index_array, take_rows
from minitorch_tvm.utils.data.convert import to_array, to_tensor

T_co = TypeVar("T_co", covariant=True)

BatchReader = Callable[[IntArray], Any]
"""int64 indices ``[b]`` -> what ``default_collate`` would make of those samples, in numpy."""


class Dataset(Generic[T_co]):
    """A map from an index to a sample. Subclasses define ``__getitem__`` and ``__len__``.

    A dataset that can read a whole batch at once may also define ``batch_reader``; a loader with
    the default ``collate_fn`` then makes one call per batch instead of one per sample. As in
    PyTorch, ``__getitems__(indices) -> list of samples`` is honoured too.

    >>> class Squares(Dataset):
    ...     def __getitem__(self, index):
    ...         return index * index
    ...     def __len__(self):
    ...         return 10
    >>> (Squares() + Squares())[13]
    9
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])

    def batch_reader(self) -> BatchReader | None:
        """A function that reads a batch at once, or None if samples must be read one by one.

        The function maps int64 indices ``[b]`` to what ``default_collate`` would return for
        those samples, with numpy arrays in place of Tensors.
        """
        return None


class IterableDataset(Dataset[T_co]):
    """A stream of samples. Subclasses define ``__iter__``, and ``__len__`` if it is known.

    With ``num_workers > 0`` every worker thread iterates the dataset on its own; use
    ``get_worker_info()`` to give each its share.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Rows of one or more tensors of equal first dimension; sample ``i`` is ``(t[i], ...)``.

    Args:
        tensors: Tensors, or numpy arrays, each of shape ``[n, *rest]``. Samples are of the same
            kind as the tensor they came from, and are copies. Batches in file order need no copy
            when the memory is 64-byte aligned, which Tensors' is and most numpy arrays' is not.

    Raises:
        AssertionError: the first dimensions differ.
        TypeError: an argument is neither a Tensor nor an array.

    >>> import numpy as np
    >>> data = TensorDataset(np.arange(6.0).reshape(3, 2), np.array([0, 1, 2]))
    >>> data[1]
    (array([2., 3.]), array(1))
    """

    def __init__(self, *tensors: Tensor | AnyArray) -> None:
        if not tensors:
            raise ValueError("TensorDataset needs at least one tensor")
        for position, tensor in enumerate(tensors):
            if not hasattr(tensor, "shape"):
                raise TypeError(
                    "TensorDataset expects Tensors or numpy arrays, but got "
                    f"{type(tensor).__name__} at position {position}"
                )
            if len(tensor.shape) == 0:
                raise ValueError(f"tensor {position} has no dimension to index: it is a scalar")
        sizes = [int(tensor.shape[0]) for tensor in tensors]
        if len(set(sizes)) != 1:
            raise AssertionError(f"Size mismatch between tensors: first dimensions are {sizes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(_row(tensor, index) for tensor in self.tensors)

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def batch_reader(self) -> BatchReader | None:
        if type(self).__getitem__ is not TensorDataset.__getitem__:
            return None  # a subclass that changes its samples must be asked for each of them
        return self._read

    def _read(self, indices: IntArray) -> list[AnyArray]:
        # The arrays are looked up per batch: a tensor may have been updated in place meanwhile.
        return [take_rows(to_array(tensor), indices) for tensor in self.tensors]


def _row(tensor: Tensor | AnyArray, index: Any) -> Any:
    row = np.array(to_array(tensor)[index])
    return to_tensor(row) if isinstance(tensor, Tensor) else row


class Subset(Dataset[T_co]):
    """The samples ``indices`` of ``dataset``, in that order.

    >>> list(Subset(["a", "b", "c"], [2, 0]))
    ['c', 'a']
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if type(self).__getitem__ is not Subset.__getitem__:
            return [self[i] for i in indices]
        chosen = [self.indices[i] for i in indices]
        many = getattr(self.dataset, "__getitems__", None)
        return list(many(chosen)) if callable(many) else [self.dataset[i] for i in chosen]

    def __len__(self) -> int:
        return len(self.indices)

    def batch_reader(self) -> BatchReader | None:
        if type(self).__getitem__ is not Subset.__getitem__ or not isinstance(
            self.dataset, Dataset
        ):
            return None
        inner = self.dataset.batch_reader()
        if inner is None:
            return None
        table = index_array(self.indices)
        return lambda indices: inner(take_rows(table, indices))


class ConcatDataset(Dataset[Any]):
    """Several datasets one after the other.

    Raises:
        AssertionError: no dataset, or one of them is an IterableDataset.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(part, IterableDataset) for part in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(part) for part in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            if index < 0:
                raise ValueError("absolute value of index should not exceed dataset length")
            raise IndexError(f"index {index} is out of bounds for a dataset of size {len(self)}")
        index %= len(self)
        part = bisect.bisect_right(self.cumulative_sizes, index)
        before = self.cumulative_sizes[part - 1] if part else 0
        return self.datasets[part][index - before]


class StackDataset(Dataset[Any]):
    """Several datasets side by side: sample ``i`` is a tuple, or a dict, of their samples ``i``.

    Raises:
        ValueError: no dataset, both positional and named ones, or different lengths.

    >>> StackDataset(x=["a", "b"], y=[0, 1])[1]
    {'x': 'b', 'y': 1}
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or``dict``- (via ``kwargs``) like "
                "input/output, but both types are given."
            )
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        parts = args or tuple(kwargs.values())
        if not parts:
            raise ValueError("At least one dataset should be passed")
        self._length = len(parts[0])
        if any(len(part) != self._length for part in parts):
            raise ValueError("Size mismatch between datasets")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: part[index] for name, part in self.datasets.items()}
        return tuple(part[index] for part in self.datasets)

    def __len__(self) -> int:
        return self._length


class ChainDataset(IterableDataset[Any]):
    """Several iterable datasets one after the other.

    Raises:
        AssertionError: (while iterating) one of them is not an IterableDataset.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets: list[Any] = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        for part in self.datasets:
            if not isinstance(part, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from part

    def __len__(self) -> int:
        return sum(len(part) for part in self.datasets)


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Split ``dataset`` at random into parts that do not overlap.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``.
        lengths: sizes that add up to ``len(dataset)``, or fractions that add up to 1. With
            fractions, what rounding down leaves over goes to the first parts, one each.
        generator: source of the order; the global one (``manual_seed``) if None.

    Raises:
        ValueError: the lengths do not add up, or a fraction lies outside [0, 1].
        TypeError: ``generator`` is none.

    >>> [len(part) for part in random_split(range(10), [0.3, 0.35, 0.35])]
    [4, 3, 3]
    """
    total = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for i, fraction in enumerate(lengths):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {i} is not between 0 and 1")
        sizes = [math.floor(total * fraction) for fraction in lengths]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
        for i, size in enumerate(sizes):
            if size == 0:
                warnings.warn(
                    f"Length of split at index {i} is 0. This might result in an empty dataset.",
                    stacklevel=2,
                )
    else:
        sizes = [int(length) for length in lengths]
    if sum(sizes) != total or any(size < 0 for size in sizes):
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset! "
            f"(lengths {list(lengths)}, dataset {total})"
        )
    if not isinstance(generator, (Generator, NoneType)):
        raise wrong_kind("randperm", "generator", None, "torch.Generator", generator)
    order = (generator or default_generator).host_rng().permutation(total).tolist()
    ends = itertools.accumulate(sizes)
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
