"""Bytes that reports give kernels, against counts of the elements that numpy would touch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy

RNG = np.random.default_rng(0)
PLACES = RNG.permutation(60)[:7]  # no row twice

Parts = list[Callable[[Any], Any]]
WHOLE: Parts = [lambda m: m]

# Shapes of what is read, the computation, which parts of each it reads, and further bytes (numbers
# of which a program is told).
CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any], list[Parts], int]] = {
    "all": ([(60, 50)], lambda x: x.exp(), [WHOLE], 0),
    "all, twice": ([(60, 50)], lambda x: x * x.tanh(), [WHOLE], 0),
    "rows": ([(60, 50)], lambda x: x[3:9].exp(), [[lambda m: m[3:9]]], 0),
    "columns": ([(60, 50)], lambda x: x[:, 3:9].exp(), [[lambda m: m[:, 3:9]]], 0),
    "every third": ([(60, 50)], lambda x: x[1::3].exp(), [[lambda m: m[1::3]]], 0),
    "two parts": (
        [(60, 50)],
        lambda x: x[:7] * x[20:27],
        [[lambda m: m[:7], lambda m: m[20:27]]],
        0,
    ),
    "a part and all": ([(60, 50)], lambda x: x + x[:, :1], [[lambda m: m]], 0),
    "a part of a view": (
        [(60, 50)],
        lambda x: x.reshape(100, 30)[:7].exp(),
        [[lambda m: m.reshape(100, 30)[:7]]],
        0,
    ),
    "gathered": (
        [(60, 50)],
        lambda x: F.embedding(mt.tensor(PLACES), x),
        [[lambda m: m[PLACES]]],
        8 * len(PLACES),
    ),
    "a small operand": ([(60, 50), (50,)], lambda x, y: x * y, [WHOLE, WHOLE], 0),
    "product": ([(60, 50), (50, 70)], lambda x, y: x @ y, [WHOLE, WHOLE], 0),
    "part of a product": (
        [(60, 50), (20, 70)],
        lambda x, y: x[:, 30:] @ y,
        [[lambda m: m[:, 30:]], WHOLE],
        0,
    ),
    "convolution": (
        [(3, 4, 9, 9), (5, 4, 3, 3), (5,)],
        lambda x, w, c: F.conv2d(x, w, c, padding=1).relu(),
        [WHOLE, WHOLE, WHOLE],
        0,
    ),
    "rows by rows": ([(60, 50)], lambda x: x.softmax(1), [WHOLE], 0),
    "sum": ([(60, 50)], lambda x: x.sum(0), [WHOLE], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_moves_what_it_touches(name: str) -> None:
    shapes, function, parts, more = CASES[name]
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    result = function(*map(mt.tensor, arrays)).realize()
    (kernel,) = lazy.last_executor().program.kernels
    read = 0
    for shape, looks in zip(shapes, parts, strict=True):
        touched = np.zeros(shape, bool)
        for look in looks:
            view = look(touched)
            if view.base is None and view is not touched:  # a copy: positions
                touched[PLACES] = True
            else:
                view[...] = True
        read += 4 * int(touched.sum())
    assert kernel.bytes_moved == read + 4 * result.numel() + more


def test_rows_that_are_gathered_often_count_once() -> None:
    table = mt.randn(10, 50)
    mt.eval(table)
    F.embedding(mt.tensor(RNG.integers(0, 10, 1000)), table).realize()
    (kernel,) = lazy.last_executor().program.kernels
    assert kernel.bytes_moved == 4 * (10 * 50 + 1000 * 50) + 8 * 1000


def test_a_training_step_moves_the_sum_over_its_layers() -> None:
    n, sizes = 32, (40, 24, 12, 5)
    model = mt.nn.Sequential(
        *(mt.nn.Linear(40, 24), mt.nn.ReLU(), mt.nn.Linear(24, 12), mt.nn.ReLU()),
        mt.nn.Linear(12, 5),
    )
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    x, y = mt.randn(n, 40), mt.tensor(RNG.integers(0, 5, n))
    mt.eval(x)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    program = lazy.last_executor().program
    found: dict[str, int] = {}
    for k in program.kernels:
        found[k.name] = found.get(k.name, 0) + k.bytes_moved
    forward = sum(n * i + i * o + o + n * o for i, o in pairwise(sizes))
    assert found["matmul_add_relu"] + found["matmul_add"] == 4 * forward
    # Each gradient of an input reads that of the output, the weight and what relu gave.
    back = sum(n * o + i * o + 2 * n * i for i, o in pairwise(sizes[1:]))
    assert found["matmul_where"] == 4 * back
    # Each weight's reads input and gradient, the weight and the rate, and stores both.
    update = sum(n * i + n * o + 3 * i * o + 1 for i, o in pairwise(sizes))
    assert found["matmul_sub"] == 4 * update


def test_reports_print_what_a_kernel_does() -> None:
    lazy.clear_cache()
    a, b = (mt.tensor(RNG.standard_normal(s).astype(np.float32)) for s in ((600, 500), (500, 700)))
    (a @ b).relu().realize()
    head, row = (line.split() for line in mt.debug.explain().splitlines()[-2:])
    printed = dict(zip(head, row, strict=False))  # the last column's name is of two words
    mbytes = 4 * (600 * 500 + 500 * 700 + 600 * 700) / 1e6
    assert printed["kernel"] == "matmul_relu"
    assert float(printed["MB"]) == pytest.approx(mbytes, abs=5e-4)
    assert float(printed["MFLOP"]) == pytest.approx(2 * 600 * 500 * 700 / 1e6)
