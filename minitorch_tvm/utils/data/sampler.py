"""Samplers: in which order a loader visits the samples.

Orders come from ``Generator.host_rng()``, which is fresh on every call, so each epoch has its own
order and ``manual_seed`` (or the generator's seed) reproduces the whole sequence of epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from minitorch_tvm.random import Generator, default_generator
from minitorch_tvm.utils.data.arrays import IntArray, index_array
from minitorch_tvm.utils.data.convert import to_array, to_tensor

T_co = TypeVar("T_co", covariant=True)


class Sampler(Generic[T_co]):
    """Base class: subclasses define ``__iter__``, and ``__len__`` where it is known."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError("Subclasses of Sampler should implement __iter__.")


class SequentialSampler(Sampler[int]):
    """0, 1, ..., ``len(data_source) - 1``."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def epoch(self) -> IntArray:
        """The whole order of one epoch as int64 indices: a fresh draw where it is random."""
        return np.arange(len(self.data_source), dtype=np.int64)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """A random order of the samples.

    Args:
        data_source: the dataset; only its length is used.
        replacement: draw independently, so a sample may come twice.
        num_samples: how many to draw, ``len(data_source)`` if None. Without replacement, more
            than that means several complete permutations one after the other.
        generator: source of the order; the global one (``manual_seed``) if None.

    Raises:
        TypeError: ``replacement`` is not a bool.
        ValueError: nothing to draw: ``num_samples`` is not positive, or the dataset is empty.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        self.data_source = data_source
        self.replacement = replacement
        self.generator = generator
        self._num_samples = num_samples
        wanted = self.num_samples
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted <= 0:
            why = "" if num_samples is not None else " (the dataset is empty)"
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={wanted}{why}"
            )

    @property
    def num_samples(self) -> int:
        """Samples per epoch; follows a dataset whose length changes."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def epoch(self) -> IntArray:
        """The whole order of one epoch as int64 indices: a fresh draw where it is random."""
        size, wanted = len(self.data_source), self.num_samples
        if size == 0:
            raise ValueError(
                "num_samples should be a positive integer value, but the dataset is empty"
            )
        rng = (self.generator or default_generator).host_rng()
        if self.replacement:
            return rng.integers(size, size=wanted, dtype=np.int64)
        rounds = -(-wanted // size)
        order = np.concatenate([rng.permutation(size) for _ in range(rounds)])
        return order[:wanted].astype(np.int64, copy=False)

    def __iter__(self) -> Iterator[int]:
        return iter(self.epoch().tolist())

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given ``indices`` in a random order, each once.

    Args:
        indices: sample indices.
        generator: source of the order; the global one (``manual_seed``) if None.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def epoch(self) -> IntArray:
        """The whole order of one epoch as int64 indices: a fresh draw where it is random."""
        rng = (self.generator or default_generator).host_rng()
        return rng.permutation(index_array(self.indices))

    def __iter__(self) -> Iterator[int]:
        return iter(self.epoch().tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with probabilities in proportion to ``weights``.

    Args:
        weights: one non-negative number per sample; they need not add up to 1.
        num_samples: how many to draw.
        replacement: draw independently; without, no sample comes twice.
        generator: source of the draws; the global one (``manual_seed``) if None.

    Raises:
        ValueError: ``num_samples`` is not a positive int, ``replacement`` not a bool, or
            ``weights`` not one-dimensional.
        RuntimeError: (while iterating) a weight is negative or not finite, all are zero, or fewer
            are not zero than samples are to be drawn without replacement.

    >>> set(WeightedRandomSampler([0.0, 1.0, 0.0, 3.0], 100))
    {1, 3}
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(
                f"replacement should be a boolean value, but got replacement={replacement}"
            )
        array = np.array(to_array(weights), dtype=np.float64)  # type: ignore[arg-type]
        if array.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {array.shape}"
            )
        self.weights = to_tensor(array)
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def epoch(self) -> IntArray:
        """The whole order of one epoch as int64 indices: a fresh draw where it is random."""
        weights = to_array(self.weights)
        total = weights.sum()
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
        if not total > 0:
            raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
        if not self.replacement and self.num_samples > np.count_nonzero(weights):
            raise RuntimeError(
                "invalid multinomial distribution (with replacement=False, not enough "
                "non-negative category to sample)"
            )
        rng = (self.generator or default_generator).host_rng()
        shares = weights / total
        drawn = rng.choice(len(weights), self.num_samples, self.replacement, shares)
        return drawn.astype(np.int64, copy=False)

    def __iter__(self) -> Iterator[int]:
        return iter(self.epoch().tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Groups of ``batch_size`` indices of another sampler.

    Args:
        sampler: where the indices come from.
        batch_size: indices per batch, at least 1.
        drop_last: leave out a last batch that is not full.

    Raises:
        ValueError: ``batch_size`` is not a positive int, or ``drop_last`` not a bool.

    >>> list(BatchSampler(SequentialSampler(range(7)), batch_size=3, drop_last=False))
    [[0, 1, 2], [3, 4, 5], [6]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        check_batch_size(batch_size)
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        size: int = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)


_WHOLE_EPOCH: tuple[type[Any], ...] = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


def index_batches(batch_sampler: Iterable[Sequence[int]]) -> Iterator[Sequence[int] | IntArray]:
    """The batches of ``batch_sampler``; as slices of one int64 array where the order is known.

    That saves a Python int per sample and epoch. It is done only for exactly our own classes: a
    subclass may have changed ``__iter__``.
    """
    if type(batch_sampler) is BatchSampler and type(batch_sampler.sampler) in _WHOLE_EPOCH:
        order = batch_sampler.sampler.epoch()  # type: ignore[attr-defined]
        size = batch_sampler.batch_size
        end = len(order) - len(order) % size if batch_sampler.drop_last else len(order)
        return (order[start : start + size] for start in range(0, end, size))
    return iter(batch_sampler)


def check_batch_size(batch_size: Any) -> None:
    """Raise PyTorch's ValueError unless ``batch_size`` is a positive int."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
        raise ValueError(
            f"batch_size should be a positive integer value, but got batch_size={batch_size}"
        )
