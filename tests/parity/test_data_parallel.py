"""DataParallel where there is one device: as in torch on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
from test_nn_layers import same_signature

import minitorch_tvm as mt

torch = pytest.importorskip("torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there, it is on several devices")
def test_data_parallel() -> None:
    def shown(lib: Any) -> Any:
        class Scaled(lib.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = lib.nn.Linear(3, 2)

            def forward(self, x: Any, *, scale: float = 1.0) -> Any:
                return self.fc(x) * scale

        inner = Scaled()
        net = lib.nn.DataParallel(inner)
        x = lib.ones(4, 3)
        same = bool(lib.equal(net(x, scale=2.0), inner(x) * 2.0))
        net(x).sum().backward()
        net.eval()
        facts = net.module is inner, net.device_ids, inner.training, inner.fc.bias.grad.tolist()
        return repr(net), list(net.state_dict()), same, facts

    assert shown(mt) == shown(torch)
    assert mt.nn.DataParallel is mt.nn.parallel.DataParallel
    same_signature(mt.nn.DataParallel.__init__, torch.nn.DataParallel.__init__)
