"""DataLoader: batches of a dataset, in order, optionally read ahead by threads."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from minitorch_tvm.random import Generator, default_generator
from minitorch_tvm.utils.data.collate import default_collate
from minitorch_tvm.utils.data.convert import default_convert
from minitorch_tvm.utils.data.dataset import IterableDataset
from minitorch_tvm.utils.data.fetch import IterableFetcher, MapFetcher, finisher
from minitorch_tvm.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    check_batch_size,
    index_batches,
)
from minitorch_tvm.utils.data.worker import PrefetchIterator

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader:
    """Iterate over a dataset in batches; names, defaults and semantics of PyTorch's loader.

    Datasets backed by arrays (``TensorDataset``, ``MNIST``, ``SyntheticDigits``, any ``Subset`` of
    those, any dataset with a ``batch_reader``) are read by one vectorised index per batch when
    ``collate_fn`` is the default. Batches lie in 64-byte-aligned memory, so kernels read them
    without a copy; batches in file order may be read-only views of the dataset's own memory.

    **Workers are threads, never processes**: a forked child would hang in the kernels' thread
    pool. ``num_workers=n`` starts n threads per epoch, which read up to ``prefetch_factor``
    batches each ahead of the loop. Numpy and native code release the interpreter lock, so reading,
    decoding and augmenting with them overlaps with training; pure Python work gets no faster.
    Worker w reads batches w, w+n, w+2n, ...; batches always arrive in order; an error in a worker
    is raised from ``next()`` at its batch; leaving the loop early cancels what is not yet read.
    Threads share Python's and numpy's global random state: for augmentation that reproduces, seed
    from ``get_worker_info().seed`` or from the index.

    Args:
        dataset: anything with ``__getitem__`` and ``__len__``, or an ``IterableDataset``.
        batch_size: samples per batch; None hands out single samples, converted to Tensors.
        shuffle: new random order each epoch.
        sampler: iterable of indices; excludes ``shuffle``.
        batch_sampler: iterable of index lists; excludes ``batch_size``, ``shuffle``, ``sampler``
            and ``drop_last``.
        num_workers: reading threads; 0 reads in the calling thread.
        collate_fn: list of samples -> batch. Runs in the worker thread.
        pin_memory: accepted; warns, as there is no accelerator memory to pin for.
        drop_last: leave out a last batch that is not full.
        timeout: seconds to wait for a worker's batch, 0 for ever.
        worker_init_fn: called with the worker's number, in its thread, before its first batch.
        multiprocessing_context: must stay None, as there are no processes.
        generator: source of the order and of the workers' seeds; the global one if None.
        prefetch_factor: batches read ahead per worker, 2 if None. Needs ``num_workers > 0``.
        persistent_workers: accepted with ``num_workers > 0``. Threads start in microseconds, so
            they are started anew each epoch either way.
        pin_memory_device: accepted, without effect.
        in_order: accepted; batches arrive in order either way.

    Raises:
        ValueError: options that exclude each other or are out of range, in PyTorch's words.

    >>> loader = DataLoader(list(range(5)), batch_size=2)
    >>> len(loader), [batch.tolist() for batch in loader]
    (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(
            num_workers, timeout, prefetch_factor, persistent_workers, multiprocessing_context
        )
        if pin_memory:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, "
                "then device pinned memory won't be used.",
                stacklevel=2,
            )
        streaming = isinstance(dataset, IterableDataset)
        if streaming:
            _check_streaming(shuffle, sampler, batch_sampler)
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                    "sampler, and drop_last"
                )
            batch_size = None
        elif batch_size is None:
            if drop_last:
                raise ValueError(
                    "batch_size=None option disables auto-batching and is mutually exclusive "
                    "with drop_last"
                )
        else:
            check_batch_size(batch_size)
        if sampler is None and not streaming:
            sampler = (
                RandomSampler(dataset, generator=generator)
                if shuffle
                else SequentialSampler(dataset)
            )
        if batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)

        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.drop_last = drop_last
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = None
        self.generator = generator
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        batched = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._batched = batched
        self._ready = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self.__dict__.get("_ready"):
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized"
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Batches per epoch.

        Raises:
            TypeError: the dataset or the sampler has no length.
        """
        if isinstance(self.dataset, IterableDataset):
            size = len(self.dataset)  # type: ignore[arg-type]
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        # Drawn even where no worker needs it, so that the order which a shuffle draws next does not
        # depend on num_workers.
        seed = int((self.generator or default_generator).host_rng().integers(2**62))
        if self.num_workers == 0:
            if self.timeout:
                raise AssertionError("timeout needs num_workers > 0: nothing can be waited for")
            return _SerialIterator(self._fetcher(), self._tasks(), finisher(self.collate_fn))
        return PrefetchIterator(
            [self._fetcher() for _ in range(self.num_workers)],
            self._tasks(),
            finisher(self.collate_fn),
            dataset=self.dataset,
            seed=seed,
            init_fn=self.worker_init_fn,
            ahead=self.num_workers * (self.prefetch_factor or 1),
            timeout=self.timeout,
        )

    def _fetcher(self) -> Callable[[Any], Any]:
        """What reads one batch. A stream keeps its position, so each worker needs its own."""
        if isinstance(self.dataset, IterableDataset):
            return IterableFetcher(self.dataset, self.batch_size, self.drop_last, self.collate_fn)
        return MapFetcher(self.dataset, self._batched, self.collate_fn)

    def _tasks(self) -> Iterator[Any]:
        """What each batch is made of; a stream gets None until its fetchers are exhausted."""
        if isinstance(self.dataset, IterableDataset):
            return itertools.repeat(None)
        if self.batch_sampler is not None:
            return iter(index_batches(self.batch_sampler))
        return iter(self.sampler or ())


class _SerialIterator(Iterator[Any]):
    """Reads each batch in the calling thread, when it is asked for."""

    def __init__(
        self,
        fetch: Callable[[Any], Any],
        tasks: Iterator[Any],
        finish: Callable[[Any], Any],
    ) -> None:
        self._fetch, self._tasks, self._finish = fetch, tasks, finish

    def __next__(self) -> Any:
        return self._finish(self._fetch(next(self._tasks)))


def _check_workers(
    num_workers: int,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool,
    context: Any,
) -> None:
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to read in the "
            "calling thread."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified with num_workers > 0; "
            "otherwise set prefetch_factor to None."
        )
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError("prefetch_factor option should be positive")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")
    if context is not None:
        raise ValueError(
            f"multiprocessing_context is not supported (workers are threads), but got {context!r}"
        )


def _check_streaming(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if value is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, "
                f"but got {name}={value}"
            )
    if shuffle not in (None, False):
        raise ValueError(
            "DataLoader with IterableDataset: expected unspecified shuffle option, "
            f"but got shuffle={shuffle}"
        )
