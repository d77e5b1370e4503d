"""Training ends with the same bits whatever made and ran its programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes import copy_package, finish, start

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import api
from minitorch_tvm.compiler.schedule.cpu import gemm_tiling
from minitorch_tvm.core import config

PROGRAM = """
import hashlib, sys
import numpy as np
import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

nn, F = mt.nn, mt.nn.functional
steps, compiled, pool = 6, sys.argv[1] == "compiled", int(sys.argv[2])
mt.set_num_threads(pool)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        parts = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (p.reshape(n, t, self.heads, c // self.heads).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def conv(n, m, stride=1):
    return nn.Conv2d(n, m, 3, stride=stride, padding=1, bias=False)


data = np.random.default_rng(0)
images = lambda *shape: data.standard_normal(shape).astype(np.float32)
classes = lambda n, k: data.integers(0, k, n)
sgd = lambda p: mt.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3)
adam = lambda p: mt.optim.AdamW(p, lr=1e-3)
mt.manual_seed(0)
ROWS = {
    "logreg": (nn.Linear(784, 10), sgd, images(1000, 784), classes(1000, 10)),
    "mlp": (
        nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)),
        sgd, images(32, 784), classes(32, 10),
    ),
    "conv": (
        nn.Sequential(
            conv(3, 24), nn.BatchNorm2d(24), nn.ReLU(), conv(24, 24), nn.ReLU(), conv(24, 40, 2),
            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(640, 10),
        ),
        sgd, images(8, 3, 16, 16), classes(8, 10),
    ),
    "transformer": (
        nn.Sequential(nn.Embedding(65, 32), Block(32, 4), nn.Linear(32, 65), nn.Flatten(0, 1)),
        adam, classes((8, 24), 65), classes(192, 65),
    ),
}
for name, (model, optimizer_of, x, y) in ROWS.items():
    mt.manual_seed(1)
    optimizer = optimizer_of(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = mt.compile(step) if compiled else step
    for _ in range(steps):
        loss = run(mt.from_numpy(x), mt.from_numpy(y))
    assert np.isfinite(loss.item())
    state = b"".join(t.numpy().tobytes() for t in model.state_dict().values())
    print(name, hashlib.sha256(state).hexdigest())
events = EVENTS.snapshot()
print([events.get(k, 0) > 0 for k in ("compiles", "disk_hits", "captured_calls")], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, beside a program that trains with it."""
    return copy_package(tmp_path_factory.mktemp("copy"), PROGRAM)


def _bits(copy: Path, folder: Path, threads: int, loop: str, pool: int) -> tuple[str, str]:
    """The digests of the weights, and what the process did for them."""
    count = {f"{name}_NUM_THREADS": str(threads) for name in ("MTVM", "TVM")}
    process = start(copy / "program.py", loop, str(pool), MTVM_CACHE_DIR=str(folder), **count)
    bits, did = finish(process)
    return bits, did.strip()


def test_threads_cache_and_capture_change_no_bit(copy: Path, tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    # compiled something, found something on disk, ran captured steps
    first, did = _bits(copy, two, 2, "plain", 2)
    assert did == "[True, False, False]"
    assert len(set(first.split())) == 8
    for folder, threads, loop, pool, expected in (
        (two, 2, "plain", 2, "[False, True, False]"),
        (two, 2, "plain", 1, "[False, True, False]"),  # a program for two threads, run by one
        (two, 2, "compiled", 2, "[False, True, True]"),
        (one, 1, "compiled", 1, "[True, False, True]"),
        (one, 1, "plain", 1, "[False, True, False]"),
    ):
        bits, did = _bits(copy, folder, threads, loop, pool)
        assert did == expected
        assert bits == first, (threads, loop, pool)


EPILOGUES = {
    "sum of products": lambda y, m: m * 0.9 + y * 0.1,
    "turned round": lambda y, m: y * 0.1 + m * 0.9,
    "difference of products": lambda y, m: m * 0.9 - y * 0.1,
    "by a negative number": lambda y, m: m * 0.9 - y * -0.1,
    "of squares": lambda y, m: y * y + m * m,
    "product used twice": lambda y, m: (m * 0.9 + y * 0.1) * (y * 0.1),
    "three": lambda y, m: m * 0.9 + y * 0.1 + m * y,
}


def test_adam_behind_a_product_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight of which 85 columns leave an element behind vectors of 16 and of 4."""
    found = []
    for workers in (1, 2, 3):
        monkeypatch.setattr(api, "usable_cores", lambda workers=workers: workers)
        lazy.clear_cache()
        gemm_tiling.forget()
        rng = np.random.default_rng(0)
        mt.manual_seed(0)
        with config.override(cache_dir=None):
            layer = mt.nn.Linear(85, 300, bias=False)
            optimizer = mt.optim.Adam(layer.parameters(), lr=1e-3)
            x, t = (mt.tensor(rng.standard_normal((50, n)).astype(np.float32)) for n in (85, 300))
            for _ in range(3):
                optimizer.zero_grad()
                ((layer(x) - t) ** 2).mean().backward()
                optimizer.step()
            found.append(layer.weight.detach().numpy().tobytes())
    lazy.clear_cache()
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for number, name in enumerate(EPILOGUES)
        for shape in ((300, 85, 50), ((70, 707, 131), (129, 31, 260))[number % 2])
    ],
)
def test_what_is_done_behind_a_product_does_not_depend_on_threads(
    name: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads have a say in tiles, hence in which elements are left for shorter vectors: whatever
    LLVM does to an element there, it must do to all."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((k, m), (k, n), (m, n)))
    found = []
    for workers in (1, 2, 3) if n == 85 else (1, 3):
        monkeypatch.setattr(api, "usable_cores", lambda workers=workers: workers)
        lazy.clear_cache()
        gemm_tiling.forget()
        with config.override(cache_dir=None):
            x, y, z = map(mt.from_numpy, (a, b, c))
            found.append(EPILOGUES[name](x.T @ y, z).numpy().copy())
    lazy.clear_cache()
    product = a.T.astype("f8") @ b
    expected = EPILOGUES[name](product, c.astype("f8"))
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-2)
    assert len({values.tobytes() for values in found}) == 1
