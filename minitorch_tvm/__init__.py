"""PyTorch's training loop on lazily recorded, fused and memory-planned TVM programs.

>>> import minitorch_tvm as mt
>>> x = mt.ones(2, 3)
>>> (x + 1).sum().item()
12.0
"""

from . import autograd, debug, nn, optim, utils
from .autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from .core.dtype import (
    DType,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from .core.dtype import (
    bool_ as bool,
)
from .core.shape import Size
from .lazy import no_sync
from .random import Generator, default_generator, manual_seed
from .runtime.pool import get_num_threads, set_num_threads
from .serialize import load, save
from .tensor import Tensor, as_tensor, from_numpy, tensor
from .tensor.creation import (
    arange,
    empty,
    eye,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    zeros,
    zeros_like,
)
from .tensor.formatting import set_printoptions
from .tensor.functions import (
    abs,
    add,
    allclose,
    amax,
    amin,
    argmax,
    argmin,
    bmm,
    broadcast_to,
    cat,
    chunk,
    clamp,
    cos,
    div,
    equal,
    exp,
    flatten,
    is_tensor,
    log,
    log_softmax,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mm,
    mul,
    neg,
    permute,
    pow,
    relu,
    reshape,
    result_type,
    sigmoid,
    sin,
    softmax,
    split,
    sqrt,
    squeeze,
    stack,
    std,
    sub,
    sum,
    tanh,
    transpose,
    unsqueeze,
    var,
    where,
)

__version__ = "0.1.0"
float = float32
double = float64
long = int64
int = int32


def eval(*tensors: Tensor) -> None:
    """Compute the given tensors (and everything else pending) now."""
    for t in tensors:
        t.realize("eval")
