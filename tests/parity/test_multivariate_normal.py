"""Normal distributions of vectors in torch and here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

_RNG = np.random.default_rng(5)
_SQUARE = _RNG.standard_normal((2, 3, 3))
MATRIX = _SQUARE @ np.swapaxes(_SQUARE, -1, -2) + np.eye(3)
FACTOR = np.linalg.cholesky(MATRIX)
LOC, VALUE = _RNG.standard_normal(3), _RNG.standard_normal((4, 2, 3))
GIVEN = {
    "covariance_matrix": MATRIX,
    "precision_matrix": MATRIX,
    "scale_tril": FACTOR,
}


def _of(m: Any, name: str, matrix: Any, loc: Any = LOC) -> tuple[Any, list[Any]]:
    leaves = [m.tensor(x, requires_grad=True) for x in (loc, matrix)]
    if name == "scale_tril":
        return m.distributions.MultivariateNormal(leaves[0], scale_tril=leaves[1].tril()), leaves
    return m.distributions.MultivariateNormal(leaves[0], **{name: leaves[1]}), leaves


def _close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_what_it_tells(name: str, single: bool) -> None:
    results = []
    for m in (torch, mt):
        own, leaves = _of(m, name, GIVEN[name][0] if single else GIVEN[name])
        other, _ = _of(m, "scale_tril", 2 * FACTOR, LOC + 1)
        density = own.log_prob(m.tensor(VALUE))
        divergences = [
            m.distributions.kl_divergence(*pair) for pair in ((own, other), (other, own))
        ]
        total = density.sum() + own.entropy().sum() + divergences[0].sum() + own.variance.sum()
        total.backward()
        matrices = [getattr(own, n) for n in GIVEN]
        wide = own.expand((5, 2))
        assert (tuple(wide.batch_shape), tuple(wide.event_shape)) == ((5, 2), (3,))
        more = [wide.log_prob(m.tensor(VALUE[0])), own.mean, own.mode, own.stddev, own.entropy()]
        results.append([density, *divergences, *matrices, *more, *[x.grad for x in leaves]])
    for want, got in zip(*results, strict=True):
        assert tuple(got.shape) == tuple(want.shape)
        _close(got, want)


def test_samples() -> None:
    mt.manual_seed(3)
    own, leaves = _of(mt, "covariance_matrix", MATRIX)
    x = own.rsample((50_000,))
    assert x.shape == (50_000, 2, 3)
    values = x.detach().numpy()
    for i in range(2):
        np.testing.assert_allclose(np.cov(values[:, i].T), MATRIX[i], atol=0.2)
    np.testing.assert_allclose(values.mean((0, 1)), LOC, atol=0.05)
    x.sum().backward()
    assert all(leaf.grad is not None for leaf in leaves)
    assert not own.sample().requires_grad


WRONG = """
N(t(0.),t([[1.]]))
N(t([0.]))
N(t([0.]),t([[1.]]),t([[1.]]))
N(t([0.]),t([1.]))
N(t([0.]),scale_tril=t([1.]))
N(t([0.]),precision_matrix=t([1.]))
N(t([0.,0.]),t([[1.,2.],[2.,1.]]))
N(t([0.,0.]),t([[1.,0.],[0.5,1.]]))
N(t([0.,0.]),scale_tril=t([[1.,1.],[0.,1.]]))
N(t([0.,0.]),scale_tril=t([[1.,0.],[0.,0.]]))
N(t([0.,0.]),t([[1.,2.],[2.,1.]]),validate_args=False)
N(t([0.,0.]),t([[1.,0.],[0.,1.]])).log_prob(t([1.,2.,3.]))
m.distributions.kl_divergence(N(t([0.]),t([[1.]])),N(t([0.,0.]),t([[1.,0.],[0.,1.]])))
"""


@pytest.mark.parametrize("call", WRONG.strip().splitlines())
def test_errors(call: str) -> None:
    refusals = []
    for m in (torch, mt):
        names = {"m": m, "t": m.tensor, "N": m.distributions.MultivariateNormal}
        with pytest.raises(Exception) as caught:
            eval(call, names)
        refusals.append(
            (caught.type.__name__.lstrip("_"), " ".join(str(caught.value).split("\n")[0].split()))
        )
    assert refusals[0] == refusals[1]


CONSTRAINTS = ("lower_cholesky", "lower_triangular", "positive_definite", "positive_semidefinite")


@pytest.mark.parametrize("name", [*CONSTRAINTS, "square", "symmetric"])
def test_constraints(name: str) -> None:
    values = np.stack([np.eye(3), MATRIX[0], np.ones((3, 3)), -np.eye(3), FACTOR[0]])
    if name.startswith("positive"):  # of one that is not symmetric, PyTorch looks at no other
        values = values[:-1]
    results = []
    for m in (torch, mt):
        constraint = getattr(m.distributions.constraints, name)
        results.append((str(constraint), constraint.event_dim, constraint.check(m.tensor(values))))
    (label, dims, want), (own_label, own_dims, got) = results
    assert (own_label, own_dims) == (label, dims)
    keep = [0, 1, 3] if name == "positive_semidefinite" else slice(None)  # 0 may be -1e-17
    assert got.numpy()[keep].tolist() == want.numpy()[keep].tolist()
