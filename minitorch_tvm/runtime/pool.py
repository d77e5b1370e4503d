"""The worker threads of parallel kernels, and what becomes of them in a forked child."""

from __future__ import annotations

import os

from ..core.threads import usable_cores
from ..core.tvm_api import global_func

_threads = usable_cores()


def get_num_threads() -> int:
    """Threads a kernel may use."""
    return _threads


def set_num_threads(count: int) -> None:
    """Limit kernels to ``count`` threads (at most as many as the pool started with).

    Results do not change: no reduction is split by the number of threads.  Raises RuntimeError for
    counts below one.

    >>> import minitorch_tvm as mt
    >>> mt.set_num_threads(mt.get_num_threads())
    """
    global _threads
    if count < 1:
        raise RuntimeError("set_num_threads expects a positive integer")
    _threads = min(count, usable_cores())
    global_func("runtime.config_threadpool")(1, _threads)


def _in_child() -> None:
    # The workers did not survive the fork: waiting for them would never end.  One thread needs
    # none of them.
    global _threads
    _threads = 1
    os.environ["TVM_NUM_THREADS"] = "1"
    global_func("runtime.config_threadpool")(1, 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
