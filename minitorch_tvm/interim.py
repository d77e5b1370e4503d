"""What runs a structure for a while, instead of a program of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from . import growing, sites
from .core import config
from .core.errors import Provenance
from .ir.graph import Graph
from .plans import Key, Plan
from .runtime.executor import Executor
from .runtime.padded import PaddedExecutor
from .runtime.piecewise import PiecewiseExecutor

Runner = growing.Interim | PaddedExecutor | PiecewiseExecutor
"""A runner has its setting and is ``over`` once a program of its own is worth while, or, if it is
``provisional``, once it is to be asked anew."""


def in_pieces(
    plan: Plan, place: Provenance | None, built: Callable[[Graph], Executor]
) -> PiecewiseExecutor | None:
    """What runs a plan op by op, if its line has ever other structures."""
    settings = config.CONFIG
    if not settings.changing or settings.target == "numpy":
        return None
    if settings.validate or settings.profile or place is None or not sites.changes(place):
        return None
    changing = importlib.import_module(f"{__package__}.changing")  # most programs do without
    found: PiecewiseExecutor | None = changing.runner(plan, place, built)
    return found


def as_others(
    recorded: Graph,
    history: sites.History,
    place: Provenance | None,
    compiled: Callable[[Graph, Key], Executor],
) -> Runner | None:
    """What runs a graph whose sizes vary on its line, or grow."""
    settings = config.CONFIG
    if settings.validate or settings.profile:
        return None
    if settings.varying and (history.recurs or history.grows):
        varying = importlib.import_module(f"{__package__}.varying")  # most programs do without
        found: PaddedExecutor | None = varying.runner(recorded, history, place, compiled)
        if found is not None:
            return found
    return growing.interim(recorded, history, place)


def forget() -> None:
    """Start again, as if nothing had been run."""
    growing.forget()
    changing = sys.modules.get(f"{__package__}.changing")
    if changing is not None:
        changing.forget()
