"""Wrong calls are refused with PyTorch's exceptions and in PyTorch's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bad_calls import CALLS

import minitorch_tvm as mt

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the words of 2.13"),
    pytest.mark.filterwarnings("ignore"),  # what either side warns about before it refuses
]


def _names(package: Any, data: Any) -> dict[str, Any]:
    names = {
        "T": package,
        "F": package.nn.functional,
        "nn": package.nn,
        "optim": package.optim,
        "data": data,
        "np": np,
        "P": lambda: package.nn.Parameter(package.ones(2)),
    }
    names["Q"] = names["P"]()
    return names


THEIRS = _names(torch, torch.utils.data)
OURS = _names(mt, mt.utils.data)


def _refusal(call: str, names: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:
        eval(call, names)
    return caught.type.__name__, str(caught.value)


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_a_wrong_call_is_refused_in_the_same_words(call: str) -> None:
    assert _refusal(call, OURS) == _refusal(call, THEIRS)
