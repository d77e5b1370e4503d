"""Tensors that are filled with random numbers: distributions, seeds, and places in programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

COUNT = 20_000


def within(found: float, wanted: float, deviation: float) -> None:
    """A mean over COUNT samples of that standard deviation: within five of its own."""
    assert abs(found - wanted) < 5 * deviation / math.sqrt(COUNT)


def test_distributions() -> None:
    mt.manual_seed(5)
    drawn: dict[str, Any] = {
        "uniform": mt.empty(COUNT).uniform_(-1, 3),
        "normal": mt.empty(COUNT).normal_(2, 3),
        "exponential": mt.empty(COUNT).exponential_(0.5),
        "bernoulli": mt.empty(COUNT, dtype=mt.int64).bernoulli_(0.3),
        "chances": mt.bernoulli(mt.tensor([0.1, 0.8]).expand(COUNT, 2)),
        "random": mt.empty(COUNT, dtype=mt.int32).random_(-3, 4),
        "wide": mt.empty(COUNT, dtype=mt.int64).random_(),
        "float": mt.empty(COUNT).random_(),
        "double": mt.empty(COUNT, dtype=mt.float64).random_(),
        "bytes": mt.empty(COUNT, dtype=mt.uint8).random_(),
        "like": mt.randint_like(mt.empty(COUNT), 10, 12),
        "means": mt.normal(mt.tensor([[1.0], [-1.0]]), mt.full((COUNT,), 0.5)),
        "spread": mt.normal(0.0, mt.full((COUNT,), 2.0, dtype=mt.float64)),
    }
    mt.eval(*drawn.values())
    x = {name: t.numpy().astype(np.float64) for name, t in drawn.items()}
    assert x["uniform"].min() >= -1 and x["uniform"].max() <= 3  # noqa: PT018
    within(x["uniform"].mean(), 1, 4 / math.sqrt(12))
    within(x["normal"].mean(), 2, 3)
    within(((x["normal"] - 2) ** 2).mean(), 9, 9 * math.sqrt(2))
    assert x["exponential"].min() >= 0
    assert not np.signbit(x["exponential"]).any()
    within(x["exponential"].mean(), 2, 2)
    within((x["exponential"] > 2 * math.log(4)).mean(), 0.25, 0.5)
    within(x["bernoulli"].mean(), 0.3, 0.5)
    within(x["chances"][:, 0].mean(), 0.1, 0.3)
    within(x["chances"][:, 1].mean(), 0.8, 0.4)
    counts = np.bincount(x["random"].astype(int) + 3, minlength=7)
    for count in counts:
        within(count / COUNT, 1 / 7, 0.35)
    for name, top in (("wide", 2.0**63), ("float", 2.0**24), ("double", 2.0**53), ("bytes", 256.0)):
        assert 0 <= x[name].min() <= x[name].max() < top * (1 + 1e-15), name
        within(x[name].mean() / top, 0.5, 0.29)
        assert len(np.unique(x[name])) > (250 if top == 256 else COUNT * 0.99), name
    assert set(x["like"]) == {10.0, 11.0}
    within(x["means"][0].mean(), 1, 0.5)
    within(x["means"][1].mean(), -1, 0.5)
    within((x["spread"] ** 2).mean(), 4, 4 * math.sqrt(2))


def test_seeds_states_and_generators() -> None:
    def drawn() -> list[Any]:
        made: list[Any] = [
            mt.zeros(3).uniform_(),
            mt.zeros(3).random_(),
            mt.zeros(3).exponential_(),
        ]
        return [t.tolist() for t in made]

    mt.manual_seed(1)
    state = mt.get_rng_state()
    first, second = drawn(), drawn()
    assert first != second
    mt.set_rng_state(state)
    assert [drawn(), drawn()] == [first, second]
    assert mt.initial_seed() == 1
    assert mt.seed() == mt.initial_seed()
    a, b = (mt.zeros(4).normal_(generator=mt.Generator().manual_seed(3)) for _ in range(2))
    assert a.tolist() == b.tolist()


def test_nothing_is_evaluated_and_views_are_written_through() -> None:
    x: Any = mt.zeros(4, 3)
    with mt.no_sync():
        x[1].uniform_(5, 6)
        x.T[0].bernoulli_(1.0)
        empty = mt.zeros(0, 2).normal_()
    values = x.numpy()
    assert (values[:, 0] == 1).all()
    assert (values[1, 1:] >= 5).all()
    assert values[[0, 2, 3], 1:].sum() == 0
    assert empty.shape == (0, 2)


def test_probabilities_that_are_none_show() -> None:
    p = mt.tensor([2.0, -0.5, math.nan, 1.0])
    assert np.isnan(mt.bernoulli(p).numpy()).tolist() == [True, True, True, False]
    drawn: Any = mt.normal(0.0, mt.tensor([-1.0, 1.0]))
    assert np.isnan(drawn.numpy()).tolist() == [True, False]


def test_means_and_deviations_have_gradients() -> None:
    mean = mt.zeros(3, requires_grad=True)
    std = mt.ones(3, requires_grad=True)
    drawn: Any = mt.normal(mean, std)
    drawn.sum().backward()
    mt.eval(drawn)
    assert mean.grad is not None
    assert mean.grad.tolist() == [1.0] * 3


def test_a_compiled_function_draws_anew() -> None:
    @mt.compile
    def noisy(x: Any) -> Any:
        return (
            x
            + mt.empty(4).uniform_(1, 2) * mt.bernoulli(mt.full((4,), 0.5))
            + mt.randint_like(x, 9)
        )

    mt.manual_seed(0)
    got = [noisy(mt.zeros(4)).tolist() for _ in range(6)]
    mt.manual_seed(0)
    wanted = []
    for _ in range(6):
        noise = mt.empty(4).uniform_(1, 2) * mt.bernoulli(mt.full((4,), 0.5))
        wanted.append((noise + mt.randint_like(mt.zeros(4), 9)).tolist())
    assert len({tuple(row) for row in got}) == 6
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_ranges_too_wide_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="range of"):
        mt.zeros(2, dtype=mt.int64).random_(0, 2**40)


def test_random_up_to_what_the_dtype_can_hold() -> None:
    x = mt.zeros(2000, dtype=mt.uint8)
    values = x.random_(100, None).numpy()
    assert values.min() >= 100
    assert values.max() > 230
    with pytest.raises(RuntimeError, match="from=0 >= to=0"):
        x.random_(0)
