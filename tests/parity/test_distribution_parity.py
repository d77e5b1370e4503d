"""Distributions against torch in float64: values, gradients, shapes, texts and errors."""

from __future__ import annotations

import inspect
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import minitorch_tvm as mt

torch = pytest.importorskip("torch")
D, TD = mt.distributions, torch.distributions

LOC = [[-0.5, 0.0, 2.0], [1.5, -3.0, 0.25]]
SCALE = [[0.5, 1.0, 2.5], [0.1, 3.0, 0.75]]
CHANCE = [[0.1, 0.5, 0.9], [0.3, 0.75, 0.999]]
CLASSES = [[0.2, 0.3, 0.5], [0.9, 0.05, 0.05]]
LOGITS = [[0.0, -1.0, 2.5], [-40.0, 3.0, 0.0]]
PROBABILITY = [[0.1, 0.45, 0.9], [0.3, 0.75, 0.999]]  # 0.5 is a kink of theirs, not of ours
REAL = [[0.25, -1.0, 4.0], [1.5, 0.0, -2.0]]
POSITIVE = [[0.25, 1.0, 4.0], [1.5, 0.01, 2.0]]
BINARY = [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
ONE_HOT = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
MORE = [[1.5, 2.0, 4.0], [1.25, 3.0, 2.5]]
COUNTS = [[0.0, 1.0, 4.0], [2.0, 0.0, 7.0]]
INSIDE = [[0.0, 0.25, 2.0], [1.45, -1.0, 0.5]]

# Name, parameters, values.
CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("Normal", {"loc": LOC, "scale": SCALE}, REAL),
    ("Laplace", {"loc": LOC, "scale": SCALE}, REAL),
    ("Gumbel", {"loc": LOC, "scale": SCALE}, REAL),
    ("LogNormal", {"loc": LOC, "scale": SCALE}, POSITIVE),
    ("HalfNormal", {"scale": SCALE}, POSITIVE),
    ("Exponential", {"rate": SCALE}, POSITIVE),
    ("Uniform", {"low": np.subtract(LOC, 0.1).tolist(), "high": np.add(LOC, SCALE)}, INSIDE),
    ("Bernoulli", {"probs": CHANCE}, BINARY),
    ("Bernoulli", {"logits": REAL}, BINARY),
    ("Geometric", {"probs": CHANCE}, COUNTS),
    ("Geometric", {"logits": REAL}, COUNTS),
    ("Categorical", {"probs": CLASSES}, [2, 0]),
    ("Categorical", {"logits": LOGITS}, [1, 2]),
    ("Categorical", {"logits": LOGITS}, [[0, 1], [2, 2], [1, 0]]),
    ("OneHotCategorical", {"probs": CLASSES}, ONE_HOT),
    ("OneHotCategorical", {"logits": LOGITS}, ONE_HOT),
    ("Gamma", {"concentration": SCALE, "rate": POSITIVE}, POSITIVE),
    ("Chi2", {"df": POSITIVE}, SCALE),
    ("StudentT", {"df": POSITIVE, "loc": LOC, "scale": SCALE}, REAL),
    ("Beta", {"concentration1": MORE, "concentration0": SCALE}, CHANCE),
    ("Dirichlet", {"concentration": MORE}, CLASSES),
]
NO_CDF = ("Gamma", "Chi2")  # it is an incomplete gamma function
DRAWN = ("Gamma", "Chi2", "StudentT", "Beta", "Dirichlet")  # by parameters without gradients
NAMES = [f"{name}-{'-'.join(given)}-{number}" for number, (name, given, _) in enumerate(CASES)]
FACTS = ("mean", "variance", "stddev", "mode", "entropy", "perplexity", "probs", "logits")


def pair(array: Any, grad: bool = True) -> tuple[Any, Any]:
    """The same tensor here and there."""
    x = np.asarray(array)
    here, there = mt.tensor(x.copy()), torch.tensor(x)
    if grad and x.dtype.kind == "f":
        here.requires_grad_(), there.requires_grad_()
    return here, there


def agree(here: Any, there: Any, leaves: list[tuple[Any, Any]], rtol: float = 1e-10) -> None:
    """Values, and gradients by what may have one, weighting the results unevenly."""
    assert tuple(here.shape) == tuple(there.shape)
    assert here.requires_grad == there.requires_grad
    np.testing.assert_allclose(here.detach().numpy(), there.detach().numpy(), rtol, 1e-12)
    if not there.requires_grad:
        return
    weights = np.random.default_rng(1).uniform(0.5, 1.5, tuple(there.shape))
    left = [(x, y) for x, y in leaves if y.requires_grad]
    mine = mt.autograd.grad(
        here, [x for x, _ in left], mt.tensor(weights), retain_graph=True, allow_unused=True
    )
    other = torch.autograd.grad(
        there, [y for _, y in left], torch.tensor(weights), retain_graph=True, allow_unused=True
    )
    for x, y, (leaf, _) in zip(mine, other, left, strict=True):
        a = np.zeros(tuple(leaf.shape)) if x is None else x.numpy()
        b = np.zeros(tuple(leaf.shape)) if y is None else y.numpy()
        np.testing.assert_allclose(a, b, 1e-8, 3e-9)  # their trigamma function is no better


def both(name: str, given: dict[str, Any]) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The distribution here and there, and its parameters."""
    leaves = {key: pair(value) for key, value in given.items()}
    here = getattr(D, name)(**{key: x for key, (x, _) in leaves.items()})
    there = getattr(TD, name)(**{key: y for key, (_, y) in leaves.items()})
    return here, there, [*leaves.values()]


@pytest.mark.parametrize(("name", "given", "values"), CASES, ids=NAMES)
def test_log_probabilities(name: str, given: dict[str, Any], values: Any) -> None:
    here, there, leaves = both(name, given)
    value = pair(values)
    agree(here.log_prob(value[0]), there.log_prob(value[1]), [*leaves, value])
    if name == "Uniform":
        return  # each of its values is inside of one interval
    row = pair(np.asarray(values)[:1])  # broadcasts with the batch
    agree(here.log_prob(row[0]), there.log_prob(row[1]), [*leaves, row])


@pytest.mark.parametrize(("name", "given", "values"), CASES, ids=NAMES)
def test_facts(name: str, given: dict[str, Any], values: Any) -> None:
    here, there, leaves = both(name, given)
    for fact in FACTS:
        if not hasattr(TD.Distribution, fact) and not hasattr(getattr(TD, name), fact):
            continue
        mine, other = getattr(here, fact), getattr(there, fact)
        if callable(other):
            mine, other = mine(), other()
        agree(mine, other, leaves, rtol=1e-9)
    assert repr(here) == repr(there)
    assert repr(here.support).replace("mt.", "torch.") == repr(there.support)
    assert here.batch_shape == tuple(there.batch_shape)
    assert here.event_shape == tuple(there.event_shape)
    assert here.has_rsample == there.has_rsample
    assert here.has_enumerate_support == there.has_enumerate_support


@pytest.mark.parametrize(("name", "given", "values"), CASES, ids=NAMES)
def test_distribution_functions(name: str, given: dict[str, Any], values: Any) -> None:
    here, there, leaves = both(name, given)
    value, chance = pair(values), pair(PROBABILITY)
    for function, x in (("cdf", value), ("icdf", chance)):
        if function == "cdf" and name in NO_CDF:
            continue
        try:
            other = getattr(there, function)(x[1])
        except NotImplementedError:
            with pytest.raises(NotImplementedError):
                getattr(here, function)(x[0])
            continue
        agree(getattr(here, function)(x[0]), other, [*leaves, x], rtol=1e-8)


@pytest.mark.parametrize(("name", "given", "values"), CASES, ids=NAMES)
def test_expanded(name: str, given: dict[str, Any], values: Any) -> None:
    here, there, leaves = both(name, given)
    shape = (2, *here.batch_shape)
    mine, other = here.expand(shape), there.expand(shape)
    assert type(mine) is type(here)
    assert mine.batch_shape == tuple(other.batch_shape)
    assert mine.event_shape == tuple(other.event_shape)
    assert repr(mine) == repr(other)
    value = pair(values)
    if np.shape(values) == here.batch_shape + here.event_shape:
        agree(mine.log_prob(value[0]), other.log_prob(value[1]), [*leaves, value])
    agree(mine.entropy(), other.entropy(), leaves)
    assert tuple(mine.sample((4,)).shape) == tuple(other.sample((4,)).shape)
    assert here.batch_shape == tuple(there.batch_shape)


@pytest.mark.parametrize(("name", "given", "values"), CASES, ids=NAMES)
def test_samples_have_the_shape_and_the_dtype(
    name: str, given: dict[str, Any], values: Any
) -> None:
    here, there, _ = both(name, given)
    for shape in ((), (3,), (2, 1), (0,)):
        if shape == (0,) and name.endswith("Categorical"):
            assert here.sample(shape).shape == shape + here.batch_shape + here.event_shape
            continue  # theirs draws one at least
        mine, other = here.sample(shape), there.sample(shape)
        assert tuple(mine.shape) == tuple(other.shape)
        assert str(mine.dtype).split(".")[1] == str(other.dtype).split(".")[1]
        assert not mine.requires_grad
        if other.numel():
            assert bool(here.support.check(mine).all())
    if name in DRAWN:
        with pytest.raises(NotImplementedError, match="detach it"):
            here.rsample()
    elif there.has_rsample:
        assert here.rsample().requires_grad
    if there.has_enumerate_support:
        for expand in (True, False):
            agree(here.enumerate_support(expand), there.enumerate_support(expand), [])


DIVERGENT = [
    ("Normal", {"loc": [0.5, -1.0], "scale": [0.5, 2.0]}),
    ("Normal", {"loc": [1.5, -1.0], "scale": [1.5, 0.25]}),
    ("Laplace", {"loc": [0.5, -1.0], "scale": [0.5, 2.0]}),
    ("Laplace", {"loc": [2.5, -1.5], "scale": [1.5, 0.3]}),
    ("Gumbel", {"loc": [0.5, -1.0], "scale": [0.5, 2.0]}),
    ("Gumbel", {"loc": [0.25, 1.0], "scale": [0.75, 1.0]}),
    ("Exponential", {"rate": [0.5, 2.0]}),
    ("Exponential", {"rate": [1.5, 0.7]}),
    ("Uniform", {"low": [0.5, -1.0], "high": [1.0, 2.0]}),
    ("Uniform", {"low": [0.0, 0.0], "high": [3.0, 1.5]}),
    ("HalfNormal", {"scale": [0.5, 2.0]}),
    ("HalfNormal", {"scale": [1.5, 0.7]}),
    ("LogNormal", {"loc": [0.5, -1.0], "scale": [0.5, 2.0]}),
    ("LogNormal", {"loc": [0.0, 1.0], "scale": [1.5, 0.7]}),
    ("Bernoulli", {"probs": [0.2, 0.9]}),
    ("Bernoulli", {"logits": [0.0, -3.0]}),
    ("Geometric", {"probs": [0.2, 0.9]}),
    ("Geometric", {"probs": [0.6, 0.3]}),
    ("Categorical", {"probs": [[0.2, 0.8], [0.5, 0.5]]}),
    ("Categorical", {"logits": [[0.0, 1.0], [3.0, -2.0]]}),
    ("OneHotCategorical", {"probs": [[0.2, 0.8], [0.5, 0.5]]}),
    ("OneHotCategorical", {"logits": [[0.0, 1.0], [3.0, -2.0]]}),
    ("Gamma", {"concentration": [0.5, 2.5], "rate": [0.5, 2.0]}),
    ("Gamma", {"concentration": [1.5, 0.7], "rate": [1.5, 0.25]}),
    ("Chi2", {"df": [2.0, 5.0]}),
    ("Beta", {"concentration1": [0.5, 2.5], "concentration0": [0.5, 2.0]}),
    ("Beta", {"concentration1": [1.5, 0.7], "concentration0": [3.0, 1.0]}),
    ("Uniform", {"low": [0.25, 0.0], "high": [0.75, 1.0]}),
    ("Uniform", {"low": [-1.0, -0.5], "high": [1.0, 2.0]}),
    ("Dirichlet", {"concentration": [[0.5, 2.5], [3.0, 1.0]]}),
    ("Dirichlet", {"concentration": [[1.5, 0.25], [2.0, 2.0]]}),
]


@pytest.mark.filterwarnings("ignore")  # torch's, of gradients that are not there
@pytest.mark.parametrize("left", DIVERGENT, ids=lambda d: f"{d[0]}-{next(iter(d[1]))}")
def test_divergences(left: Any) -> None:
    p, tp, leaves = both(*left)
    compared = 0
    for right in DIVERGENT:
        q, tq, more = both(*right)
        try:
            other = TD.kl_divergence(tp, tq)
        except NotImplementedError:
            with pytest.raises(NotImplementedError, match=r"No KL|^$"):
                D.kl_divergence(p, q)
            continue
        mine = D.kl_divergence(p, q)
        if other.requires_grad and not other.isinf().any():
            agree(mine, other, [*leaves, *more], rtol=1e-9)
        else:
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), 1e-9)
        compared += 1
    assert compared >= 2


def test_divergences_at_the_ends() -> None:
    for name, p, q in (
        ("Bernoulli", [0.0, 1.0, 1.0, 0.0, 0.5, 0.5, 0.0], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5]),
        ("Categorical", [[0.0, 1.0], [0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]]),
        ("Geometric", [0.3, 1.0], [0.6, 0.5]),
    ):
        mine = D.kl_divergence(
            getattr(D, name)(mt.tensor(p, dtype=mt.float64)),
            getattr(D, name)(mt.tensor(q, dtype=mt.float64)),
        )
        other = TD.kl_divergence(
            getattr(TD, name)(torch.tensor(p, dtype=torch.float64)),
            getattr(TD, name)(torch.tensor(q, dtype=torch.float64)),
        )
        np.testing.assert_allclose(mine.numpy(), other.numpy(), 1e-9, 1e-12)


TRANSFORMS = [
    ("ExpTransform()", REAL),
    ("SigmoidTransform()", REAL),
    ("TanhTransform()", REAL),
    ("SoftplusTransform()", REAL),
    ("AffineTransform(1.0, -2.0)", REAL),
    ("AffineTransform(t([1.0, 2.0, 3.0]), t([0.5, -2.0, 1.0]), event_dim=1)", REAL),
    ("ComposeTransform([AffineTransform(0.5, 2.0), TanhTransform()])", REAL),
    (
        "ComposeTransform([AffineTransform(0.5, t([2.0, 1.0, 3.0]), event_dim=1), ExpTransform()])",
        REAL,
    ),
    ("AffineTransform(1.0, -2.0).inv", REAL),
    ("ComposeTransform([AffineTransform(0.5, 2.0), TanhTransform()]).inv", [[0.1, -0.9, 0.5]]),
    ("ComposeTransform([])", REAL),
]


def evaluated(text: str) -> tuple[Any, Any]:
    """What the expression is here and there, with float64 tensors as ``t``."""
    here = {"t": lambda x: mt.tensor(x, dtype=mt.float64), **vars(D)}
    there = {"t": lambda x: torch.tensor(x, dtype=torch.float64), **vars(TD)}
    return eval(text, here), eval(text, there)


@pytest.mark.parametrize(("text", "values"), TRANSFORMS, ids=[t for t, _ in TRANSFORMS])
def test_transforms(text: str, values: Any) -> None:
    f, tf = evaluated(text)
    x = pair(values)
    y, ty = f(x[0]), tf(x[1])
    agree(y, ty, [x])
    agree(f.inv(y), tf.inv(ty), [x], rtol=1e-7)
    agree(f.log_abs_det_jacobian(x[0], y), tf.log_abs_det_jacobian(x[1], ty), [x])
    assert repr(f) == repr(tf)
    assert (repr(f.domain), repr(f.codomain)) == (repr(tf.domain), repr(tf.codomain))
    assert f.bijective == tf.bijective
    assert f.forward_shape((4, 3)) == tuple(tf.forward_shape((4, 3)))
    assert f.inverse_shape((4, 3)) == tuple(tf.inverse_shape((4, 3)))
    assert np.all(np.asarray(f.sign) == np.asarray(tf.sign))
    assert f.inv.inv == f


TRANSFORMED = [
    ("Normal(t(L), t(S))", "[TanhTransform()]", [[0.1, -0.9, 0.5], [0.99, 0.0, -0.3]]),
    ("Normal(t(L), t(S))", "[AffineTransform(1.0, -2.0), SigmoidTransform()]", CHANCE),
    ("Independent(Normal(t(L), t(S)), 1)", "[TanhTransform()]", CHANCE),
    ("Normal(t(L), t(S))", "[AffineTransform(t([1.0, 2.0, 3.0]), 2.0, event_dim=1)]", REAL),
    ("Normal(0.0, 1.0)", "[AffineTransform(t([1.0, 2.0, 3.0]), 2.0)]", REAL),
    ("Normal(t(L), t(S))", "[ExpTransform(), ExpTransform()]", [[1.5, 2.0, 4.0]]),
]


@pytest.mark.parametrize(("base", "transforms", "values"), TRANSFORMED)
def test_transformed_distributions(base: str, transforms: str, values: Any) -> None:
    text = f"TransformedDistribution({base}, {transforms})"
    p, tp = evaluated(text.replace("t(L)", f"t({LOC})").replace("t(S)", f"t({SCALE})"))
    value = pair(values)
    agree(p.log_prob(value[0]), tp.log_prob(value[1]), [value], rtol=1e-9)
    assert p.batch_shape == tuple(tp.batch_shape)
    assert p.event_shape == tuple(tp.event_shape)
    assert repr(p.support) == repr(tp.support)
    assert tuple(p.rsample((2,)).shape) == tuple(tp.rsample((2,)).shape)
    shape = (2, *p.batch_shape)
    q, tq = p.expand(shape), tp.expand(shape)
    agree(q.log_prob(value[0]), tq.log_prob(value[1]), [value], rtol=1e-9)
    assert (q.batch_shape, q.event_shape) == (tuple(tq.batch_shape), tuple(tq.event_shape))
    if not p.event_shape:
        agree(p.cdf(value[0]), tp.cdf(value[1]), [value], rtol=1e-8)
        chance = pair(CHANCE)
        agree(p.icdf(chance[0]), tp.icdf(chance[1]), [chance], rtol=1e-7)
    assert D.kl_divergence(p, q).shape == TD.kl_divergence(tp, tq).shape


def test_independent_distributions() -> None:
    p, tp = evaluated(f"Independent(Normal(t({LOC}), t({SCALE})), 1)")
    value = pair(REAL)
    agree(p.log_prob(value[0]), tp.log_prob(value[1]), [value])
    for fact in ("mean", "mode", "variance", "stddev"):
        agree(getattr(p, fact), getattr(tp, fact), [])
    agree(p.entropy(), tp.entropy(), [])
    q, tq = p.expand((4, 2)), tp.expand((4, 2))
    assert (q.batch_shape, q.event_shape) == (tuple(tq.batch_shape), tuple(tq.event_shape))
    agree(q.log_prob(value[0]), tq.log_prob(value[1]), [value])
    agree(D.kl_divergence(p, p), TD.kl_divergence(tp, tp), [])
    r, tr = evaluated("Independent(Categorical(t([[0.5, 0.5], [0.1, 0.9]])), 1)")
    agree(r.log_prob(mt.tensor([0, 1])), tr.log_prob(torch.tensor([0, 1])), [])


MIXTURES = [
    ("[0.3, 0.7]", "Normal(t([0.0, 1.0]), t([1.0, 2.0]))", [[0.0, 1.0], [-2.0, 9.0]]),
    ("[[0.3, 0.7], [0.1, 0.9]]", "Normal(t([[0.0, 1.0], [2.0, 3.0]]), 0.5)", [0.0, 1.0]),
    ("[0.3, 0.7]", f"Normal(t({LOC}).T, t({SCALE}).T)", [0.5, 1.0, 2.0]),
    ("[0.3, 0.7]", f"Independent(Normal(t({LOC}), t({SCALE})), 1)", REAL),
    ("[0.3, 0.7]", "Bernoulli(t([0.25, 0.9]))", [0.0, 1.0]),
    ("[0.3, 0.7]", "Categorical(t([[0.25, 0.75], [0.9, 0.1]]))", [0, 1]),
]


@pytest.mark.parametrize(("weights", "parts", "values"), MIXTURES)
def test_mixtures(weights: str, parts: str, values: Any) -> None:
    p, tp = evaluated(f"MixtureSameFamily(Categorical(t({weights})), {parts})")
    value = pair(values)
    agree(p.log_prob(value[0]), tp.log_prob(value[1]), [value])
    for fact in ("mean", "variance", "stddev"):
        agree(getattr(p, fact), getattr(tp, fact), [])
    assert repr(p) == repr(tp)
    assert repr(p.support) == repr(tp.support)
    assert (p.batch_shape, p.event_shape) == (tuple(tp.batch_shape), tuple(tp.event_shape))
    if parts.startswith("Normal"):
        agree(p.cdf(value[0]), tp.cdf(value[1]), [value])
    try:
        drawn = tp.sample((5,))
    except RuntimeError:  # theirs wants batches of one shape to draw from
        drawn = tp.component_distribution.sample((5,))[..., 0]
    assert tuple(p.sample((5,)).shape) == tuple(drawn.shape)
    assert tuple(p.sample().shape) == tuple(drawn.shape[1:])
    shape = (4, *p.batch_shape)
    q, tq = p.expand(shape), tp.expand(shape)
    assert (q.batch_shape, q.event_shape) == (tuple(tq.batch_shape), tuple(tq.event_shape))
    agree(q.mean, tq.mean, [])


# What both print is compared, or the error that both raise.
PRINTED = """
Normal(f([0.0, 1.0]), f([1.0, -1.0]))
Normal(0.0, -1.0)
Normal(0.0, float("nan"))
Normal(0, 1)
Normal(f([1.0]), 1)
Normal(f([1.0, 2.0]), 1)
Normal(f(1), f(2))
Normal(f(1), f(2)).sample()
Normal("a", 1)
Normal(f([0.0, 0.0]), f([1.0, 1.0, 1.0]))
Normal(0.0, 1.0).log_prob(1.0)
Normal(0.0, 1.0).log_prob(f(float("nan")))
Normal(f([0.0, 0.0]), 1.0).log_prob(f([1.0, 1.0, 1.0]))
Normal(f([0.0, 0.0]), 1.0).sample(3)
Normal(f([0.0, 0.0]), 1.0).sample([3]).shape
Normal(f([0.0, 0.0]), 1.0).expand((3,))
Normal(f([0.0, 0.0]), 1.0).enumerate_support()
Normal(f([0.0, 0.0]), 1.0).cdf(f([1, 2]))
Normal(f(0.0), f(1.0)).icdf(f([0.0, 1.0, 0.5, 2.0]))
Normal(0.0, 1.0, True)
Normal(0.0, -1.0, False)
Normal(f([1, 2]), f([1, 2])).log_prob(f([1, 3]))
Normal(f([]), f([])).log_prob(f([]))
Categorical()
Categorical(probs=f([0.5, 0.5]), logits=f([0.5, 0.5]))
Categorical(probs=f(0.5))
Categorical(logits=f(0.5))
Categorical(probs=f([0.5, -0.5]))
Categorical(probs=f([0.0, 0.0]))
Categorical(probs=f([float("inf"), 1.0]))
Categorical(logits=f([float("nan"), 1.0]))
Categorical(logits=f([-float("inf"), -float("inf")]))
Categorical(logits=f([-float("inf"), 1.0])).entropy()
Categorical(probs=f([1.0, 3.0])).probs
Categorical(logits=f([0.0, 1.0])).log_prob(f(5))
Categorical(logits=f([0.0, 1.0])).log_prob(f(-1))
Categorical(logits=f([0.0, 1.0])).log_prob(f([0.5, 1]))
Categorical(logits=f([[0.0, 1.0]] * 3)).log_prob(f([0, 1]))
Categorical(logits=f([[0.0, 1.0]] * 3)).log_prob(f([[0], [1]]))
Categorical(logits=f([[0.0, 1.0]] * 3)).log_prob(f([0.0, 1.0, 1.0]))
Categorical(logits=f([0.0, 1.0]), validate_args=False).log_prob(f(5))
Categorical(logits=f([0, 1])).logits
Categorical([0.5, 0.5])
Categorical(logits=f([0.0, 1.0])).mode
Categorical(logits=f([0.0, 1.0])).cdf(f(1))
Categorical(logits=f([0.0, 1.0])).rsample()
Categorical(f([0.5, 0.5])).param_shape
Categorical(f([1.0]))
Categorical(f([0.0, 1.0])).log_prob(f([0, 1]))
Categorical(f([0.5, 0.5])).sample().dtype.is_floating_point
Bernoulli(0.5)
Bernoulli(1)
Bernoulli(logits=1)
Bernoulli()
Bernoulli(f([1.5]))
Bernoulli(0.5).log_prob(f(2.0))
Bernoulli(0.5).log_prob(f(1))
Bernoulli(f([0.25, 0.5, 0.75])).mode
Bernoulli(f([0.0, 1.0])).log_prob(f([1.0, 0.0]))
Bernoulli(0.5).cdf(f(1.0))
Uniform(1.0, 0.0)
Uniform(f([1.0, 0.0]), f([1.0, 2.0]))
Uniform(0.0, 1.0).log_prob(f(1.0))
Uniform(0.0, 1.0).log_prob(f(2.0))
Uniform(0.0, 1.0, validate_args=False).log_prob(f([2.0, 1.0, 0.0]))
Uniform(0.0, 1.0).arg_constraints
Uniform(f(3), f(5)).sample()
Independent(Normal(f([0.0, 0.0]), 1.0), 1)
Independent(Normal(f([0.0, 0.0]), 1.0), 2)
Independent(Normal(f([0.0, 0.0]), 1.0), 1).log_prob(f([1.0, 2.0, 3.0]))
Independent(Categorical(f([[0.5, 0.5]])), 1).enumerate_support()
kl_divergence(Normal(0.0, 1.0), Categorical(f([0.5, 0.5])))
kl_divergence(LogNormal(0.0, 1.0), HalfNormal(1.0))
Distribution(validate_args=False).mean
Distribution(validate_args=False).mode
Distribution(validate_args=False).sample()
Distribution(validate_args=False).log_prob(f(1.0))
Distribution.set_default_validate_args(3)
Exponential(-1.0)
Exponential(1.0).log_prob(f(-1.0))
Exponential(f(3)).mean
Geometric(f([0.0, 0.5]))
Geometric(1.5)
Geometric(f([0.5])).log_prob(f([1.5]))
Geometric(f([0.5, 1.0])).log_prob(f([3, 0]))
LogNormal(0.0, -1.0)
LogNormal(0.0, 1.0).log_prob(f(0.0))
HalfNormal(-1.0)
HalfNormal(1.0).log_prob(f(-1.0))
HalfNormal(1.0, validate_args=False).log_prob(f(-1.0))
Laplace(f(3), f(5)).log_prob(f(3))
OneHotCategorical(f([0.5, 0.5])).log_prob(f([1.0, 1.0]))
OneHotCategorical(f([0.5, 0.5])).log_prob(f([1.0, 0.0, 0.0]))
OneHotCategoricalStraightThrough(f([0.25, 0.75]))
TransformedDistribution(Normal(0.0, 1.0), [TanhTransform()])
TransformedDistribution(Normal(0.0, 1.0), [TanhTransform()]).mean
TransformedDistribution(Normal(0.0, 1.0), [TanhTransform()]).entropy()
TransformedDistribution(Normal(0.0, 1.0), 3)
TransformedDistribution(Normal(0.0, 1.0), [3])
TransformedDistribution(Normal(0.0, 1.0), [TanhTransform()]).log_prob(f(2.0))
TransformedDistribution(Normal(0.0, 1.0), [AffineTransform(f([1.0, 2.0]), 2.0, event_dim=1)])
TransformedDistribution(Normal(0.0, 1.0), AbsTransform()).log_prob(f(1.0))
TransformedDistribution(Bernoulli(0.5), AffineTransform(0, 2.0)).has_rsample
MixtureSameFamily(Normal(0.0, 1.0), Normal(0.0, 1.0))
MixtureSameFamily(Categorical(f([0.25, 0.75])), 3)
MixtureSameFamily(Categorical(f([0.25, 0.75])), Normal(f([0.0, 1.0, 2.0]), 1.0))
MixtureSameFamily(Categorical(f([[0.5, 0.5]] * 3)), Normal(f([[0.0, 1.0]] * 2), 1.0))
MixtureSameFamily(Categorical(logits=f([0.0])), Uniform(f([0.0]), 1.0)).log_prob(f(1.5))
MixtureSameFamily(Categorical(logits=f([0.0])), Normal(f([0.0]), 1.0)).log_prob(f(float("nan")))
MixtureSameFamily(Categorical(f([1.0, 1.0])), Normal(f([0.0, 1.0]), 1.0)).rsample()
AffineTransform(0.0, 2.0) == AffineTransform(0.0, 2.0)
AffineTransform(0.0, 2.0) == AffineTransform(0.0, 3.0)
AffineTransform(0.0, 2.0) == AffineTransform(f([0.0]), 2.0)
TanhTransform() == TanhTransform(), TanhTransform() == ExpTransform()
TanhTransform(cache_size=2)
TanhTransform()(f(100.0)), TanhTransform().inv(f(1.0))
TanhTransform().log_abs_det_jacobian(f([50.0]), None)
SigmoidTransform()(f([100.0, -200.0])), SigmoidTransform().inv(f([1.0, 0.0]))
AbsTransform().inv, AbsTransform().bijective, AbsTransform().inv(f(3.0))
AbsTransform().sign
Transform()(f(1.0))
constraints.interval(0, 1), constraints.integer_interval(0, 3), constraints.half_open_interval(0, 1)
constraints.nonnegative_integer, constraints.positive_integer, constraints.unit_interval
constraints.real_vector, constraints.dependent, constraints.less_than(3), constraints.nonnegative
constraints.simplex.check(f([[0.5, 0.5], [0.5, 0.6], [-0.5, 1.5]]))
constraints.one_hot.check(f([[1.0, 0.0], [0.5, 0.5], [1.0, 1.0]]))
constraints.boolean.check(f([0.0, 1.0, 0.5]))
constraints.nonnegative_integer.check(f([0.0, 1.5, -1.0, 3.0, float("nan"), float("inf")]))
constraints.half_open_interval(0, 1).check(f([0.0, 1.0, 0.5]))
constraints.greater_than_eq(1).check(f([0, 1]))
constraints.real_vector.check(f([[1.0, float("nan")], [1.0, 2.0]]))
constraints.real_vector.check(f(1.0))
constraints.dependent.check(f(1.0))
constraints.is_dependent(Uniform.support), constraints.is_dependent(constraints.real)
Normal.support, Categorical.support, Normal.arg_constraints
""".strip().splitlines()


def outcome(text: str, names: dict[str, Any]) -> str:
    """What an expression gives, as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return repr(eval(text, names))
    except Exception as error:
        said = str(error).replace("minitorch_tvm", "torch").replace("torch.torch", "torch")
        return f"{type(error).__name__}: {said}"


@pytest.mark.parametrize("text", PRINTED)
def test_what_is_printed(text: str) -> None:
    here = outcome(text, {"f": mt.tensor, **vars(D)})
    there = outcome(text, {"f": torch.tensor, **vars(TD)})
    assert here == there


def test_names_and_arguments() -> None:
    for name in D.__all__:
        mine, other = getattr(D, name), getattr(TD, name, None)
        if inspect.isclass(mine):
            ours, theirs = (list(inspect.signature(c).parameters) for c in (mine, other))
            assert ours == theirs, name
    for name in D.constraints.__all__:
        assert hasattr(TD.constraints, name)
    for name in ("broadcast_all", "lazy_property", "logits_to_probs", "probs_to_logits"):
        assert hasattr(TD.utils, name)


@pytest.mark.parametrize("kinds", [*itertools.product(("float32", "float64"), repeat=2)])
def test_numbers_of_both_precisions(kinds: tuple[str, str]) -> None:
    results = []
    for lib, dists in ((mt, D), (torch, TD)):
        loc, value = (lib.tensor([0.5, 1.5], dtype=getattr(lib, kind)) for kind in kinds)
        y = dists.Normal(loc, 1.0).log_prob(value)
        results.append((str(y.dtype).split(".")[1], y.numpy()))
    assert results[0][0] == results[1][0]
    np.testing.assert_allclose(results[0][1], results[1][1], 1e-6)
