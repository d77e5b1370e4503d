"""Mixed precision as programs ask for it: there is none, so everything stays in its own dtype.

The loop of a program that may run on a GPU runs as it is:

>>> import minitorch_tvm as mt
>>> model = mt.nn.Linear(2, 1)
>>> optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
>>> scaler = mt.amp.GradScaler(enabled=mt.cuda.is_available())
>>> with mt.autocast("cpu", enabled=mt.cuda.is_available()):
...     loss = model(mt.ones(3, 2)).sum()
>>> scaler.scale(loss).backward()
>>> scaler.step(optimizer)
>>> scaler.update()
"""

from __future__ import annotations

import contextlib
from typing import Any

from .core import errors
from .core.device import Device

__all__ = ["GradScaler", "autocast"]


class autocast(contextlib.ContextDecorator):
    """A context, or a decorator, in which nothing is computed in another dtype.

    Warns if it is ``enabled``: PyTorch would compute in ``dtype``, of half precision.
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if not isinstance(device_type, str):
            raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")
        kind = Device(device_type).type
        if enabled and kind == "cuda":
            errors.warn("CUDA is not available. Disabling autocast.")
        elif enabled:
            errors.warn("There is no half precision. Disabling autocast.")
        self.device = kind

    def __enter__(self) -> autocast:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class GradScaler:
    """Scales losses by 1: float32 needs no other number.

    Warns if it is ``enabled``.  Its state is the empty dict, that of PyTorch's disabled one.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled:
            missing = "CUDA is not available" if device == "cuda" else "there is no half precision"
            errors.warn(f"GradScaler is enabled, but {missing}.  Disabling.")

    def scale(self, outputs: Any) -> Any:
        """``outputs``, a tensor or several, as they are."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing is to be done."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step(*args, **kwargs)``."""
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Nothing is to be done."""

    def get_scale(self) -> float:
        """1.0."""
        return 1.0

    def is_enabled(self) -> bool:
        """False."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """An empty dict."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignored."""
