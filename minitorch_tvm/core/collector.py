"""Python's garbage collector, put off where a lot is made that stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Collect nothing meanwhile.

    The collector visits everything again and again while it is being made: a tenth of the time
    that Python spends on importing the compiler and on scheduling.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
