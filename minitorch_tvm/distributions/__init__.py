"""Distributions to draw from and to measure values by, as ``torch.distributions`` has them.

Log-probabilities and samples are recorded like all operations, and become part of the program of a
step.  A policy learns from one action (R. Williams, Simple Statistical Gradient-Following
Algorithms for Connectionist Reinforcement Learning, 1992):

>>> import minitorch_tvm as mt
>>> policy, state = mt.nn.Linear(4, 2), mt.ones(4)
>>> optimizer = mt.optim.SGD(policy.parameters(), lr=0.1)
>>> choice = mt.distributions.Categorical(logits=policy(state))
>>> action = choice.sample()
>>> reward = 1.0 if action.item() == 0 else -1.0
>>> before = choice.probs[0].item()
>>> (-choice.log_prob(action) * reward).backward()
>>> optimizer.step()
>>> bool(mt.distributions.Categorical(logits=policy(state)).probs[0] > before)
True
"""

from . import constraints, gamma_divergences, kl, transforms
from .bernoulli import Bernoulli
from .categorical import Categorical
from .dirichlet import Beta, Dirichlet
from .distribution import Distribution
from .exponential import Exponential
from .gamma import Chi2, Gamma, StudentT
from .geometric import Geometric
from .gumbel import Gumbel
from .half_normal import HalfNormal
from .independent import Independent
from .kl import kl_divergence, register_kl
from .laplace import Laplace
from .log_normal import LogNormal
from .mixture_same_family import MixtureSameFamily
from .multivariate_normal import MultivariateNormal
from .normal import Normal
from .one_hot_categorical import OneHotCategorical, OneHotCategoricalStraightThrough
from .transformed_distribution import TransformedDistribution
from .transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from .uniform import Uniform

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Independent",
    "Laplace",
    "LogNormal",
    "MixtureSameFamily",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "SigmoidTransform",
    "SoftplusTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transforms",
]
