"""Losses against torch in float64: values and gradients, for every reduction and option."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F

torch = pytest.importorskip("torch")
TF = torch.nn.functional
REDUCTIONS = ("none", "mean", "sum")


def compare(ours: Any, theirs: Any, arrays: list[np.ndarray], **kwargs: Any) -> None:
    """Value and gradient by the first array, weighting the outputs unevenly."""
    pairs = [(mt.tensor(a), torch.tensor(a)) for a in arrays]
    x, tx = pairs[0]
    x.requires_grad_(), tx.requires_grad_()
    options = {k: v for k, v in kwargs.items() if not isinstance(v, np.ndarray)}
    mine = {k: mt.tensor(v) for k, v in kwargs.items() if isinstance(v, np.ndarray)}
    other = {k: torch.tensor(v) for k, v in kwargs.items() if isinstance(v, np.ndarray)}
    y = ours(*[a for a, _ in pairs], **options, **mine)
    ty = theirs(*[a for _, a in pairs], **options, **other)
    assert tuple(y.shape) == tuple(ty.shape)
    np.testing.assert_allclose(y.detach().numpy(), ty.detach().numpy(), rtol=1e-10, atol=1e-12)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, tuple(ty.shape))
    (y * mt.tensor(weights)).sum().backward()
    (ty * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-9, atol=1e-12)


OPTIONS = ([False, True], [-100, 2], [0.0, 0.3])
CASES = [
    *itertools.product([(5, 4)], REDUCTIONS, *OPTIONS),
    *itertools.product([(3, 4, 2)], ["mean"], *OPTIONS),
    # Each option with each of another one.
    *(
        (shape, "mean", weighted, ignore, smoothing)
        for shape in ((2, 4, 3, 2), (4,))
        for weighted, ignore, smoothing in (
            (False, -100, 0.0),
            (False, 2, 0.3),
            (True, -100, 0.3),
            (True, 2, 0.0),
        )
    ),
    *itertools.product([(3, 4, 2), (2, 4, 3, 2), (4,)], ["none"], [True], [2], [0.3]),
]


@pytest.mark.parametrize(("shape", "reduction", "weighted", "ignore", "smoothing"), CASES)
def test_cross_entropy_of_classes(
    shape: Any, reduction: str, weighted: bool, ignore: int, smoothing: float
) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape) * 3
    target = rng.integers(0, 4, (shape[0], *shape[2:]) if len(shape) > 1 else ())
    if len(shape) > 1:
        target.flat[0], target.flat[1] = ignore, 1
    else:
        target = np.array(1)
    options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignore}
    if weighted:
        options["weight"] = rng.uniform(0.5, 2.0, 4)
    compare(F.cross_entropy, TF.cross_entropy, [x, target], label_smoothing=smoothing, **options)
    if not smoothing and shape != (2, 4, 3, 2):
        compare(F.nll_loss, TF.nll_loss, [x, target], **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2), (4,)])
def test_cross_entropy_of_probabilities(
    shape: Any, smoothing: float, weighted: bool, reduction: str
) -> None:
    rng = np.random.default_rng(3)
    target = rng.dirichlet(np.ones(4), shape[:1] + shape[2:]) if len(shape) > 1 else np.ones(4) / 4
    target = np.ascontiguousarray(np.moveaxis(target, -1, 1) if len(shape) > 1 else target)
    options: dict[str, Any] = {"weight": rng.uniform(0.5, 2.0, 4)} if weighted else {}
    x = rng.standard_normal(shape)
    compare(
        F.cross_entropy,
        TF.cross_entropy,
        [x, target],
        reduction=reduction,
        label_smoothing=smoothing,
        **options,
    )


@pytest.mark.parametrize("kinds", [*itertools.product(("float32", "float64"), repeat=3)])
def test_dtype_of_cross_entropy_of_probabilities(kinds: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((3, 4)), rng.dirichlet(np.ones(4), 3), rng.uniform(0.5, 2.0, 4)]
    for count in (2, 3):
        results = []
        sides: list[tuple[Any, Any]] = [(mt, F), (torch, TF)]
        for m, f in sides:
            given = [m.tensor(a, dtype=getattr(m, k)) for a, k in zip(arrays, kinds, strict=True)]
            given[0].requires_grad_()
            loss: Any = f.cross_entropy(*given[:count])
            loss.backward()
            results.append((loss.detach().numpy(), given[0].grad.numpy()))
        for ours, theirs in zip(*results, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss"])
def test_regression_losses(name: str, weighted: bool, reduction: str) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((4, 3)), rng.standard_normal((4, 3))]
    options: dict[str, Any] = {"weight": rng.uniform(0.5, 2.0, (4, 3))} if weighted else {}
    compare(getattr(F, name), getattr(TF, name), arrays, reduction=reduction, **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", [(), ("weight",), ("pos_weight",), ("weight", "pos_weight")])
def test_binary_cross_entropy(options: Any, reduction: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 3)) * 5
    x[0] = [0.0, 700.0, -700.0]
    arrays = [x, rng.uniform(0, 1, (4, 3))]
    given = {name: rng.uniform(0.5, 2.0, (3,)) for name in options}
    ours, theirs = F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits
    compare(ours, theirs, arrays, reduction=reduction, **given)


@pytest.mark.parametrize("size_average", [None, True, False])
@pytest.mark.parametrize("reduce", [None, True, False])
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_deprecated_flags_mean_what_they_do_in_torch(size_average: Any, reduce: Any) -> None:
    x = np.random.default_rng(3).standard_normal((3, 4))
    for name in ("mse_loss", "l1_loss"):
        compare(
            getattr(F, name),
            getattr(TF, name),
            [x, x * 0.5],
            size_average=size_average,
            reduce=reduce,
        )


def test_loss_modules_pass_their_options_on() -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((4, 3)), rng.uniform(0.5, 2.0, 3)
    target = np.array([0, 1, 2, 1])
    for name, options, t in (
        (
            "CrossEntropyLoss",
            {"ignore_index": 1, "label_smoothing": 0.1, "reduction": "sum"},
            target,
        ),
        ("NLLLoss", {"ignore_index": 1, "reduction": "none"}, target),
        ("BCEWithLogitsLoss", {"pos_weight": weight, "reduction": "sum"}, rng.random((4, 3))),
    ):
        given = [{"weight": weight, **options}] * 2
        ours, theirs = (
            getattr(lib.nn, name)(
                **{k: lib.tensor(v) if isinstance(v, np.ndarray) else v for k, v in o.items()}
            )
            for lib, o in zip((mt, torch), given, strict=True)
        )
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        compare(ours, theirs, [x, t])
    for name in ("MSELoss", "L1Loss"):
        compare(
            getattr(mt.nn, name)(reduction="sum"),
            getattr(torch.nn, name)(reduction="sum"),
            [x, x * 2],
        )
