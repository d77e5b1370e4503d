"""What distributions with the same parameters share."""

from __future__ import annotations

from typing import Any, ClassVar

from ..core.shape import Size
from ..tensor import Tensor
from . import constraints
from .constraints import Constraint
from .distribution import Distribution
from .utils import broadcast_all, lazy_property, logits_to_probs, probs_to_logits


class LocationScale(Distribution):
    """Distributions on all numbers: ``scale`` times a standard one, plus ``loc``.

    Raises ValueError where a scale in memory is not positive.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc


class Chances(Distribution):
    """Distributions of ``probs`` or their ``logits``: either is made of the other when asked for.

    Raises ValueError if not one of both is given.
    """

    is_binary: ClassVar[bool] = True
    """Whether they are of yes and no, not of the entries of the last dimension."""

    @staticmethod
    def _given(probs: Any, logits: Any) -> tuple[str, Any]:
        """The name and the value of what is given."""
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        return ("logits", logits) if probs is None else ("probs", probs)

    @lazy_property
    def logits(self) -> Tensor:
        """Logarithms of probabilities, or of the odds of yes."""
        return probs_to_logits(self.probs, self.is_binary)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits, self.is_binary)

    @property
    def _param(self) -> Tensor:
        known = vars(self)
        parameter: Tensor = known["logits"] if "logits" in known else known["probs"]
        return parameter

    @property
    def param_shape(self) -> Size:
        """The shape of the probabilities."""
        return self._param.shape


class Binary(Chances):
    """Distributions of trials that succeed with probability ``probs``."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }

    def __init__(
        self,
        probs: Tensor | float | None = None,
        logits: Tensor | float | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, given = self._given(probs, logits)
        # Of whole numbers, too: they are none of the dtype of probabilities.
        (parameter,) = broadcast_all(given if isinstance(given, Tensor) else float(given))
        setattr(self, name, parameter)
        super().__init__(parameter.shape, validate_args=validate_args)
