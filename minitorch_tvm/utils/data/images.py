"""Labelled images held in memory: what MNIST and the synthetic digits share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minitorch_tvm.utils.data.arrays import AnyArray, IntArray, take_rows
from minitorch_tvm.utils.data.collate import collate_arrays
from minitorch_tvm.utils.data.dataset import BatchReader, Dataset
from minitorch_tvm.utils.data.transforms import apply_batch, is_batched

Transform = Callable[[Any], Any]


class ImageDataset(Dataset[tuple[Any, Any]]):
    """Images ``data`` ``[n, h, w]`` uint8 with labels ``targets`` ``[n]`` int64, both numpy.

    Sample ``i`` is ``(transform(data[i]), target_transform(int(targets[i])))``; without transforms
    a uint8 array (a copy) and an int. Batches are read in one go when every transform given is
    ``batched`` (see :mod:`minitorch_tvm.utils.data.transforms`).
    """

    classes: ClassVar[list[str]]

    def __init__(
        self,
        data: AnyArray,
        targets: IntArray,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        self.data = data
        self.targets = targets
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image: Any = self.data[index].copy()
        label: Any = int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label

    def batch_reader(self) -> BatchReader | None:
        if type(self).__getitem__ is not ImageDataset.__getitem__:
            return None  # a subclass that changes its samples must be asked for each of them
        return self._read

    def _read(self, indices: IntArray) -> list[AnyArray]:
        images = take_rows(self.data, indices)
        labels = take_rows(self.targets, indices)
        return [_transform(self.transform, images), _transform(self.target_transform, labels)]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class name, as labels hold it."""
        return {name: number for number, name in enumerate(self.classes)}

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.data.shape[1:]))
        return f"{type(self).__name__}({len(self)} images of {shape})"


def _transform(transform: Transform | None, batch: AnyArray) -> Any:
    if is_batched(transform):
        return apply_batch(transform, batch)
    assert transform is not None  # is_batched(None) is true
    samples = batch if batch.ndim > 1 else batch.tolist()  # labels are Python ints, as in a sample
    return collate_arrays([transform(_own(sample)) for sample in samples])


def _own(sample: Any) -> Any:
    """A transform may write to the image it gets, and that must not reach the dataset."""
    return sample.copy() if isinstance(sample, np.ndarray) else sample
