"""Gradients: modes, ``backward`` and ``grad``, and functions whose gradient users define."""

from typing import TYPE_CHECKING

from ..core.on_demand import on_demand
from . import anomaly, function, variable
from .anomaly import detect_anomaly, set_detect_anomaly
from .checks import GradcheckError, gradcheck, gradgradcheck
from .engine import (
    backward,
    enable_grad,
    grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from .function import Function
from .variable import Variable

__all__ = [
    "Function",
    "GradcheckError",
    "Variable",
    "anomaly",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
    "variable",
]

if TYPE_CHECKING:
    from . import functional
else:
    __getattr__ = on_demand(__name__, "functional")
