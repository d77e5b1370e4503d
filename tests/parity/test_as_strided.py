"""``as_strided`` against torch: elements, strides, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

CALLS: list[Callable[[Any, Any], Any]] = [
    lambda lib, x: x.as_strided((2, 2), (1, 1)),
    lambda lib, x: lib.as_strided(x, (3, 4), (2, 1)),
    lambda lib, x: x.as_strided((4, 3), (1, 4)),
    lambda lib, x: x.as_strided((4, 2), (1, 0)),
    lambda lib, x: x.as_strided((2, 3), (5, 2), 1),
    lambda lib, x: x.as_strided((), (), 3),
    lambda lib, x: x.as_strided((0, 2), (1, 1)),
    lambda lib, x: x.reshape(3, 4).as_strided((2, 2), (4, 1), storage_offset=2),
    lambda lib, x: x.as_strided((3, 4), (4, 1)).as_strided((5,), (2,)),
    lambda lib, x: x[4:].as_strided((2, 2), (3, 1)),
    lambda lib, x: x.as_strided((3, 4), (1, 3)).reshape(-1),
    lambda lib, x: x.as_strided((3, 3), (1, 1)) @ x[:3],
    lambda lib, x: x.as_strided((3,), (-1,)),
    lambda lib, x: x.as_strided((2, 2), (1,)),
    lambda lib, x: x.as_strided((13,), (1,)),
    lambda lib, x: x.as_strided((2,), (1,), 11),
    lambda lib, x: x.as_strided((2,), (1,), -1),
    lambda lib, x: x.as_strided(2, 1),
    lambda lib, x: x.as_strided((2,), (1.5,)),
    lambda lib, x: x.as_strided((2,), (1,), "a"),
    lambda lib, x: lib.as_strided(3, (2,), (1,)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_as_strided(number: int) -> None:
    def outcome(lib: Any) -> Any:
        x = lib.arange(12.0).requires_grad_()
        try:
            y = CALLS[number](lib, x)
        except Exception as error:
            return type(error).__name__, str(error)
        weights = lib.arange(1.0, y.numel() + 1).reshape(y.shape)
        (g,) = lib.autograd.grad((y * weights).sum(), x)
        return tuple(y.shape), y.stride(), y.tolist(), g.tolist()

    assert outcome(mt) == outcome(torch)


def test_what_it_shows_follows_the_tensor() -> None:
    for lib in (mt, torch):
        x = lib.arange(6.0)
        y = x.as_strided((3, 2), (1, 2))
        x.mul_(2)
        assert y.tolist() == [[0.0, 4.0], [2.0, 6.0], [4.0, 8.0]]


def test_of_what_is_not_contiguous(assert_refused: Any) -> None:
    x = mt.arange(6.0).reshape(2, 3)
    for call in (
        lambda: x.T.as_strided((2,), (1,)),
        lambda: x[1].as_strided((2,), (1,), 0),
        lambda: x[0].as_strided((4,), (1,)),
    ):
        assert_refused(call, NotImplementedError, "call contiguous() or clone()")
    words = "writing to what as_strided() shows"
    assert_refused(lambda: x.as_strided((2,), (1,)).add_(1), NotImplementedError, words)
    np.testing.assert_array_equal(x.T.contiguous().as_strided((2,), (1,)).numpy(), [0.0, 3.0])
