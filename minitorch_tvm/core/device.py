"""Where tensors live: device objects as programs written for PyTorch pass them around.

There is one device, the CPU.  Objects for the others can be made, compared and printed, so that
programs which choose a device run; to put something there raises.
"""

from __future__ import annotations

from typing import Any, Final, Self

_KINDS: Final = (
    "cpu, cuda, ipu, xpu, mkldnn, opengl, opencl, ideep, hip, ve, fpga, maia, xla, lazy, vulkan, "
    "mps, meta, hpu, mtia, privateuseone"
)
_KNOWN: Final = frozenset(_KINDS.split(", "))

_MADE: dict[tuple[str, int | None], Any] = {}


class Device:
    """A device's kind and, if given, its number: ``device("cpu")``, ``device("cuda", 1)``.

    Everything is on the CPU; functions that are told another device raise.  As a context manager it
    changes nothing for the CPU.  Raises RuntimeError for kinds that PyTorch does not know.

    >>> Device("cpu"), str(Device("cuda:1"))
    (device(type='cpu'), 'cuda:1')
    >>> Device("cpu") == Device("cpu", 0)
    False
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None

    def __new__(cls, type: Any, index: int | None = None) -> Self:
        """One object for each device, so that the CPU is told from others at once."""
        parsed = _parsed(type, index)
        found = _MADE.get(parsed)
        if found is None:
            found = super().__new__(cls)
            for name, value in zip(("type", "index"), parsed, strict=True):
                object.__setattr__(found, name, value)
            found = _MADE.setdefault(parsed, found)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"attribute '{name}' of 'torch.device' objects is not writable")

    def __repr__(self) -> str:
        number = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{number})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self) -> tuple[object, ...]:
        return (Device, (self.type, self.index))

    def __enter__(self) -> Self:
        require_cpu(self)
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _parsed(given: Any, index: int | None) -> tuple[str, int | None]:
    if isinstance(given, Device) and index is None:
        return given.type, given.index
    if isinstance(given, int) and not isinstance(given, bool) and index is None:
        raise RuntimeError("Cannot access accelerator device when none is available.")
    if not isinstance(given, str) or not (index is None or isinstance(index, int)):
        got = type(given).__name__ + ("" if index is None else f", {type(index).__name__}")
        raise TypeError(
            f"device() received an invalid combination of arguments - got ({got}), but expected "
            "one of:\n * (torch.device device)\n * (str type, int index = -1)"
        )
    kind, colon, number = given.partition(":")
    if colon and index is not None:
        raise RuntimeError(
            f"type (string) must not include an index because index was passed explicitly: {given}"
        )
    whole = number.isascii() and number.isdigit() and number == str(int(number))
    if not kind.replace("_", "").isalpha() or (colon and not whole):
        raise RuntimeError(f"Invalid device string: '{given}'")
    if kind not in _KNOWN:
        raise RuntimeError(
            f"Expected one of {_KINDS} device type at start of device string: {kind}"
        )
    if colon:
        index = int(number)
    if index is not None and index < 0:
        raise RuntimeError("Device index must not be negative")
    return kind, index


CPU: Final = Device("cpu")


def no_cuda() -> AssertionError:
    """The error for whatever needs an NVIDIA GPU."""
    return AssertionError("Torch not compiled with CUDA enabled: only device 'cpu' is supported")


def require_cpu(given: Any, function: str = "to") -> None:
    """Raise unless ``given`` is None or a device, or the name of one, on the CPU.

    AssertionError for CUDA, as in a PyTorch without it; RuntimeError for other devices; TypeError
    for what is no device.
    """
    if given is None or given is CPU or given == "cpu":
        return
    if not isinstance(given, (Device, str, int)) or isinstance(given, bool):
        kind = type(given).__name__
        raise TypeError(f"{function}(): argument 'device' must be torch.device, not {kind}")
    found = given if isinstance(given, Device) else Device(given)
    if found.type == "cuda":
        raise no_cuda()
    if found.type != "cpu":
        raise RuntimeError(f"only device 'cpu' is supported, but got {str(found)!r}")


def get_default_device() -> Device:
    """Where tensors are created: the CPU."""
    return CPU


def set_default_device(device: Any) -> None:
    """Accepts the CPU, where tensors are created anyway, and None; raises for other devices."""
    require_cpu(device, "set_default_device")
