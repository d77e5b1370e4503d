"""Single kernels: what is computed, on which shapes, and how much work that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _rows import Array, aligned


@dataclass(frozen=True)
class Case:
    """One kernel.  ``flops`` is 0 where memory is the only limit that matters."""

    kind: str
    name: str
    shapes: tuple[tuple[int, ...], ...]
    nbytes: int  # inputs read once plus the result written once
    flops: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def arrays(self) -> list[Array]:
        """The operands, the same in every process."""
        rng = np.random.default_rng(0)
        made: list[Array] = [rng.uniform(-0.5, 0.5, s).astype(np.float32) for s in self.shapes]
        if self.kind == "gather":
            made[0] = rng.integers(0, self.shapes[1][0], self.shapes[0])
        return [aligned(a) for a in made]


_PRODUCTS = (
    *((1, 1, 1), (1, 10, 100), (1, 256, 784), (1, 1024, 1024), (1, 4096, 4096), (4096, 1, 4096)),
    *((10, 10, 10), (16, 16, 16), (32, 100, 256), (32, 256, 784), (33, 65, 129), (64, 64, 64)),
    *((100, 256, 784), (127, 127, 127), (128, 128, 128), (255, 255, 255), (256, 256, 256)),
    *((257, 257, 257), (1000, 10, 784), (1000, 100, 256), (1000, 256, 784), (256, 784, 1000)),
    *((256, 1024, 1024), (1024, 384, 128), (500, 1000, 700), (1023, 1025, 1021)),
    *((1024, 1024, 1024), (16, 4096, 4096), (4096, 4096, 16), (4096, 4096, 4096)),
)
COURSE_PRODUCTS = ((1000, 256, 784), (500, 1000, 700), (1024, 1024, 1024), (256, 256, 256))

# batch, channels in, height and width, channels out, kernel, stride, padding
_CONVOLUTIONS = (
    *((64, 1, 28, 32, 5, 1, 2), (64, 32, 14, 64, 5, 1, 2)),  # lenet
    *((1, 1, 28, 32, 5, 1, 2), (1, 32, 14, 64, 5, 1, 2)),
    *((32, 3, 32, 16, 3, 1, 1), (32, 16, 32, 16, 3, 1, 1), (32, 16, 32, 32, 3, 2, 1)),  # resnet
    *((32, 32, 16, 32, 3, 1, 1), (32, 16, 32, 32, 1, 2, 0), (32, 32, 16, 64, 3, 2, 1)),
    *((32, 64, 8, 64, 3, 1, 1), (32, 32, 16, 64, 1, 2, 0)),
    *((8, 64, 56, 64, 3, 1, 1), (8, 64, 56, 64, 1, 1, 0), (8, 128, 28, 128, 3, 1, 1)),
    *((8, 256, 14, 256, 3, 1, 1), (4, 3, 112, 64, 7, 2, 3), (16, 8, 31, 24, 3, 1, 1)),
    *((2, 512, 7, 512, 3, 1, 1), (1, 64, 56, 64, 3, 1, 1)),
)
# The same, and groups.
_GROUPED = (
    *((32, 32, 32, 32, 3, 1, 1, 32), (32, 64, 32, 64, 3, 2, 1, 64), (1, 96, 56, 96, 3, 1, 1, 96)),
    *((32, 256, 8, 256, 3, 1, 1, 256), (8, 96, 56, 96, 7, 1, 3, 96)),
    *((8, 144, 28, 144, 5, 1, 2, 144), (32, 128, 16, 128, 3, 1, 1, 32)),
    *((8, 256, 28, 256, 3, 1, 1, 32), (16, 128, 16, 128, 3, 1, 1, 2)),
    (16, 240, 14, 240, 1, 1, 0, 3),
)


# batch, heads, positions, width of a head
_ATTENTION = ((16, 4, 64, 32), (4, 4, 256, 64), (1, 8, 1024, 64), (1, 4, 2048, 64))


def product(m: int, n: int, k: int, form: str) -> Case:
    """A product of m x k and k x n; a T in ``form`` means that the operand is stored transposed."""
    a = (k, m) if form[0] == "T" else (m, k)
    b = (n, k) if form[1] == "T" else (k, n)
    nbytes = 4 * (m * k + k * n + m * n)
    return Case(
        "matmul", f"matmul-{m}x{n}x{k}-{form}", (a, b), nbytes, 2 * m * n * k, {"form": form}
    )


def _convolutions() -> Iterator[Case]:
    for n, c, size, o, k, stride, padding, groups in (*((*s, 1) for s in _CONVOLUTIONS), *_GROUPED):
        out = (size + 2 * padding - k) // stride + 1
        x, w, y = (n, c, size, size), (o, c // groups, k, k), (n, o, out, out)
        flops = 2 * math.prod(y) * math.prod(w[1:])
        nbytes = 4 * sum(map(math.prod, (x, w, y)))
        options = {"stride": stride, "padding": padding, "groups": groups}
        name = f"{n}x{c}x{size}-{o}-{k}s{stride}"
        before, behind = ("grouped-", f"-{groups}") if groups > 1 else ("", "")
        for kind in ("conv", "conv-input", "conv-weight"):
            shapes = (x, w) if kind == "conv" else (x, w, y)
            yield Case(kind, f"{before}{kind}-{name}{behind}", shapes, nbytes, flops, options)


def _attention() -> Iterator[Case]:
    """Causal attention, and its three gradients together: of products, half the terms count."""
    for shape in _ATTENTION:
        one, name = 4 * math.prod(shape), "x".join(map(str, shape))
        flops = 2 * math.prod(shape) * shape[2] // 2
        yield Case("attention", f"attention-{name}", (shape,) * 3, 4 * one, 2 * flops)
        yield Case("attention-grad", f"attention-grad-{name}", (shape,) * 4, 7 * one, 6 * flops)


def _memory(kind: str, name: str, inputs: tuple[tuple[int, ...], ...], out: int, **o: Any) -> Case:
    nbytes = 4 * (sum(map(math.prod, inputs)) + out)
    return Case(kind, f"{kind}-{name}", inputs, nbytes, 0, o)


def _rest() -> Iterator[Case]:
    for shape in ((1000, 10), (4096, 64), (1024, 1024), (4096, 4096)):
        size, name = math.prod(shape), "x".join(map(str, shape))
        yield _memory("softmax", name, (shape,), size)
        yield _memory("norm", name, (shape, shape[1:], shape[1:]), size)
    for shape in ((1000, 784), (4096, 4096), (64, 128, 128)):
        for axis in range(len(shape)):
            out = math.prod(shape) // shape[axis]
            for kind in ("sum", "max"):
                name = f"{'x'.join(map(str, shape))}-axis{axis}"
                yield _memory(kind, name, (shape,), out, axis=axis)
        yield _memory("sum", f"{'x'.join(map(str, shape))}-all", (shape,), 1, axis=None)
    for shape, axes in (
        ((256, 784), (1, 0)),
        ((4096, 4096), (1, 0)),
        ((32, 64, 28, 28), (0, 2, 3, 1)),
        ((16, 64, 4, 32), (0, 2, 1, 3)),
    ):
        name = f"{'x'.join(map(str, shape))}-{''.join(map(str, axes))}"
        yield _memory("transpose", name, (shape,), math.prod(shape), axes=axes)
    for rows, width, count in ((65, 128, 1024), (60000, 784, 1000)):
        nbytes = count * (8 + 2 * 4 * width)
        shapes = ((count,), (rows, width))
        yield Case("gather", f"gather-{count}-of-{rows}x{width}", shapes, nbytes)
    for chain, inputs in (("add", 2), ("relu-fma", 3), ("tanh-gate", 2), ("exp", 1), ("gelu", 1)):
        for size in (10_000, 250_000, 16_000_000):
            yield _memory("chain", f"{chain}-{size}", ((size,),) * inputs, size, chain=chain)


def cases() -> dict[str, Case]:
    """All of them by name."""
    products = (product(*p, f) for p in _PRODUCTS for f in ("NN", "NT", "TN", "TT"))
    return {c.name: c for c in (*products, *_convolutions(), *_attention(), *_rest())}


def course_products() -> dict[str, Case]:
    """Four products, each operand as it is and transposed."""
    made = (product(*p, f) for p in COURSE_PRODUCTS for f in ("NN", "NT", "TN", "TT"))
    return {c.name: c for c in made}


def find(name: str) -> Case:
    """A case by its name."""
    return (cases() | course_products())[name]


_CHAINS: dict[str, Callable[..., Any]] = {
    "add": lambda lib, a, b: a + b,
    "relu-fma": lambda lib, a, b, c: (a * b + c).relu(),
    "tanh-gate": lambda lib, a, b: a.tanh() * b + a,
    "exp": lambda lib, a: a.exp(),
    "gelu": lambda lib, a: lib.nn.functional.gelu(a),
}


def _attend(lib: Any, q: Any, k: Any, v: Any) -> Any:
    return lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _attend_and_back(lib: Any, q: Any, k: Any, v: Any, g: Any) -> Any:
    """One array of the gradients, which all have to be computed."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    return lib.stack(lib.autograd.grad(_attend(lib, *inputs), inputs, g))


def expression(case: Case) -> Callable[..., Any]:
    """``compute(lib, *tensors)``, the same text for torch and this package."""
    o = case.options
    made: dict[str, Callable[..., Any]] = {
        "conv": lambda lib, x, w: lib.nn.functional.conv2d(x, w, **o),
        "attention": _attend,
        "attention-grad": _attend_and_back,
        "softmax": lambda lib, x: lib.nn.functional.softmax(x, dim=-1),
        "norm": lambda lib, x, w, b: lib.nn.functional.layer_norm(x, x.shape[-1:], w, b),
        "sum": lambda lib, x: x.sum(o["axis"]),
        "max": lambda lib, x: x.amax(o["axis"]),
        "transpose": lambda lib, x: x.permute(*o["axes"]).contiguous(),
        "gather": lambda lib, index, table: lib.nn.functional.embedding(index, table),
        "chain": lambda lib, *x: _CHAINS[o["chain"]](lib, *x),
    }
    return made[case.kind]
