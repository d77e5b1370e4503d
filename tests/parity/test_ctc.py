"""Connectionist temporal classification against torch, and against all paths, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm.core import config

torch = pytest.importorskip("torch")
TF = torch.nn.functional
RNG = np.random.default_rng(5)


def _frames(*shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape) * 2
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


LABELS = [[1, 2, 3, 1], [2, 2, 1, 3], [3, 3, 3, 3]]
CASES: dict[str, tuple[np.ndarray, Any, Any, Any, dict[str, Any]]] = {
    "padded": (_frames(9, 3, 5), LABELS, [9, 7, 8], [4, 2, 3], {}),
    "one after the other": (_frames(9, 3, 5), [1, 2, 2, 2, 1, 4], (9, 9, 5), (2, 3, 1), {}),
    "another blank": (_frames(9, 3, 5), LABELS, [9, 9, 9], [4, 4, 4], {"blank": 4}),
    "blanks among labels": (_frames(9, 1, 5), [[1, 0, 2]], [9], [3], {}),
    "padding that is no class": (_frames(9, 2, 5), [[1, -1], [2, 99]], [9, 9], [1, 1], {}),
    "no labels": (_frames(4, 3, 5), LABELS, [4, 4, 2], [0, 1, 0], {}),
    "no columns": (_frames(4, 1, 5), np.zeros((1, 0), int), [4], [0], {}),
    "no frames": (_frames(4, 3, 5), LABELS, [0, 4, 0], [0, 1, 0], {}),
    "just fits": (_frames(7, 1, 5), LABELS[2:], [7], [4], {}),
    "does not fit": (_frames(6, 3, 5), LABELS, [6, 2, 0], [4, 2, 1], {}),
    "does not fit, zero": (_frames(6, 3, 5), LABELS, [6, 2, 0], [4, 2, 1], {"zero_infinity": True}),
    "one sample": (_frames(6, 5), [1, 2], 6, 2, {}),
    "unlikely": (_frames(300, 2, 5) * 20, LABELS[:2], [300, 250], [4, 4], {}),
    "many": (
        _frames(60, 4, 30),
        RNG.integers(1, 30, (4, 20)),
        [60, 55, 50, 60],
        [20, 15, 3, 1],
        {},
    ),
}


def _side(m: Any, f: Any, name: str, reduction: str, dtype: str, tensors: bool) -> list[Any]:
    x, labels, frames, lengths, options = CASES[name]
    log_probs = m.tensor(x, dtype=getattr(m, dtype)).requires_grad_()
    if tensors or isinstance(frames, int):
        frames, lengths = m.tensor(frames), m.tensor(lengths)
    targets = m.tensor(np.asarray(labels))
    y = f.ctc_loss(log_probs, targets, frames, lengths, reduction=reduction, **options)
    (y * m.arange(1.0, 1 + y.numel()).reshape(y.shape)).sum().backward()
    return [t.detach().numpy() for t in (y, log_probs.grad)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_are_torchs(name: str, reduction: str, dtype: str) -> None:
    tensors = reduction == "mean" or name == "no columns"
    # torch's float32 is further off than ours where numbers are large.
    exact = "float64" if name == "unlikely" else dtype
    want = [x.astype(dtype) for x in _side(torch, TF, name, reduction, exact, tensors)]
    got = _side(mt, F, name, reduction, dtype, tensors)
    for x, y in zip(got, want, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        tolerance = {"rtol": 2e-5, "atol": 2e-4} if dtype == "float32" else {"rtol": 1e-9}
        if exact != dtype:
            tolerance["atol"] = 5e-3
        np.testing.assert_allclose(x, y, **{"atol": 1e-12, **tolerance})


@pytest.mark.parametrize("labels", [[1], [1, 1], [2, 1, 2], []])
def test_all_paths(labels: list[int]) -> None:
    x = _frames(5, 1, 3)
    total = 0.0
    for path in itertools.product(range(3), repeat=5):
        if [label for label, _ in itertools.groupby(path) if label] == labels:
            total += np.exp(sum(x[k, 0, label] for k, label in enumerate(path)))
    targets = mt.tensor([labels], dtype=mt.int64)
    got = F.ctc_loss(mt.tensor(x), targets, [5], [len(labels)], reduction="sum")
    assert got.item() == pytest.approx(-np.log(total), rel=1e-12)


@pytest.mark.parametrize("settings", [{"schedule": "default"}, {"target": "numpy"}])
def test_other_settings(settings: dict[str, Any]) -> None:
    want = _side(mt, F, "padded", "none", "float64", True)
    with config.override(**settings):
        got = _side(mt, F, "padded", "none", "float64", True)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def test_through_log_softmax() -> None:
    raw = mt.tensor(RNG.standard_normal((6, 2, 4)), requires_grad=True)

    def loss(x: Any) -> Any:
        return F.ctc_loss(x.log_softmax(2), mt.tensor([[1, 2], [3, 3]]), (6, 5), (2, 2))

    assert mt.autograd.gradcheck(loss, raw)
    (g,) = mt.autograd.grad(loss(raw), raw, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^derivative for aten::_ctc_loss_backward is not"):
        mt.autograd.grad(g.pow(2).sum(), raw)[0].tolist()


@pytest.mark.parametrize(
    ("labels", "frames", "lengths", "options"),
    [
        (LABELS, (10, 9, 9), (1, 1, 1), {}),
        (LABELS, (9, 9, -1), (1, 1, 1), {}),
        (LABELS, (9, 9), (1, 1, 1), {}),
        (LABELS, (9, 9, 9), (1, 1), {}),
        (LABELS, (9, 9, 9), (1, 1, 5), {}),
        (LABELS, (9, 9, 9), (1, 1, -1), {}),
        (LABELS[:1], (9, 9, 9), (1, 1, 1), {}),
        ([1, 2], (9, 9, 9), (1, 1, 1), {}),
        (LABELS, (9, 9, 9), (1, 1, 1), {"blank": 5}),
        (LABELS, (9, 9, 9), (1, 1, 1), {"blank": -1}),
        (LABELS, (9, 9, 9), (1, 1, 1), {"reduction": "x"}),
        (LABELS, [9.0, 9.0, 9.0], (1, 1, 1), {}),
    ],
)
def test_what_is_refused(labels: Any, frames: Any, lengths: Any, options: dict[str, Any]) -> None:
    texts = []
    for m, f in ((torch, TF), (mt, F)):
        x, targets = m.tensor(_frames(9, 3, 5)), m.tensor(labels)
        sizes = [m.tensor(s) for s in (frames, lengths)]
        with pytest.raises((ValueError, RuntimeError)) as caught:
            f.ctc_loss(x, targets, *sizes, **options)
        texts.append((type(caught.value), str(caught.value).split("\n")[0]))
    assert texts[0] == texts[1]


def test_labels_that_are_no_class() -> None:
    x, lengths = mt.tensor(_frames(9, 1, 5)), mt.tensor([2])
    for bad in (5, -1):
        with pytest.raises(RuntimeError, match=f"Target {bad} is out of bounds"):
            F.ctc_loss(x, mt.tensor([[1, bad]]), mt.tensor([9]), lengths).item()
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        F.ctc_loss(x.long(), mt.tensor([[1, 2]]), [9], lengths)
    with pytest.raises(TypeError, match="must be tuple of ints, not int"):
        F.ctc_loss(x, mt.tensor([[1, 2]]), 9, lengths)
    with pytest.raises(RuntimeError, match="log_probs must be of shape"):
        F.ctc_loss(x[0, 0], mt.tensor([[1, 2]]), [9], lengths)


def test_the_layer_and_compile() -> None:
    found = []
    for m in (torch, mt):
        loss = m.nn.CTCLoss(blank=1, reduction="sum", zero_infinity=True)
        assert (repr(loss), loss.blank) == ("CTCLoss()", 1)
        x = m.tensor(np.linspace(-1, 1, 36).reshape(6, 2, 3)).log_softmax(2)
        found.append(loss(x, m.tensor([[2, 0], [0, 0]]), (6, 5), (2, 1)).item())
    assert found[0] == pytest.approx(found[1], rel=1e-12)

    @mt.compile
    def compiled(x: Any, labels: Any, *lengths: Any) -> Any:
        return F.ctc_loss(x, labels, *lengths)

    x, lengths = mt.tensor(_frames(6, 2, 3)), (mt.tensor([6, 5]), mt.tensor([2, 1]))
    for row in ([1, 2], [2, 2], [2, 1]):
        labels = mt.tensor([row, row])
        want = F.ctc_loss(x, labels, (6, 5), (2, 1)).item()
        assert compiled(x, labels, *lengths).item() == want
    with pytest.raises(RuntimeError, match="Target 3 is out of bounds"):
        compiled(x, mt.tensor([[1, 3], [1, 1]]), *lengths).item()
