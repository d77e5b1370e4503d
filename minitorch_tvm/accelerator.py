"""What programs ask of ``torch.accelerator``: there is none.

>>> import minitorch_tvm as mt
>>> mt.accelerator.current_accelerator() if mt.accelerator.is_available() else mt.device("cpu")
device(type='cpu')
"""

from __future__ import annotations


def is_available() -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """None: there is no accelerator."""
