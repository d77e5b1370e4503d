"""Batches of MNIST for ``mnist.py``."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

import minitorch_tvm as mt
from minitorch_tvm.utils.data import (
    DataLoader,
    SyntheticDigits,
    TensorDataset,
    load_mnist_or_synthetic,
)
from minitorch_tvm.utils.data.images import ImageDataset

EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Batches:
    """Loaders of (float32 images ``[b, 1, 28, 28]``, int64 labels ``[b]``)."""

    train: DataLoader
    validation: DataLoader
    test: DataLoader
    synthetic: bool


def load(
    folder: str | os.PathLike[str] | None, batch_size: int, *, course: bool = False
) -> Batches:
    """MNIST from ``folder``, ``MTVM_DATA``, the user's cache or the mirrors, else synthetic digits.

    Raises MNISTNotFoundError or CorruptedFileError for a folder without good files.
    """
    return batches(*load_mnist_or_synthetic(folder, named="--data"), batch_size, course=course)


def batches(
    train: ImageDataset, test: ImageDataset, batch_size: int, *, course: bool = False
) -> Batches:
    """Loaders on two sets of images; raises ValueError if one is empty.

    The last twelfth of the training images (5,000 of MNIST's) validates; pixels are scaled to
    [0, 1].  With ``course``, as in the assignment, the last sixth (10,000) validates, pixels are
    divided by 256, and training batches come in file order instead of shuffled.
    """
    scale = 256 if course else 255
    split = len(train) - len(train) // (6 if course else 12)
    if not split or not len(test):
        raise ValueError(
            f"the dataset is empty: {len(train)} training images, {len(test)} test images"
        )

    def loader(part: slice, source: ImageDataset, size: int, shuffle: bool) -> DataLoader:
        # Tensors own aligned memory: batches in file order are views of it, and no batch is
        # copied again on its way to a kernel.
        pixels = mt.tensor(source.data[part, None] / np.float32(scale))
        data = TensorDataset(pixels, mt.tensor(source.targets[part]))
        return DataLoader(data, batch_size=size, shuffle=shuffle)

    return Batches(
        loader(slice(split), train, batch_size, not course),
        loader(slice(split, None), train, EVALUATION_BATCH, False),
        loader(slice(None), test, EVALUATION_BATCH, False),
        isinstance(train, SyntheticDigits),
    )
