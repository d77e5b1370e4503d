"""Loops whose length LLVM knows become code: of some it wrote out all, and took a second for it.

Copies, and walks around vectors, are told how long they are when they run.  The limits are about
two thirds of what the programs had when they were not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.core import config
from minitorch_tvm.runtime.executor import Executor

rng = np.random.default_rng(0)


def drawn(*shape: int) -> mt.Tensor:
    """Numbers in memory."""
    x = mt.from_numpy(rng.normal(size=shape).astype(np.float32))
    mt.eval(x)
    return x


def gradients_of(layer: nn.Module, *shape: int) -> None:
    """A layer with all its gradients, as one program."""
    x = drawn(*shape).requires_grad_()
    mt.eval(*layer.parameters())
    (layer(x) ** 2).sum().backward()
    mt.eval(x.grad, *[p.grad for p in layer.parameters()])


def rows_by_position() -> None:
    """The gradient of rows that are taken from others."""
    x, positions = drawn(2, 1, 12, 65).requires_grad_(), mt.tensor([0, 1, 1, 0, 0, 1, 1])
    mt.eval(positions)
    (x[positions] ** 2).sum().backward()
    mt.eval(x.grad)


def narrow_product() -> None:
    """Dot products of columns that lie apart."""
    a, b = drawn(512, 8), drawn(64, 512)
    mt.eval(a.T @ b.T)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: gradients_of(nn.Conv2d(12, 72, 1, bias=False), 16, 12, 32, 32), 80_000),
        (lambda: gradients_of(nn.ConvTranspose1d(8, 16, 2, 2, 1), 8, 8, 128), 120_000),
        (lambda: gradients_of(nn.Conv1d(32, 8, 1, 2, dilation=4), 16, 32, 1000), 110_000),
        (lambda: gradients_of(nn.Conv1d(32, 32, 2, dilation=4), 4, 32, 1028), 90_000),
        (rows_by_position, 30_000),
        (narrow_product, 45_000),
    ],
    ids=["pixels", "strided rows", "few channels", "long rows", "positions", "narrow product"],
)
def test_known_lengths_are_not_written_out(make: Callable[[], None], most: int) -> None:
    lazy.clear_cache()
    with config.override(cache_dir=None):
        make()
    executor = lazy.last_executor()
    assert isinstance(executor, Executor)
    assert sum(map(len, executor.program.code)) < most
