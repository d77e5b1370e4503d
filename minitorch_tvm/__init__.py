"""PyTorch's training loop on lazily recorded, fused and memory-planned TVM programs.

>>> import minitorch_tvm as mt
>>> x = mt.ones(2, 3)
>>> (x + 1).sum().item()
12.0
"""

import math
from typing import NoReturn

from . import autograd, backends, cuda, debug, nn, optim, testing, utils
from .autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from .capture import compile
from .core.device import Device as device
from .core.device import get_default_device, set_default_device
from .core.dtype import (
    DType,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from .core.dtype import (
    DType as dtype,
)
from .core.dtype import (
    bool_ as bool,
)
from .core.limits import (
    absent,
    can_cast,
    finfo,
    get_default_dtype,
    iinfo,
    promote_types,
    set_default_dtype,
)
from .core.shape import Size
from .lazy import no_sync
from .random import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from .runtime.pool import get_num_threads, set_num_threads
from .serialize import load, save
from .tensor import Tensor, as_tensor, from_numpy, tensor
from .tensor.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    scalar_tensor,
    zeros,
    zeros_like,
)
from .tensor.facts import (
    clone,
    detach,
    is_complex,
    is_floating_point,
    is_nonzero,
    numel,
    typename,
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
    erf,
    exp,
    flatten,
    index_select,
    is_tensor,
    log,
    log_softmax,
    masked_fill,
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
    tril,
    triu,
    unsqueeze,
    var,
    where,
)
from .tensor.sampling import (
    bernoulli,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
)

__version__ = "0.1.0"
float = float32
double = float64
long = int64
int = int32
inf = math.inf
nan = math.nan
pi = math.pi
e = math.e


def __getattr__(name: str) -> NoReturn:
    raise absent(name)


def eval(*tensors: Tensor) -> None:
    """Compute the given tensors (and everything else pending) now."""
    for t in tensors:
        t.realize("eval")


__all__ = [
    "DType",
    "Generator",
    "Size",
    "Tensor",
    "abs",
    "add",
    "allclose",
    "amax",
    "amin",
    "arange",
    "argmax",
    "argmin",
    "as_tensor",
    "asarray",
    "autograd",
    "backends",
    "bernoulli",
    "bmm",
    "bool",
    "broadcast_to",
    "can_cast",
    "cat",
    "chunk",
    "clamp",
    "clone",
    "compile",
    "cos",
    "cuda",
    "debug",
    "default_generator",
    "detach",
    "device",
    "div",
    "double",
    "dtype",
    "e",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "erf",
    "eval",
    "exp",
    "eye",
    "finfo",
    "flatten",
    "float",
    "float32",
    "float64",
    "from_numpy",
    "full",
    "full_like",
    "get_default_device",
    "get_default_dtype",
    "get_num_threads",
    "get_rng_state",
    "iinfo",
    "index_select",
    "inf",
    "inference_mode",
    "initial_seed",
    "int",
    "int32",
    "int64",
    "is_complex",
    "is_floating_point",
    "is_grad_enabled",
    "is_nonzero",
    "is_tensor",
    "linspace",
    "load",
    "log",
    "log_softmax",
    "logspace",
    "long",
    "manual_seed",
    "masked_fill",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "mul",
    "nan",
    "neg",
    "nn",
    "no_grad",
    "no_sync",
    "normal",
    "numel",
    "ones",
    "ones_like",
    "optim",
    "permute",
    "pi",
    "pow",
    "promote_types",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "relu",
    "reshape",
    "result_type",
    "save",
    "scalar_tensor",
    "seed",
    "set_default_device",
    "set_default_dtype",
    "set_grad_enabled",
    "set_num_threads",
    "set_printoptions",
    "set_rng_state",
    "sigmoid",
    "sin",
    "softmax",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "tanh",
    "tensor",
    "testing",
    "transpose",
    "tril",
    "triu",
    "typename",
    "uint8",
    "unsqueeze",
    "utils",
    "var",
    "where",
    "zeros",
    "zeros_like",
]
