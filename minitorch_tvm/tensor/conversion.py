"""The arguments of ``to``: a dtype, a device, a tensor to be like, and how to copy."""

from __future__ import annotations

from typing import Any

from ..core import dtype as dt
from ..core.device import CPU, Device, require_cpu
from ..core.dtype import DType
from ..core.switches import check_format
from .core import TensorBase

_FORMS = (
    "(torch.device device = None, torch.dtype dtype = None, bool non_blocking = False, "
    "bool copy = False)",
    "(torch.dtype dtype, bool non_blocking = False, bool copy = False)",
    "(Tensor other, bool non_blocking = False, bool copy = False)",
)
_DEVICE_FORM = ("device", "dtype", "non_blocking", "copy")
_DTYPE_FORM = ("dtype", "non_blocking", "copy")
_TENSOR_FORM = ("other", "non_blocking", "copy")
_NAMES = {*_DEVICE_FORM, "other", "memory_format"}


def target(
    args: tuple[Any, ...], options: dict[str, Any], rank: int | None = None
) -> tuple[DType | None, bool]:
    """The dtype (None: as it is) that ``to`` is asked for, and whether it is to copy in any case.

    ``rank`` is that of the tensor which is to have a ``memory_format``.  Raises TypeError for
    arguments that ``to`` does not have, RuntimeError for a layout that the tensor cannot have, and
    for devices other than the CPU what :func:`require_cpu` raises.
    """
    if len(args) == 1 and args[0] is CPU and options.keys() <= {"non_blocking"}:
        return None, False
    first = args[0] if args else None
    if first is None or isinstance(first, (str, Device, int)):
        names: tuple[str, ...] = _DEVICE_FORM
    else:
        names = _TENSOR_FORM if isinstance(first, TensorBase) else _DTYPE_FORM
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or not given.keys().isdisjoint(options) or options.keys() - _NAMES:
        raise _refused(args, options)
    given |= options
    if not all(isinstance(given.get(name, False), bool) for name in ("non_blocking", "copy")):
        raise _refused(args, options)
    check_format("to", given.get("memory_format"), rank)
    require_cpu(given.get("device"))
    dtype, other = given.get("dtype"), given.get("other")
    if isinstance(other, TensorBase):
        dtype = other.dtype
    elif other is not None or isinstance(dtype, (str, Device, TensorBase)):
        raise _refused(args, options)
    try:
        kind = None if dtype is None else dt.as_dtype(dtype)
    except TypeError:
        raise _refused(args, options) from None
    return kind, bool(given.get("copy", False))


def _refused(args: tuple[Any, ...], options: dict[str, Any]) -> TypeError:
    got = [type(a).__name__ for a in args]
    got += [f"{name}={type(value).__name__}" for name, value in options.items()]
    forms = "".join(f"\n * {form}" for form in _FORMS)
    return TypeError(
        f"to() received an invalid combination of arguments - got ({', '.join(got)}), but expected "
        f"one of:{forms}"
    )


def unpinned(pin_memory: Any) -> None:
    """RuntimeError if memory is to be pinned: there is no accelerator that would profit."""
    if pin_memory:
        raise RuntimeError(
            "pin_memory=True requires a CUDA or other accelerator backend; no pinned memory "
            "allocator is available on this system."
        )


def no_accelerator() -> RuntimeError:
    """The error for what needs an accelerator."""
    return RuntimeError("Cannot access accelerator device when none is available.")
