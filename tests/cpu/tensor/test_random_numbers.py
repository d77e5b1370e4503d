"""Random numbers depend on the seed and the order of drawing, and on nothing else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import random as rng_module
from minitorch_tvm.core import dtype as dt


def _draws() -> list[Any]:
    return [mt.rand(5), mt.randn(2, 3), mt.rand(7, dtype=mt.float64), mt.randn(4)]


def test_a_seed_fixes_every_bit() -> None:
    mt.manual_seed(3)
    first = [t.tolist() for t in _draws()] + [
        mt.randperm(9).tolist(),
        mt.randint(0, 99, (5,)).tolist(),
    ]
    mt.manual_seed(3)
    again = [t.tolist() for t in _draws()] + [
        mt.randperm(9).tolist(),
        mt.randint(0, 99, (5,)).tolist(),
    ]
    assert first == again
    mt.manual_seed(4)
    assert [t.tolist() for t in _draws()] != first[:4]


def test_values_do_not_depend_on_when_they_are_computed() -> None:
    mt.manual_seed(3)
    together = _draws()
    mt.eval(*together)
    mt.manual_seed(3)
    backwards = _draws()
    for t in reversed(backwards):
        t.tolist()
    mt.manual_seed(3)
    dropped = _draws()
    del dropped[:3]  # never computed, yet they were drawn
    fused = (dropped[0] * 2 + 1).tolist()
    assert [t.tolist() for t in together] == [t.tolist() for t in backwards]
    assert fused == (together[3] * 2 + 1).tolist()


def test_every_draw_is_different_and_a_recorded_one_is_fixed() -> None:
    masks = [mt.rand(64) < 0.5 for _ in range(6)]
    mt.eval(*masks)
    texts = [tuple(m.tolist()) for m in masks]
    assert len(set(texts)) == 6
    x = mt.rand(10)
    y, z = x + 1, x * 2
    a, b, c = y.tolist(), z.tolist(), x.tolist()
    np.testing.assert_array_equal(np.array(c, "f") + np.float32(1), np.array(a, "f"))
    np.testing.assert_array_equal(np.array(c, "f") * np.float32(2), np.array(b, "f"))


def test_moments_and_range() -> None:
    n = 200_000
    u, g = mt.rand(n), mt.randn(n)
    mt.eval(u, g)
    u, g = u.numpy().astype("d"), g.numpy().astype("d")
    assert u.min() >= 0
    assert u.max() < 1
    # Five standard errors of each statistic.
    near = 5 / math.sqrt(n)
    assert abs(u.mean() - 0.5) < near * math.sqrt(1 / 12)
    assert abs(u.var() - 1 / 12) < near * math.sqrt(1 / 180)
    assert abs(g.mean()) < near
    assert abs(g.var() - 1) < near * math.sqrt(2)
    assert abs((g**3).mean()) < near * math.sqrt(15)
    assert abs((g**4).mean() - 3) < near * math.sqrt(96)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < near
    counts = np.histogram(u, 64, (0, 1))[0]
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert 20 < chi2 < 130  # 63 degrees of freedom: five standard deviations about the mean
    assert np.isfinite(g).all()


def test_host_numbers_are_the_recorded_ones() -> None:
    generator = mt.Generator()
    generator.manual_seed(11)
    uniform = mt.rand(3, 5, generator=generator, dtype=mt.float64)
    normal = mt.randn(4, generator=generator, dtype=mt.float64)
    generator.manual_seed(11)
    np.testing.assert_array_equal(generator.host_uniform((3, 5)), uniform.numpy())
    np.testing.assert_allclose(generator.host_normal((4,)), normal.numpy(), rtol=1e-12)
    generator.manual_seed(11)
    bits = rng_module.Generator().manual_seed(11).bits((6,))
    recorded = mt.Tensor._wrap(bits)
    assert recorded.dtype is dt.uint32
    np.testing.assert_array_equal(generator.host_bits((6,)), recorded.numpy())


def test_generators_are_independent_and_restorable() -> None:
    a, b = mt.Generator().manual_seed(1), mt.Generator().manual_seed(1)
    mt.rand(3)  # of the default generator: it moves neither
    assert mt.rand(4, generator=a).tolist() == mt.rand(4, generator=b).tolist()
    state = a.get_state()
    first = mt.rand(4, generator=a).tolist()
    a.set_state(state)
    assert mt.rand(4, generator=a).tolist() == first
    assert a.initial_seed() == 1
    assert a.seed() == a.initial_seed()
    with pytest.raises(AssertionError, match="only device 'cpu' is supported"):
        mt.Generator("cuda")


def test_seeds_share_no_stream() -> None:
    streams = [mt.rand(32, generator=mt.Generator().manual_seed(s)).tolist() for s in range(4)]
    numbers = [x for s in streams for x in s]
    assert len(set(numbers)) == len(numbers)
    wide = [mt.Generator().manual_seed(s).host_bits((4,)).tolist() for s in (1, 1 + (1 << 32), -1)]
    assert len({tuple(w) for w in wide}) == 3


def test_integers_and_permutations() -> None:
    x = mt.randint(-2, 3, (1000,))
    assert x.dtype is mt.int64
    assert set(x.tolist()) == {-2, -1, 0, 1, 2}
    assert sorted(mt.randperm(50).tolist()) == list(range(50))
    assert mt.randint(5, size=(3,)).numpy().max() < 5
    with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to'"):
        mt.randint(3, 3, (2,))


def test_only_floating_point() -> None:
    with pytest.raises(RuntimeError, match='"check_uniform_bounds" not implemented for'):
        mt.rand(3, dtype=mt.int64)
    with pytest.raises(RuntimeError, match='"normal_kernel_cpu" not implemented for'):
        mt.randn(3, dtype=mt.int32)
    x = mt.ones(2, 3, dtype=mt.float64)
    assert mt.rand_like(x).dtype is mt.float64
    assert mt.randn_like(x, dtype=mt.float32).shape == (2, 3)
