"""Distributions: what is drawn, when something is computed, numbers in float32."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import distributions as D
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.node import MODE

N = 40_000


@pytest.fixture(autouse=True)
def _seed() -> None:
    mt.manual_seed(7)


# --- what is drawn ------------------------------------------------------------------------------

CONTINUOUS = [
    D.Normal(-1.0, 2.0),
    D.Laplace(0.5, 3.0),
    D.Gumbel(-1.0, 0.5),
    D.Exponential(4.0),
    D.Uniform(-2.0, 5.0),
    D.LogNormal(0.5, 0.25),
    D.HalfNormal(2.0),
    D.TransformedDistribution(D.Normal(0.5, 1.0), [D.TanhTransform()]),
    D.TransformedDistribution(D.Normal(0.5, 1.0), [D.AffineTransform(1.0, -2.0)]),
    D.MixtureSameFamily(
        D.Categorical(mt.tensor([0.25, 0.75])), D.Normal(mt.tensor([-1.0, 2.0]), mt.tensor(0.5))
    ),
]


@pytest.mark.parametrize("dist", CONTINUOUS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("dtype", [mt.float32, mt.float64], ids=str)
def test_samples_follow_the_distribution_function(dist: Any, dtype: Any) -> None:
    if dtype is mt.float64 and dist.arg_constraints:
        given = [getattr(dist, name).to(dtype) for name in dist.arg_constraints]
        dist = type(dist)(*given)
    x = dist.sample((N,))
    below = dist.cdf(x).numpy()
    assert np.isfinite(x.numpy()).all()
    counts, _ = np.histogram(below, bins=50, range=(0.0, 1.0))
    assert counts.sum() == N
    # Of 49 degrees of freedom; 85 is exceeded once in a thousand times.
    assert ((counts - N / 50) ** 2 / (N / 50)).sum() < 85


@pytest.mark.parametrize("dist", CONTINUOUS[:7], ids=lambda d: type(d).__name__)
def test_samples_have_the_moments(dist: Any) -> None:
    x = dist.sample((N,)).numpy().astype(np.float64)
    assert abs(x.mean() - dist.mean.item()) < 4 * dist.stddev.item() / math.sqrt(N)
    assert x.std() == pytest.approx(dist.stddev.item(), rel=0.05)


DRAWN = [
    (D.Gamma(0.05, 1.0), lambda rng: rng.gamma(0.05, 1.0, N)),
    (D.Gamma(0.7, 2.0), lambda rng: rng.gamma(0.7, 0.5, N)),
    (D.Gamma(1.0, 1.0), lambda rng: rng.gamma(1.0, 1.0, N)),
    (D.Gamma(250.0, 0.5), lambda rng: rng.gamma(250.0, 2.0, N)),
    (D.Chi2(3.0), lambda rng: rng.chisquare(3.0, N)),
    (D.StudentT(2.5, 1.0, 2.0), lambda rng: 1.0 + 2.0 * rng.standard_t(2.5, N)),
    (D.Beta(0.5, 0.3), lambda rng: rng.beta(0.5, 0.3, N)),
    (D.Beta(2.0, 5.0), lambda rng: rng.beta(2.0, 5.0, N)),
]


@pytest.mark.parametrize(("dist", "other"), DRAWN, ids=lambda d: type(d).__name__)
def test_samples_are_distributed_as_numpys(dist: Any, other: Any, rng: np.random.Generator) -> None:
    x = np.sort(dist.sample((N,)).numpy().astype(np.float64))
    y = np.sort(other(rng).astype(np.float32).astype(np.float64))
    both = np.concatenate([x, y])
    apart = np.searchsorted(x, both, "right") - np.searchsorted(y, both, "right")
    assert np.isfinite(x).all()
    # Kolmogorov and Smirnov's distance, exceeded once in a thousand times.
    assert np.abs(apart).max() / N < 1.95 * math.sqrt(2 / N)


def test_shares_of_tiny_powers() -> None:
    x = D.Dirichlet(mt.tensor([1e-3, 2e-3, 3e-3])).sample((4000,)).numpy()
    np.testing.assert_allclose(x.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(x.mean(0), [1 / 6, 1 / 3, 1 / 2], atol=0.03)


def test_samples_are_differentiated_by_rates_and_scales() -> None:
    rate = mt.tensor([1.0, 2.0], requires_grad=True)
    x = D.Gamma(mt.tensor([2.0, 3.0]), rate).rsample((5,))
    x.sum().backward()
    np.testing.assert_allclose(rate.grad.numpy(), -(x / rate).sum(0).detach().numpy(), rtol=1e-5)
    scale = mt.tensor(2.0, requires_grad=True)
    y = D.StudentT(3.0, 0.5, scale).rsample((5,))
    y.sum().backward()
    assert scale.grad.item() == pytest.approx(((y - 0.5) / 2.0).sum().item(), rel=1e-5)
    with mt.no_sync():  # nothing is evaluated
        D.Beta(mt.ones(3), 2.0).sample()


def close_to(counts: np.ndarray, probs: Any) -> bool:
    """Whether frequencies are within four standard deviations of probabilities."""
    total = counts.sum(-1, keepdims=True)
    p = np.asarray(probs)
    return bool((np.abs(counts / total - p) <= 4 * np.sqrt(p * (1 - p) / total)).all())


@pytest.mark.parametrize("n", [2, 5, 33])
def test_classes_are_drawn_by_their_probabilities(n: int) -> None:
    logits = np.random.default_rng(n).normal(size=(2, n)) * 2
    logits[0, 1] = -np.inf
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    # Many of each row, and one each of many rows, are drawn in different ways.
    many = D.Categorical(logits=mt.tensor(logits)).sample((N,)).numpy()
    rows = D.Categorical(logits=mt.tensor(logits.repeat(N, 0))).sample().numpy()
    for drawn in (many.T, rows.reshape(2, N)):
        counts = np.stack([np.bincount(row, minlength=n) for row in drawn])
        assert counts[0, 1] == 0
        assert close_to(counts, p)


def test_samples_of_a_batch_are_independent() -> None:
    drawn = D.Categorical(probs=mt.full((3, 2), 0.5)).sample((N,)).numpy() - 0.5
    normal = D.Normal(mt.zeros(3), 1.0).sample((N,)).numpy()
    for x in (drawn, normal):
        x = np.concatenate([x[1:], x[:-1]], 1)  # with those before
        correlation = np.corrcoef(x.T)
        assert np.abs(correlation - np.eye(6)).max() < 4 / math.sqrt(N)


def test_yes_or_no() -> None:
    p = mt.tensor([0.0, 0.125, 0.5, 1.0])
    x = D.Bernoulli(p).sample((N,)).numpy()
    assert {*np.unique(x)} == {0.0, 1.0}
    assert close_to(
        np.stack([N - x.sum(0), x.sum(0)], -1), np.stack([1 - p.numpy(), p.numpy()], -1)
    )
    assert D.Bernoulli(p * 2, validate_args=False).sample().isnan().tolist()[3]


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 1.0])
def test_trials_until_a_success(p: float) -> None:
    x = D.Geometric(p).sample((N,)).numpy()
    counts = np.bincount(x.astype(int), minlength=3)[:3]
    expected = p * (1 - p) ** np.arange(3)
    assert close_to(np.append(counts, N - counts.sum()), np.append(expected, 1 - expected.sum()))


def test_gradients_of_samples() -> None:
    loc, scale = mt.zeros(1000, requires_grad=True), mt.ones(1000, requires_grad=True)
    for name in ("Normal", "Laplace", "Gumbel"):
        x = getattr(D, name)(loc, scale).rsample()
        one, noise = mt.autograd.grad(x.sum(), (loc, scale))
        assert bool((one == 1).all())
        np.testing.assert_allclose(noise.numpy(), x.detach().numpy(), rtol=1e-6)


def test_a_straight_way_through() -> None:
    logits = mt.tensor([[0.0, 1.0, 2.0]], requires_grad=True)
    weights = mt.tensor([1.0, 2.0, 4.0])
    x = D.OneHotCategoricalStraightThrough(logits=logits).rsample()
    assert sorted(x.round().tolist()[0]) == [0.0, 0.0, 1.0]
    (x * weights).sum().backward()
    wanted = mt.autograd.grad((mt.nn.functional.softmax(logits, -1) * weights).sum(), logits)[0]
    np.testing.assert_allclose(logits.grad.numpy(), wanted.numpy(), rtol=1e-5)


# --- when something is computed -----------------------------------------------------------------


def test_nothing_is_evaluated() -> None:
    net = mt.nn.Linear(3, 4)
    with mt.no_sync():
        y = net(mt.ones(5, 3))
        choice = D.Categorical(logits=y)
        action = choice.sample()
        loss = -choice.log_prob(action).mean() - choice.entropy().mean()
        normal = D.Independent(D.Normal(y, y.exp()), 1)
        squashed = D.TransformedDistribution(normal, D.TanhTransform(cache_size=1))
        loss = loss + squashed.log_prob(squashed.rsample()).mean()
        coin = D.Bernoulli(logits=y)
        loss = loss + coin.log_prob(coin.sample()).mean()
        loss = loss + D.kl_divergence(choice, D.Categorical(logits=mt.zeros(5, 4))).mean()
        loss.backward()
    before = EVENTS.snapshot()
    mt.eval(loss, net.weight.grad)
    after = EVENTS.snapshot()
    assert after["evaluations"] == before.get("evaluations", 0) + 1
    assert after.get("check_evaluations") == before.get("check_evaluations")


def test_a_loop_compiles_once() -> None:
    net = mt.nn.Linear(3, 4)
    optimizer = mt.optim.Adam(net.parameters())
    compiled = []
    for _ in range(6):
        choice = D.Categorical(logits=net(mt.ones(3)))
        action = choice.sample()
        assert 0 <= action.item() < 4
        loss = -choice.log_prob(action) * 2.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        compiled.append(EVENTS.get("compiles"))
    assert compiled[2:] == compiled[2:3] * 4


def test_steps_are_captured() -> None:
    def step(logits: Any, loc: Any) -> tuple[Any, ...]:
        choice = D.Categorical(logits=logits)
        action = choice.sample()
        normal = D.Normal(loc, 1.0)
        x = normal.rsample((2,))
        return action, choice.log_prob(action), x, normal.log_prob(x)

    captured = mt.compile(step)
    inputs = [(mt.randn(8, 3), mt.randn(4)) for _ in range(4)]
    mt.manual_seed(3)
    plain = [[t.numpy() for t in step(*given)] for given in inputs]
    mt.manual_seed(3)
    again = [[t.numpy().copy() for t in captured(*given)] for given in inputs]
    for one, other in zip(plain, again, strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_classes_that_are_not_there_yet() -> None:
    choice = D.Categorical(logits=mt.zeros(2, 3))
    late = mt.tensor([1, 2]) * mt.tensor([1, 2])
    y = choice.log_prob(late)
    with pytest.raises(ValueError, match=r"IntegerInterval\(lower_bound=0, upper_bound=2\).*Cat"):
        y.numpy()
    with pytest.raises(ValueError, match="found invalid values"):
        (y + 1).sum().item()
    fine = choice.log_prob(mt.tensor([1, 2]) * mt.tensor([1, 1]))
    np.testing.assert_allclose(fine.numpy(), math.log(1 / 3), rtol=1e-6)


def test_wrong_parameters_that_are_not_there_yet() -> None:
    with mt.no_sync():
        normal = D.Normal(mt.zeros(1) + 1, mt.ones(1) - 2)
        choice = D.Categorical(logits=mt.tensor([0.0, 1.0]) * float("nan"))
    assert normal.log_prob(mt.zeros(1)).isnan().all()
    drawn = choice.sample((100,))
    assert {*drawn.tolist()} <= {0, 1}
    assert choice.log_prob(drawn).isnan().all()


@pytest.fixture
def _default() -> Iterator[None]:
    yield
    D.Distribution.set_default_validate_args(True)


@pytest.mark.usefixtures("_default")
def test_tests_can_be_left_out() -> None:
    assert D.Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0
    D.Distribution.set_default_validate_args(False)
    assert D.Normal(0.0, -1.0).scale.item() == -1.0
    assert D.Normal(0.0, 1.0).log_prob(mt.tensor(float("nan"))).isnan()
    with pytest.raises(ValueError, match="GreaterThan"):
        D.Normal(0.0, -1.0, validate_args=True)
    with pytest.raises(RuntimeError, match="index 3 is out of bounds for dimension 0 with size 2"):
        D.Categorical(logits=mt.zeros(2)).log_prob(mt.tensor(3))


def test_gradients_in_spite_of_no_grad() -> None:
    """What is made once, without a gradient, could not be used with one later."""
    logits = mt.zeros(3, requires_grad=True)
    choice = D.Categorical(logits=logits)
    with mt.no_grad():
        probs = choice.probs
    assert probs.requires_grad
    coin = D.Bernoulli(logits=logits)
    coin.sample()
    assert coin.probs.requires_grad


# --- numbers ------------------------------------------------------------------------------------


def test_impossible_classes_have_gradients() -> None:
    """As of a policy whose impossible actions are masked."""
    logits = mt.tensor([[1.0, -math.inf, 0.5], [0.0, 0.0, -math.inf]], requires_grad=True)
    choice = D.Categorical(logits=logits)
    old = D.Categorical(logits=logits.detach())
    for y in (
        choice.entropy(),
        choice.log_prob(mt.tensor([0, 1])),
        D.kl_divergence(old, choice),
        D.kl_divergence(choice, old),
    ):
        assert y.isfinite().all()
        (gradient,) = mt.autograd.grad(y.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all()


def test_small_logarithms_are_exact() -> None:
    logits = np.concatenate([np.linspace(-90, 90, 2001), [0.0, -0.0]]).astype(np.float32)
    for x in (0.0, 1.0):
        y = D.Bernoulli(logits=mt.tensor(logits)).log_prob(mt.tensor(x)).numpy()
        z = (1 - 2 * x) * logits.astype(np.float64)
        wanted = -np.logaddexp(0.0, z)
        assert (np.abs(y - wanted) <= 4 * np.spacing(np.abs(wanted).astype(np.float32))).all()
    x = np.concatenate([-np.logspace(-30, 2, 500), np.logspace(-30, 2, 500)]).astype(np.float32)
    y = D.TanhTransform().log_abs_det_jacobian(mt.tensor(x), mt.tensor(x)).numpy()
    wide = np.abs(x.astype(np.float64))
    near = np.log1p(-(np.tanh(np.minimum(wide, 0.5)) ** 2))
    far = 2 * (math.log(2) - wide - np.log1p(np.exp(-2 * wide)))
    wanted = np.where(wide < 0.5, near, far)
    room = 4 * np.spacing(np.abs(wanted).astype(np.float32))
    assert (np.abs(y - wanted) <= room).all()


def test_normal_quantiles_are_exact() -> None:
    p = np.concatenate([np.logspace(-44, -0.31, 300), 1 - np.logspace(-7, -0.31, 100)])
    p = p.astype(np.float32)
    x = D.Normal(0.0, 1.0).icdf(mt.tensor(p)).numpy().astype(np.float64)
    # As there is no other such function here, by the distribution function in float64.
    low, high = (x + s * 2 * np.spacing(np.abs(x).astype(np.float32)) for s in (-1, 1))
    cdf = np.vectorize(lambda v: math.erfc(-v * math.sqrt(0.5)) / 2)
    wide = p.astype(np.float64)
    upper = p > 0.5  # from the other end, where more is left of it
    assert ((cdf(low) <= wide) & (wide <= cdf(high)))[~upper].all()
    assert ((cdf(-high) <= 1 - wide) & (1 - wide <= cdf(-low)))[upper].all()
    ends = D.Normal(1.0, 2.0).icdf(mt.tensor([0.0, 1.0, 0.5, -0.5, math.nan])).tolist()
    assert ends[:3] == [-math.inf, math.inf, 1.0]
    assert all(map(math.isnan, ends[3:]))


def test_second_derivatives() -> None:
    x = mt.tensor([-1.5, 0.0, 0.25, 0.75], dtype=mt.float64, requires_grad=True)

    def slope(function: Any) -> Any:
        return lambda z: mt.autograd.grad(function(z).sum(), z, create_graph=True)[0]

    scale = mt.tensor([0.5, 1.0, 2.0, 3.0], dtype=mt.float64, requires_grad=True)
    half = mt.full((4,), 0.5, dtype=mt.float64)
    inside = mt.tensor([0.01, 0.3, 0.6, 0.999], dtype=mt.float64, requires_grad=True)
    for function, z in (
        (lambda z: D.Normal(z, scale).log_prob(half), x),
        (lambda s: D.Normal(half, s).log_prob(x), scale),
        (lambda z: D.TanhTransform().log_abs_det_jacobian(z, z), x),
        (lambda z: D.Bernoulli(logits=z).log_prob(half.round()), x),
        (lambda z: D.Categorical(logits=z).log_prob(mt.tensor(1)), x),
        (lambda z: D.Categorical(logits=z).entropy(), x),
        (D.Normal(0.0, 1.0).icdf, inside),
    ):
        assert mt.autograd.gradcheck(slope(function), z)


def test_copies_and_files() -> None:
    choice = D.Categorical(logits=mt.tensor([0.0, 1.0]))
    squashed = D.TransformedDistribution(D.Normal(0.0, 1.0), [D.TanhTransform()])
    squashed.transforms[0].inv(mt.tensor(0.5))
    for dist, value in ((choice, mt.tensor(1)), (squashed, mt.tensor(0.5))):
        for other in (copy.deepcopy(dist), pickle.loads(pickle.dumps(dist))):
            assert other.log_prob(value).item() == dist.log_prob(value).item()


def test_users_define_distributions() -> None:
    class Triangle(D.Distribution):
        arg_constraints = {"top": D.constraints.positive}  # noqa: RUF012

        def __init__(self, top: Any) -> None:
            self.top = top
            super().__init__(top.shape)

        @D.constraints.dependent_property(is_discrete=False, event_dim=0)
        def support(self) -> Any:
            return D.constraints.interval(0.0, self.top)

        def log_prob(self, value: Any) -> Any:
            self._validate_sample(value)
            return (2 * value / self.top.square()).log()

    triangle = Triangle(mt.tensor([1.0, 2.0]))
    np.testing.assert_allclose(triangle.log_prob(mt.tensor(0.5)).exp().numpy(), [1.0, 0.25])
    assert triangle.expand((3, 2)).log_prob(mt.tensor(0.5)).shape == (3, 2)
    with pytest.raises(ValueError, match="within the support"):
        triangle.log_prob(mt.tensor([0.5, 3.0]))
    with pytest.raises(ValueError, match="Expected parameter top"):
        Triangle(mt.tensor([-1.0]))
    with pytest.warns(UserWarning, match="does not define `arg_constraints`"):
        D.Distribution()


def test_what_is_impossible_is_never_drawn() -> None:
    """By their logarithms, which are limited, a class of probability 0 would be, once in 2**23."""
    mt.manual_seed(0)
    probs = mt.tensor([0.0, 1e-30, 0.0, 1e-30])
    for samples in ((), (2000,)):
        drawn = D.Categorical(probs.expand(500, 4)).sample(samples)
        assert set(drawn.flatten().tolist()) == {1, 3}
    # The whole of what a policy records for an action, and its probability.
    mt.eval(probs)
    MODE.trace.restart()
    choice = D.Categorical(probs)
    action = choice.sample()
    kept = choice.log_prob(action)
    values = [value() for value in MODE.trace.values]
    assert len([n for n in values if n is not None and n.inputs]) == 4
    assert kept.item() < 0
