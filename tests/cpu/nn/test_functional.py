"""Losses, dropout, clipping: values against numpy, gradients, labels, extreme inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import nn
from minitorch_tvm.core.events import EVENTS

RNG = np.random.default_rng(11)


def programs() -> int:
    return EVENTS.get("compiles") + EVENTS.get("reference_programs")


def f64(*shape: int) -> Any:
    return mt.tensor(RNG.standard_normal(shape), requires_grad=True)


def test_cross_entropy_value() -> None:
    x = RNG.standard_normal((6, 5))
    t = RNG.integers(0, 5, 6)
    expected = np.mean(np.log(np.exp(x).sum(1)) - x[np.arange(6), t])
    assert F.cross_entropy(mt.tensor(x), mt.tensor(t)).item() == pytest.approx(expected, rel=1e-12)


CHECKED: list[Any] = [
    lambda x, w: F.cross_entropy(x, mt.tensor([1, 3, 1]), label_smoothing=0.1),
    lambda x, w: F.cross_entropy(x, mt.tensor([1, 0, -100]), reduction="sum"),
    lambda x, w: F.cross_entropy(x, w.softmax(1)),
    lambda x, w: F.nll_loss(x, mt.tensor([1, 3, 0]), ignore_index=3),
    lambda x, w: F.mse_loss(x, w),
    lambda x, w: F.l1_loss(x, w, reduction="none"),
    lambda x, w: F.binary_cross_entropy_with_logits(x, w.sigmoid(), pos_weight=w[0].exp()),
    lambda x, w: F.linear(x, w, w[:, 0]),
    lambda x, w: F.conv2d(x.reshape(1, 3, 4), w.reshape(1, 1, 3, 4), padding="same"),
    lambda x, w: F.max_pool2d(x.reshape(1, 3, 4), 2, 1) * w[:2, :3],
    lambda x, w: F.avg_pool2d(x.reshape(1, 3, 4), 2, 1, padding=1),
    lambda x, w: F.pad(x, (1, -1, 2, 0), value=3.0) * 2,
    lambda x, w: F.softmax(x, 1) * w,
]


@pytest.mark.parametrize("number", range(len(CHECKED)))
def test_gradients(number: int) -> None:
    assert mt.autograd.gradcheck(CHECKED[number], (f64(3, 4), f64(3, 4)))


def test_logits_of_any_size() -> None:
    x = mt.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], requires_grad=True)
    loss = F.cross_entropy(x, mt.tensor([1, 1]))
    loss.backward()
    assert loss.item() == 1e4
    np.testing.assert_allclose(x.grad.numpy(), [[0.5, -0.5, 0], [0, 0, 0]], atol=1e-7)
    x = mt.tensor([[float("-inf"), 0.0, 0.0]])
    assert F.cross_entropy(x, mt.tensor([1])).item() == pytest.approx(np.log(2), rel=1e-6)


def test_nan_stays_nan() -> None:
    x = mt.tensor([[float("nan"), 0.0], [0.0, 0.0]])
    assert np.isnan(F.cross_entropy(x, mt.tensor([1, 1])).item())
    assert np.isnan(F.dropout(mt.tensor([float("nan")]), 1.0).item())


def test_empty_batch_and_ignored_batch_have_no_mean() -> None:
    assert np.isnan(F.cross_entropy(mt.zeros(0, 3), mt.zeros(0, dtype=mt.int64)).item())
    assert np.isnan(F.cross_entropy(mt.zeros(2, 3), mt.tensor([-100, -100])).item())
    assert F.cross_entropy(mt.zeros(1, 1), mt.tensor([0])).item() == 0


def test_loss_graph_does_not_depend_on_the_labels() -> None:
    def loss(labels: list[int]) -> float:
        return F.cross_entropy(mt.ones(3, 7), mt.tensor(labels), reduction="sum").item()

    loss([0, 1, 2])
    before = programs()
    assert loss([-100, 6, -100]) == pytest.approx(np.log(7), rel=1e-6)
    assert programs() == before


@pytest.mark.parametrize("bad", [5, -1, -101, 10**12])
def test_label_out_of_range_is_an_error_at_the_loss(bad: int) -> None:
    with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds\."):
        F.cross_entropy(mt.zeros(3, 5), mt.tensor([0, bad, 1]))


@pytest.mark.parametrize("dtype", [mt.int64, mt.uint8])
def test_what_is_ignored_is_an_int_of_64_bits(dtype: mt.dtype) -> None:
    x, y = mt.zeros(2, 3), mt.tensor([1, 0], dtype=dtype)
    for loss, name in ((F.cross_entropy, "cross_entropy_loss"), (F.nll_loss, "nll_loss_nd")):
        loss(x, y, ignore_index=1)  # known from now on, and 1.0 == 1
        for wrong in (1.0, True, None, "1"):
            kind = type(wrong).__name__
            message = rf"{name}\(\): argument 'ignore_index' \(position 5\) must be int, not {kind}"
            with pytest.raises(TypeError, match=message):
                loss(x, y, ignore_index=wrong)
        for wrong in (1 << 63, -(1 << 63) - 1, 1 << 70):
            with pytest.raises(ValueError, match="Overflow when unpacking long long"):
                loss(x, y, ignore_index=wrong)
        for far in ((1 << 63) - 1, -1 << 63):
            assert loss(x, y, ignore_index=far).item() == loss(x, y).item()


def test_label_smoothing_is_a_number() -> None:
    x, y = mt.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, 1.0]]), mt.tensor([2, 0])
    for smoothing in (np.float32(0.5), 0.5, np.float64(0.5), np.float16(0.5)):
        loss = F.cross_entropy(x, y, label_smoothing=smoothing).item()
        assert loss == F.cross_entropy(x, y, label_smoothing=0.5).item()
    assert F.cross_entropy(x, y, label_smoothing=np.int64(0)).item() == F.cross_entropy(x, y).item()
    with pytest.raises(TypeError, match=r"'label_smoothing' \(position 6\) must be float, not str"):
        F.cross_entropy(x, y, label_smoothing="0.1")


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_the_first_wrong_argument_is_named(loss: Any) -> None:
    x, y = mt.zeros(2, 3), mt.tensor([1, 0])
    wrong: Any = 1.0
    for name, arguments in (
        ("input", ("x", wrong, wrong)),
        ("target", (x, wrong, wrong)),
        ("weight", (x, y, wrong)),
        ("ignore_index", (x, y)),
    ):
        with pytest.raises(TypeError, match=f"argument '{name}' "):
            loss(*arguments, ignore_index=wrong)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_target_may_be_a_number(loss: Any) -> None:
    x = mt.tensor([-1.0, -2.0, -4.0])
    assert loss(x, mt.full((), 2)).item() == loss(x, mt.tensor(2)).item()
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        loss(x, mt.full((), 3))


@pytest.mark.parametrize("wrong", [1.0, True, "1"])
def test_padding_is_an_int(wrong: object) -> None:
    kind = type(wrong).__name__
    message = rf"embedding\(\): argument 'padding_idx' \(position 3\) must be int, not {kind}"
    with pytest.raises(TypeError, match=message):
        F.embedding(mt.tensor([1]), mt.zeros(4, 3), padding_idx=wrong)


def test_computed_label_out_of_range_never_reaches_a_parameter() -> None:
    layer = nn.Linear(2, 3)
    old = layer.weight.detach().numpy().copy()
    for momentum in (0.0, 0.9):
        opt = mt.optim.SGD(layer.parameters(), lr=1.0, momentum=momentum)
        labels = mt.tensor([0, 4]) + 1
        loss = F.cross_entropy(layer(mt.ones(2, 2)), labels)
        with pytest.raises(IndexError, match=r"Target 5 is out of bounds\."):
            loss.backward()
        opt.step()  # there is no gradient
        np.testing.assert_array_equal(layer.weight.detach().numpy(), old)
    F.cross_entropy(layer(mt.ones(2, 2)), mt.tensor([0, 1]) + 1).backward()
    opt.step()
    assert (layer.weight.detach().numpy() != old).any()


def test_computed_labels_may_be_ignored() -> None:
    labels = mt.tensor([0, -103]) + 3 - 0
    assert F.cross_entropy(mt.zeros(2, 4), labels).item() == pytest.approx(np.log(4), rel=1e-6)


def test_one_hot_checks_computed_classes() -> None:
    np.testing.assert_array_equal(F.one_hot(mt.tensor([0, 1]) + 1, 3).numpy(), np.eye(3)[[1, 2]])
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        F.one_hot(mt.tensor([0, 2]) + 1, 3).numpy()


def test_binary_cross_entropy_gradient_is_exact_at_zero() -> None:
    x = mt.zeros(1, requires_grad=True)
    F.binary_cross_entropy_with_logits(x, mt.ones(1)).backward()
    assert x.grad.item() == -0.5


def test_broadcast_loss_warns() -> None:
    with pytest.warns(UserWarning, match="Using a target size"):
        F.mse_loss(mt.zeros(3, 1), mt.zeros(3))


def test_deprecated_flags_warn() -> None:
    with pytest.warns(UserWarning, match="reduction='sum'"):
        assert nn.MSELoss(size_average=False).reduction == "sum"


def test_softmax_without_dim_warns() -> None:
    with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
        nn.Softmax()(mt.zeros(2, 3))
    assert caught[0].filename == __file__


class TestDropout:
    def test_share_and_scale(self) -> None:
        mt.manual_seed(0)
        y = F.dropout(mt.ones(20000), 0.3).numpy()
        assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.7)}
        # Five standard deviations of a binomial.
        assert abs((y == 0).mean() - 0.3) < 5 * np.sqrt(0.21 / 20000)

    def test_gradient_uses_the_same_mask(self) -> None:
        x = mt.ones(50, requires_grad=True)
        y = F.dropout(x, 0.5)
        y.sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())

    def test_masks_differ_and_seeds_repeat_them(self) -> None:
        x = mt.ones(100)
        mt.manual_seed(1)
        first, second = F.dropout(x).numpy(), F.dropout(x).numpy()
        assert (first != second).any()
        mt.manual_seed(1)
        np.testing.assert_array_equal(F.dropout(x).numpy(), first)

    def test_extremes_and_evaluation(self) -> None:
        x = mt.ones(3)
        assert F.dropout(x, 0.0) is x
        assert nn.Dropout(0.9).eval()(x) is x
        np.testing.assert_array_equal(F.dropout(x, 1.0).numpy(), 0)

    def test_probability_is_a_runtime_number(self) -> None:
        F.dropout(mt.ones(33), 0.25).numpy()
        before = programs()
        F.dropout(mt.ones(33), 0.5).numpy()
        assert programs() == before

    def test_inplace(self) -> None:
        x = mt.ones(100)
        assert nn.Dropout(0.5, inplace=True)(x) is x
        assert set(np.unique(x.numpy())) == {0.0, 2.0}


def test_inplace_relu() -> None:
    x = mt.tensor([-1.0, 2.0])
    assert nn.ReLU(inplace=True)(x) is x
    np.testing.assert_array_equal(x.numpy(), [0, 2])


def test_unsupported_options_are_refused() -> None:
    with pytest.raises(ValueError, match="return_indices"):
        nn.MaxPool2d(2, return_indices=True)
    with pytest.raises(ValueError, match="adaptive_max_pool2d: return_indices"):
        nn.AdaptiveMaxPool2d(2, return_indices=True)
    with pytest.raises(NotImplementedError, match="Unrecognised padding mode mirror"):
        F.pad(mt.zeros(1, 3), (1, 1), mode="mirror")
    with pytest.raises(AssertionError, match="only device 'cpu'"):
        nn.Linear(1, 1, device="cuda")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.linear(np.zeros((2, 3)), mt.zeros(1, 3)),
            r"argument 'input' \(position 1\) must",
        ),
        (lambda: nn.Conv2d(1, 1, (3, 3, 3)), "kernel_size must be an int or a tuple of two"),
        (lambda: nn.Conv2d(1, 1, 3, stride=1.5), "stride must be an int"),
    ],
)
def test_wrong_types(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.conv2d(x, mt.zeros(1, 1, 2, 2), stride=0),
        lambda x: F.conv2d(x, mt.zeros(1, 1, 2, 2), padding=-1),
        lambda x: F.conv2d(x, mt.zeros(1, 1, 2, 2), dilation=0),
        lambda x: F.conv2d(x, mt.zeros(1, 1, 2, 2), groups=0),
        lambda x: F.max_pool2d(x, 0),
        lambda x: F.avg_pool2d(x, 2, stride=-1),
        lambda x: F.max_pool2d(x, 9),
        lambda x: F.pad(x, (1,)),
        lambda x: F.pad(x, (-5, -5)),
    ],
)
def test_impossible_geometry_is_an_error(call: Any) -> None:
    with pytest.raises(RuntimeError):
        call(mt.zeros(1, 1, 4, 4))


def test_clipping_joins_the_step_and_can_check() -> None:
    w = mt.tensor([3.0, 4.0], requires_grad=True)
    (w * w * 0.5).sum().backward()
    before = EVENTS.get("evaluations")
    norm = nn.utils.clip_grad_norm_(w, 1.0)
    assert EVENTS.get("evaluations") == before
    assert norm.item() == 5
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0
    w.grad = mt.tensor([float("inf"), 0.0])
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(iter([w]), 1.0, error_if_nonfinite=True)
