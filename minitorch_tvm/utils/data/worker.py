"""Reading ahead with threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from minitorch_tvm.core.record import record
from minitorch_tvm.utils.data.fetch import END


@record(sealed=True)
class WorkerInfo:
    """Who a worker thread is.

    Attributes:
        id: 0 ... ``num_workers - 1``.
        num_workers: how many there are.
        seed: differs per worker and epoch, and follows from the loader's generator.
        dataset: the loader's dataset; shared by the threads, not a copy.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


_current = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The calling thread's :class:`WorkerInfo`, or None outside a worker thread."""
    info: WorkerInfo | None = getattr(_current, "info", None)
    return info


class _Worker:
    """One thread, which reads its batches one after the other."""

    def __init__(
        self, info: WorkerInfo, fetch: Callable[[Any], Any], init_fn: Callable[[int], None] | None
    ) -> None:
        self.info = info
        self._fetch = fetch
        self._init_fn = init_fn
        self._started = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"mt-data-{info.id}")

    def submit(self, task: Any) -> Future[Any]:
        return self._pool.submit(self._run, task)

    def stop(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _run(self, task: Any) -> Any:
        _current.info = self.info
        if not self._started:
            self._started = True
            if self._init_fn is not None:
                self._init_fn(self.info.id)
        try:
            return self._fetch(task)
        except StopIteration:
            return END


class PrefetchIterator(Iterator[Any]):
    """Batches in order, read by one thread per fetcher, ``ahead`` of the consumer.

    Tasks are dealt to the workers in turn. Dropping the iterator cancels what is still queued and
    lets each thread end after the batch it is reading; running to the end waits for them.
    """

    def __init__(
        self,
        fetchers: list[Callable[[Any], Any]],
        tasks: Iterator[Any],
        finish: Callable[[Any], Any],
        *,
        dataset: Any,
        seed: int,
        init_fn: Callable[[int], None] | None,
        ahead: int,
        timeout: float,
    ) -> None:
        count = len(fetchers)
        self._workers = [
            _Worker(WorkerInfo(i, count, seed + i, dataset), fetch, init_fn)
            for i, fetch in enumerate(fetchers)
        ]
        self._turn: deque[_Worker] = deque(self._workers)  # workers whose stream has not ended
        self._pending: deque[tuple[int, _Worker, Future[Any]]] = deque()
        self._tasks = tasks
        self._finish = finish
        self._timeout = timeout or None
        self._number = 0
        for _ in range(ahead):
            self._submit()

    def __next__(self) -> Any:
        while self._pending:
            number, worker, future = self._pending.popleft()
            try:
                batch = future.result(self._timeout)
            except FutureTimeout as error:
                if future.done():
                    raise  # the dataset itself raised a TimeoutError
                self._stop(wait=False)
                raise RuntimeError(
                    f"DataLoader timed out after {self._timeout} seconds (batch {number})"
                ) from error
            except Exception as error:
                error.add_note(f"(DataLoader worker thread {worker.info.id}, batch {number})")
                self._submit()
                raise
            if batch is END:
                if worker in self._turn:
                    self._turn.remove(worker)
                continue
            self._submit()
            return self._finish(batch)
        self._stop(wait=True)
        raise StopIteration

    def __del__(self) -> None:
        # No waiting here: the collector may run while a lock is held that a worker needs.
        self._stop(wait=False)

    def _submit(self) -> None:
        if not self._turn:
            return
        try:
            task = next(self._tasks)
        except StopIteration:
            return
        worker = self._turn[0]
        self._turn.rotate(-1)
        self._pending.append((self._number, worker, worker.submit(task)))
        self._number += 1

    def _stop(self, *, wait: bool) -> None:
        self._pending.clear()
        self._turn.clear()
        for worker in self.__dict__.get("_workers", ()):  # empty if __init__ failed
            worker.stop(wait=wait)
