"""Python's garbage collector, put off where a lot is made that stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off(*, stays: bool = False) -> Iterator[None]:
    """Collect nothing meanwhile.

    The collector visits everything again and again while it is being made: a tenth of the time
    that Python spends on importing the compiler and on scheduling.  If most of it ``stays``, as
    modules do, it is counted among what is old, as if it had been visited: with the first program
    that takes 9 ms.  What is garbage of it waits for a collection of everything.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            if stays and not gc.get_freeze_count():  # what users have frozen stays frozen
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
