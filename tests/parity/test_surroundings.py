"""What scripts ask of mixed precision, accelerators, layouts and older names, in torch and here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


def _outcome(call: Callable[[Any], Any], m: Any) -> Any:
    """What ``call`` returns, or the error that it raises, and how many warnings there are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(m)
        except (TypeError, RuntimeError, ValueError) as error:
            return type(error).__name__, str(error).split("\n")[0]
    return result, len([w for w in caught if w.category is UserWarning])


def _deterministic(m: Any) -> Any:
    before = m.are_deterministic_algorithms_enabled()
    m.use_deterministic_algorithms(True, warn_only=True)
    during = m.are_deterministic_algorithms_enabled()
    warns = m.is_deterministic_algorithms_warn_only_enabled()
    m.use_deterministic_algorithms(False)
    return before, during, warns, m.are_deterministic_algorithms_enabled()


def _precision(m: Any) -> Any:
    before = m.get_float32_matmul_precision()
    m.set_float32_matmul_precision("high")
    during = m.get_float32_matmul_precision()
    m.set_float32_matmul_precision("highest")
    return before, during


def _scaled(m: Any) -> Any:
    """A step of a program that could use half precision, if it were there."""
    scaler = m.amp.GradScaler("cuda", enabled=m.cuda.is_available())
    w = m.nn.Parameter(m.ones(2))
    optimizer = m.optim.SGD([w], lr=0.5)
    with m.autocast("cpu", enabled=False), m.amp.autocast("cuda", enabled=False):
        loss = (w * w).sum()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict(scaler.state_dict())
    return w.tolist(), scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()


def _decorated(m: Any) -> Any:
    @m.autocast("cpu", enabled=False)
    def double(x: Any) -> Any:
        return 2 * x

    return double(m.ones(2)).tolist()


def _variable(m: Any) -> Any:
    x = m.zeros(2)
    v = m.autograd.Variable(x, requires_grad=True)
    v.data[0] = 1.0
    return (
        x.tolist(),
        v.is_leaf,
        isinstance(x, m.autograd.Variable),
        isinstance(3, m.autograd.Variable),
    )


def _shared(m: Any) -> Any:
    x = m.zeros(2)
    m.FloatTensor(x)[0] = 1.0
    return x.tolist()


CALLS: dict[str, Callable[[Any], Any]] = {
    "deterministic": _deterministic,
    "deterministic, wrong": lambda m: m.use_deterministic_algorithms(1),
    "deterministic, wrong warnings": lambda m: m.use_deterministic_algorithms(True, warn_only=1),
    "precision": _precision,
    "precision, wrong": lambda m: m.set_float32_matmul_precision("x"),
    "accelerator": lambda m: (m.accelerator.is_available(), m.accelerator.device_count()),
    "current accelerator": lambda m: m.accelerator.current_accelerator(),
    "tf32": lambda m: m.backends.cuda.matmul.allow_tf32,
    "scaled": _scaled,
    "scaler": lambda m: m.amp.GradScaler().is_enabled(),
    "old scaler": lambda m: m.cuda.amp.GradScaler(enabled=False).is_enabled(),
    "decorated": _decorated,
    "autocast entered": lambda m: m.autocast("cuda", dtype=m.float32).__enter__() is None,
    "autocast, wrong": lambda m: m.autocast(3),
    "variable": _variable,
    "variable of a number": lambda m: m.autograd.Variable(3),
    "variable of integers": lambda m: m.autograd.Variable(m.ones(2).long(), requires_grad=True),
    "layout": lambda m: m.ones(1, 2, 3, 3).to(memory_format=m.channels_last).sum().item(),
    "layout of a matrix": lambda m: m.ones(1, 2).to(memory_format=m.channels_last),
    "contiguous, of a matrix": lambda m: m.ones(1, 2).contiguous(memory_format=m.channels_last),
    "layout, wrong": lambda m: m.ones(1, 2).clone(memory_format=m.contiguous_format).tolist(),
    **{
        f"{name}, {layout}": lambda m, name=name, rest=rest, layout=layout: tuple(
            getattr(m, name)(m.ones(1, 2), *rest, memory_format=getattr(m, layout)).shape
        )
        for name, *rest in (
            ("zeros_like",),
            ("ones_like",),
            ("empty_like",),
            ("full_like", 3.0),
            ("rand_like",),
            ("randn_like",),
            ("randint_like", 4),
        )
        for layout in ("preserve_format", "channels_last")
    },
    "like, wrong layout": lambda m: m.zeros_like(m.ones(2), memory_format=3),
    "is contiguous": lambda m: [
        m.ones(2, 2, 3, 3).permute(*order).is_contiguous(memory_format=layout)
        for order in ((0, 1, 2, 3), (0, 3, 1, 2))
        for layout in (m.contiguous_format, m.channels_last)
    ],
    "layout of a model": lambda m: (
        m.nn.Conv2d(1, 1, 1).to(memory_format=m.channels_last).weight.numel()
    ),
    "sizes": lambda m: [tuple(m.Tensor(*s).shape) for s in ((), (3,), (2, 0), (np.int64(2), 1))],
    "Size": lambda m: tuple(m.FloatTensor(m.Size([2, 3])).shape),
    "numbers": lambda m: m.Tensor((2, 3)).tolist(),
    "array": lambda m: m.LongTensor(np.array([1.5, -1.5])).tolist(),
    "a number": lambda m: m.Tensor(3.5),
    "a truth": lambda m: m.Tensor(True),
    "a numpy number": lambda m: m.Tensor(np.float32(3)),
    "a word": lambda m: m.Tensor("a"),
    "a word among sizes": lambda m: m.Tensor(2, "a"),
    "negative": lambda m: m.Tensor(2, -3),
    "typed": lambda m: [
        getattr(m, f"{name}Tensor")([1, 2]).type()
        for name in ("Float", "Double", "Int", "Long", "Byte", "Bool")
    ],
    "too large": lambda m: m.ByteTensor([300]),
    "instances": lambda m: [
        isinstance(m.zeros(1), kind) for kind in (m.FloatTensor, m.LongTensor, m.Tensor)
    ],
    "converted": lambda m: m.tensor([1.5]).type(m.LongTensor).tolist(),
    "shared": _shared,
}


@pytest.mark.parametrize("name", CALLS)
def test_answers_are_torchs(name: str) -> None:
    want = _outcome(CALLS[name], torch)
    assert _outcome(CALLS[name], mt) == want


def test_tensors_of_another_dtype_are_refused() -> None:
    for package in (torch, mt):
        with pytest.raises(TypeError, match="expected"):
            package.LongTensor(package.ones(2))


def test_half_precision_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="no half precision. Disabling autocast"):
        mt.autocast("cpu")
    with pytest.warns(UserWarning, match="GradScaler is enabled, but there is no half precision"):
        mt.amp.GradScaler("cpu")
    with pytest.warns(UserWarning, match="CUDA is not available"):
        mt.cuda.amp.autocast()
    with pytest.raises(TypeError, match=r"argument 'memory_format' must be torch.memory_format"):
        mt.ones(2).to(memory_format=3)
