"""What programs ask of ``torch.cuda``: there is no GPU.

Questions are answered, requests that need a GPU raise AssertionError, and those that a PyTorch
without CUDA ignores are ignored.

>>> import minitorch_tvm as mt
>>> mt.device("cuda" if mt.cuda.is_available() else "cpu")
device(type='cpu')
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..core.device import no_cuda
from . import amp as amp


def is_available() -> bool:
    """False."""
    return False


def is_initialized() -> bool:
    """False."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0


def manual_seed(seed: int) -> None:
    """Ignored: there is no generator on a GPU."""


def manual_seed_all(seed: int) -> None:
    """Ignored: there is no generator on a GPU."""


def empty_cache() -> None:
    """Ignored: there is no memory of a GPU."""


def memory_allocated(device: Any = None) -> int:
    """0."""
    return 0


def max_memory_allocated(device: Any = None) -> int:
    """0."""
    return 0


def current_device() -> NoReturn:
    """Raises AssertionError: there is no GPU."""
    raise no_cuda()


def set_device(device: Any) -> NoReturn:
    """Raises AssertionError: there is no GPU."""
    raise no_cuda()


def get_device_name(device: Any = None) -> NoReturn:
    """Raises AssertionError: there is no GPU."""
    raise no_cuda()


def get_device_properties(device: Any = None) -> NoReturn:
    """Raises AssertionError: there is no GPU."""
    raise no_cuda()


def synchronize(device: Any = None) -> NoReturn:
    """Raises AssertionError: there is no GPU."""
    raise no_cuda()
