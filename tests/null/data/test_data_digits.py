"""Synthetic digits: deterministic, complete, and too hard for a linear model."""

from __future__ import annotations

import numpy as np
import pytest

from minitorch_tvm.utils.data import SyntheticDigits
from minitorch_tvm.utils.data.digits import POINTS, skeletons


def test_seed_split_and_prefix():
    base = SyntheticDigits(n=1500)
    again = SyntheticDigits(n=1500)
    np.testing.assert_array_equal(base.data, again.data)
    np.testing.assert_array_equal(base.targets, again.targets)
    short = SyntheticDigits(n=1100)
    np.testing.assert_array_equal(short.data, base.data[:1100])
    for other in (SyntheticDigits(n=1500, seed=1), SyntheticDigits(train=False, n=1500)):
        assert (other.data != base.data).any(axis=(1, 2)).all()
    assert (base.data[:500] != base.data[1000:]).any(axis=(1, 2)).all()


def test_interface_and_content():
    data = SyntheticDigits(n=2000)
    assert data.data.shape == (2000, 28, 28)
    assert data.data.dtype == np.uint8
    assert data.targets.dtype == np.int64
    assert (np.bincount(data.targets, minlength=10) > 150).all()
    ink = data.data.mean(axis=(1, 2))
    assert ink.min() > 5  # no blank page
    assert ink.max() < 150  # and no full one
    image, label = data[0]
    assert image.shape == (28, 28)
    assert label == data.targets[0]
    assert len(SyntheticDigits(n=0)) == 0
    with pytest.raises(ValueError, match="must not be negative"):
        SyntheticDigits(n=-1)


def test_skeletons_are_evenly_sampled_strokes_for_every_digit():
    shapes, digits = skeletons()
    assert shapes.shape[1:] == (POINTS, 2)
    assert set(digits.tolist()) == set(range(10))
    assert (np.diff(digits) >= 0).all()
    assert shapes.min() > -0.1
    assert shapes.max() < 1.1
    steps = np.linalg.norm(np.diff(shapes, axis=1), axis=-1)
    for step in steps:  # equal, but for shortcuts at corners and at most two jumps of the pen
        assert (step > 1.05 * np.median(step)).sum() <= 2


def _features(images: np.ndarray) -> np.ndarray:
    return np.concatenate([images.reshape(len(images), -1) / 255, np.ones((len(images), 1))], 1)


def test_a_linear_model_stays_under_95_percent_but_learns():
    train, test = SyntheticDigits(n=20_000), SyntheticDigits(train=False, n=4000)
    x, y = _features(train.data).astype(np.float32), train.targets
    weight = np.zeros((x.shape[1], 10), np.float32)
    speed = np.zeros_like(weight)
    rng = np.random.default_rng(0)
    for epoch in range(15):
        order = rng.permutation(len(x))
        for start in range(0, len(x), 200):
            rows = order[start : start + 200]
            score = x[rows] @ weight
            chance = np.exp(score - score.max(1, keepdims=True))
            chance /= chance.sum(1, keepdims=True)
            chance[np.arange(len(rows)), y[rows]] -= 1
            speed = 0.9 * speed - (0.05 if epoch < 10 else 0.01) * (x[rows].T @ chance) / len(rows)
            weight += speed
    accuracy = ((_features(test.data) @ weight).argmax(1) == test.targets).mean()
    assert 0.84 < accuracy < 0.945
