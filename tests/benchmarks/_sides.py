"""One side of a comparison, run in a process of its own: `python _sides.py SIDE ...`.

A side prints one JSON line per request read from standard input, so that the caller can take turns
between sides (A B A B) while each keeps its own libraries and threads.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable

import numpy as np


def course_data(folder: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The assignment's batches: 50 of 1000 images in file order, pixels over 256."""
    from minitorch_tvm.utils.data.idx import read_idx  # reads files only

    images = read_idx(f"{folder}/train-images-idx3-ubyte.gz")[:50000].reshape(-1, 784)
    labels = read_idx(f"{folder}/train-labels-idx1-ubyte.gz")[:50000].astype(np.int64)
    # As a DataLoader of this package hands them over: at 64-byte boundaries (numpy's own memory is
    # only 16-byte aligned, and unaligned batches are copied before kernels see them).
    x = aligned(images.size, "float32").reshape(images.shape)
    np.divide(images, 256, out=x, dtype=np.float32)
    y = aligned(labels.size, "int64")
    y[:] = labels
    return np.split(x, 50), np.split(y, 50)


def aligned(count: int, dtype: str) -> np.ndarray:
    """Uninitialised memory at a 64-byte boundary."""
    raw = np.empty(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + raw.nbytes - 64].view(dtype)


def course_weights() -> list[np.ndarray]:
    """W1 W2 W3 b1 b2 b3 as the assignment draws them."""
    rng = np.random.RandomState(123)
    shapes = [(784, 256), (256, 100), (100, 10), (256,), (100,), (10,)]
    return [rng.normal(scale=0.1, size=s).astype(np.float32) for s in shapes]


def ours_epoch(folder: str, schedule: str) -> Callable[[int], float]:
    """``run(steps)``: that many steps; returns the last loss."""
    os.environ["MTVM_SCHEDULE"] = schedule  # read when the package is imported
    import minitorch_tvm as mt

    xs, ys = course_data(folder)
    weights = course_weights()
    nn = mt.nn
    model = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    with mt.no_grad():
        for i, layer in enumerate((0, 2, 4)):
            model[layer].weight.copy_(mt.tensor(weights[i].T.copy()))
            model[layer].bias.copy_(mt.tensor(weights[3 + i]))
    mt.eval(*model.parameters())
    optimizer = mt.optim.SGD(model.parameters(), lr=1.0)

    def run(steps: int) -> float:
        loss = None
        for i in range(steps):
            x, y = mt.from_numpy(xs[i % 50]), mt.from_numpy(ys[i % 50])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    return run


def torch_epoch(folder: str) -> Callable[[int], float]:
    """The same loop in torch eager."""
    import torch
    from torch import nn

    torch.set_num_threads(2)
    xs, ys = course_data(folder)
    weights = course_weights()
    model = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    with torch.no_grad():
        for i, layer in enumerate((0, 2, 4)):
            model[layer].weight.copy_(torch.from_numpy(weights[i].T.copy()))
            model[layer].bias.copy_(torch.from_numpy(weights[3 + i]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def run(steps: int) -> float:
        loss = None
        for i in range(steps):
            x, y = torch.from_numpy(xs[i % 50]), torch.from_numpy(ys[i % 50])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    return run


def operands(m: int, n: int, k: int, form: str) -> tuple[np.ndarray, np.ndarray]:
    """A and B as stored for a transpose form such as "TN"."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-0.5, 0.5, (k, m) if form[0] == "T" else (m, k)).astype(np.float32)
    b = rng.uniform(-0.5, 0.5, (n, k) if form[1] == "T" else (k, n)).astype(np.float32)
    return a, b


def library_matmul(side: str) -> Callable[[list[object]], Callable[[], object]]:
    """A function that makes one product by numpy or torch."""
    if side == "torch":
        import torch

        torch.set_num_threads(2)

    def make(shape: list[object]) -> Callable[[], object]:
        m, n, k, form = shape
        a, b = operands(m, n, k, form)  # type: ignore[arg-type]
        if side == "torch":
            ta, tb = torch.from_numpy(a), torch.from_numpy(b)
            x, y = (ta.T if form[0] == "T" else ta), (tb.T if form[1] == "T" else tb)  # type: ignore[index]
            out = torch.empty(m, n)
            return lambda: torch.mm(x, y, out=out)
        p, q = (a.T if form[0] == "T" else a), (b.T if form[1] == "T" else b)  # type: ignore[index]
        target = np.empty((m, n), np.float32)
        return lambda: np.matmul(p, q, out=target)

    return make


def ours_matmul() -> Callable[[list[object]], Callable[[], object]]:
    """One product by a compiled program of this package, called as a cached step calls it."""
    import minitorch_tvm as mt
    from minitorch_tvm import lazy

    def make(shape: list[object]) -> Callable[[], object]:
        m, n, k, form = shape
        a, b = operands(m, n, k, form)  # type: ignore[arg-type]
        x, y = mt.tensor(a), mt.tensor(b)
        left, right = (x.T if form[0] == "T" else x), (y.T if form[1] == "T" else y)  # type: ignore[index]
        out = left @ right
        del left, right  # nobody holds the transposes, so they are flags of the product
        out.realize()
        executor = lazy.last_executor()
        # Leaves are numbered at their first reader: a transpose of y is recorded before x is read.
        first, second = (y, x) if form == "NT" else (x, y)
        inputs = [first.node.buffer, second.node.buffer]
        p = a.T if form[0] == "T" else a  # type: ignore[index]
        q = b.T if form[1] == "T" else b  # type: ignore[index]
        if not np.allclose(out.numpy(), p @ q, atol=1e-3):
            raise AssertionError(f"wrong product at {shape}")
        reuse = [out.node.buffer]
        return lambda: executor.run(inputs, (), reuse)

    return make


def peak() -> Callable[[], float]:
    """One run of the FMA probe; returns flops per second."""
    from _peak import fma_peak

    probe = fma_peak()

    def run() -> float:
        start = time.perf_counter()
        probe.run()
        return probe.amount / (time.perf_counter() - start)

    return run


def main() -> None:
    """Serve requests: {"steps": n}, or {"shape": [m, n, k, form], "repeat": r}."""
    side, kind, *rest = sys.argv[1:]
    if kind == "epoch":
        run = torch_epoch(rest[0]) if side == "torch" else ours_epoch(rest[0], side)
    elif side == "peak":
        probe = peak()
    else:
        make = ours_matmul() if side == "ours" else library_matmul(side)
    made: dict[str, Callable[[], object]] = {}
    print(json.dumps({"ready": side}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        gc.collect()
        if kind == "epoch":
            start = time.perf_counter()
            loss = run(request["steps"])
            print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss}), flush=True)
        elif side == "peak":
            print(json.dumps({"flops": probe()}), flush=True)
        else:
            key = json.dumps(request["shape"])
            if key not in made:
                made[key] = make(request["shape"])
                made[key]()
            m, n, k, _ = request["shape"]
            start = time.perf_counter()
            for _ in range(request["repeat"]):
                made[key]()
            seconds = (time.perf_counter() - start) / request["repeat"]
            print(json.dumps({"flops": 2 * m * n * k / seconds}), flush=True)


if __name__ == "__main__":
    main()
