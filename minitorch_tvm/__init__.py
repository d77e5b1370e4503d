"""PyTorch's training loop on lazily recorded, fused and memory-planned TVM programs.

>>> import minitorch_tvm as mt
>>> x = mt.ones(2, 3)
>>> (x + 1).sum().item()
12.0
"""

import math
from typing import TYPE_CHECKING

from . import (
    accelerator,
    amp,
    autograd,
    backends,
    cuda,
    debug,
    nn,
    optim,
    testing,
    utils,
)
from .amp import autocast
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
from .core.on_demand import on_demand
from .core.shape import Size
from .core.switches import (
    are_deterministic_algorithms_enabled,
    channels_last,
    contiguous_format,
    get_float32_matmul_precision,
    is_deterministic_algorithms_warn_only_enabled,
    memory_format,
    preserve_format,
    set_float32_matmul_precision,
    use_deterministic_algorithms,
)
from .lazy import no_sync
from .nn.functional import (
    bilinear,
    celu,
    channel_shuffle,
    cosine_similarity,
    hardshrink,
    pairwise_distance,
    pixel_shuffle,
    pixel_unshuffle,
    prelu,
    selu,
    threshold,
)
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
from .tensor import names as _names
from .tensor.names import *  # noqa: F403
from .tensor.typed import (
    BoolTensor,
    ByteTensor,
    DoubleTensor,
    FloatTensor,
    IntTensor,
    LongTensor,
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


if TYPE_CHECKING:
    from . import distributions, func, linalg, special
else:
    __getattr__ = on_demand(
        __name__, "distributions", "func", "linalg", "special", otherwise=absent
    )


def eval(*tensors: Tensor) -> None:
    """Compute the given tensors (and everything else pending) now."""
    for value in tensors:
        value.realize("eval")


__all__ = [
    "BoolTensor",
    "ByteTensor",
    "DType",
    "DoubleTensor",
    "FloatTensor",
    "Generator",
    "IntTensor",
    "LongTensor",
    "Size",
    "Tensor",
    "accelerator",
    "amp",
    "are_deterministic_algorithms_enabled",
    "as_tensor",
    "autocast",
    "autograd",
    "backends",
    "bilinear",
    "bool",
    "can_cast",
    "celu",
    "channel_shuffle",
    "channels_last",
    "compile",
    "contiguous_format",
    "cosine_similarity",
    "cuda",
    "debug",
    "default_generator",
    "device",
    "distributions",
    "double",
    "dtype",
    "e",
    "enable_grad",
    "eval",
    "finfo",
    "float",
    "float32",
    "float64",
    "from_numpy",
    "func",
    "get_default_device",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
    "get_rng_state",
    "hardshrink",
    "iinfo",
    "inf",
    "inference_mode",
    "initial_seed",
    "int",
    "int32",
    "int64",
    "is_deterministic_algorithms_warn_only_enabled",
    "is_grad_enabled",
    "linalg",
    "load",
    "long",
    "manual_seed",
    "memory_format",
    "nan",
    "nn",
    "no_grad",
    "no_sync",
    "optim",
    "pairwise_distance",
    "pi",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "preserve_format",
    "promote_types",
    "save",
    "seed",
    "selu",
    "set_default_device",
    "set_default_dtype",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_num_threads",
    "set_rng_state",
    "special",
    "tensor",
    "testing",
    "threshold",
    "uint8",
    "use_deterministic_algorithms",
    "utils",
]
__all__ += _names.__all__
