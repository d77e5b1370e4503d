"""How one batch is read: through the dataset's batch reader, or sample by sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from minitorch_tvm.utils.data.arrays import index_array
from minitorch_tvm.utils.data.collate import collate_arrays, default_collate
from minitorch_tvm.utils.data.convert import computing, to_tensors
from minitorch_tvm.utils.data.dataset import BatchReader, Dataset, IterableDataset


def finisher(collate_fn: Callable[..., Any]) -> Callable[[Any], Any]:
    """The step that runs in the consumer's thread.

    The default collation stops at numpy inside a fetcher; only its result becomes Tensors, and
    only there. Any other ``collate_fn`` has the last word on what a batch is.
    """
    return to_tensors if collate_fn is default_collate else _unchanged


def _collation(collate_fn: Callable[..., Any]) -> Callable[..., Any]:
    return collate_arrays if collate_fn is default_collate else computing(collate_fn)


def _unchanged(batch: Any) -> Any:
    return batch


class MapFetcher:
    """Indices -> batch (or one index -> one sample, if ``batched`` is False)."""

    def __init__(self, dataset: Any, batched: bool, collate_fn: Callable[..., Any]) -> None:
        self._dataset = dataset
        self._batched = batched
        self._collate = _collation(collate_fn)
        self._read: BatchReader | None = None
        if collate_fn is default_collate and isinstance(dataset, Dataset):
            self._read = dataset.batch_reader()

    def __call__(self, indices: Any) -> Any:
        try:
            if not self._batched:
                return self._collate(self._dataset[indices])
            if self._read is not None:
                return self._read(index_array(indices))
            return self._collate(self._samples([_plain(index) for index in indices]))
        except StopIteration as error:
            # Inside next() it would end the epoch early and in silence.
            raise RuntimeError("the dataset raised StopIteration while reading a sample") from error

    def _samples(self, indices: list[Any]) -> list[Any]:
        many = getattr(self._dataset, "__getitems__", None)
        return many(indices) if callable(many) else [self._dataset[index] for index in indices]


def _plain(index: Any) -> Any:
    """A numpy integer as a Python int: datasets may use it as a key or a list index."""
    return index.item() if hasattr(index, "item") and getattr(index, "ndim", 1) == 0 else index


class StreamEnd:
    """The type of :data:`END`."""


END: Final = StreamEnd()
"""A worker's answer once its stream has no further batch."""


class IterableFetcher:
    """The next batch of a stream; raises StopIteration, again on every later call, at its end."""

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int | None,
        drop_last: bool,
        collate_fn: Callable[..., Any],
    ) -> None:
        self._dataset = dataset
        self._size = batch_size
        self._drop_last = drop_last
        self._collate = _collation(collate_fn)
        self._samples: Iterator[Any] | None = None

    def __call__(self, _task: None) -> Any:
        if self._samples is None:  # here, so that a worker's stream starts in the worker's thread
            self._samples = iter(self._dataset)
        if self._size is None:
            return self._collate(next(self._samples))
        samples = list(itertools.islice(self._samples, self._size))
        if not samples or (self._drop_last and len(samples) < self._size):
            raise StopIteration
        return self._collate(samples)
