"""The public names that docs/coming-from-pytorch.md lists; run, this file writes them."""

from __future__ import annotations

import re
import textwrap
import types
from pathlib import Path

import minitorch_tvm as mt
from minitorch_tvm import distributions, nn, optim
from minitorch_tvm.utils import data

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from-pytorch.md"
_MODULES = ("constraints", "transforms")
_PARTS = ("parametrizations", "parametrize", "rnn", "stateless")  # of nn.utils
_FILES = ("anomaly", "function", "functional")  # of autograd
_BLOCK = re.compile(r"(<!-- names: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _defined(module: types.ModuleType) -> list[str]:
    """What a module without ``__all__`` defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def names(space: str) -> list[str]:
    """The public names of one of the page's blocks, sorted."""
    found = {
        "mt": lambda: [n for n in mt.__all__ if not isinstance(getattr(mt, n), types.ModuleType)],
        "Tensor": lambda: [n for n in dir(mt.Tensor) if not n.startswith("_")],
        "autograd": lambda: [n for n in mt.autograd.__all__ if n not in _FILES],
        "autograd.functional": lambda: mt.autograd.functional.__all__,
        "special": lambda: mt.special.__all__,
        "func": lambda: [n for n in mt.func.__all__ if n != "vmap"],  # which tells what to do
        "nn": lambda: [n for n in nn.__all__ if n not in ("functional", "init", "utils")],
        "nn.functional": lambda: nn.functional.__all__,
        "nn.init": lambda: _defined(nn.init),
        "nn.utils": lambda: [n for n in nn.utils.__all__ if n not in _PARTS],
        "nn.utils.parametrizations": lambda: nn.utils.parametrizations.__all__,
        "nn.utils.parametrize": lambda: nn.utils.parametrize.__all__,
        "nn.utils.stateless": lambda: nn.utils.stateless.__all__,
        "nn.utils.rnn": lambda: [n for n in _defined(nn.utils.rnn) if n != "Layout"],
        "optim": lambda: [n for n in optim.__all__ if n not in ("lr_scheduler", "swa_utils")],
        "optim.lr_scheduler": lambda: optim.lr_scheduler.__all__,
        "optim.swa_utils": lambda: _defined(optim.swa_utils),
        "linalg": lambda: mt.linalg.__all__,
        "distributions": lambda: [n for n in distributions.__all__ if n not in _MODULES],
        "distributions.constraints": lambda: distributions.constraints.__all__,
        "utils.data": lambda: data.__all__,
    }[space]()
    return sorted(found, key=str.lower)


def with_names(text: str) -> str:
    """The page with its lists as they should be."""

    def block(m: re.Match[str]) -> str:
        line = " ".join(names(m[2]))
        return f"{m[1]}\n```text\n{textwrap.fill(line, 118)}\n```\n\n{m[3]}"

    return _BLOCK.sub(block, text)


if __name__ == "__main__":
    PAGE.write_text(with_names(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
