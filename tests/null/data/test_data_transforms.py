"""Transforms of whole batches: against float64 numpy, and against the same row by row."""

from __future__ import annotations

import numpy as np
import pytest

from minitorch_tvm.utils.data import SyntheticDigits
from minitorch_tvm.utils.data.arrays import is_aligned
from minitorch_tvm.utils.data.transforms import (
    Compose,
    Flatten,
    Lambda,
    Normalize,
    ToTensor,
    apply_batch,
    is_batched,
)

RNG = np.random.default_rng(0)


def test_to_tensor_layouts_and_values():
    grey = RNG.integers(0, 256, (3, 5, 7), dtype=np.uint8)
    out = ToTensor().batch(grey)
    assert out.shape == (3, 1, 5, 7)
    assert out.dtype == np.float32
    assert is_aligned(out)
    np.testing.assert_allclose(out[:, 0], grey.astype(np.float64) / 255, rtol=1e-7)
    colour = RNG.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    np.testing.assert_allclose(
        ToTensor().batch(colour), colour.transpose(0, 3, 1, 2) / 255.0, rtol=1e-7
    )
    floats = RNG.normal(size=(2, 4, 4))
    assert ToTensor().batch(floats).dtype == np.float64
    np.testing.assert_array_equal(ToTensor().batch(floats)[:, 0], floats)
    # Three rows of a [28, 3] image must not be taken for one colour image.
    assert ToTensor().batch(np.zeros((28, 28, 3), np.uint8)).shape == (28, 1, 28, 3)
    with pytest.raises(ValueError, match=r"2 or 3 dimensions, but got shape \(4,\)"):
        ToTensor().batch(np.zeros((2, 4)))


def test_normalize_values_and_errors():
    x = RNG.normal(size=(4, 2, 3, 3)).astype(np.float32)
    out = Normalize((0.5, -1.0), (2.0, 0.25)).batch(x)
    truth = (x.astype(np.float64) - np.array([0.5, -1.0])[:, None, None]) / np.array([2.0, 0.25])[
        :, None, None
    ]
    np.testing.assert_allclose(out, truth, rtol=1e-6, atol=1e-6)
    assert is_aligned(out)
    np.testing.assert_array_equal(Normalize((0.5, -1.0), (2.0, 0.25))(x[1]), out[1])
    with pytest.raises(ValueError, match="std evaluated to zero"):
        Normalize((0.5,), (0.0,))
    with pytest.raises(ValueError, match="mean has 1 channels, std has 2"):
        Normalize((0.5,), (1.0, 1.0))
    with pytest.raises(ValueError, match="3 channels do not fit"):
        Normalize((0.0,) * 3, (1.0,) * 3).batch(x)
    with pytest.raises(TypeError, match="needs floating point images, but got uint8"):
        Normalize((0.5,), (1.0,)).batch(np.zeros((2, 1, 3, 3), np.uint8))


def test_batched_means_every_part_is():
    assert is_batched(None)
    assert is_batched(Compose([ToTensor(), Flatten()]))
    assert not is_batched(Lambda(np.negative))
    assert not is_batched(Compose([ToTensor(), np.negative]))
    assert is_batched(Lambda(np.negative, batched=True))
    with pytest.raises(TypeError, match="Argument lambd should be callable"):
        Lambda(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"turned shape \(2, 3\) into \(6,\)"):
        apply_batch(Lambda(np.ravel, batched=True), np.zeros((2, 3)))
    assert "ToTensor()" in repr(Compose([ToTensor()]))


def test_a_dataset_applies_either_kind_to_its_batches():
    order = np.array([7, 2, 2])
    plain = SyntheticDigits(n=10)

    class Half:
        batched = True

        def __call__(self, image: np.ndarray) -> np.ndarray:
            return image / np.float64(2)

    for transform in (Half(), Lambda(lambda image: image / np.float64(2))):
        data = SyntheticDigits(n=10, transform=transform, target_transform=lambda y: (y, 0.5))
        images, labels = data.batch_reader()(order)
        np.testing.assert_array_equal(images, plain.data[order] / 2)
        assert images.dtype == np.float64
        np.testing.assert_array_equal(labels[0], plain.targets[order])
        np.testing.assert_array_equal(labels[1], [0.5] * 3)


def test_a_transform_that_writes_cannot_reach_the_dataset():
    def blacken(image):
        image[...] = 0
        return image

    data = SyntheticDigits(n=4, transform=blacken)
    before = data.data.copy()
    images, _ = data.batch_reader()(np.arange(4))
    assert not images.any()
    assert not data[0][0].any()
    np.testing.assert_array_equal(data.data, before)
    data.transform = Lambda(blacken, batched=True)
    with pytest.raises(ValueError, match="read-only"):
        data.batch_reader()(np.arange(4))
