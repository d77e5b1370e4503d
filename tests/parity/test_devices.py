"""Devices: what programs ask about them, and what they are told, in torch and here."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "names": lambda m: [repr(m.device(n)) for n in ("cpu", "cpu:0", "cuda", "cuda:3", "mps")],
    "index": lambda m: (m.device("cuda", 1).index, m.device("cpu").index, m.device("cpu:2").type),
    "str": lambda m: (str(m.device("cpu")), str(m.device("cuda", 2)), f"{m.device('cpu')}"),
    "named": lambda m: repr(m.device(type="cpu", index=0)),
    "of a device": lambda m: m.device(m.device("cpu")) == m.device("cpu"),
    "equal": lambda m: (
        m.device("cpu") == m.device("cpu"),
        m.device("cpu") == m.device("cpu:0"),
        m.device("cpu") == "cpu",
        len({m.device("cpu"), m.device("cpu"), m.device("cuda")}),
    ),
    "of a tensor": lambda m: (m.zeros(2).device == m.device("cpu"), m.zeros(2).device.type),
    "facts": lambda m: (m.zeros(2).is_cpu, m.zeros(2).is_cuda, m.zeros(2).get_device()),
    "kinds": lambda m: (m.zeros(2).is_sparse, m.zeros(2).is_quantized),
    "available": lambda m: (
        m.cuda.is_available(),
        m.cuda.device_count(),
        m.cuda.is_initialized(),
        m.backends.mps.is_available(),
        m.backends.cudnn.is_available(),
        m.cuda.empty_cache(),
        m.cuda.manual_seed_all(1),
        m.cuda.max_memory_allocated(),
    ),
    "default": lambda m: (
        m.get_default_device().type,
        m.set_default_device("cpu"),
        m.set_default_device(None),  # or torch stays in a mode that forgets arguments
    ),
    "pinned": lambda m: m.zeros(2).is_pinned(),
    "generator": lambda m: m.Generator(device="cpu").device.type,
    "context": lambda m: _entered(m.device("cpu")),
    "copied": lambda m: (
        copy.deepcopy(m.device("cpu")) == m.device("cpu"),
        pickle.loads(pickle.dumps(m.device("cuda", 1))) == m.device("cuda:1"),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_torchs(name: str) -> None:
    assert QUESTIONS[name](mt) == QUESTIONS[name](torch)


CALLS: dict[str, Callable[[Any], Any]] = {
    "to": lambda m: m.ones(2).to("cuda"),
    "to, named": lambda m: m.ones(2).to(device=m.device("cuda:0")),
    "cuda": lambda m: m.ones(2).cuda(),
    "model": lambda m: m.nn.Linear(2, 2).to("cuda"),
    "model.cuda": lambda m: m.nn.Linear(2, 2).cuda(),
    "zeros": lambda m: m.zeros(2, device="cuda"),
    "tensor": lambda m: m.tensor([2.0], device="cuda"),
    "randn_like": lambda m: m.randn_like(m.zeros(2), device="cuda"),
    "layer": lambda m: m.nn.Linear(2, 2, device="cuda"),
    "current_device": lambda m: m.cuda.current_device(),
}


@pytest.mark.parametrize("name", CALLS)
def test_cuda_is_refused_with_torchs_exception(name: str) -> None:
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        CALLS[name](torch)
    with pytest.raises(AssertionError, match=r"^Torch not compiled with CUDA enabled: only device"):
        CALLS[name](mt)


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "unknown": lambda m: m.device("foo"),
    "number": lambda m: m.device("cpu:x"),
    "zeros in front": lambda m: m.device("cpu:00"),
    "nothing": lambda m: m.device(":1"),
    "twice": lambda m: m.device("cpu:0", 0),
    "negative": lambda m: m.device("cpu", -2),
    "accelerator": lambda m: m.device(0),
    "written": lambda m: setattr(m.device("cpu"), "type", "x"),
    "no device": lambda m: m.zeros(2, device=3.5),
    "unknown in to": lambda m: m.zeros(2).to("foo"),
    "no dtype": lambda m: m.zeros(2).to("float32"),
    "pinned": lambda m: m.zeros(2).pin_memory(),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_read_as_in_torch(name: str) -> None:
    def outcome(m: Any) -> tuple[str, str]:
        with pytest.raises(Exception) as caught:
            MISTAKES[name](m)
        return caught.type.__name__, str(caught.value)

    assert outcome(mt) == outcome(torch)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.zeros(2).to(m.float64, m.float32),
        lambda m: m.zeros(2).to("cpu", "cpu"),
        lambda m: m.zeros(2).to([1]),
        lambda m: m.zeros(2).to("cpu", foo=1),
        lambda m: m.zeros(2).to(m.zeros(2), m.float64),
    ],
)
def test_wrong_arguments_of_to(call: Any) -> None:
    for m in (torch, mt):
        with pytest.raises(TypeError, match=r"^to\(\) received an invalid combination of argum"):
            call(m)


def test_to_takes_every_form() -> None:
    x: Any = mt.ones(2)
    cpu = mt.device("cpu")
    same = [x.to(cpu), x.to("cpu", non_blocking=True), x.to(), x.to(None), x.cpu()]
    assert all(t is x for t in [*same, x.to(device=None, dtype=mt.float32)])
    kept = [x.to(mt.float64, True), x.to(cpu, mt.float64, True, True), x.to(mt.zeros(1).double())]
    assert all(t.dtype is mt.float64 for t in kept)
    copies = [x.to("cpu", copy=True), x.to(mt.float32, copy=True), x.to(x, copy=True)]
    x.add_(1)
    assert all(t.tolist() == [1.0, 1.0] for t in copies)
    model = mt.nn.Linear(2, 2)
    assert model.to(cpu).to(device=cpu, dtype=mt.float64) is model
    assert model.weight.dtype is mt.float64


def test_the_usual_program() -> None:
    def trained(m: Any) -> Any:
        device = m.device("cuda" if m.cuda.is_available() else "cpu")
        model = m.nn.Linear(3, 2, device=device).to(device)
        state = {"weight": m.ones(2, 3, device=device) / 4, "bias": m.zeros(2, device=device)}
        model.load_state_dict(state)
        optimizer = m.optim.SGD(model.parameters(), lr=0.1)
        for i in range(3):
            x = m.arange(6, dtype=m.float32, device=device).view(2, 3) / (i + 1)
            x, y = x.to(device, non_blocking=True), m.tensor([0, 1]).to(device)
            optimizer.zero_grad(set_to_none=True)
            m.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model.weight.detach().cpu().numpy()

    np.testing.assert_allclose(trained(mt), trained(torch), rtol=1e-5)


def _entered(device: Any) -> str:
    with device as entered:
        return str(entered.type)
