"""The models of the comparison: sizes, initial weights and batches, from numpy alone.

Every framework reads the same weights (named as PyTorch names them, in PyTorch's layouts) and is
handed the same batches as numpy arrays.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Weights = dict[str, Array]
Batch = tuple[Array, Array]


@dataclass(frozen=True)
class Row:
    """One line of the table: a model, its batch size and how it is trained.

    ``sizes`` are the widths of an mlp, or inputs, states and steps of a recurrent layer;
    ``tolerance`` bounds the relative difference of the losses of the first steps from those of
    torch eager; ``gain`` multiplies the initial weights; inputs are bytes that a step divides by
    ``levels``, unless that is 0.
    """

    name: str
    model: str  # mlp, lenet, resnet, gpt, lstm, RNN, GRU, LSTM (a layer alone), another family
    batch: int
    optimizer: str = "SGD"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    sizes: tuple[int, ...] = ()
    tolerance: float = 1e-3
    gain: float = 1.0
    levels: int = 0

    @property
    def options(self) -> dict[str, float]:
        """Keyword arguments of the optimizer."""
        found = {"lr": self.lr}
        if self.momentum:
            found["momentum"] = self.momentum
        if self.weight_decay or self.optimizer == "AdamW":
            found["weight_decay"] = self.weight_decay
        return found


MLP = (784, 256, 100, 10)
ROWS = {
    row.name: row
    for row in (
        Row("logreg", "mlp", 1000, sizes=(784, 10), lr=0.01),
        Row("mlp-32", "mlp", 32, sizes=MLP, lr=0.01),
        Row("mlp-100", "mlp", 100, sizes=MLP, lr=0.01),
        Row("mlp-1000", "mlp", 1000, sizes=MLP, lr=0.01),
        Row("mlp-wide", "mlp", 256, "Adam", sizes=(784, 1024, 1024, 10), lr=1e-4),
        Row("lenet", "lenet", 64, lr=0.01, momentum=0.9),
        Row("resnet", "resnet", 32, lr=0.01, momentum=0.9, weight_decay=5e-4),
        Row("gpt", "gpt", 16, "AdamW", lr=3e-4, weight_decay=0.1),
        Row("lstm", "lstm", 32, "Adam", lr=1e-3),
    )
}
_DECADES = (1, 10, 100, 1000)
SCALED = {
    row.name: row
    for n in _DECADES
    for row in (
        Row(f"batch-{n}", "mlp", n, sizes=MLP, lr=0.01),
        Row(f"width-{4 * n}", "mlp", 100, sizes=(784, 4 * n, 4 * n, 10), lr=1e-3),
        # He's initialisation, lest gradients become denormal numbers: with those, processors are
        # slow.
        Row(f"depth-{n}", "mlp", 64, sizes=(784, *(64,) * n, 10), lr=1e-3, gain=6**0.5),
    )
}
"""An mlp that grows in one direction over three decades, by batch, width and depth."""
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LAYERS_ALONE = {
    row.name: row
    for h, n, steps in ((128, 20, 35), (256, 32, 50), (512, 64, 30), (256, 1, 100))
    for kind in GATES
    for row in (Row(f"{kind}-{h}-{n}-{steps}", kind, n, sizes=(h, h, steps), lr=0.01),)
}
"""Recurrent layers, by the size of the state, the batch and the length."""
OTHERS = {
    row.name: row
    for row in (
        Row("mobilenet", "mobilenet", 32, lr=0.01, momentum=0.9),
        Row("resnext", "resnext", 32, lr=0.01, momentum=0.9),
        Row("vgg", "vgg", 32, lr=0.01, momentum=0.9),
        Row("densenet", "densenet", 32, lr=0.01, momentum=0.9),
        Row("unet", "unet", 32, "Adam", lr=1e-4),
        Row("vit", "vit", 32, "AdamW", lr=1e-4),
        Row("mixer", "mixer", 32, "AdamW", lr=1e-4),
        Row("encoder", "encoder", 16, "AdamW", lr=1e-4, sizes=(1000, 128)),
        Row("textcnn", "textcnn", 64, "Adam", lr=1e-4, sizes=(20000, 100)),
        Row("gpt-512", "long gpt", 8, "AdamW", lr=1e-4, sizes=(65, 512)),
        Row("gpt-1024", "long gpt", 4, "AdamW", lr=1e-4, sizes=(65, 1024)),
        Row("gpt-4096", "long gpt", 1, "AdamW", lr=1e-4, sizes=(65, 4096)),
    )
}
"""Models of other families; ``sizes`` are the vocabulary and how many tokens there are."""
EDITS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("mlp-32", "a batch of 24", {"batch": 24}),
    ("mlp-32", "a layer more", {"sizes": (784, 256, 100, 100, 10)}),
    ("mlp-32", "momentum", {"momentum": 0.9}),
    ("lenet", "a batch of 48", {"batch": 48}),
    ("lenet", "Adam", {"optimizer": "Adam", "momentum": 0.0, "lr": 1e-3}),
    ("resnet", "a batch of 20", {"batch": 20}),
    ("resnet", "no weight decay", {"weight_decay": 0.0}),
    ("gpt", "a batch of 12", {"batch": 12}),
    ("gpt", "SGD", {"optimizer": "SGD", "lr": 0.1, "weight_decay": 0.0}),
)
EDITED = {
    f"{row}: {edit}": (row, replace(ROWS[row], name=f"{row}: {edit}", **changes))
    for row, edit, changes in EDITS
}
"""What somebody changes in a row, and then runs it again: the row, and what becomes of it."""
TRAINED = ROWS | LAYERS_ALONE | OTHERS | {name: row for name, (_, row) in EDITED.items()}
COURSE = Row("course", "mlp", 1000, sizes=MLP, lr=1.0, levels=256)
INFERENCE = ("mlp-100", "lenet", "gpt", *OTHERS)

STAGES = ((16, 16, 1), (16, 32, 2), (32, 64, 2))
"""Basic blocks of the resnet: channels in, channels out, stride."""
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 65, 64, 128, 4, 4
DEPTH = 2
"""Layers of the lstm."""


def _shapes(row: Row) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter; a bias follows its weight."""

    def with_bias(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]

    if row.model == "mlp":
        for i, (n, m) in enumerate(itertools.pairwise(row.sizes)):
            yield from with_bias(f"{2 * i}", m, n)
    elif row.model == "lenet":
        yield from with_bias("0", 32, 1, 5, 5)
        yield from with_bias("3", 64, 32, 5, 5)
        yield from with_bias("7", 512, 3136)
        yield from with_bias("9", 10, 512)
    elif row.model == "resnet":
        yield "stem.weight", (16, 3, 3, 3)
        yield from with_bias("norm", 16)
        for i, (n, m, stride) in enumerate(STAGES):
            yield f"blocks.{i}.conv1.weight", (m, n, 3, 3)
            yield from with_bias(f"blocks.{i}.norm1", m)
            yield f"blocks.{i}.conv2.weight", (m, m, 3, 3)
            yield from with_bias(f"blocks.{i}.norm2", m)
            if stride != 1:
                yield f"blocks.{i}.conv3.weight", (m, n, 1, 1)
                yield from with_bias(f"blocks.{i}.norm3", m)
        yield from with_bias("head", 10, STAGES[-1][1])
    elif row.model == "lstm":
        yield "token.weight", (VOCABULARY, WIDTH)
        for i in range(DEPTH):
            for part in ("ih", "hh"):
                yield f"lstm.weight_{part}_l{i}", (4 * WIDTH, WIDTH)
                yield f"lstm.bias_{part}_l{i}", (4 * WIDTH,)
        yield from with_bias("head", VOCABULARY, WIDTH)
    elif row.model in GATES:
        inputs, states, _ = row.sizes
        for part, n in (("ih", inputs), ("hh", states)):
            yield f"layer.weight_{part}_l0", (GATES[row.model] * states, n)
            yield f"layer.bias_{part}_l0", (GATES[row.model] * states,)
        yield from with_bias("head", 10, states)
    else:
        yield "position", (CONTEXT, WIDTH)
        yield "token.weight", (VOCABULARY, WIDTH)
        for i in range(LAYERS):
            yield from with_bias(f"blocks.{i}.norm1", WIDTH)
            yield from with_bias(f"blocks.{i}.qkv", 3 * WIDTH, WIDTH)
            yield from with_bias(f"blocks.{i}.out", WIDTH, WIDTH)
            yield from with_bias(f"blocks.{i}.norm2", WIDTH)
            yield from with_bias(f"blocks.{i}.up", 4 * WIDTH, WIDTH)
            yield from with_bias(f"blocks.{i}.down", WIDTH, 4 * WIDTH)
        yield from with_bias("norm", WIDTH)
        yield "head.weight", (VOCABULARY, WIDTH)


def initial(name: str, shape: tuple[int, ...]) -> Array:
    """A parameter of another family's model: the same for every library that has its name."""
    if len(shape) == 1:
        return np.full(shape, float(name.endswith("weight")), np.float32)  # norms, biases
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    value = rng.uniform(-1, 1, shape) / np.sqrt(np.prod(shape[1:]))
    return value.astype(np.float32)


def weights(row: Row) -> Weights:
    """Initial parameters: uniform within 1/sqrt(fan in), norms 1 and 0, embeddings normal.

    None of the other families' models, whose parameters are known once they are built.
    """
    if row.name in OTHERS:
        return {}
    rng = np.random.default_rng(1)
    made: Weights = {}
    for name, shape in _shapes(row):
        if name in ("position", "token.weight"):
            value = rng.normal(scale=0.02, size=shape)
        elif "norm" in name:
            value = np.full(shape, float(name.endswith("weight")))
        else:
            source = made[name.replace("bias", "weight")] if "bias" in name else None
            fan_in = np.prod(shape[1:] if source is None else source.shape[1:])
            value = rng.uniform(-row.gain, row.gain, shape) / np.sqrt(fan_in)
        made[name] = value.astype(np.float32)
    return made


def aligned(array: Array) -> Array:
    """A copy at a 64-byte boundary.

    numpy's own memory is only 16-byte aligned, and both JAX and this package copy such arrays.
    """
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def batches(row: Row, count: int = 8, size: int | None = None) -> list[Batch]:
    """``count`` batches of ``size`` (default: the row's) learnable samples and their classes.

    Images, and the steps of a sequence, are a picture per class plus noise; texts are noisy walks
    through the vocabulary, whose targets are the next tokens, flattened.
    """
    rng = np.random.default_rng(2)
    size = size or row.batch
    if row.model in ("gpt", "lstm") or (row.name in OTHERS and row.sizes):
        vocabulary, context = row.sizes or (VOCABULARY, CONTEXT)
        step = rng.integers(1, 5, (count, size, context + 1)).cumsum(axis=2) % vocabulary
        if row.model in ("encoder", "textcnn"):
            return [(aligned(t[:, :-1]), aligned(t[:, 0] % 10)) for t in step]
        return [(aligned(t[:, :-1]), aligned(t[:, 1:].reshape(-1))) for t in step]
    shapes = {"mlp": (784,), "lenet": (1, 28, 28)}
    shape = row.sizes[:1] if row.model in GATES else shapes.get(row.model, (3, 32, 32))
    steps = row.sizes[2:] if row.model in GATES else ()
    pictures = rng.uniform(size=(10, *shape))
    made = []
    for _ in range(count):
        y = rng.integers(0, 10, size)
        x = 0.5 * pictures[y] + 0.5 * rng.uniform(size=(*steps, size, *shape))
        made.append((aligned(x.astype(np.float32)), aligned(y)))
    return made
