"""The loader with collate functions of its own: order, errors, threads, streams. No Tensors."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitorch_tvm.random import Generator
from minitorch_tvm.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


def loader(dataset, **options):
    return DataLoader(dataset, collate_fn=list, **options)


def data_threads():
    return [t for t in threading.enumerate() if t.name.startswith("mt-data-")]


def wait_for_no_threads():
    gc.collect()  # an exception's traceback keeps its iterator in a cycle
    end = time.monotonic() + 5
    while data_threads() and time.monotonic() < end:
        time.sleep(0.005)
    assert not data_threads()


class Slow(Dataset):
    """Samples that take random times, so that threads finish out of order."""

    def __init__(self, n, broken=None):
        self.n, self.broken = n, broken
        self.seen = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.seen.append(index)
        time.sleep(0.002 * (index * 7 % 3))
        if index == self.broken:
            raise ZeroDivisionError(f"sample {index}")
        return index


@given(
    n=st.integers(0, 30),
    size=st.integers(1, 8),
    drop=st.booleans(),
    workers=st.integers(0, 3),
)
def test_every_sample_once_in_order_for_any_number_of_workers(n, size, drop, workers):
    batches = loader(list(range(n)), batch_size=size, drop_last=drop, num_workers=workers)
    got = list(batches)
    assert got == [list(range(n))[i : i + size] for i in range(0, n - (n % size) * drop, size)]
    assert len(batches) == len(got)
    assert not data_threads()


def test_order_holds_when_workers_finish_out_of_order():
    assert list(loader(Slow(40), batch_size=3, num_workers=3)) == list(
        loader(Slow(40), batch_size=3)
    )


def test_shuffle_is_the_same_with_and_without_workers_and_new_each_epoch():
    def epochs(workers):
        generator = Generator()
        generator.manual_seed(5)
        batches = loader(
            range(20), batch_size=6, shuffle=True, generator=generator, num_workers=workers
        )
        return list(batches), list(batches)

    first, second = epochs(0)
    assert sorted(itertools.chain(*first)) == list(range(20))
    assert first != second
    assert epochs(2) == (first, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_arrives_at_its_batch_and_iteration_can_go_on(workers):
    batches = iter(loader(Slow(10, broken=5), batch_size=2, num_workers=workers))
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    with pytest.raises(ZeroDivisionError, match="sample 5") as info:
        next(batches)
    if workers:
        assert info.value.__notes__ == ["(DataLoader worker thread 0, batch 2)"]
    assert list(batches) == [[6, 7], [8, 9]]
    del batches, info
    wait_for_no_threads()


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_in_a_dataset_is_not_the_end_of_the_epoch(workers):
    class Bad(Slow):
        def __getitem__(self, index):
            return next(iter(()))

    with pytest.raises(RuntimeError, match="raised StopIteration while reading"):
        list(loader(Bad(3), num_workers=workers))


def test_leaving_early_cancels_what_was_not_read():
    go = threading.Semaphore(2)

    class Gated(Slow):
        def __getitem__(self, index):
            go.acquire()
            return super().__getitem__(index)

    data = Gated(500)
    for batch in loader(data, num_workers=2, prefetch_factor=4):
        assert batch == [0]
        break  # each worker is at the gate, or nearly, and has more to do
    end = time.monotonic() + 5
    while len(data.seen) < 2 and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.02)
    go.release(100)
    wait_for_no_threads()
    assert len(data.seen) <= 4  # of the nine that were dealt out


def test_at_most_prefetch_factor_batches_are_read_ahead():
    data = Slow(100)
    batches = iter(loader(data, num_workers=2, prefetch_factor=4))
    next(batches)
    end = time.monotonic() + 5
    while len(data.seen) < 9 and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(data.seen) == 9  # one taken, eight waiting
    del batches
    wait_for_no_threads()


def test_workers_know_who_they_are():
    infos, started = [], []

    class Who(Slow):
        def __getitem__(self, index):
            infos.append(get_worker_info())
            return index

    data = Who(12)
    assert get_worker_info() is None
    list(loader(data, batch_size=2, num_workers=3, worker_init_fn=started.append))
    assert sorted(started) == [0, 1, 2]
    assert {info.id for info in infos} == {0, 1, 2}
    assert {info.num_workers for info in infos} == {3}
    assert all(info.dataset is data for info in infos)
    seeds = {info.id: info.seed for info in infos}
    assert len(set(seeds.values())) == 3
    infos.clear()
    list(loader(data, batch_size=2, num_workers=3))
    assert not set(seeds.values()) & {info.seed for info in infos}


def test_random_augmentation_reproduces_from_the_worker_seed():
    class Noisy(Slow):
        def __getitem__(self, index):
            info = get_worker_info()
            return float(np.random.default_rng([info.seed, index]).normal())

    def run():
        generator = Generator()
        generator.manual_seed(1)
        return list(loader(Noisy(9), batch_size=2, num_workers=2, generator=generator))

    assert run() == run()


def test_timeout():
    release = threading.Event()

    class Stuck(Slow):
        def __getitem__(self, index):
            release.wait(5)
            return index

    try:
        with pytest.raises(RuntimeError, match=r"timed out after 0\.05 seconds \(batch 0\)"):
            list(loader(Stuck(4), num_workers=1, timeout=0.05))
    finally:
        release.set()
    wait_for_no_threads()


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(part, self.n, parts))

    def __len__(self):
        return self.n


@given(n=st.integers(0, 25), size=st.integers(1, 6), drop=st.booleans())
def test_streams(n, size, drop):
    batches = loader(Stream(n), batch_size=size, drop_last=drop)
    expected = [list(range(n))[i : i + size] for i in range(0, n - (n % size) * drop, size)]
    assert list(batches) == expected
    assert len(batches) == len(expected)


@given(n=st.integers(0, 25), workers=st.integers(1, 3))
def test_each_worker_reads_its_share_of_a_stream(n, workers):
    batches = list(loader(Stream(n), batch_size=2, num_workers=workers))
    assert sorted(itertools.chain(*batches)) == list(range(n))
    again = list(loader(Stream(n), batch_size=2, num_workers=workers))
    assert again == batches


def test_an_endless_stream_can_be_left():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(int, 1)

    assert next(iter(loader(Endless(), batch_size=3, num_workers=2))) == [0, 0, 0]
    wait_for_no_threads()
    with pytest.raises(TypeError):
        len(loader(Endless()))


def test_getitems_is_used_for_whole_batches():
    class Many(Dataset):
        def __len__(self):
            return 5

        def __getitems__(self, indices):
            return [-i for i in indices]

    assert list(loader(Many(), batch_size=2)) == [[0, -1], [-2, -3], [-4]]


def test_custom_batch_sampler_with_any_keys():
    batches = loader({"a": 1, "b": 2}, batch_sampler=[["b", "a"], ["a"]])
    assert list(batches) == [[2, 1], [1]]
    assert len(batches) == 2
    assert batches.batch_size is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True, "sampler": [0]}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler option is mutually exclusive"),
        ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler option is mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, "batch_size=None option disables auto-batching"),
        ({"batch_size": 0}, "batch_size should be a positive integer value, but got batch_size=0"),
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified"),
        ({"prefetch_factor": 0, "num_workers": 1}, "prefetch_factor option should be positive"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"multiprocessing_context": "fork", "num_workers": 1}, "workers are threads"),
    ],
)
def test_option_errors(options, message):
    with pytest.raises(ValueError, match=message):
        loader([1, 2, 3], **options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"shuffle": True}, "shuffle"),
        ({"sampler": [1]}, "sampler"),
        ({"batch_sampler": [[1]]}, "batch_sampler"),
    ],
)
def test_streams_have_no_order_to_choose(options, name):
    with pytest.raises(ValueError, match=f"expected unspecified {name} option"):
        loader(Stream(3), **options)
    assert list(loader(Stream(1), shuffle=False)) == [[0]]


def test_settings_that_must_not_change_and_other_complaints():
    batches = loader([1, 2])
    with pytest.raises(ValueError, match="batch_size attribute should not be set after DataLoader"):
        batches.batch_size = 2
    batches.timeout = 1
    with pytest.raises(AssertionError, match="timeout needs num_workers > 0"):
        iter(batches)
    with pytest.warns(UserWarning, match="pinned memory won't be used"):
        loader([1], pin_memory=True)


def test_empty_dataset():
    assert list(loader([])) == []
    assert len(loader([], batch_size=7)) == 0
    assert list(loader([], num_workers=2)) == []
    with pytest.raises(ValueError, match="the dataset is empty"):
        loader([], shuffle=True)
