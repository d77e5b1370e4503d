"""Saving and loading: state dicts and plain containers of tensors, as safetensors files.

A file is an ordinary safetensors file: other tools read its tensors by name, and files of other
tools load as a flat dict.  What safetensors has no place for (nesting, numbers, strings, integer
keys, checksums) stands as JSON in its metadata.  Nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as st

from .core import dtype as dt
from .core.device import require_cpu
from .core.shape import Size
from .tensor import Tensor, tensor

_FORMAT = "minitorch_tvm.v1"
Array = np.ndarray[Any, Any]
_STORED = {np.dtype(c) for c in "?bBhHiIlLqQefd"}
"""What numpy's arrays and numbers may be made of; safetensors has no others."""
Target = str | os.PathLike[str] | IO[bytes]


class _Writer:
    """Turns an object into a JSON tree and a table of arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def tensor(self, t: Tensor, path: str) -> dict[str, Any]:
        name = self._name(t, path, lambda: t._array("save"))
        return {"t": name, "g": True} if t.requires_grad and t.is_leaf else {"t": name}

    def _name(self, value: Any, path: str, array: Callable[[], Array]) -> str:
        """That of an entry in the table, which is made where there is none yet."""
        name = self._names.get(id(value))
        if name is None:
            name = path or "tensor"
            while name in self.arrays:  # keys 1 and "1", or a dot inside a key
                name += "_"
            self._names[id(value)] = name
            self.arrays[name] = array()
        return name

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (int, float)) and type(value) in (int, float):
            # Hexadecimal, because JSON has no infinities and NaN.
            return {"f": value.hex()} if isinstance(value, float) else value
        if isinstance(value, Tensor):
            return self.tensor(value, path)
        scalar = isinstance(value, np.generic)
        if (scalar or type(value) is np.ndarray) and value.dtype in _STORED:
            name = self._name(value, path, lambda: np.asarray(value, order="C"))
            return {"n" if scalar else "a": name}
        if isinstance(value, Size):
            return {"s": list(value)}
        if isinstance(value, dt.DType):
            return {"y": value.name}
        if type(value) in (list, tuple):
            items = [self.encode(v, _join(path, i)) for i, v in enumerate(value)]
            return items if isinstance(value, list) else {"u": items}
        if type(value) in (dict, OrderedDict):
            pairs = [[self._key(k, path), self.encode(v, _join(path, k))] for k, v in value.items()]
            return {"o" if isinstance(value, OrderedDict) else "d": pairs}
        hint = "; save its state_dict()" if hasattr(value, "state_dict") else ""
        raise TypeError(
            f"cannot save an object of type {type(value).__name__}"
            + (f" (at {path!r})" if path else "")
            + ": only tensors, arrays, numbers, strings, None, dicts, lists and tuples can be saved"
            + hint
        )

    def _key(self, key: Any, path: str) -> Any:
        if type(key) not in (str, int, bool, float, tuple, type(None)):
            raise TypeError(
                f"cannot save a dict key of type {type(key).__name__} (at {path!r}): keys must be "
                "strings, numbers or tuples of them"
            )
        return self.encode(key, path)


def _checksum(array: Array) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _serialise(obj: Any) -> bytes:
    writer = _Writer()
    tree = writer.encode(obj, "")
    sums = {k: _checksum(a) for k, a in writer.arrays.items()}
    text = json.dumps(tree, separators=(",", ":"))
    metadata = {
        "format": _FORMAT,
        "structure": text,
        "crc32": json.dumps({"structure": zlib.crc32(text.encode()), "tensors": sums}),
    }
    return st.save(writer.arrays, metadata)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside ``path`` that takes its name when the block ends without an error."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # as open() would; mkstemp makes private files
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def save(obj: Any, f: Target) -> None:
    """Write ``obj`` to a path (atomically) or to a binary file object; evaluates its tensors.

    ``obj`` may be a tensor, an array or number (of numpy, too), string, None, or dicts, lists and
    tuples of such, to any depth: a module's or optimizer's ``state_dict()``, or a checkpoint of
    several.  A tensor that occurs twice is stored once.  Raises TypeError, naming the place, for
    anything else.

    >>> import io
    >>> import minitorch_tvm as mt
    >>> file = io.BytesIO()
    >>> mt.save({"epoch": 3, "w": mt.ones(2)}, file)
    >>> mt.load(io.BytesIO(file.getvalue()))
    {'epoch': 3, 'w': tensor([1., 1.])}
    """
    data = _serialise(obj)
    if isinstance(f, (str, os.PathLike)):
        with _replacing(Path(f)) as file:
            file.write(data)
    elif hasattr(f, "write"):
        f.write(data)
    else:
        raise TypeError(f"expected a path or a binary file object, but got {type(f).__name__}")


class _Reader:
    """Rebuilds the object from the JSON tree and the arrays."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self._made: dict[str, Any] = {}

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def tensor(self, name: str, requires_grad: bool) -> Tensor:
        return _tensor(name, self._arrays[name]).requires_grad_(requires_grad)

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(v) for v in node]
        if not isinstance(node, dict):
            return node
        if "t" in node:
            name = node["t"]
            return self._once(name, lambda: self.tensor(name, bool(node.get("g"))))
        ((kind, value),) = node.items()
        if kind in ("a", "n"):
            # A copy: what was read cannot be written to.
            array = self._once(value, self._arrays[value].copy)
            return array if kind == "a" else array[()]
        if kind == "f":
            return float.fromhex(value)
        if kind == "s":
            return Size(value)
        if kind == "y":
            return dt.by_name(value)
        if kind == "u":
            return tuple(self.decode(v) for v in value)
        make = {"d": dict, "o": OrderedDict}[kind]
        return make([(self.decode(k), self.decode(v)) for k, v in value])


def _tensor(name: str, array: Array) -> Tensor:
    try:
        return tensor(array)
    except TypeError as error:
        raise TypeError(f"tensor {name!r}: {error}") from None


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + length]).get("__metadata__")
    return found if isinstance(found, dict) else {}


def _verify(metadata: dict[str, str], arrays: Mapping[str, Array]) -> None:
    sums = json.loads(metadata["crc32"])
    if zlib.crc32(metadata["structure"].encode()) != sums["structure"]:
        raise ValueError("the checksum of its structure does not match")
    if set(sums["tensors"]) != set(arrays):
        raise ValueError("it does not hold the tensors that it lists")
    for name, array in arrays.items():
        if _checksum(array) != sums["tensors"][name]:
            raise ValueError(f"the checksum of tensor {name!r} does not match")


def _parse(data: bytes, where: str) -> Any:
    try:
        arrays = st.load(data)
        metadata = _metadata(data)
        if metadata.get("format") != _FORMAT:
            return {k: _tensor(k, a) for k, a in arrays.items()}
        _verify(metadata, arrays)
        return _Reader(arrays).decode(json.loads(metadata["structure"]))
    except (SafetensorError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # Asked last: the length of a header may begin with the same byte as a pickle.
        if data[:4] == b"PK\x03\x04" or data[:1] == b"\x80":
            raise RuntimeError(
                f"{where} looks like a pickle (torch.save writes those), which could run any code "
                "when loaded; write the state dict with safetensors instead"
            ) from None
        raise RuntimeError(f"{where} is damaged or no safetensors file: {error}") from error


def _to_cpu(map_location: Any) -> None:
    """Raise if ``map_location`` (a device, a function or a dict) puts tensors elsewhere."""
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu")
    if not callable(map_location):
        require_cpu(map_location, "load")


def load(f: Target, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what :func:`save` wrote (or any safetensors file, as a dict) from a path or file object.

    Leaf tensors come back with their dtype and ``requires_grad``; a Parameter comes back as a
    Tensor.  ``map_location`` may be None or the CPU, a dict that sends nothing from there
    elsewhere, or a function, which is not called: all tensors are on the CPU.  ``weights_only``
    changes nothing: no code of a file is run, and pickles are refused in any case.  Raises
    FileNotFoundError for a wrong path, RuntimeError for a damaged file (lengths, structure and
    checksums are verified), TypeError for dtypes without counterpart.
    """
    _to_cpu(map_location)
    if isinstance(f, (str, os.PathLike)):
        return _parse(Path(f).read_bytes(), str(f))
    if hasattr(f, "read"):
        return _parse(f.read(), str(getattr(f, "name", "the file")))
    raise TypeError(f"expected a path or a binary file object, but got {type(f).__name__}")
