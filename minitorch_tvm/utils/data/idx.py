"""The idx file format, as MNIST uses it.

Layout (big endian): two zero bytes, one byte for the element type, one byte for the number of
dimensions d, then d sizes of 4 bytes each, then the elements in C order. Source: the description
on the MNIST home page of Y. LeCun, C. Cortes and C. Burges.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from minitorch_tvm.utils.data.arrays import AnyArray, aligned_empty

_ELEMENTS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"


class CorruptedFileError(ValueError):
    """A data file exists, but its content is not what it must be."""


def read_idx(path: str | os.PathLike[str], *, sha256: str | None = None) -> AnyArray:
    """Read an idx file, gzipped or not (its first bytes tell, not its name).

    Args:
        path: the file.
        sha256: if given, hex digest that the *uncompressed* bytes must have.

    Returns:
        A writable array in native byte order and 64-byte-aligned memory, with the shape and dtype
        of the file.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptedFileError: bad gzip stream, wrong magic number, wrong length or wrong checksum.
    """
    path = Path(path)
    content = path.read_bytes()
    if not content:
        raise corrupted(path, "the file is empty")
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise corrupted(path, f"the gzip stream is damaged or cut short ({error})") from error
    array = parse_idx(content, path)
    if sha256 is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise corrupted(
                path, f"expected sha256 {sha256} of the uncompressed bytes, found {found}"
            )
    out = aligned_empty(array.shape, array.dtype)  # `array` is a read-only window on `content`
    out[...] = array
    return out


def parse_idx(content: bytes, path: Path) -> AnyArray:
    """The (read-only) array that ``content`` describes; ``path`` is for error messages only."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _ELEMENTS:
        raise corrupted(
            path,
            "wrong magic number: an idx file starts with 00 00, an element type from "
            f"{{{', '.join(f'{key:02x}' for key in _ELEMENTS)}}} and the number of dimensions; "
            f"this one starts with {content[:4].hex(' ')}",
        )
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise corrupted(path, f"the header of a {rank}-d file needs {start} bytes")
    shape = struct.unpack(f">{rank}I", content[4:start])
    kind = np.dtype(_ELEMENTS[content[2]])
    expected = start + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise corrupted(
            path, f"shape {shape} needs {expected} bytes uncompressed, but there are {len(content)}"
        )
    array = np.frombuffer(content, dtype=kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)


def write_idx(path: str | os.PathLike[str], array: AnyArray) -> None:
    """Write ``array`` (uint8, int8, int16, int32, float32 or float64) as an idx file.

    Gzipped if the name ends in ``.gz``.

    Raises:
        TypeError: the format has no such element type.
    """
    codes = {np.dtype(kind).newbyteorder("="): (code, kind) for code, kind in _ELEMENTS.items()}
    if array.dtype not in codes:
        raise TypeError(f"idx files cannot hold {array.dtype}, only {', '.join(map(str, codes))}")
    code, kind = codes[array.dtype]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    content = header + array.astype(kind).tobytes()
    path = Path(path)
    # mtime=0, so that equal content makes equal files
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def corrupted(path: Path, reason: str) -> CorruptedFileError:
    """The error for a bad file: which, why, and what to do about it."""
    return CorruptedFileError(
        f"{path}: {reason}. Delete or replace this file; MNIST(..., download=True) fetches a "
        "fresh copy when the file is absent."
    )
