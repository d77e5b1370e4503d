"""More functions of two 2x3 leaves, differentiated with torch and with this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functions import inf


def written(m: Any, x: Any, y: Any) -> Any:
    """In-place operations on views."""
    z = x * 1
    z[0].floor_().mul_(3)
    z[:, 1].remainder_(0.7)
    z %= y * 0 + 0.9
    return z * y


_UNARY = (
    *("floor", "ceil", "trunc", "frac", "sign", "square", "reciprocal", "rsqrt", "round"),
    *("log1p", "expm1", "exp2", "log2", "log10", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("nan_to_num", "asinh", "acosh", "atanh", "erfc", "erfinv", "logit", "sinc"),
    *("deg2rad", "rad2deg"),
)
_TWO = ("atan2", "hypot", "logaddexp", "logaddexp2", "fmax", "fmin", "ldexp", "xlogy")

FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    **{f: lambda m, x, y, f=f: getattr(m, f)(x) for f in _UNARY},  # type: ignore[misc]
    **{f: lambda m, x, y, f=f: getattr(m, f)(x, y) for f in _TWO},  # type: ignore[misc]
    "float_power": lambda m, x, y: m.float_power(x, y),
    "logit eps": lambda m, x, y: m.logit(x, 0.2) * y,
    "copysign": lambda m, x, y: m.copysign(x, -2) + m.copysign(y, x) * x,
    "xlogy2": lambda m, x, y: m.xlogy(3, x) + m.xlogy(x, 3),
    "hypot2": lambda m, x, y: m.hypot(x[0], y),
    "lgamma": lambda m, x, y: m.lgamma(x + 4.3) * y,
    "digamma": lambda m, x, y: m.digamma(x + 4.3) * y,
    "nextafter": lambda m, x, y: m.nextafter(x, y) * x,
    "eq_": lambda m, x, y: x * (y * 1).gt_(0),
    "written": written,
    "mod": lambda m, x, y: x % y,
    "fmod": lambda m, x, y: x.fmod(y),
    "divf": lambda m, x, y: x.div(y, rounding_mode="floor"),
    "divt": lambda m, x, y: x.div(y, rounding_mode="trunc"),
    "rounddec": lambda m, x, y: x.round(decimals=1) * y,
    "lerp": lambda m, x, y: x.lerp(y, 0.3),
    "lerpT": lambda m, x, y: x.lerp(y, x * y),
    "addcmul": lambda m, x, y: x.addcmul(y, x, value=2),
    "addcdiv": lambda m, x, y: x.addcdiv(y, x, value=-3),
    "clmin": lambda m, x, y: x.clamp_min(0),
    "clmax": lambda m, x, y: x.clamp_max(y),
    "norm": lambda m, x, y: m.norm(x),
    "norm1": lambda m, x, y: x.norm(1),
    "norminf": lambda m, x, y: x.norm(inf, dim=1),
    "norm-inf": lambda m, x, y: x.norm(-inf, dim=1),
    "norm3": lambda m, x, y: x.norm(3, dim=0),
    "norm.5": lambda m, x, y: x.norm(0.5, dim=0),
    "norm-1": lambda m, x, y: x.norm(-1, dim=1),
    "norm z": lambda m, x, y: (x * 0).norm() + (x * 0).norm(3) + (x * 0).norm(1),
    "norm z2": lambda m, x, y: (x * 0).norm(inf),
    "mnorm1": lambda m, x, y: m.linalg.norm(x, 1),
    "mnorminf": lambda m, x, y: m.linalg.norm(x, -inf),
    "prod": lambda m, x, y: x.prod(),
    "prod0": lambda m, x, y: x.prod(0) * y,
    "lse": lambda m, x, y: x.logsumexp(1),
    "nansum": lambda m, x, y: x.nansum(1),
    "nanmean": lambda m, x, y: x.nanmean(0),
    "varmean": lambda m, x, y: m.var_mean(x, 1)[0] + m.std_mean(x, 1)[1],
    "dot": lambda m, x, y: m.dot(x[0], y[0]),
    "inner": lambda m, x, y: m.inner(x, y) * m.inner(y, x[0])[:, None],
    "addmm": lambda m, x, y: m.addmm(x[:, :2], x, y.T, beta=0.5, alpha=2),
    "baddbmm": lambda m, x, y: m.baddbmm(x[0], x[:, :, None], y[:, None]),
    "einsum": lambda m, x, y: m.einsum("ij,kj->ik", x, y),
    "einsum2": lambda m, x, y: m.einsum("ij,ij->i", x, y),
    "einsum3": lambda m, x, y: m.einsum("ij,jk,lk->il", x, y.T, x[:, :2]),
    "diag": lambda m, x, y: m.einsum("ii->i", x[:, :2]) * y[:, 0],
    "esum": lambda m, x, y: m.einsum("...j,k->...k", x, y[0]),
    "cdist": lambda m, x, y: m.cdist(x, y),
    "cdistx": lambda m, x, y: m.cdist(x, x + 0) * m.cdist(x, y, 3.0),
    "normalize": lambda m, x, y: m.nn.functional.normalize(x) * y,
    "normz": lambda m, x, y: m.nn.functional.normalize(x * 0) * y,
    "cos": lambda m, x, y: m.nn.functional.cosine_similarity(x, y),
    "cosz": lambda m, x, y: m.nn.functional.cosine_similarity(x * 0, y),
    "inpl2": lambda m, x, y: (x * 1).lerp_(y, 0.2).addcmul_(x, y).clamp_min_(0.1).sqrt_(),
}

# At NaN and infinities: what is differentiated there is the absolute value, whose gradient at NaN
# is 0 here and NaN in PyTorch's norms, or inf - inf.
DIFFERENT = {
    ("nonfinite", name)
    for name in (
        *("lerpT", "clmax", "norm3", "norm.5", "norm-1", "mnorm1", "mnorminf", "prod"),
        *("varmean", "cdistx"),
    )
}
