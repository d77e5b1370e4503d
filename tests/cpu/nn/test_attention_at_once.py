"""Attention of many positions, whose scores are not stored: values, gradients, memory, threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy, nn
from minitorch_tvm.compiler.native import Build
from minitorch_tvm.compiler.schedule.cpu import attention_sizes, attention_tiles
from minitorch_tvm.core import config
from minitorch_tvm.nn import functional as F
from minitorch_tvm.ops import attention as at

Array = np.ndarray[Any, Any]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few positions there are."""
    for name in ("_LARGE", "_KEYS", "_QUERIES"):
        monkeypatch.setattr(at, name, 0)


def _truth(
    q: Array, k: Array, v: Array, ct: Array, mask: Array | None, causal: bool
) -> list[Array]:
    """The result and the gradients of q, k and v, in float64; of queries that see no key zeros."""
    q, k, v, ct = (x.astype(np.float64) for x in (q, k, v, ct))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = e.sum(-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    back = ct @ v.swapaxes(-1, -2)
    back = weights * (back - (weights * back).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    return [weights @ v, back @ k, back.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ ct]


def _some(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def _case(
    heads: tuple[int, ...], queries: int, keys: int, width: int, values: int
) -> tuple[Array, ...]:
    shapes = ((queries, width), (keys, width), (keys, values), (queries, values))
    return tuple(_some(queries + keys, *((*heads, *s) for s in shapes)))


def _found(arrays: tuple[Array, ...], mask: Any = None, causal: bool = False) -> list[Array]:
    *operands, ct = arrays
    given = [mt.tensor(a, requires_grad=True) for a in operands]
    y = F.scaled_dot_product_attention(*given, mask, is_causal=causal)
    found = [y, *mt.autograd.grad(y, given, mt.tensor(ct))]
    mt.eval(*found)
    assert _kernels("attention")
    return [t.detach().numpy().copy() for t in found]


def _kernels(name: str) -> list[str]:
    """Those of the last program whose names begin so."""
    return [k.name for k in lazy.last_executor().program.kernels if k.name.startswith(name)]


def _check(found: list[Array], truth: list[Array], what: object) -> None:
    for name, a, b in zip(("y", "dq", "dk", "dv"), found, truth, strict=True):
        error = np.abs(a - b).max() / max(1.0, np.abs(b).max())
        assert error < 2e-6, f"{what}: {name} is {error} off"


# Heads, queries, keys, width, width of values: whole tiles, panels that are not full, vectors that
# are not, few keys and queries, several chunks of keys and several tiles that share a head's.
SIZES = [
    ((2, 3), 64, 64, 32, 32),
    ((9,), 33, 45, 16, 40),
    ((1, 2), 100, 70, 20, 24),
    ((1, 1), 70, 200, 64, 17),
    ((), 130, 130, 3, 128),
    ((2, 1, 2), 5, 7, 80, 1),
]


@pytest.mark.parametrize("isa", ["host", "x86-64-v3"])
@pytest.mark.parametrize("small", [False, True], ids=["as chosen", "many chunks"])
def test_sizes(isa: str, small: bool, at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory filled with NaN beforehand."""
    if small:
        monkeypatch.setattr(attention_sizes, "_KEYS", 0.0)
        monkeypatch.setattr(attention_sizes, "_SCORES", 0.0)
        monkeypatch.setattr(attention_tiles, "TERMS", 32)
    for number, size in enumerate(SIZES):
        arrays, causal = _case(*size), bool((number + small) % 2)
        with config.override(isa=isa, poison=True):
            lazy.clear_cache()
            _check(_found(arrays, causal=causal), _truth(*arrays, None, causal), size)


def test_chunks_and_splits_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few heads several tiles have a share of the keys, of long ones keys come in chunks."""
    from minitorch_tvm.compiler import target
    from minitorch_tvm.core import dtype as dt

    machine = target.CpuTarget("x86-64-v4", (), 64, 32, 48 << 10, 2 << 20)

    def sizes(heads: int, n: int, gradients: bool) -> attention_sizes.Sizes:
        return attention_sizes.Sizes.of(machine, dt.float32, (heads, n, n, 64, 64), True, gradients)

    assert sizes(8, 1024, True).splits == 1
    assert sizes(2, 1024, True).splits == 4
    assert sizes(1, 40, True).splits == 2  # panels
    long = sizes(8, 4096, True)
    assert long.chunk * 64 * 4 * 5 < machine.l2_bytes < long.own * 64 * 4 * 5
    assert sizes(8, 1 << 16, False).rows == 8
    assert sizes(8, 1024, False).rows == 32


@pytest.mark.parametrize("isa", ["host", "x86-64-v2"])
def test_float64(isa: str, at_once: None) -> None:
    """Also with vectors of two, of which fewer rows than a register tile's make a panel."""
    for causal in (False, True):
        arrays = tuple(a.astype(np.float64) for a in _case((2, 2), 50, 50, 20, 12))
        with config.override(isa=isa):
            lazy.clear_cache()
            found = _found(arrays, causal=causal)
        for a, b in zip(found, _truth(*arrays, None, causal), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "shape", [(2, 3, 40, 50), (40, 50), (1, 50), (40, 1), (3, 1, 50), (2, 1, 40, 50)]
)
def test_masks(shape: tuple[int, ...], at_once: None) -> None:
    """Some that hide all keys from a query, and such as broadcast."""
    arrays = _case((2, 3), 40, 50, 16, 16)
    hidden = np.random.default_rng(2).random(shape) < 0.6
    hidden[..., 0, :] = False
    _check(_found(arrays, mt.tensor(hidden)), _truth(*arrays, hidden, False), "bool")
    (added,) = _some(3, shape)
    _check(_found(arrays, mt.tensor(added)), _truth(*arrays, added, False), "float")


def test_a_mask_that_is_computed(at_once: None) -> None:
    arrays = _case((2,), 40, 50, 16, 16)
    distance = mt.arange(40).unsqueeze(1) - mt.arange(50)
    near = np.abs(np.arange(40)[:, None] - np.arange(50)) < 9
    _check(_found(arrays, distance.abs() < 9), _truth(*arrays, near, False), "window")


def test_operands_are_views(at_once: None) -> None:
    """As models have them: parts of one product, heads apart, joined behind."""
    (x,) = _some(1, (2, 40, 3 * 24))
    given = mt.tensor(x, requires_grad=True)
    q, k, v = (t.reshape(2, 40, 3, 8).transpose(1, 2) for t in given.split(24, 2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 40, 24)
    (ct,) = _some(2, (2, 40, 24))
    (dx,) = mt.autograd.grad(y, [given], mt.tensor(ct))
    heads = [a.reshape(2, 40, 3, 8).swapaxes(1, 2) for a in np.split(x, 3, 2)]
    truth = _truth(*heads, ct.reshape(2, 40, 3, 8).swapaxes(1, 2), None, True)
    joined = [a.swapaxes(1, 2).reshape(2, 40, 24) for a in truth]
    np.testing.assert_allclose(y.detach().numpy(), joined[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(dx.numpy(), np.concatenate(joined[1:], 2), rtol=0, atol=5e-6)


def test_without_gradients(at_once: None) -> None:
    arrays = _case((2, 2), 70, 70, 16, 24)
    with mt.no_grad():
        y = F.scaled_dot_product_attention(*map(mt.tensor, arrays[:3]), is_causal=True)
    np.testing.assert_array_equal(y.numpy(), _found(arrays, causal=True)[0])


def test_threads_do_not_change_bits(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_sizes, "_KEYS", 0.0)
    arrays, found, threads = _case((1, 3), 100, 100, 16, 16), [], mt.get_num_threads()
    try:
        for count in (1, threads):
            mt.set_num_threads(count)
            lazy.clear_cache()
            found.append(_found(arrays, causal=True))
    finally:
        mt.set_num_threads(threads)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_numbers_reach_those_who_see_them(at_once: None) -> None:
    q, k, v, ct = _case((1, 2), 80, 80, 16, 16)
    k[0, 1, 50, 3] = np.nan
    y = _found((q, k, v, ct), causal=True)[0]
    hit = np.zeros(y.shape, bool)
    hit[0, 1, 50:] = True
    np.testing.assert_array_equal(np.isnan(y), hit)
    q[0, 0, 7] = 1e30
    k = np.abs(k)
    k[0, 0, 3, 0] = np.inf
    y = _found((q, k, v, ct), causal=True)[0]
    assert np.isnan(y[0, 0, 7]).all()  # inf - inf
    assert np.isfinite(y[0, 0, :3]).all()


def test_large_scores(at_once: None) -> None:
    """Exponentials of scores beyond what float32 holds."""
    q, k, v, ct = _case((1,), 40, 40, 8, 8)
    arrays = (100 * q, 100 * k, v, ct)
    y = _found(arrays)[0]
    np.testing.assert_allclose(y, _truth(*arrays, None, False)[0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_large_scores(causal: bool, at_once: None) -> None:
    """Weights that are computed again are those of the forward pass, however scores are rounded:
    cotangents of values add up to those of results."""
    q, k, v, ct = _case((2,), 70, 70, 24, 8)
    for factor in (1e4, 1e7, 1e12):
        _, dq, dk, dv = _found((q * np.float32(factor), k, v, np.ones_like(ct)), causal=causal)
        np.testing.assert_allclose(dv.sum(1), 70, rtol=1e-5)
        assert np.isfinite(dq).all()
        assert np.isfinite(dk).all()


def test_scores_of_minus_infinity_without_a_mask(at_once: None) -> None:
    q, k, v, ct = _case((2,), 40, 40, 24, 8)
    q, k = np.abs(q), np.abs(k)
    q[1, 17, 3] = -np.inf
    y = _found((q, k, v, ct))[0]
    hit = np.zeros(y.shape, bool)
    hit[1, 17] = True
    np.testing.assert_array_equal(np.isnan(y), hit)


def test_no_keys(at_once: None) -> None:
    y = F.scaled_dot_product_attention(mt.ones(2, 5, 4), mt.ones(2, 0, 4), mt.ones(2, 0, 4))
    np.testing.assert_array_equal(y.numpy(), np.zeros((2, 5, 4)))


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_kernels_agree_with_their_reference(factor: float, at_once: None) -> None:
    for dtype in (np.float32, np.float64):
        q, k, v, ct = (a.astype(dtype) for a in _case((2, 2), 70, 90, 24, 24))
        with config.override(validate=True):
            lazy.clear_cache()
            _found((q * dtype(factor), k, v, ct), causal=True)


def test_masks_far_from_zero(at_once: None) -> None:
    """Of a query whose keys all have -1e9 added, beside which the logarithm of a sum is nothing."""
    arrays = _case((1,), 40, 50, 16, 16)
    mask = np.zeros((40, 50), np.float32)
    mask[3], mask[7, 5:], mask[:, 2] = -1e9, -1e9, np.finfo(np.float32).min
    q = arrays[0].copy()
    q[:, 3] = 0  # what is left of its scores beside the mask is not float32's to say
    arrays = (q, *arrays[1:])
    _check(_found(arrays, mt.tensor(mask)), _truth(*arrays, mask, False), "far")


@pytest.mark.parametrize("causal", [False, True])
def test_derivatives_of_derivatives(causal: bool, at_once: None) -> None:
    """As with scores that are stored."""
    arrays = _case((2,), 9, 9, 4, 4)

    def second(least: int) -> list[Array]:
        at._LARGE = least
        given = [mt.tensor(a, requires_grad=True) for a in arrays[:3]]
        y = F.scaled_dot_product_attention(*given, is_causal=causal)
        first = mt.autograd.grad((y * mt.tensor(arrays[3])).sum(), given, create_graph=True)
        found = mt.autograd.grad(sum((g**2).sum() for g in first), given)
        return [t.detach().numpy() for t in (*first, *found)]

    for a, b in zip(second(0), second(1 << 60), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_mask_that_is_learned_keeps_its_gradient(at_once: None) -> None:
    arrays = _case((2,), 9, 9, 4, 4)
    bias = mt.zeros(9, 9, requires_grad=True)
    F.scaled_dot_product_attention(*map(mt.tensor, arrays[:3]), bias).square().sum().backward()
    assert bias.grad is not None
    assert float(bias.grad.abs().sum()) > 0
    assert not _kernels("attention")


def test_another_batch_compiles_nothing_of_it(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = Build._make

    def watched(self: Build, piece: Any, level: int) -> None:
        made.extend(piece.functions)
        make(self, piece, level)

    monkeypatch.setattr(Build, "_make", watched)
    lazy.clear_cache()
    for n in (3, 5):
        made.clear()
        arrays = _case((n, 4), 70, 70, 16, 16)
        _check(_found(arrays, causal=True), _truth(*arrays, None, True), n)
        assert any(name.startswith("attention") for name in made) == (n == 3)


def test_default_schedule(at_once: None) -> None:
    """TVM's own, without vectors, of the same loops."""
    arrays = _case((2,), 9, 40, 5, 3)
    want = _found(arrays, causal=True)
    with config.override(schedule="default"):
        lazy.clear_cache()
        got = _found(arrays, causal=True)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_where_it_is_used() -> None:
    """Many positions; few, or few queries of many keys, are products and a softmax."""

    def uses(heads: int, queries: int, keys: int) -> bool:
        q, k = mt.zeros(heads, queries, 32), mt.zeros(heads, keys, 32)
        mt.eval(F.scaled_dot_product_attention(q, k, k))
        return bool(_kernels("attention"))

    assert uses(8, 1024, 1024)
    assert not uses(64, 64, 64)
    assert not uses(8, 1, 4096)
    assert not uses(64, 256, 256)


def test_memory_grows_with_positions() -> None:
    """Not with their square: of 4 heads and 2048 positions scores would be 64 MiB a layer."""
    mt.manual_seed(0)
    layers = [nn.MultiheadAttention(64, 4, batch_first=True) for _ in range(2)]

    def step() -> None:
        x = y = mt.randn(1, 2048, 64)
        for layer in layers:
            y = layer(y, y, y, need_weights=False)[0]
        grads = mt.autograd.grad((x * y).sum(), [p for n in layers for p in n.parameters()])
        mt.eval(*grads)

    step()
    program = lazy.last_executor().program
    assert len(_kernels("attention")) >= 4
    assert program.arena_bytes < 40 * 4 * 2048 * 64
