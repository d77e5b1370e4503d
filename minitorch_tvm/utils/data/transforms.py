"""Transforms of samples, which can also transform a whole batch in one numpy expression.

**The contract.** A transform is any callable from a sample to a sample. If it has an attribute
``batched`` that is true, a loader's fast path may apply it to the *stacked* batch instead (an
array with one more axis in front): through its method ``batch`` if it has one, else by calling it.
Row i of the result must equal the transform of sample i. Without ``batched`` it is called once per
sample, which is always right, and slower.

Samples are numpy arrays, or Tensors once ``ToTensor`` has run; batches are always numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minitorch_tvm.tensor import Tensor
from minitorch_tvm.utils.data.arrays import AnyArray, pooled_empty
from minitorch_tvm.utils.data.convert import to_array, to_tensor


def is_batched(transform: Callable[[Any], Any] | None) -> bool:
    """True when ``transform`` may be applied to a stacked batch (None changes nothing)."""
    return transform is None or bool(getattr(transform, "batched", False))


def apply_batch(transform: Callable[[Any], Any] | None, batch: AnyArray) -> AnyArray:
    """``transform`` of every row of ``batch`` at once; it must be :func:`is_batched`.

    Raises:
        ValueError: the transform changed the number of rows.
    """
    if transform is None:
        return batch
    result: AnyArray = np.asarray(to_array(getattr(transform, "batch", transform)(batch)))
    if result.shape[:1] != batch.shape[:1]:
        raise ValueError(
            f"{transform!r} claims to work on batches, but turned shape {batch.shape} into "
            f"{result.shape}"
        )
    return result


class Compose:
    """One transform after the other.

    >>> import numpy as np
    >>> flat = Compose([ToTensor(), Normalize((0.5,), (0.5,)), Flatten()])
    >>> flat.batch(np.full((2, 4, 4), 255, np.uint8)).shape
    (2, 16)
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    @property
    def batched(self) -> bool:
        """True if every transform can take a whole batch."""
        return all(is_batched(transform) for transform in self.transforms)

    def __call__(self, sample: Any) -> Any:
        for transform in self.transforms:
            sample = transform(sample)
        return sample

    def batch(self, batch: AnyArray) -> AnyArray:
        """Every transform in turn, on a whole batch."""
        for transform in self.transforms:
            batch = apply_batch(transform, batch)
        return batch

    def __repr__(self) -> str:
        inner = "".join(f"\n    {transform!r}" for transform in self.transforms)
        return f"Compose({inner}\n)"


class ToTensor:
    """An image to a float32 Tensor with the channel first and, from uint8, values in [0, 1].

    uint8 ``[h, w]`` or ``[h, w, c]`` -> float32 ``[1, h, w]`` or ``[c, h, w]``, divided by 255.
    Other dtypes keep their values; float64 stays float64, the rest becomes float32.

    Raises:
        ValueError: the image has neither 2 nor 3 dimensions.
    """

    batched = True

    def __call__(self, sample: Any) -> Tensor:
        return to_tensor(self.batch(np.asarray(sample)[None])[0])

    def batch(self, batch: AnyArray) -> AnyArray:
        """As the call, for a batch [n, h, w] or [n, h, w, c] of images: an array [n, c, h, w]."""
        if batch.ndim not in (3, 4):
            raise ValueError(
                f"ToTensor: an image has 2 or 3 dimensions, but got shape {batch.shape[1:]}"
            )
        images = batch[:, None] if batch.ndim == 3 else np.moveaxis(batch, -1, 1)
        wide = images.dtype == np.float64
        out = pooled_empty(images.shape, np.float64 if wide else np.float32)
        if images.dtype == np.uint8:
            np.divide(images, np.float32(255), out=out)
        else:
            out[...] = images
        return out

    def __repr__(self) -> str:
        return "ToTensor()"


class Normalize:
    """``(x - mean[c]) / std[c]`` for floating point ``x`` of shape ``[c, h, w]``.

    The result is of the kind (Tensor or numpy array) and dtype of the input.

    Raises:
        ValueError: a ``std`` of zero, or numbers of channels that do not fit.
        TypeError: ``x`` is not floating point.
    """

    batched = True

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} channels, std has {len(self.std)}")
        if 0.0 in self.std:
            raise ValueError(f"std evaluated to zero, leading to division by zero: {self.std}")

    def __call__(self, sample: Any) -> Any:
        result = self.batch(np.asarray(to_array(sample))[None])[0]
        return to_tensor(result) if isinstance(sample, Tensor) else result

    def batch(self, batch: AnyArray) -> AnyArray:
        """As the call, for a batch [n, c, h, w]."""
        if batch.dtype.kind != "f":
            raise TypeError(f"Normalize needs floating point images, but got {batch.dtype}")
        channels = len(self.mean)
        if batch.ndim < 2 or (channels != 1 and batch.shape[1] != channels):
            raise ValueError(
                f"Normalize: {channels} channels do not fit images of shape {batch.shape[1:]}"
            )
        shape = (1, channels, *(1,) * (batch.ndim - 2))
        out = pooled_empty(batch.shape, batch.dtype)
        np.subtract(batch, np.asarray(self.mean, batch.dtype).reshape(shape), out=out)
        np.divide(out, np.asarray(self.std, batch.dtype).reshape(shape), out=out)
        return out

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"


class Flatten:
    """A sample of any shape to one dimension (Tensors stay Tensors)."""

    batched = True

    def __call__(self, sample: Any) -> Any:
        flat = np.asarray(to_array(sample)).reshape(-1)
        return to_tensor(flat) if isinstance(sample, Tensor) else flat

    def batch(self, batch: AnyArray) -> AnyArray:
        """As the call, for a batch: [n, ...] becomes [n, elements]."""
        return batch.reshape(len(batch), int(np.prod(batch.shape[1:])))

    def __repr__(self) -> str:
        return "Flatten()"


class Lambda:
    """Any function as a transform.

    Args:
        fn: sample -> sample; with ``batched=True`` it is also called with whole batches.
        batched: promise that ``fn`` of a stacked batch is ``fn`` of each row.
    """

    def __init__(self, fn: Callable[[Any], Any], *, batched: bool = False) -> None:
        if not callable(fn):
            raise TypeError(f"Argument lambd should be callable, got {type(fn).__name__!r}")
        self.fn = fn
        self.batched = batched

    def __call__(self, sample: Any) -> Any:
        return self.fn(sample)

    def __repr__(self) -> str:
        return f"Lambda({getattr(self.fn, '__name__', self.fn)!s})"
