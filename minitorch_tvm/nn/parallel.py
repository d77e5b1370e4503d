"""DataParallel, for scripts that have it: there is one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .module import Module


class DataParallel(Module):
    """Calls ``module``, as PyTorch's does where there is no GPU; other arguments change nothing.

    The names in its ``state_dict`` begin with ``module.``, as there.

    >>> import minitorch_tvm as mt
    >>> net = mt.nn.DataParallel(mt.nn.Linear(3, 2))
    >>> list(net.state_dict()), net(mt.ones(1, 3)).shape
    (['module.weight', 'module.bias'], torch.Size([1, 2]))
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[Any] = []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """``module(*inputs, **kwargs)``."""
        return self.module(*inputs, **kwargs)
