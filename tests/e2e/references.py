"""The assignment's training in float64 numpy: independent truth for the losses."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def losses(
    images: Array, labels: Array, layers: Sequence[tuple[Array, Array]], lr: float, batch: int
) -> Iterator[float]:
    """Mean cross-entropy of each batch before its step, over one epoch in file order.

    ``images`` uint8 ``[n, 28, 28]`` are divided by 256; ``layers`` are float64 (W ``[in, out]``,
    b ``[out]``) with ReLU between them, updated in place by SGD.
    """
    for start in range(0, len(images), batch):
        x = images[start : start + batch].reshape(-1, 784) / 256.0
        y = labels[start : start + batch]
        rows = np.arange(len(y))
        activations = [x]
        for number, (w, b) in enumerate(layers):
            z = activations[-1] @ w + b
            activations.append(np.maximum(z, 0.0) if number + 1 < len(layers) else z)
        logits = activations.pop()
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        yield float(-log_p[rows, y].mean())
        g = np.exp(log_p)
        g[rows, y] -= 1.0
        g /= len(y)
        for number in range(len(layers) - 1, -1, -1):
            (w, b), a = layers[number], activations[number]
            below = (g @ w.T) * (a > 0) if number else g  # the images need no gradient
            w -= lr * (a.T @ g)
            b -= lr * g.sum(axis=0)
            g = below
