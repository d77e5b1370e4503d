"""The models and the training step, written once: ``lib`` is torch or this package."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from _families import FAMILIES, attention_block
from _rows import (
    CONTEXT,
    DEPTH,
    GATES,
    HEADS,
    LAYERS,
    STAGES,
    VOCABULARY,
    WIDTH,
    Row,
    Weights,
    initial,
)

Step = Callable[[Any, Any], Any]


def mlp(lib: Any, *sizes: int, act: str = "ReLU") -> Any:
    """Linear layers with something in between."""
    nn, layers = lib.nn, []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m), getattr(nn, act)()]
    return nn.Sequential(*layers[:-1])


def _lenet(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def _resnet(lib: Any) -> Any:
    nn = lib.nn
    relu = nn.functional.relu

    def conv(n: int, m: int, kernel: int, stride: int = 1) -> Any:
        return nn.Conv2d(n, m, kernel, stride=stride, padding=kernel // 2, bias=False)

    class Block(nn.Module):
        """Two convolutions around a shortcut."""

        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.norm1 = conv(n, m, 3, stride), nn.BatchNorm2d(m)
            self.conv2, self.norm2 = conv(m, m, 3), nn.BatchNorm2d(m)
            self.narrows = stride != 1
            if self.narrows:
                self.conv3, self.norm3 = conv(n, m, 1, stride), nn.BatchNorm2d(m)

        def forward(self, x: Any) -> Any:
            """images[n, c, h, w] -> images[n, m, h / stride, w / stride]."""
            y = relu(self.norm1(self.conv1(x)))
            y = self.norm2(self.conv2(y))
            return relu(y + (self.norm3(self.conv3(x)) if self.narrows else x))

    class Resnet(nn.Module):
        """Stem, blocks, mean over the pixels, classes."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = conv(3, STAGES[0][0], 3), nn.BatchNorm2d(STAGES[0][0])
            self.blocks = nn.Sequential(*[Block(*stage) for stage in STAGES])
            self.head = nn.Linear(STAGES[-1][1], 10)

        def forward(self, x: Any) -> Any:
            """images[n, 3, 32, 32] -> logits[n, 10]."""
            y = self.blocks(relu(self.norm(self.stem(x))))
            return self.head(y.mean(dim=(2, 3)))

    return Resnet()


def _gpt(lib: Any) -> Any:
    nn = lib.nn

    class Gpt(nn.Module):
        """A language model over characters."""

        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(lib.zeros(CONTEXT, WIDTH))
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.Sequential(
                *[attention_block(lib, WIDTH, HEADS, causal=True) for _ in range(LAYERS)]
            )
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, x: Any) -> Any:
            """tokens[n, t] -> logits[n * t, vocabulary]."""
            y = self.blocks(self.token(x) + self.position)
            return self.head(self.norm(y)).reshape(-1, VOCABULARY)

    return Gpt()


def _lstm(lib: Any) -> Any:
    nn = lib.nn

    class Lstm(nn.Module):
        """A language model over characters."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=DEPTH, batch_first=True)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, x: Any) -> Any:
            """tokens[n, t] -> logits[n * t, vocabulary]."""
            return self.head(self.lstm(self.token(x))[0]).reshape(-1, VOCABULARY)

    return Lstm()


def _layer(lib: Any, row: Row) -> Any:
    nn = lib.nn
    inputs, states, _ = row.sizes

    class Alone(nn.Module):
        """Classes by the mean of a recurrent layer's states."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = getattr(nn, row.model)(inputs, states), nn.Linear(states, 10)

        def forward(self, x: Any) -> Any:
            """sequences[t, n, inputs] -> logits[n, 10]."""
            return self.head(self.layer(x)[0].mean(dim=0))

    return Alone()


def _other(name: str, sizes: tuple[int, ...], lib: Any) -> Any:
    return FAMILIES[name](lib, sizes)


def model(lib: Any, row: Row, weights: Weights) -> Any:
    """The row's model with the given parameters.  AttributeError: ``lib`` lacks a layer."""
    build = {"mlp": lambda lib: mlp(lib, *row.sizes), "lenet": _lenet, "resnet": _resnet}
    build["lstm"] = _lstm
    build |= dict.fromkeys(GATES, lambda lib: _layer(lib, row))
    build |= {name: partial(_other, name, row.sizes) for name in FAMILIES}
    made = build.get(row.model, _gpt)(lib)
    named = dict(made.named_parameters())
    if row.model in FAMILIES:
        weights = {name: initial(name, tuple(p.shape)) for name, p in named.items()}
    if set(named) != set(weights):
        raise KeyError(f"parameters differ: {sorted(set(named) ^ set(weights))}")
    with lib.no_grad():
        for name, parameter in named.items():
            parameter.copy_(lib.tensor(weights[name]))
    return made


def parts(lib: Any, row: Row, net: Any) -> tuple[Step, Any]:
    """``loss_of(x, y)`` of a model and its optimizer."""
    optimizer = getattr(lib.optim, row.optimizer)(net.parameters(), **row.options)
    cross_entropy = lib.nn.functional.cross_entropy

    def loss_of(x: Any, y: Any) -> Any:
        return cross_entropy(net(x.float() / row.levels if row.levels else x), y)

    return loss_of, optimizer


def training_step(loss_of: Step, optimizer: Any) -> Step:
    """The step of any PyTorch loop; gradients are dropped behind it, as PyTorch's guides do."""

    def step(x: Any, y: Any) -> Any:
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
