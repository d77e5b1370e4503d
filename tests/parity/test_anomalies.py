"""``autograd.detect_anomaly`` against torch: which operation is named, and by which line."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")


def broken(lib: Any) -> Any:
    class Broken(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, ct: Any) -> Any:
            return ct * float("nan")

    return Broken


def leaf(lib: Any, *values: float) -> Any:
    return lib.tensor(values or (0.0, 1.0), requires_grad=True)


LOSSES: list[Callable[[Any], Any]] = [
    lambda lib: (leaf(lib).sqrt() * 0).sum(),
    lambda lib: (leaf(lib) / lib.tensor([0.0, 1.0]) * 0).sum(),
    lambda lib: (leaf(lib) * float("nan")).exp().sum(),
    lambda lib: broken(lib).apply(leaf(lib)).sum(),
    lambda lib: (leaf(lib).norm() * leaf(lib, -1.0).log()).sum(),
    lambda lib: (leaf(lib) * 2).sum(),
]


@pytest.mark.parametrize("number", range(len(LOSSES)))
def test_messages(number: int) -> None:
    def outcome(lib: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with lib.autograd.detect_anomaly():
                    LOSSES[number](lib).backward()
                answer = "nothing"
            except RuntimeError as error:
                answer = str(error)
        texts = [str(w.message) for w in caught if "different programs" not in str(w.message)]
        assert texts[0].startswith("Anomaly Detection has been enabled.")
        assert config.CONFIG.anomaly is False
        return answer, [t.split("\n")[0] for t in texts], __file__ in "".join(texts)

    assert outcome(mt) == outcome(torch)


def test_the_line_is_told() -> None:
    x = mt.tensor([0.0], requires_grad=True)
    y = x.sqrt()  # here
    with mt.autograd.set_detect_anomaly(True):
        with (
            pytest.warns(UserWarning, match=r"(?s)Error detected in SqrtBackward0.*x.sqrt.*here"),
            pytest.raises(RuntimeError, match="SqrtBackward0") as caught,
        ):
            mt.autograd.grad((y * 0).sum(), x)
        assert "x.sqrt()  # here" in caught.value.__notes__[0]


def test_switches() -> None:
    for lib in (mt, torch):
        lib.autograd.set_detect_anomaly(True)
        with (
            pytest.warns(UserWarning, match="Error detected"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            LOSSES[0](lib).backward()
        with lib.autograd.set_detect_anomaly(True, check_nan=False):
            LOSSES[0](lib).backward()
        lib.autograd.set_detect_anomaly(False)
        LOSSES[0](lib).backward()
        for wrong in ((1,), (True, 1)):
            with pytest.raises(TypeError, match="must be bool, not int"):
                lib.autograd.set_detect_anomaly(*wrong)


def test_repeated_steps_and_compiled_functions() -> None:
    """What is recognised, or not recorded at all, is looked at as well."""
    w = mt.tensor([2.0], requires_grad=True)

    def step(x: Any) -> Any:
        w.grad = None
        loss = (w * x).sqrt().sum()
        loss.backward()
        return loss

    compiled = mt.compile(step)
    for run in (step, compiled):
        for _ in range(20):
            run(mt.ones(1))
        with (
            mt.autograd.set_detect_anomaly(True),
            pytest.warns(UserWarning, match="Error detected in MulBackward0"),
            pytest.raises(RuntimeError, match="Function 'MulBackward0' returned nan values"),
        ):
            run(mt.zeros(1))
        assert run(mt.ones(1)).item() == pytest.approx(2**0.5)
