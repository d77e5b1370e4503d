"""How many worker threads a kernel may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from . import config


def _cgroup_quota() -> float:
    """CPU limit of a container in cores, infinity when there is none (cgroup version 2)."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else float(quota) / float(period)


def usable_cores() -> int:
    """Cores this process may really use: affinity, container quota and MTVM_NUM_THREADS."""
    if config.CONFIG.num_threads is not None:
        return config.CONFIG.num_threads
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        affinity = os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, _cgroup_quota())))
