"""Kernels that work row by row, against float64 numpy: rows of every kind of length."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.compiler import native
from minitorch_tvm.compiler.schedule.cpu.accumulate import FOLD
from minitorch_tvm.compiler.target import host
from minitorch_tvm.core import config
from minitorch_tvm.core.tvm_api import global_func
from minitorch_tvm.nn import functional as F

Array = np.ndarray[Any, Any]

# Rows and their length: shorter than a vector, with and without a rest, few rows, one, long ones.
SHAPES = [
    *((1, 1), (1, 7), (3, 5), (16, 10), (37, 10), (100, 15), (5, 16), (40, 17), (33, 31)),
    *((1100, 4), (700, 6), (513, 8), (1003, 10), (275, 15)),  # transposed in registers
    *((130, 64), (70, 17), (64, 130), (67, 256), (65, 257)),
    *((50, 64), (7, 70), (20, 130), (1, 3000), (17, 1000), (16, 64 * 2 * FOLD + 700)),
]


def kernels() -> list[str]:
    """The rules that scheduled the last program's kernels."""
    return [k.rule for k in lazy.last_executor().program.kernels]


def on_two_threads_and_one(run: Callable[[], list[Array]]) -> list[Array]:
    configure = global_func("runtime.config_threadpool")
    try:
        outs = []
        for threads in (2, 1):
            configure(1, threads)
            outs.append(run())
    finally:
        configure(1, 2)
    for two, one in zip(*outs, strict=True):
        np.testing.assert_array_equal(two, one)
    return outs[0]


def softmax(a: Array) -> Array:
    e = np.exp(a - a.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((s, "float32") for s in SHAPES), *((s, "float64") for s in SHAPES[::3])],
    ids=str,
)
def test_losses_and_norms(shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal(shape).astype(dtype)
    w = rng.standard_normal(shape[1]).astype(dtype)
    labels = rng.integers(0, shape[1], shape[0])
    x, weight, target = mt.tensor(a), mt.tensor(w), mt.tensor(labels)
    exact = a.astype("float64")
    p = softmax(exact)
    centred = exact - exact.mean(1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    want = {
        "softmax": p,
        "log_softmax": np.log(p),
        "norm": unit * w.astype("float64") + 1.5 * w,
        "loss": -np.log(p)[np.arange(shape[0]), labels],
        "mixed": exact - exact.max(1, keepdims=True) * exact.sum(1, keepdims=True),
    }
    made: dict[str, Callable[[], mt.Tensor]] = {
        "softmax": lambda: F.softmax(x, dim=1),
        "log_softmax": lambda: F.log_softmax(x, dim=1),
        "norm": lambda: F.layer_norm(x, (shape[1],), weight, weight * 1.5),
        "loss": lambda: F.cross_entropy(x, target, reduction="none"),
        "mixed": lambda: x - x.amax(1, keepdim=True) * x.sum(1)[:, None],
    }
    epsilon = {"float32": 2e-6, "float64": 1e-14}[dtype]
    for name, make in made.items():

        def run(make: Callable[[], mt.Tensor] = make) -> list[Array]:
            return [make().realize().numpy()]

        (got,) = on_two_threads_and_one(run)
        assert kernels() == ["rows"] or shape[1] == 1, name
        size = 1 + np.abs(want[name]).max()
        np.testing.assert_allclose(got, want[name], rtol=0, atol=epsilon * size, err_msg=name)


@pytest.mark.parametrize("shape", [(6, 5), (40, 10), (33, 64), (20, 100), (12, 12)], ids=str)
def test_gradients(shape: tuple[int, int], rng: np.random.Generator) -> None:
    """Of softmax, layer norm and cross-entropy, by central differences in float64."""
    a, c = rng.standard_normal(shape), rng.standard_normal(shape)
    labels = mt.tensor(rng.integers(0, shape[1], shape[0]))
    line = mt.tensor(rng.standard_normal(shape[1]))
    functions: list[Callable[[mt.Tensor], mt.Tensor]] = [
        lambda x: (F.softmax(x, dim=1) * mt.tensor(c)).sum(),
        lambda x: (F.log_softmax(x, dim=1) * mt.tensor(c)).sum(),
        lambda x: (F.layer_norm(x, (shape[1],), line, line) * mt.tensor(c)).sum(),
        lambda x: F.cross_entropy(x, labels),
    ]
    for f in functions:
        x = mt.tensor(a, requires_grad=True)
        f(x).backward()
        assert x.grad is not None
        got = x.grad.numpy()
        for _ in range(3):
            d = rng.standard_normal(shape)
            h = 1e-5
            ends = [f(mt.tensor(a + s * h * d)).item() for s in (1, -1)]
            np.testing.assert_allclose((got * d).sum(), (ends[0] - ends[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6, 3, 5), (1, 2)),  # merged: rows of 15
        ((20, 4, 33), (1, 2)),
        ((3, 18, 5), (0, 2)),  # rows in pieces
        ((5, 17, 4, 6), (0, 2, 3)),  # a batch's statistics of each channel
        ((40, 2, 2), (2,)),
        ((2, 20, 1, 70), (3,)),
        ((300, 16, 2, 2), (0, 2, 3)),  # long, and short inside
        ((130, 20, 130), (0, 2)),
    ],
    ids=str,
)
def test_rows_of_several_dimensions(
    shape: tuple[int, ...], dims: tuple[int, ...], rng: np.random.Generator
) -> None:
    a = rng.standard_normal(shape).astype("float32")
    per_row = rng.standard_normal([1 if d in dims else n for d, n in enumerate(shape)])
    x, y = mt.tensor(a), mt.tensor(per_row.astype("float32"))
    exact, other = a.astype("float64"), per_row.astype("float32").astype("float64")

    def run() -> list[Array]:
        mean = x.mean(dims, keepdim=True)
        spread = ((x - mean) ** 2).sum(dims, keepdim=True)
        out, top = (x - mean) * y / spread, x.amax(dims)
        mt.eval(out, top, spread)
        return [t.numpy() for t in (out, top, spread)]

    out, top, spread = on_two_threads_and_one(run)
    centred = exact - exact.mean(dims, keepdims=True)
    square = (centred**2).sum(dims, keepdims=True)
    np.testing.assert_allclose(out, centred * other / square, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(spread, square, rtol=1e-5)
    np.testing.assert_array_equal(top, a.max(dims))


def test_a_row_of_nan_or_infinity_stays_in_its_row() -> None:
    for length in (5, 16, 40, 100):
        a = np.random.default_rng(0).standard_normal((20, length)).astype("float32")
        a[3, length // 2], a[7, -1], a[11, 0], a[13] = np.nan, np.inf, -np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            want = softmax(a.astype("float64"))
        np.testing.assert_allclose(F.softmax(mt.tensor(a), dim=1).numpy(), want, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "make", "turned"),  # kernels are shared: every count of rows is used once
    [
        (1211, lambda x: F.softmax(x, dim=1), 2),  # read, and stored
        (1212, lambda x: x.var(1), 1),
        (1213, lambda x: F.softmax(x.T.clone().T, dim=1), 2),
        (1214, lambda x: F.softmax(x * x[:, :1], dim=1), 1),  # read elsewhere too: not held
        (21, lambda x: F.softmax(x, dim=1), 0),  # too few to be worth it
    ],
)
def test_short_rows_are_transposed_in_registers(
    count: int,
    make: Callable[[mt.Tensor], mt.Tensor],
    turned: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The package has a function of this name.
    rows = importlib.import_module("minitorch_tvm.compiler.schedule.cpu.rows")
    found, transposed = [], rows.transpose_rows

    def watched(*arguments: Any) -> Any:
        found.append(arguments[0])
        return transposed(*arguments)

    monkeypatch.setattr(rows, "transpose_rows", watched)
    # As long as fits below a vector.
    vector_bytes = host(config.CONFIG.isa).vector_bytes
    a = np.random.default_rng(0).standard_normal((count, 5 if vector_bytes < 64 else 13))
    x = mt.tensor(a.astype("float32"))
    mt.eval(x)
    got = make(x).numpy()
    wide = vector_bytes > 16  # a row of five is no shorter than a vector of four
    assert len(found) == (turned if wide else 0)
    np.testing.assert_allclose(got, make(mt.tensor(a)).numpy(), atol=1e-6)


def test_rows_side_by_side_are_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM needed a third longer to find them in loops, and did not find all."""
    texts: list[str] = []
    added = native.Build.add

    def watched(build: native.Build, symbol: str, function: Any) -> native.Piece:
        texts.append(str(function.body))
        return added(build, symbol, function)

    monkeypatch.setattr(native.Build, "add", watched)
    lanes = host(config.CONFIG.isa).lanes(4)
    x = mt.tensor(np.ones((5 * lanes + 1, lanes - 1), "float32"))
    mt.eval(x)
    F.softmax(x * 1.5, dim=1).realize()
    assert kernels() == ["rows"]
    (text,) = texts
    # Three walks along the row, and the rows' maxima and sums.
    assert text.count(f"T.vectorized(T.int64({lanes}))") == 5


def test_masked_scores_are_one_kernel() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 3, 24, 24)).astype("float32")
    mask = np.tril(np.ones((24, 24), bool))
    scores = mt.tensor(a).masked_fill(mt.tensor(~mask), -np.inf)
    got = F.softmax(scores, dim=-1).realize().numpy()
    assert kernels() == ["rows"]
    np.testing.assert_allclose(got, softmax(np.where(mask, a, -np.inf).astype(float)), atol=1e-6)


def test_kernels_of_training_with_a_loss() -> None:
    x = mt.tensor(np.ones((64, 10), "float32"), requires_grad=True)
    target = mt.tensor(np.zeros(64, "int64"))
    mt.eval(x, target)
    loss = F.cross_entropy(x, target)
    loss.backward()
    assert x.grad is not None
    mt.eval(loss, x.grad)
    # Losses of the rows, their mean (of which the gradient needs the count), the gradient.
    assert kernels() == ["rows", "rows", "rows"]


def test_nothing_of_a_row_is_left_in_memory() -> None:
    x = mt.tensor(np.ones((64, 100), "float32"))
    F.layer_norm(F.softmax(x, dim=1), (100,)).realize()
    assert lazy.last_executor().program.arena_bytes == 0


@pytest.mark.parametrize("length", [5, 20])
def test_an_update_by_a_reduction_happens_once(length: int) -> None:
    """Neither blocks of short rows nor the ends of longer ones, which overlap, update twice."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(37), rng.standard_normal((37, length))
    x, y = mt.tensor(a), mt.tensor(b)
    mt.eval(x, y)
    x.sub_((y * y).sum(1))
    np.testing.assert_allclose(x.numpy(), a - (b * b).sum(1), rtol=1e-13)
    program = lazy.last_executor().program
    assert program.outputs[0].donor is not None


_EIGHT = """
import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
drawn = mt.rand(1, 8)
most = drawn.amax(1)
mt.eval(drawn, most)
y = x = mt.tensor([list(range(8))], dtype=mt.float32) / 9
for _ in range(20):
    y = y + y * y
z = (mt.rand(2, 8) + x).amax()
loss = F.cross_entropy(y * 1e-3, mt.tensor([3]))
mt.eval(y.amax(), z, loss, x.tanh().tanh().tanh().tanh().tanh().tanh().tanh().tanh().softmax(1))
print(most.item() == max(drawn[0].tolist()))
"""


def test_rows_of_eight_are_compiled_whatever_is_computed_of_them() -> None:
    """LLVM unrolled them, and looked for vectors among eight chains without end."""
    done = subprocess.run(
        [sys.executable, "-c", _EIGHT], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("shape", [(8, 16), (8, 64), (5, 300)])
def test_bools_of_a_row_have_a_byte_each(shape: tuple[int, int], rng: np.random.Generator) -> None:
    """They are kept on the stack, where they had a bit, beside what they wrote over."""
    x = np.abs(rng.normal(size=shape)) + 0.5

    def run() -> Array:
        a = mt.tensor(x, requires_grad=True)
        most = a.amax((0, 1))
        ratio = most / a
        least = mt.minimum(a, ratio)
        y = F.mish(least)
        (g,) = mt.autograd.grad((y * y).sum(), [a], create_graph=True)
        (g * g).sum().backward()
        return a.grad.numpy()

    found = run()
    with config.override(target="numpy"):
        np.testing.assert_allclose(found, run(), rtol=1e-9, atol=1e-12)


def test_sums_of_the_same_rows_are_taken_at_once(rng: np.random.Generator) -> None:
    """What several reductions read is read once, whoever uses them."""
    a, c = (rng.standard_normal((70, 130)).astype("float32") for _ in range(2))
    x, y = mt.tensor(a), mt.tensor(c)
    found = [x.sum(1), (x * y).sum(1).exp(), (x - y).amax(1)]
    mt.eval(*found)
    assert kernels() == ["rows"]
    wanted = [a.sum(1, dtype="float64"), np.exp((a * c).sum(1, dtype="float64")), (a - c).max(1)]
    for one, true in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), true, rtol=1e-4, atol=1e-5)
    # Rows of something else, of which not even the shape is the same, are not read with them.
    mt.eval(x.sum(1), y.amax(1), x.sum(0))
    assert len(kernels()) == 3
    square = mt.tensor(a[:, :70].copy())  # its columns are no rows of it
    mt.eval(square.sum(1), (square.mT * 2).exp().sum(1))
    assert len(kernels()) == 2


def test_sums_that_wait_for_others_of_all_rows_are_taken_later(rng: np.random.Generator) -> None:
    a = rng.standard_normal((70, 130))
    x = mt.tensor(a)
    first = x.sum(1)
    second = (x * first.sum() + 1).sum(1)  # not beside the first: it waits for all of that
    mt.eval(first, second)
    assert len(kernels()) == 3
    np.testing.assert_allclose(first.numpy(), a.sum(1), rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(second.numpy(), (a * a.sum() + 1).sum(1), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 4, 8, 8), (5, 3, 70), (2, 3, 5, 5), (6, 4)], ids=str)
def test_both_sums_of_a_batch_norm_are_taken_at_once(
    shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Its gradients by central differences; of large images one kernel reads both."""
    a, c = rng.standard_normal(shape), mt.tensor(rng.standard_normal(shape))
    w, b = (mt.tensor(rng.standard_normal(shape[1]), requires_grad=True) for _ in range(2))
    x = mt.tensor(a, requires_grad=True)

    def loss(*given: mt.Tensor) -> mt.Tensor:
        y, weight, bias = given
        return (F.batch_norm(y, None, None, weight, bias, training=True) * c).sum()

    assert mt.autograd.gradcheck(loss, (x, w, b))
    mt.eval(*mt.autograd.grad(loss(x, w, b), (x, w, b)))
    names = [k.name for k in lazy.last_executor().program.kernels]
    assert ("sum_sum" in names) == (np.prod(shape[2:]) >= 64)


@pytest.mark.parametrize(
    ("shape", "last"),
    [((8, 8), 1), ((64, 64), 1), ((2, 3, 6), 1), ((4, 2, 2), 2), ((3, 6, 6), 1), ((6, 2, 3), 2)],
    ids=str,
)
def test_gradients_of_a_layer_norm_of_as_many_rows_as_elements(
    shape: tuple[int, ...], last: int, rng: np.random.Generator
) -> None:
    """Sums along rows are as many as sums over them."""
    own = shape[-last:]
    a, c, w = (rng.standard_normal(s) for s in (shape, shape, own))
    x, weight, bias = (mt.tensor(v, requires_grad=True) for v in (a, w, w + 1))
    (F.layer_norm(x, own, weight, bias) * mt.tensor(c)).sum().backward()
    reduced = tuple(range(-last, 0))
    centred = a - a.mean(reduced, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(reduced, keepdims=True) + 1e-5)
    lead = tuple(range(len(shape) - last))
    np.testing.assert_allclose(weight.grad.numpy(), (unit * c).sum(lead), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(bias.grad.numpy(), c.sum(lead), rtol=1e-9, atol=1e-9)
