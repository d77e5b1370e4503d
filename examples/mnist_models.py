"""The three models of ``mnist.py``, and the assignment's exact starting points."""

from __future__ import annotations

import itertools

import numpy as np

import minitorch_tvm as mt
from minitorch_tvm import nn

PIXELS = 28 * 28
CLASSES = 10


def build(name: str, course: bool = False) -> nn.Module:
    """The model ``logreg``, ``mlp`` or ``cnn``: float32 images ``[n, 1, 28, 28]`` -> ``[n, 10]``.

    With ``course`` the parameters of the assignment, which has no ``cnn`` (ValueError); else
    PyTorch's default initialisation from the global seed.
    """
    if name == "logreg":
        model = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, CLASSES))
    elif name == "mlp":
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(PIXELS, 256),
            nn.ReLU(),
            nn.Linear(256, 100),
            nn.ReLU(),
            nn.Linear(100, CLASSES),
        )
    elif name == "cnn":
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, CLASSES),
        )
    else:
        raise ValueError(f"unknown model {name!r}: expected logreg, mlp or cnn")
    if course:
        start = course_start(name)
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        for layer, (weight, bias) in zip(layers, start, strict=True):
            # The assignment multiplies x @ W, Linear multiplies x @ weight.T.
            layer.load_state_dict({"weight": mt.tensor(weight.T), "bias": mt.tensor(bias)})
    return model


def course_start(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The assignment's parameters: float32 (W ``[in, out]``, b ``[out]``) of each layer.

    Logistic regression starts from zeros.  The MLP is drawn from ``RandomState(123)``, normal
    with standard deviation 0.1: first all weights, then all biases.
    """
    if name == "logreg":
        return [(np.zeros((PIXELS, CLASSES), np.float32), np.zeros(CLASSES, np.float32))]
    if name == "mlp":
        sizes = (PIXELS, 256, 100, CLASSES)
        random = np.random.RandomState(123)
        weights = [random.normal(scale=0.1, size=s) for s in itertools.pairwise(sizes)]
        biases = [random.normal(scale=0.1, size=s) for s in sizes[1:]]
        return [
            (w.astype(np.float32), b.astype(np.float32))
            for w, b in zip(weights, biases, strict=True)
        ]
    raise ValueError(f"the assignment has no model {name!r}")
