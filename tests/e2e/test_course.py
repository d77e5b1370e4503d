"""The assignment's setting: losses against float64 numpy, and the accuracy that it asks for."""

import mnist
import mnist_data
import mnist_models
import numpy as np
import pytest
import references

import minitorch_tvm as mt
from minitorch_tvm.utils.data import MNIST
from minitorch_tvm.utils.data.images import ImageDataset

Digits = tuple[ImageDataset, ImageDataset]


def _reference_start(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The assignment's parameters, spelled out independently of the example.

    Rounded to float32, so that only the arithmetic differs.
    """
    if name == "logreg":
        return [(np.zeros((784, 10)), np.zeros(10))]
    random = np.random.RandomState(123)
    w1 = random.normal(scale=0.1, size=(784, 256))
    w2 = random.normal(scale=0.1, size=(256, 100))
    w3 = random.normal(scale=0.1, size=(100, 10))
    b1 = random.normal(scale=0.1, size=256)
    b2 = random.normal(scale=0.1, size=100)
    b3 = random.normal(scale=0.1, size=10)
    return [
        (w.astype(np.float32).astype(np.float64), b.astype(np.float32).astype(np.float64))
        for w, b in ((w1, b1), (w2, b2), (w3, b3))
    ]


def _rate(train: ImageDataset) -> float:
    """The assignment's learning rate, or a tenth of it for the synthetic digits.

    With 1.0 training on those is unstable: in float64, too, losses jump to 8 and then to 27.
    """
    return 1.0 if isinstance(train, MNIST) else 0.1


def test_logreg_losses_follow_float64(digits: Digits) -> None:
    train, test = digits
    rate = _rate(train)
    data = mnist_data.batches(train, test, 1000, course=True)
    model = mnist_models.build("logreg", course=True)
    optimizer = mt.optim.SGD(model.parameters(), lr=rate)
    layers = _reference_start("logreg")
    worst = 0.0
    for _ in range(5):
        mean, last = mnist.train_epoch(model, optimizer, data.train)
        expected = list(references.losses(train.data[:50_000], train.targets, layers, rate, 1000))
        worst = max(worst, abs(last - expected[-1]))
        assert mean == pytest.approx(np.mean(expected), abs=1e-4)
    print(f"largest deviation of a last-batch loss: {worst:.2e}")
    assert worst < 1e-4
    accuracy = mnist.accuracy(model, data.validation)
    weight, bias = layers[0]
    logits = train.data[50_000:].reshape(-1, 784) / 256.0 @ weight + bias
    expected_accuracy = float((logits.argmax(1) == train.targets[50_000:]).mean())
    assert accuracy == pytest.approx(expected_accuracy, abs=1e-3)
    if isinstance(train, MNIST):
        assert 0.915 < accuracy < 0.93


def test_mlp_losses_follow_float64(digits: Digits) -> None:
    train, test = digits
    rate = _rate(train)
    data = mnist_data.batches(train, test, 1000, course=True)
    model = mnist_models.build("mlp", course=True)
    optimizer = mt.optim.SGD(model.parameters(), lr=rate)
    reference = references.losses(
        train.data[:50_000], train.targets, _reference_start("mlp"), rate, 1000
    )
    # The first steps are so large that rounding errors double with each: 12 of them are enough to
    # tell wrong from right (a deviation of 3e-6), and 25 would already be chaos.
    for step, batch, expected in zip(range(12), data.train, reference, strict=False):
        _, loss = mnist.train_epoch(model, optimizer, [batch])
        assert loss == pytest.approx(expected, rel=1e-4), f"step {step}"


def test_mlp_accuracy(digits: Digits) -> None:
    train, test = digits
    data = mnist_data.batches(train, test, 1000, course=True)
    model = mnist_models.build("mlp", course=True)
    optimizer = mt.optim.SGD(model.parameters(), lr=_rate(train))
    for _ in range(10):
        mean, last = mnist.train_epoch(model, optimizer, data.train)
    accuracy = mnist.accuracy(model, data.validation)
    print(f"validation accuracy {accuracy:.4f}, loss {mean:.4f}, last batch {last:.4f}")
    assert accuracy >= (0.968 if isinstance(train, MNIST) else 0.9)
