"""Wrong calls are refused with PyTorch's exceptions and in PyTorch's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bad_arguments import CALLS as OF_ARGUMENTS
from bad_arguments import KINDS, WELCOME
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


@pytest.mark.parametrize("call", (CALLS.strip() + OF_ARGUMENTS).strip().splitlines())
def test_a_wrong_call_is_refused_in_the_same_words(call: str) -> None:
    assert _refusal(call, OURS) == _refusal(call, THEIRS)


@pytest.mark.parametrize("call", KINDS.strip().splitlines())
def test_a_wrong_argument_is_refused_with_the_same_exception(call: str) -> None:
    assert _refusal(call, OURS)[0] == _refusal(call, THEIRS)[0]


@pytest.mark.parametrize("call", WELCOME.strip().splitlines())
def test_an_unusual_argument_is_taken_as_it_is_there(call: str) -> None:
    ours, theirs = eval(call, OURS), eval(call, THEIRS)
    if isinstance(theirs, tuple):
        (ours,), (theirs,) = ours, theirs
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1]
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-5)
