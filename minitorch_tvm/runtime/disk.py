"""Compiled programs on disk, so that a later process need not load the compiler.

One immutable file per program, named by a hash of everything that decides its code: the simplified
graph, the settings, the processor, the sources of the compiler and the installed TVM.  A file is a
checksum, a JSON header and object code; it is written under another name and renamed, so readers
see all of it or nothing.  Object code is executed, hence nothing is read that anybody but the user
could have written.  Whatever is wrong with an entry or the folder, the program is compiled.

What a program was made of may serve others: the compiler gives names to that, and an index tells
for each of them which program goes by it.  Its entries are only hints: a program says itself what
it has.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from ..core import config, machine, tvm_api
from ..core.events import EVENTS, log
from ..core.record import record
from ..core.threads import usable_cores
from ..ir.graph import Graph
from ..ir.program import Found, KernelInfo, Output, Placement, Program
from ..ir.text import graph_text, text_of

LIMIT_BYTES = 512 << 20
"""Size of the folder above which the entries that were not used for longest are deleted."""

_SHARE = 32
"""Such a part of that is written by a process before it looks again how large the folder is."""
_WRITTEN: dict[str, int] = {}
"""Bytes that this process has written to folders since it looked."""

_SUFFIX, _TEMPORARY = ".mtvm", ".mtvm-tmp"
_INDEX = "index"
"""The file that has, one after the other, hashes of names and the keys of their programs."""
_HASH = 32  # bytes of each
_CAREFUL = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABANDONED_SECONDS = 3600.0  # age of a temporary file whose writer must have died
_PACKAGE = __name__.partition(".")[0]
_LOADED = time.time() - 2.0  # the modules were read not long before this one
# What lies above these only records; what it records is the graph.
_LAYERS = ("core", "ir", "ops", "compiler", "runtime")


class _Refused(Exception):
    """An entry that is damaged, foreign or not the user's own."""


@functools.cache
def sources() -> str | None:
    """Hash of the code that turns graphs into programs and runs them.

    None if there are no files, or if one has changed since this process read it: what runs here is
    then not what the files say.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.sha256()
    paths = sorted(path for layer in _LAYERS for path in _modules(os.path.join(root, layer)))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime > _LOADED:
                return None
            content = file.read()
        digest.update(f"{path[len(root) :]} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest() if paths else None


def _modules(folder: str) -> Iterator[str]:
    """Python's files in a folder and those below."""
    if not os.path.isdir(folder):
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _modules(entry.path)


@functools.cache
def _environment() -> bytes | None:
    """Everything beside graph and settings that decides the code; None if not all is known."""
    processor, code = machine.identity(), sources()
    if processor is None or code is None:
        return None
    parts = (processor, code, tvm_api.identity())
    return hashlib.sha256("\0".join(parts).encode()).digest()


@record
class Entry:
    """The place of one program on disk."""

    folder: str
    key: str
    graph: Graph

    @property
    def path(self) -> str:
        """Its file."""
        return os.path.join(self.folder, self.key + _SUFFIX)

    def load(self) -> Program | None:
        """The program, or None if it has to be compiled."""
        start = time.perf_counter()
        try:
            content = _read(self.folder, self.path)
            program = _decode(content, self.key, self.graph, start)
        except FileNotFoundError:
            EVENTS.add("disk_misses")
            return None
        except _Refused as reason:
            EVENTS.add("disk_misses")
            EVENTS.add("disk_refused")
            log("compile", f"cached program {self.path} is not used: {reason}")
            return None
        except OSError as error:
            _complain(self.folder, error)
            return None
        with contextlib.suppress(OSError):  # a folder that may only be read
            os.utime(self.path)  # entries are evicted by the time of their last use
        EVENTS.add("disk_hits")
        return program

    def refused(self, error: Exception) -> None:
        """What was there, or what it was made of, cannot be linked."""
        EVENTS.add("disk_refused")
        log("compile", f"programs in {self.folder} cannot be used for {self.key}: {error}")

    @functools.cached_property
    def others(self) -> Programs:
        """All that are there."""
        return Programs(self.folder)

    def store(self, program: Program) -> None:
        """Keep the program for later processes, if the folder allows."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            _require_own(self.folder)
            content = _encode(self.key, program)
            _write(self.folder, self.path, content)
            EVENTS.add("disk_writes")
            self._list(program.names)
            written = _WRITTEN.get(self.folder, LIMIT_BYTES) + len(content)
            if written >= LIMIT_BYTES // _SHARE:
                _evict(self.folder, keep=self.path)
                written = 0
            _WRITTEN[self.folder] = written
        except OSError as error:
            _complain(self.folder, error)

    def _list(self, names: Sequence[str]) -> None:
        """Say in the index what the program goes by.

        All of it, though others go by some names, too: they may be gone sooner.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(os.path.join(self.folder, _INDEX), flags | _CAREFUL, 0o600)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                rest = -status.st_size % (2 * _HASH)  # somebody was interrupted
                key = bytes.fromhex(self.key)
                os.write(descriptor, bytes(rest) + b"".join(_hash(name) + key for name in names))
        finally:
            os.close(descriptor)


def _hash(name: str) -> bytes:
    environment = _environment()
    assert environment is not None
    return hashlib.sha256(environment + name.encode()).digest()


_Index = dict[bytes, bytes]
_INDICES: dict[str, tuple[tuple[int, ...], _Index]] = {}
"""Those that this process has read, and what tells whether they are still the same."""


def _index(folder: str) -> _Index:
    path = os.path.join(folder, _INDEX)
    try:
        status = os.lstat(path)
        now = status.st_ino, status.st_size, status.st_mtime_ns
        before, index = _INDICES.get(path, ((0, 0, 0), {}))
        if before != now:
            # Rows are added at the end; whoever deletes some writes another file.
            start = before[1] - before[1] % (2 * _HASH) if before[0] == now[0] else 0
            content = _read(folder, path, start)
            whole = range(0, len(content) - 2 * _HASH + 1, 2 * _HASH)
            # Of several programs of a name the last one.
            rows = {content[i : i + _HASH]: content[i + _HASH : i + 2 * _HASH] for i in whole}
            if start:
                index.update(rows)
            else:
                index = rows
            _INDICES[path] = now, index
    except (OSError, _Refused):
        return {}
    return index


class Programs:
    """Those on disk, for one that is being compiled."""

    def __init__(self, folder: str) -> None:
        self._folder, self._index = folder, _index(folder)
        self._programs: dict[bytes, Found | None] = {}

    def has(self, name: str) -> bool:
        """Whether there is a program that goes by that name."""
        key = self._index.get(_hash(name)) if self._index else None
        return key is not None and os.path.exists(self._path(key))

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder, key.hex() + _SUFFIX)

    def find(self, name: str) -> Found | None:
        """One that does."""
        key = self._index.get(_hash(name)) if self._index else None
        if key is None:
            return None
        if key not in self._programs:
            self._programs[key] = self._opened(key)
        return self._programs[key]

    def _opened(self, key: bytes) -> Found | None:
        path = self._path(key)
        try:
            _, _, code, made = _opened(_read(self._folder, path), key.hex())
        except (OSError, _Refused):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return Found(code, made) if made else None


def empty() -> bool:
    """Whether no program is kept, as far as can be told at once."""
    folder = config.CONFIG.cache_dir
    return folder is None or not os.path.exists(os.path.join(folder, _INDEX))


def entry_for(graph: Graph) -> Entry | None:
    """Where the program of a simplified graph is kept; None where programs are not kept.

    Settings that look into the compiler or change what it emits for inspection need a real
    compile: MTVM_CHECK, MTVM_POISON, MTVM_VALIDATE, MTVM_PROFILE and MTVM_DEBUG.
    """
    settings = config.CONFIG
    if settings.cache_dir is None:
        return None
    looks = settings.check, settings.poison, settings.validate, settings.profile, settings.debug
    if any(looks):
        return None
    environment, text = _environment(), graph_text(graph)
    if environment is None or text is None:
        EVENTS.add("disk_unsupported")
        return None
    digest = hashlib.sha256(environment)
    digest.update(f"{text_of(settings.program_key)} workers={usable_cores()}\n{text}".encode())
    return Entry(settings.cache_dir, digest.hexdigest(), graph)


_COMPLAINED: set[str] = set()


def _complain(folder: str, error: Exception) -> None:
    EVENTS.add("disk_errors")
    if folder not in _COMPLAINED:
        _COMPLAINED.add(folder)
        log("compile", f"compiled programs are not kept in {folder}: {error}")


def _foreign(status: os.stat_result) -> str:
    """Why somebody else may have written this, or nothing.

    Whoever can write to the folder or to an entry decides what this process executes.
    """
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    return ""


def _require_own(folder: str) -> None:
    reason = _foreign(os.stat(folder))
    if reason:
        raise PermissionError(reason)


def _read(folder: str, path: str, start: int = 0) -> bytes:
    _require_own(folder)
    descriptor = os.open(path, os.O_RDONLY | _CAREFUL)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        reason = _foreign(status) if stat.S_ISREG(status.st_mode) else "it is not a regular file"
        if reason:
            raise _Refused(reason)
        file.seek(start)
        return file.read()


def _write(folder: str, path: str, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=_TEMPORARY, dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _evict(folder: str, keep: str) -> None:
    """Delete what was not used for longest until the folder is within its limit."""
    found, gone = [], set()
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process evicts too
            status = entry.stat(follow_symlinks=False)
            if not entry.name.endswith((_SUFFIX, _TEMPORARY)):
                continue
            if entry.name.endswith(_SUFFIX):
                found.append((status.st_mtime, status.st_size, entry.path))
            elif status.st_mtime < time.time() - _ABANDONED_SECONDS:
                os.unlink(entry.path)
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= LIMIT_BYTES:
            break
        if path != keep:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            EVENTS.add("disk_evictions")
            gone.add(os.path.basename(path).removesuffix(_SUFFIX))
            total -= size
    if gone:
        path = os.path.join(folder, _INDEX)
        with contextlib.suppress(FileNotFoundError, _Refused):
            content = _read(folder, path)
            rows = (content[i : i + 2 * _HASH] for i in range(0, len(content), 2 * _HASH))
            _write(folder, path, b"".join(row for row in rows if row[_HASH:].hex() not in gone))


# The fields of a program that the header holds as they are; the graph is the reader's own.
_PLAIN = (
    "entry",
    "scalar_format",
    "scalars",
    "inputs",
    "arena_bytes",
    "naive_bytes",
    "lower_bound",
    "stage_functions",
    "steps_nbytes",
    "target",
)
_ROWS = {"outputs": Output, "kernels": KernelInfo, "placements": Placement}


def _encode(key: str, program: Program) -> bytes:
    """Checksum (hex), newline, length of the header (8 bytes), header, steps, object code, and the
    compiler's text on it."""
    header: dict[str, Any] = {name: getattr(program, name) for name in _PLAIN}
    for name, kind in _ROWS.items():
        columns = [f.name for f in fields(kind)]
        header[name] = [[getattr(row, c) for c in columns] for row in getattr(program, name)]
    header["key"] = key
    header["steps"] = len(program.steps)
    header["code"] = [len(piece) for piece in program.code]
    header["made"] = len(program.made)
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [len(text).to_bytes(8, "little"), text, program.steps, *program.code, program.made]
    body = b"".join(parts)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _opened(content: bytes, key: str) -> tuple[dict[str, Any], bytes, tuple[bytes, ...], bytes]:
    """Header, steps, object code, and the compiler's text."""
    checksum, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise _Refused("its checksum is wrong")
    split = 8 + int.from_bytes(body[:8], "little")
    try:
        header = json.loads(body[8:split])
        if header.pop("key") != key:
            raise _Refused("it is another program's")
        sizes = [header.pop("steps"), *header.pop("code"), header.pop("made")]
        ends = list(itertools.accumulate(sizes, initial=split))
        steps, *code, made = (body[a:b] for a, b in itertools.pairwise(ends))
        if ends[-1] != len(body):
            raise _Refused("its parts have other sizes")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _Refused("its header is not one of ours") from error
    return header, steps, tuple(code), made


def _decode(content: bytes, key: str, graph: Graph, start: float) -> Program:
    header, steps, code, _ = _opened(content, key)
    try:
        for name, kind in _ROWS.items():
            header[name] = tuple(
                kind(*(tuple(x) if isinstance(x, list) else x for x in row)) for row in header[name]
            )
        seconds = {"load": time.perf_counter() - start}
        return Program(graph=graph, code=code, steps=steps, seconds=seconds, **header)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _Refused("its header is not one of ours") from error
