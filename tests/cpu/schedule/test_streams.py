"""Results larger than the caches are stored around them; what comes out is the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from test_isa import ISAS, assembly

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy
from minitorch_tvm.compiler import streams

transpose_rule = import_module("minitorch_tvm.compiler.schedule.cpu.transpose")

rng = np.random.default_rng(11)
AROUND = {"avx2": r"vmovntps\t%ymm", "avx512": r"vmovntps\t%zmm", "neon": r"stnp\tq"}
FENCE = {"avx2": r"mfence|lock", "avx512": r"mfence|lock", "neon": r"dmb\tish"}


def normal(*shape: int) -> mt.Tensor:
    return mt.tensor(rng.standard_normal(shape).astype(np.float32))


@pytest.fixture
def everything_is_far(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All results count as far; the list names the statements that were made for it."""
    made: list[str] = []
    call = streams._call

    def counted(name: str, *arguments: object) -> object:
        made.append(name)
        return call(name, *arguments)

    monkeypatch.setattr(streams, "_FAR", 0)
    monkeypatch.setattr(streams, "_SHARE", 0)
    monkeypatch.setattr(streams, "_call", counted)
    lazy.clear_cache()
    yield made
    lazy.clear_cache()


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 8192, 131_072, 300_001])
def test_chains(size: int, everything_is_far: list[str]) -> None:
    a, b = normal(size), normal(size)
    total, positive, less = a + b * 2, (a - b).relu(), a < b
    mt.eval(total, positive, less)
    assert ("mtvm_stream_float32" in everything_is_far) == (size >= streams.LINE)
    x, y = a.numpy(), b.numpy()
    np.testing.assert_allclose(total.numpy(), x.astype("f8") + y * 2.0, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(positive.numpy(), np.maximum(x - y, 0))
    np.testing.assert_array_equal(less.numpy(), x < y)


def test_integers(everything_is_far: list[str]) -> None:
    a = mt.tensor(np.arange(5003, dtype=np.int32))
    out = (a * 3 + 1).numpy()
    assert "mtvm_stream_int32" in everything_is_far
    np.testing.assert_array_equal(out, np.arange(5003) * 3 + 1)


@pytest.mark.parametrize("shape", [(3, 70_001), (700, 33), (5, 1024), (64, 16)])
def test_broadcasting(shape: tuple[int, int], everything_is_far: list[str]) -> None:
    a, row, column = normal(*shape), normal(shape[1]), normal(shape[0], 1)
    out = ((a + row) * column).numpy()
    assert "mtvm_stream_float32" in everything_is_far
    want = (a.numpy().astype("f8") + row.numpy()) * column.numpy()
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [64, 130, 1000, 4096])
def test_rows(length: int, everything_is_far: list[str]) -> None:
    x, gain, shift = normal(37, length), normal(length), normal(length)
    soft, norm = F.softmax(x, dim=1), F.layer_norm(x, (length,), gain, shift)
    mt.eval(soft, norm)
    assert "mtvm_stream_float32" in everything_is_far
    wide = x.numpy().astype("f8")
    powers = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(soft.numpy(), powers / powers.sum(1, keepdims=True), rtol=3e-6)
    centred = wide - wide.mean(1, keepdims=True)
    want = centred / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gain.numpy() + shift.numpy()
    np.testing.assert_allclose(norm.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(128, 128), (130, 70), (3, 90, 101), (1024, 16)])
def test_transposes(
    shape: tuple[int, ...], everything_is_far: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Squares are of whole lines, whatever part of one a vector is."""
    monkeypatch.setattr(transpose_rule, "_streams", lambda *_: False)
    x = normal(*shape)
    other = normal(*shape[:-2], shape[-1], shape[-2])
    plain, more = x.mT + 0.0, x.mT * 2 + other
    mt.eval(plain, more)
    assert "mtvm_stream_float32" in everything_is_far
    turned = np.swapaxes(x.numpy(), -1, -2)
    np.testing.assert_array_equal(plain.numpy(), turned)
    np.testing.assert_allclose(more.numpy(), turned * 2.0 + other.numpy(), rtol=1e-6, atol=1e-6)


def test_each_stage_ends_with_a_fence(everything_is_far: list[str]) -> None:
    (normal(1000) + 1).realize()
    assert everything_is_far == ["mtvm_stream_float32", "mtvm_streamed"]


# --- what is stored so, and what is not -----------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("make", "around"),
    [
        (lambda x: (x + 1,), True),
        (lambda x: (x.exp(),), True),
        (lambda x: (F.softmax(x, dim=1),), True),
        (lambda x: (F.layer_norm(x, (x.shape[1],)),), True),
        (lambda x: (F.gelu(x),), False),  # long: a core would wait for each store
        (lambda x: (x.tanh() * x,), False),
        (lambda x: (mt.rand(*x.shape) + x,), False),
    ],
)
def test_what_is_stored_around_the_caches(
    isa: str,
    make: Callable[[mt.Tensor], tuple[mt.Tensor, ...]],
    around: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = replace(ISAS[isa].cpu, l2_bytes=64 << 10, l3_bytes=0)
    for rows, expected in ((129, around), (120, False)):  # 8 times 64 KB is 128 rows
        if rows == 120 and not around:
            continue  # what larger results are not stored around, smaller ones are not
        x = normal(rows, 1024)
        text = assembly(lambda x=x: list(make(x)), cpu, monkeypatch)
        assert bool(re.search(AROUND[isa], text)) == expected
        if expected:
            assert re.search(FENCE[isa], text)


def test_what_is_written_over_stays_in_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = replace(ISAS["avx512"].cpu, l2_bytes=4 << 10, l3_bytes=0)

    def step() -> list[mt.Tensor]:
        weight = normal(100, 1000)
        mt.eval(weight)
        with mt.no_grad():
            weight.sub_(normal(100, 1000) * 0.1)
        return [weight]

    assert not re.search(AROUND["avx512"], assembly(step, cpu, monkeypatch))


def trained(width: int) -> list[mt.Tensor]:
    """A weight of 96 x ``width`` after a step, and its gradient."""
    x, weight, target = normal(70, 96), normal(96, width).requires_grad_(), normal(70, width)
    mt.eval(x, weight, target)
    ((x @ weight) * target).sum().backward()
    gradient = weight.grad
    assert gradient is not None
    with mt.no_grad():
        weight.sub_(gradient * 0.5)
    return [weight, gradient]


def product_and_double() -> list[mt.Tensor]:
    """Two results, of which neither is an update."""
    product = normal(96, 70) @ normal(70, 512)
    return [product, product * 2]


def read_again() -> list[mt.Tensor]:
    """As :func:`trained`, and the sum of the gradient's squares, which another kernel computes."""
    weight, gradient = trained(512)
    return [weight, gradient, (gradient * gradient).sum()]


@pytest.mark.parametrize("isa", ISAS)
def test_gradients_beside_their_update(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = replace(ISAS[isa].cpu, l2_bytes=192 << 10)
    text = assembly(lambda: trained(512), cpu, monkeypatch)
    assert re.search(AROUND[isa], text)
    assert re.search(FENCE[isa], text)
    for make in (
        lambda: trained(496),  # smaller than the cache
        lambda: trained(1001),  # rows are no whole lines
        lambda: [normal(96, 70) @ normal(70, 512)],  # the next program may read it
        product_and_double,
        read_again,
    ):
        assert not re.search(AROUND[isa], assembly(make, cpu, monkeypatch))


@pytest.mark.parametrize("width", [48, 512, 1040])
def test_a_gradient_that_passes_is_right(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []
    call = streams._call

    def watched(name: str, *arguments: object) -> object:
        places.extend(re.findall(r"address_of\((\w+)", str(arguments[:1])))
        return call(name, *arguments)

    monkeypatch.setattr(streams, "_call", watched)
    monkeypatch.setattr(streams, "_is_large", lambda memory, least: memory.dtype == "float32")
    lazy.clear_cache()
    x, start, target = normal(70, 33), normal(33, width), normal(70, width)
    weight = mt.tensor(start.numpy()).requires_grad_()
    ((x @ weight) * target).sum().backward()
    with mt.no_grad():
        weight.sub_(weight.grad * 0.5)
    gradient = weight.grad
    assert gradient is not None
    mt.eval(weight, gradient)
    lazy.clear_cache()
    assert len(set(places)) == 1  # not the weight
    want = x.numpy().astype("f8").T @ target.numpy()
    np.testing.assert_allclose(gradient.numpy(), want, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        weight.detach().numpy(), start.numpy() - 0.5 * want, rtol=1e-5, atol=1e-4
    )


def test_what_the_last_cache_holds_is_left_there() -> None:
    cpu = replace(ISAS["avx2"].cpu, l2_bytes=1 << 20)
    for l3, far in ((0, 8), (4, 8), (12, 12), (32, 32), (480, 32)):
        assert streams.far_bytes(replace(cpu, l3_bytes=l3 << 20)) == far << 20


def test_squares_of_a_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = replace(ISAS["avx512"].cpu, l2_bytes=64 << 10, l3_bytes=0)

    def made(size: int, make: Callable[[mt.Tensor, mt.Tensor], mt.Tensor]) -> str:
        x, y = normal(size, size), normal(size, size)
        return assembly(lambda: [make(x, y)], cpu, monkeypatch)

    text = made(512, lambda x, y: x.T + 1)
    assert re.search(AROUND["avx512"], text)
    assert re.search(FENCE["avx512"], text)
    # Asked for is what is read as it lies; the hardware follows what is transposed.
    assert "prefetcht0" not in text
    assert "prefetcht0" in made(512, lambda x, y: x.T + y)
    for text in (
        made(512, lambda x, y: F.gelu(x.T) + y),  # long
        made(256, lambda x, y: x.T + y),  # near
    ):
        assert not re.search(AROUND["avx512"], text)
        assert "prefetcht0" not in text
