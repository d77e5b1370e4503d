"""One native call per step, no compile after a batch size's first step, flat memory."""

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mnist
import mnist_data
import mnist_models
import numpy as np
import pytest
from planned import PlannedError

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.utils.data import DataLoader, TensorDataset
from minitorch_tvm.utils.data.images import ImageDataset

Digits = tuple[ImageDataset, ImageDataset]
Batch = tuple[mt.Tensor, mt.Tensor]


@pytest.fixture(autouse=True)
def _cold_cache() -> Iterator[None]:
    lazy.clear_cache()
    yield
    lazy.clear_cache()


def _resident() -> int:
    """Bytes of the process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Counts:
    """What happened since this was made."""

    def __init__(self) -> None:
        self._before = EVENTS.snapshot()

    def __getitem__(self, name: str) -> int:
        return EVENTS.get(name) - self._before.get(name, 0)


@pytest.mark.parametrize("course", [True, False], ids=["course", "adam"])
def test_one_native_call_per_step(few_digits: Digits, course: bool) -> None:
    # 1,000 or 1,100 training images in batches of 300: three or three full ones and a rest.
    data = mnist_data.batches(*few_digits, 300, course=course)
    model = mnist_models.build("mlp", course)
    if course:
        optimizer: mt.optim.Optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    else:
        optimizer = mt.optim.Adam(model.parameters(), lr=1e-3)
    steps = len(data.train)
    assert steps == 4
    first = _Counts()
    mnist.train_epoch(model, optimizer, data.train)
    assert first["native_calls"] == steps
    assert first["compiles"] == 2  # the full batch and the rest
    assert first["donations_declined"] == 0
    assert first["unaligned_inputs_copied"] == 0
    later = _Counts()
    for _ in range(3):
        mnist.train_epoch(model, optimizer, data.train)
    assert later["native_calls"] == 3 * steps
    assert later["compiles"] == 0
    assert later["cache_hits"] == 3 * steps
    assert later["bytes_allocated"] == 0
    assert later["donations_declined"] == 0


def test_evaluation_is_one_call_per_batch(few_digits: Digits) -> None:
    data = mnist_data.batches(*few_digits, 300)
    model = mnist_models.build("mlp")
    mnist.accuracy(model, data.train)
    counts = _Counts()
    mnist.accuracy(model, data.train)
    assert counts["native_calls"] == len(data.train)
    assert counts["compiles"] == 0


def test_parameters_stay_in_place(few_digits: Digits) -> None:
    data = mnist_data.batches(*few_digits, 250, course=True)
    model = mnist_models.build("mlp", course=True)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    mnist.train_epoch(model, optimizer, data.train)

    def places() -> list[int]:
        return [p.detach().numpy().ctypes.data for p in model.parameters()]

    before = places()
    mnist.train_epoch(model, optimizer, data.train)
    assert places() == before


@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn"])
def test_arena_is_near_the_lower_bound(few_digits: Digits, name: str, planned: list[Any]) -> None:
    data = mnist_data.batches(*few_digits, 128)
    model = mnist_models.build(name)
    optimizer = mt.optim.Adam(model.parameters())
    with pytest.raises(PlannedError):
        mnist.train_epoch(model, optimizer, [next(iter(data.train))])
    (program,) = planned
    assert 0 < program.lower_bound <= program.arena_bytes <= 1.05 * program.lower_bound
    assert program.arena_bytes < program.naive_bytes


def _train_for_2500_steps() -> None:
    rng = np.random.default_rng(0)
    model = mnist_models.build("mlp", course=True)
    images = mt.tensor(rng.random((1000, 1, 28, 28), np.float32))
    labels = mt.tensor(rng.integers(0, 10, 1000))
    # In file order, as the course's batches are, of which these are a tenth: images and activations
    # are still too large to be kept as small blocks of memory.
    loader = DataLoader(TensorDataset(images, labels), batch_size=100)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.01)

    def train(epochs: int) -> None:
        for _ in range(epochs):
            mnist.train_epoch(model, optimizer, loader)

    train(20)
    gc.collect()
    objects = len(gc.get_objects())  # before memory is looked at, as the list takes some, too
    counts, resident = _Counts(), _resident()
    programs = len(lazy.executors())
    train(250)
    assert counts["native_calls"] == 2500
    assert counts["compiles"] == 0
    assert counts["allocations"] == 0
    assert counts["bytes_allocated"] == 0
    assert len(lazy.executors()) == programs
    gc.collect()
    # Either leak would be at least an object of 50 bytes a step.
    assert len(gc.get_objects()) - objects < 125
    assert _resident() - resident < 1 << 18


@pytest.mark.slow
def test_memory_is_flat_over_2500_steps() -> None:
    # In a process of its own: in one of 700 MB that other tests had left, memory of the size of a
    # few huge pages came once.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(_train_for_2500_steps).result()
