"""Digits drawn as strokes: data to train on where there is neither MNIST nor a network.

Each digit has a few skeletons (pen strokes made of lines, arcs and curves). An image is a skeleton
whose points are moved by a random smooth displacement and a random affine map, splatted onto
the pixel grid, widened by a Gaussian pen, and covered with noise. Everything is vectorised over
the images of a chunk.
"""

from __future__ import annotations

import functools
import itertools
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from minitorch_tvm.utils.data.arrays import aligned_empty
from minitorch_tvm.utils.data.images import ImageDataset, Transform

FloatArray = npt.NDArray[np.float32]
Stroke = list[tuple[float, float]]

SIZE = 28  # pixels
POINTS = 112  # per skeleton: with strokes of 60 pixels at most, neighbours are half a pixel apart
_CHUNK = 1000  # images generated together; part of what a seed means


def _line(*points: tuple[float, float]) -> Stroke:
    return list(points)


def _arc(
    x: float, y: float, rx: float, ry: float, start: float, stop: float, count: int = 24
) -> Stroke:
    """Part of an ellipse around (x, y). Degrees run clockwise on the page, 0 points right."""
    turn = np.radians(np.linspace(start, stop, count))
    return [
        (float(a), float(b))
        for a, b in zip(x + rx * np.cos(turn), y + ry * np.sin(turn), strict=True)
    ]


def _curve(*control: tuple[float, float], count: int = 24) -> Stroke:
    """A quadratic or cubic Bezier curve through its first and last control point."""
    t = np.linspace(0.0, 1.0, count)[:, None]
    points = [np.asarray(point) * np.ones_like(t) for point in control]
    while len(points) > 1:  # de Casteljau's construction
        points = [(1 - t) * a + t * b for a, b in itertools.pairwise(points)]
    return [(float(x), float(y)) for x, y in points[0]]


# Coordinates: x to the right and y down, both in [0, 1] over the digit's box.
_SKELETONS: dict[int, list[list[Stroke]]] = {
    0: [
        [_arc(0.5, 0.5, 0.36, 0.5, -90, 270, 48)],
        [_arc(0.5, 0.5, 0.26, 0.5, -70, 290, 48)],
        [_arc(0.5, 0.52, 0.44, 0.44, -120, 250, 48)],
    ],
    1: [
        [_line((0.5, 0.0), (0.5, 1.0))],
        [_line((0.3, 0.22), (0.54, 0.0), (0.54, 1.0))],
        [_line((0.3, 0.2), (0.52, 0.0), (0.52, 1.0)), _line((0.28, 1.0), (0.76, 1.0))],
    ],
    2: [
        [
            _arc(0.48, 0.27, 0.34, 0.27, -170, 40)
            + _curve((0.74, 0.44), (0.55, 0.72), (0.12, 1.0))
            + _line((0.12, 1.0), (0.9, 1.0))
        ],
        [
            _arc(0.5, 0.26, 0.32, 0.26, -160, 50)
            + _curve((0.71, 0.46), (0.5, 0.7), (0.25, 0.92))
            + _arc(0.25, 0.85, 0.13, 0.1, 90, 330, 14)
            + _curve((0.36, 0.8), (0.6, 1.0), (0.9, 0.94))
        ],
        [_curve((0.12, 0.2), (0.5, -0.2), (1.05, 0.25), (0.15, 0.97)) + _line((0.9, 0.97))],
    ],
    3: [
        [_arc(0.44, 0.25, 0.36, 0.25, -160, 90) + _arc(0.44, 0.75, 0.4, 0.25, -90, 160)],
        [_line((0.14, 0.02), (0.8, 0.02), (0.42, 0.42)) + _arc(0.42, 0.71, 0.38, 0.29, -90, 160)],
        [
            _curve((0.15, 0.1), (0.7, -0.15), (0.95, 0.35), (0.38, 0.46))
            + _curve((0.38, 0.46), (1.05, 0.5), (0.9, 1.1), (0.1, 0.95))
        ],
    ],
    4: [
        [_line((0.62, 0.0), (0.08, 0.66), (0.92, 0.66)), _line((0.66, 0.36), (0.66, 1.0))],
        [
            _line((0.2, 0.0), (0.16, 0.5), (0.8, 0.5)),
            _line((0.78, 0.0), (0.72, 1.0)),
        ],
        [_line((0.68, 1.0), (0.68, 0.0), (0.1, 0.7), (0.95, 0.7))],
        [_curve((0.22, 0.04), (0.0, 0.62), (0.76, 0.48)), _line((0.8, 0.02), (0.7, 1.0))],
    ],
    5: [
        [_line((0.84, 0.0), (0.24, 0.0), (0.2, 0.44)) + _arc(0.44, 0.69, 0.38, 0.31, -130, 150)],
        [
            _line((0.26, 0.04), (0.22, 0.42))
            + _curve((0.22, 0.42), (0.95, 0.3), (0.95, 1.05), (0.14, 0.96)),
            _line((0.26, 0.04), (0.86, 0.0)),
        ],
        [
            _curve((0.85, 0.03), (0.4, 0.0), (0.3, 0.08), (0.25, 0.4))
            + _curve((0.25, 0.4), (0.75, 0.45), (0.95, 0.85), (0.15, 1.0))
        ],
    ],
    6: [
        [
            _curve((0.72, 0.0), (0.1, 0.25), (0.14, 0.7))
            + _arc(0.48, 0.72, 0.34, 0.28, 180, -180, 40)
        ],
        [
            _curve((0.55, 0.0), (0.22, 0.3), (0.2, 0.72))
            + _arc(0.48, 0.74, 0.28, 0.26, 180, -170, 40)
        ],
        [
            _curve((0.8, 0.06), (0.3, 0.0), (0.12, 0.45), (0.16, 0.72))
            + _arc(0.5, 0.75, 0.35, 0.24, 170, -200, 40)
        ],
    ],
    7: [
        [_line((0.1, 0.03), (0.88, 0.03), (0.4, 1.0))],
        [_line((0.12, 0.05), (0.86, 0.05), (0.42, 1.0)), _line((0.3, 0.5), (0.84, 0.5))],
        [
            _line((0.12, 0.18), (0.14, 0.03))
            + _curve((0.14, 0.03), (1.2, -0.05), (0.5, 0.4), (0.46, 1.0))
        ],
    ],
    8: [
        [_arc(0.5, 0.25, 0.29, 0.25, 90, -270, 36) + _arc(0.5, 0.75, 0.35, 0.25, -90, 270, 36)],
        [
            _curve((0.78, 0.14), (0.3, -0.2), (0.05, 0.3), (0.5, 0.48))
            + _curve((0.5, 0.48), (1.05, 0.75), (0.7, 1.1), (0.42, 0.98))
            + _curve((0.42, 0.98), (0.0, 0.9), (0.15, 0.65), (0.5, 0.48))
            + _curve((0.5, 0.48), (0.75, 0.35), (0.85, 0.25), (0.78, 0.14))
        ],
        [_arc(0.5, 0.22, 0.24, 0.22, 80, -280, 36) + _arc(0.48, 0.72, 0.4, 0.28, -80, 280, 36)],
    ],
    9: [
        [_arc(0.48, 0.28, 0.34, 0.28, 0, -360, 40) + _line((0.82, 0.28), (0.74, 1.0))],
        [
            _arc(0.48, 0.28, 0.32, 0.28, -10, -350, 40)
            + _curve((0.8, 0.3), (0.84, 0.85), (0.6, 1.0), (0.25, 0.95))
        ],
        [
            _arc(0.46, 0.26, 0.3, 0.26, -20, -340, 40)
            + _curve((0.78, 0.1), (0.76, 0.6), (0.45, 1.0))
        ],
    ],
}


@functools.cache
def skeletons() -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """All skeletons as points at equal distances, ``[k, POINTS, 2]``, and their digits ``[k]``."""
    digits = [digit for digit, variants in _SKELETONS.items() for _ in variants]
    points = [_spread(strokes) for variants in _SKELETONS.values() for strokes in variants]
    return np.stack(points), np.array(digits)


def _spread(strokes: list[Stroke]) -> FloatArray:
    """POINTS points along the strokes at equal distances; the pen's jumps have no length."""
    parts = [np.asarray(stroke) for stroke in strokes]
    steps = [np.hypot(*np.diff(part, axis=0).T) for part in parts]
    along = np.concatenate([np.concatenate([[0.0], step]) for step in steps]).cumsum()
    where = np.linspace(0.0, along[-1], POINTS)
    x, y = np.concatenate(parts).T
    return np.stack([np.interp(where, along, x), np.interp(where, along, y)], 1).astype(np.float32)


def _draw(rng: np.random.Generator, count: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """``count`` images, float32 ``[count, SIZE, SIZE]`` in [0, 1], and their digits."""
    shapes, digits = skeletons()
    labels = rng.integers(10, size=count)
    # A uniform choice among the variants of each label's digit.
    first = np.searchsorted(digits, labels)
    variants = np.searchsorted(digits, labels, side="right") - first
    which = first + (rng.random(count) * variants).astype(np.int64)

    points = shapes[which] - np.float32(0.5)
    points = points + _displacement(rng, points)
    points = _affine(rng, points)
    ink = _splat(points)
    ink = _pen(rng, ink)
    strength = rng.uniform(0.55, 1.0, (count, 1, 1)).astype(np.float32)
    noise = rng.standard_normal(ink.shape, dtype=np.float32)
    noise *= rng.uniform(0.02, 0.12, (count, 1, 1)).astype(np.float32)
    return np.clip(ink * strength + noise, 0.0, 1.0), labels


def _displacement(rng: np.random.Generator, points: FloatArray) -> FloatArray:
    """An elastic distortion: a few plane waves of low frequency for each image."""
    count, waves = len(points), 3
    direction = rng.uniform(-1.4, 1.4, (count, 2, waves)).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, (count, 1, waves)).astype(np.float32)
    size = (rng.standard_normal((count, waves, 2)) * 0.045).astype(np.float32)
    moved: FloatArray = np.sin(2 * np.pi * (points @ direction) + phase, dtype=np.float32) @ size
    return moved


def _affine(rng: np.random.Generator, points: FloatArray) -> FloatArray:
    """Rotation, slant, both scales and a shift; from digit coordinates to pixels."""
    count = len(points)
    turn = rng.normal(0.0, 0.12, count)
    slant = rng.normal(0.1, 0.15, count)
    width = rng.uniform(12.0, 19.0, count)
    height = rng.uniform(15.0, 21.0, count)
    cos, sin = np.cos(turn), np.sin(turn)
    # rotation @ [[1, -slant], [0, 1]] @ diag(width, height); points are rows, hence transposed
    matrix = np.empty((count, 2, 2))
    matrix[:, 0, 0], matrix[:, 0, 1] = cos * width, sin * width
    matrix[:, 1, 0] = (-cos * slant - sin) * height
    matrix[:, 1, 1] = (-sin * slant + cos) * height
    shift = rng.normal(0.0, 0.8, (count, 1, 2)) + (SIZE - 1) / 2
    return points @ matrix.astype(np.float32) + shift.astype(np.float32)


def _splat(points: FloatArray) -> FloatArray:
    """Share each point among its four pixels, bilinearly: ``[n, POINTS, 2]`` -> ``[n, h, w]``."""
    count = len(points)
    points = np.clip(points, 0.0, SIZE - 1.001)
    corner = points.astype(np.int32)
    x, y = np.moveaxis(points - corner, -1, 0)
    start = corner[..., 1] * SIZE + corner[..., 0]
    start += np.arange(count, dtype=np.int32)[:, None] * (SIZE * SIZE)
    pixels = np.stack([start, start + 1, start + SIZE, start + SIZE + 1])
    shares = np.stack([(1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y])
    total = np.bincount(pixels.ravel(), shares.ravel(), minlength=count * SIZE * SIZE)
    return total.astype(np.float32).reshape(count, SIZE, SIZE)


def _pen(rng: np.random.Generator, ink: FloatArray) -> FloatArray:
    """Blur with a round pen of random width per image, then saturate like ink does."""
    count = len(ink)
    sigma = rng.uniform(0.6, 1.15, (count, 1, 1)).astype(np.float32)
    grid = np.arange(SIZE, dtype=np.float32)
    apart = (grid[:, None] - grid[None, :]) ** 2
    # A Gaussian is a product of two one-dimensional ones, so the blur is two matrix products.
    blur = np.exp(-apart / (2 * sigma**2), dtype=np.float32)
    dense = blur @ ink @ blur
    drawn: FloatArray = 1 - np.exp(-0.9 * dense, dtype=np.float32)
    return drawn


class SyntheticDigits(ImageDataset):
    """Digits drawn as strokes, 28 x 28 uint8, with the interface of ``MNIST``.

    Skeletons of each digit under random affine maps, smooth distortion, pen width, contrast and
    noise. Harder than it looks for a linear model (about 90 %), fit for an MLP and a CNN.
    Image i depends on ``seed``, ``train`` and i alone, so a smaller ``n`` is a prefix of a larger
    one. Bits are equal on one machine and numpy version; another processor's arithmetic may move
    a pixel by one grey level.

    Args:
        train: training or test images; they come from different streams of random numbers.
        n: how many, 60,000 or 10,000 if None.
        seed: any non-negative integer.
        transform, target_transform: as for ``MNIST``.

    Raises:
        ValueError: ``n`` or ``seed`` is negative.

    >>> digits = SyntheticDigits(n=100)
    >>> digits.data.shape, digits.data.dtype.name, digits.targets.dtype.name
    ((100, 28, 28), 'uint8', 'int64')
    """

    classes: ClassVar[list[str]] = [
        f"{number} - {name}"
        for number, name in enumerate(
            ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
        )
    ]

    def __init__(
        self,
        train: bool = True,
        n: int | None = None,
        seed: int = 0,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        total = (60_000 if train else 10_000) if n is None else n
        if total < 0 or seed < 0:
            raise ValueError(f"n and seed must not be negative, but got n={n}, seed={seed}")
        self.train = train
        self.seed = seed
        data = aligned_empty((total, SIZE, SIZE), np.uint8)
        targets = aligned_empty((total,), np.int64)
        for number, start in enumerate(range(0, total, _CHUNK)):
            rng = np.random.Generator(np.random.PCG64([seed, int(train), number]))
            images, labels = _draw(rng, _CHUNK)
            stop = min(start + _CHUNK, total)
            data[start:stop] = (images * 255 + 0.5)[: stop - start]
            targets[start:stop] = labels[: stop - start]
        super().__init__(data, targets, transform, target_transform)
