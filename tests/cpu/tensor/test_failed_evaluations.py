"""What is pending when an evaluation fails is computed later, from what it was recorded with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn
from minitorch_tvm.runtime.executor import Executor


def test_values_beside_a_wrong_label_survive() -> None:
    w, s, y = mt.ones(3), mt.zeros(3), mt.tensor([1, 10])
    mt.eval(w, s, y)
    s += w
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        F.cross_entropy(mt.zeros(2, 4), y - 1).item()
    total = s.sum()
    w.mul_(10)
    assert total.item() == 3.0
    assert w.tolist() == [10.0] * 3
    assert s.tolist() == [1.0] * 3


def _model() -> tuple[nn.Sequential, Callable[[int], None]]:
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 4))
    optimizer = mt.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((8, 6)) + 1).astype(np.float32)
    y = rng.integers(0, 4, 8)

    def step(shift: int) -> None:
        optimizer.zero_grad()
        labels = mt.from_numpy(y)
        loss = F.cross_entropy(model(mt.from_numpy(x)), labels + shift if shift else labels)
        loss.backward()
        optimizer.step()

    return model, step


def _statistics(break_off: Callable[[Callable[[int], None]], None], look: bool) -> list[float]:
    model, step = _model()
    for _ in range(6):
        step(0)
    break_off(step)
    if look:
        mt.eval(model[1].running_mean)
    model.eval()
    step(0)
    mean: list[float] = model[1].running_mean.tolist()
    return mean


def _wrong_labels(step: Callable[[int], None]) -> None:
    with pytest.raises(IndexError):
        step(7)


def _interrupted(call: Callable[[], object]) -> None:
    """The call is interrupted where its program would run."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            call()


def _interrupted_step(step: Callable[[int], None]) -> None:
    _interrupted(lambda: step(0))


@pytest.mark.parametrize("break_off", [_wrong_labels, _interrupted_step])
def test_running_statistics_do_not_depend_on_a_look(
    break_off: Callable[[Callable[[int], None]], None],
) -> None:
    assert _statistics(break_off, look=False) == _statistics(break_off, look=True)


def test_a_first_evaluation_that_is_interrupted_loses_nothing() -> None:
    # Of a structure that is new, nothing is repeated: the values are planned.
    w, s = mt.ones(3), mt.zeros(3)
    mt.eval(w, s)
    s += w
    _interrupted(lambda: (s * 5).tolist())
    total = s.sum()
    w.mul_(10)
    assert total.item() == 3.0
    assert s.tolist() == [1.0] * 3
