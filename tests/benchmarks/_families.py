"""Models of other families than the table's, each built of ``lib``'s layers: torch's or ours.

All end in logits of classes.  None drops anything, lest losses differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

Build = Callable[[Any, Sequence[int]], Any]
IMAGE = (3, 32, 32)


def _norm_relu(nn: Any, conv: Any, channels: int) -> list[Any]:
    return [conv, nn.BatchNorm2d(channels), nn.ReLU()]


def _pooled(nn: Any, layers: Sequence[Any], channels: int) -> Any:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(*layers, *head)


def _mobilenet(lib: Any, _: Sequence[int]) -> Any:
    """Depthwise convolutions, then ones of one pixel (Howard et al. 2017)."""
    nn = lib.nn
    layers = _norm_relu(nn, nn.Conv2d(3, 32, 3, padding=1, bias=False), 32)
    for n, m, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        depthwise = nn.Conv2d(n, n, 3, stride=stride, padding=1, groups=n, bias=False)
        layers += _norm_relu(nn, depthwise, n)
        layers += _norm_relu(nn, nn.Conv2d(n, m, 1, bias=False), m)
    return _pooled(nn, layers, 256)


def _resnext(lib: Any, _: Sequence[int]) -> Any:
    """Bottlenecks whose convolution has 16 groups, beside shortcuts (Xie et al. 2017)."""
    nn = lib.nn

    class Block(nn.Module):
        """images[n, c, h, w] -> images[n, m, h / stride, w / stride]."""

        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            width = m // 2
            grouped = nn.Conv2d(width, width, 3, stride, 1, groups=16, bias=False)
            self.layers = nn.Sequential(
                *_norm_relu(nn, nn.Conv2d(n, width, 1, bias=False), width),
                *_norm_relu(nn, grouped, width),
                *(nn.Conv2d(width, m, 1, bias=False), nn.BatchNorm2d(m)),
            )
            self.shortcut = nn.Conv2d(n, m, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.layers(x) + self.shortcut(x))

    stem = _norm_relu(nn, nn.Conv2d(3, 64, 3, padding=1, bias=False), 64)
    return _pooled(nn, [*stem, Block(64, 128, 1), Block(128, 256, 2), Block(256, 256, 1)], 256)


def _vgg(lib: Any, _: Sequence[int]) -> Any:
    """Pairs of convolutions, pooled (Simonyan and Zisserman 2014)."""
    nn, layers = lib.nn, []
    for n, m in itertools.pairwise((3, 32, 64, 128)):
        layers += [nn.Conv2d(n, m, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(m, m, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = (nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(*layers, *head)


def _densenet(lib: Any, _: Sequence[int]) -> Any:
    """Every layer reads all before it (Huang et al. 2017)."""
    nn = lib.nn

    class Grown(nn.Module):
        """images[n, c, h, w] -> images[n, c + growth, h, w]."""

        def __init__(self, channels: int, growth: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(channels)
            self.conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)

        def forward(self, x: Any) -> Any:
            return lib.cat([x, self.conv(nn.functional.relu(self.norm(x)))], 1)

    layers, channels = [nn.Conv2d(3, 24, 3, padding=1)], 24
    for stage in range(3):
        for _ in range(4):
            layers.append(Grown(channels, 12))
            channels += 12
        if stage < 2:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
    return _pooled(nn, layers, channels)


def _unet(lib: Any, _: Sequence[int]) -> Any:
    """Down and up again, beside shortcuts (Ronneberger et al. 2015), with GroupNorm and SiLU."""
    nn = lib.nn

    def block(n: int, m: int) -> Any:
        layers = []
        for channels in (n, m):
            layers += [nn.Conv2d(channels, m, 3, padding=1), nn.GroupNorm(4, m), nn.SiLU()]
        return nn.Sequential(*layers)

    class Unet(nn.Module):
        """images[n, 3, h, w] -> images[n, 16, h, w]."""

        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.down3 = block(3, 16), block(16, 32), block(32, 64)
            self.wider2, self.wider1 = (nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (32, 16))
            self.up2, self.up1 = block(64, 32), block(32, 16)
            self.pool = nn.MaxPool2d(2)

        def forward(self, x: Any) -> Any:
            a = self.down1(x)
            b = self.down2(self.pool(a))
            y = self.wider2(self.down3(self.pool(b)))
            y = self.wider1(self.up2(lib.cat([y, b], 1)))
            return self.up1(lib.cat([y, a], 1))

    return _pooled(nn, [Unet()], 16)


def attention_block(lib: Any, width: int, heads: int, *, causal: bool) -> Any:
    """Attention and a perceptron, each behind a norm and beside a shortcut."""
    nn = lib.nn

    class Block(nn.Module):
        """states[n, t, c] -> states[n, t, c]."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.gelu = nn.GELU()

        def forward(self, x: Any) -> Any:
            n, t, c = x.shape
            q, k, v = (
                part.reshape(n, t, heads, c // heads).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(c, dim=2)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, t, c))
            return x + self.down(self.gelu(self.up(self.norm2(x))))

    return Block()


def _of_patches(lib: Any, block: Callable[[], Any]) -> Any:
    """Four blocks over the 64 patches of 4 x 4 pixels that an image has."""
    nn = lib.nn

    class Patches(nn.Module):
        """images[n, 3, 32, 32] -> logits[n, 10]."""

        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 128, 4, 4)
            self.blocks = nn.Sequential(*[block() for _ in range(4)])
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(dim=1))

    return Patches()


def _vit(lib: Any, _: Sequence[int]) -> Any:
    """A transformer over patches (Dosovitskiy et al. 2020)."""
    return _of_patches(lib, lambda: attention_block(lib, 128, 4, causal=False))


def _mixer(lib: Any, _: Sequence[int]) -> Any:
    """Perceptrons over patches and over channels in turns (Tolstikhin et al. 2021)."""
    nn = lib.nn

    def mlp(width: int, hidden: int) -> Any:
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    class Mixed(nn.Module):
        """states[n, 64, 128] -> states[n, 64, 128]."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)
            self.across, self.along = mlp(64, 128), mlp(128, 512)

        def forward(self, x: Any) -> Any:
            x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.along(self.norm2(x))

    return _of_patches(lib, Mixed)


def _gpt(lib: Any, sizes: Sequence[int]) -> Any:
    """Causal attention over many positions, two layers of width 128, four heads."""
    nn, (vocabulary, context) = lib.nn, sizes

    class Gpt(nn.Module):
        """tokens[n, t] -> logits[n * t, vocabulary]."""

        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(vocabulary, 128), nn.Embedding(context, 128)
            self.blocks = nn.Sequential(
                *[attention_block(lib, 128, 4, causal=True) for _ in range(2)]
            )
            self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, vocabulary, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.token(x) + self.position(lib.arange(context))
            return self.head(self.norm(self.blocks(y))).reshape(-1, vocabulary)

    return Gpt()


def _encoder(lib: Any, sizes: Sequence[int]) -> Any:
    """The library's own transformer encoder, two layers of width 128."""
    nn = lib.nn

    class Encoder(nn.Module):
        """tokens[n, t] -> logits[n, 10]."""

        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
            self.token, self.head = nn.Embedding(sizes[0], 128), nn.Linear(128, 10)
            self.layers = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.token(x)).mean(dim=1))

    return Encoder()


def _textcnn(lib: Any, sizes: Sequence[int]) -> Any:
    """Convolutions over words, pooled over time (Kim 2014)."""
    nn = lib.nn

    class Textcnn(nn.Module):
        """tokens[n, t] -> logits[n, 10]."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(sizes[0], 128)
            self.convs = nn.ModuleList([nn.Conv1d(128, 100, k) for k in (3, 4, 5)])
            self.head = nn.Linear(300, 10)

        def forward(self, x: Any) -> Any:
            y = self.token(x).transpose(1, 2)
            pooled = [nn.functional.relu(conv(y)).max(2).values for conv in self.convs]
            return self.head(lib.cat(pooled, 1))

    return Textcnn()


FAMILIES: dict[str, Build] = {
    "mobilenet": _mobilenet,
    "resnext": _resnext,
    "vgg": _vgg,
    "densenet": _densenet,
    "unet": _unet,
    "vit": _vit,
    "mixer": _mixer,
    "encoder": _encoder,
    "textcnn": _textcnn,
    "long gpt": _gpt,
}
