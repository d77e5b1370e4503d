"""Programs kept on disk: never a wrong one, never an error, never the compiler without need."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.core import dtype as dt
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.graph import Graph, Value
from minitorch_tvm.ir.node import BUFFER, SCALAR
from minitorch_tvm.ir.op import Op, intern
from minitorch_tvm.ops import elementwise as ew
from minitorch_tvm.ops import movement as mv
from minitorch_tvm.ops import reduction as rd
from minitorch_tvm.runtime import disk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test's own, in use."""
    # The sources may be edited while the tests run; what identifies them is tested by itself.
    monkeypatch.setattr(disk, "_environment", lambda: b"here")
    path = tmp_path / "programs"
    with config.override(check=False, cache_dir=str(path)):
        lazy.clear_cache()
        yield path
    lazy.clear_cache()


def _evaluate(scale: float = 1.0) -> tuple[np.ndarray, Counter[str]]:
    """A fresh evaluation of a small program, as a new process would do it; what was counted."""
    lazy.clear_cache()
    before = Counter(EVENTS.snapshot())
    x = mt.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    result = ((x * scale).exp().sum(1) - x.amax()).numpy()
    counted = Counter(EVENTS.snapshot())
    counted.subtract(before)
    return result, counted


def _entry(folder: Path) -> Path:
    (path,) = folder.glob("*.mtvm")
    return path


def test_a_program_is_stored_once_and_found_again(folder: Path) -> None:
    first, counted = _evaluate()
    assert (counted["compiles"], counted["disk_writes"], counted["disk_misses"]) == (1, 1, 1)
    compiled = lazy.last_executor().program
    again, counted = _evaluate()
    assert (counted["compiles"], counted["disk_hits"], counted["disk_writes"]) == (0, 1, 0)
    loaded = lazy.last_executor().program
    assert np.array_equal(first, again)
    assert loaded == compiled
    assert loaded.target
    assert _entry(folder).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_scalars_are_arguments_and_the_report_is_complete(folder: Path) -> None:
    _evaluate()
    compiled = mt.debug.explain()
    result, counted = _evaluate(0.5)
    assert counted["disk_hits"] == 1
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_allclose(result, np.exp(x * 0.5).sum(1) - 11, rtol=1e-5)

    def without_seconds(text: str) -> list[str]:
        lines = text.splitlines()
        return [line for line in lines if "compile seconds" not in line]

    assert without_seconds(compiled) == without_seconds(mt.debug.explain())
    assert "load" in mt.debug.explain()


def _sealed(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _with_header(content: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    body = content.partition(b"\n")[2]
    split = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(body[8:split])
    change(header)
    text = json.dumps(header).encode()
    return _sealed(len(text).to_bytes(8, "little") + text + body[split:])


def _flipped(content: bytes, position: int) -> bytes:
    damaged = bytearray(content)
    damaged[position] ^= 1
    return bytes(damaged)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda c: b"",
    "only a checksum": lambda c: c[:65],
    "truncated by a byte": lambda c: c[:-1],
    "cut in half": lambda c: c[: len(c) // 2],
    "a byte more": lambda c: c + b"\0",
    "checksum": lambda c: _flipped(c, 3),
    "header": lambda c: _flipped(c, 100),
    "code": lambda c: _flipped(c, len(c) - 40),
    "not ours": lambda c: b"\x7fELF" + bytes(200),
    "another key": lambda c: _with_header(c, lambda h: h.update(key="0" * 64)),
    "no key": lambda c: _with_header(c, lambda h: h.pop("key")),
    "a field is missing": lambda c: _with_header(c, lambda h: h.pop("outputs")),
    "a field too many": lambda c: _with_header(c, lambda h: h.update(surprise=1)),
    "rows of another kind": lambda c: _with_header(c, lambda h: h.update(kernels=[[1]])),
    "header is a list": lambda c: _sealed((2).to_bytes(8, "little") + b"[]"),
    "header is no JSON": lambda c: _sealed((2).to_bytes(8, "little") + b"{("),
    "length out of range": lambda c: _sealed(b"\xff" * 8 + b"{}"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_compiled_and_replaced(
    folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    want, _ = _evaluate()
    path = _entry(folder)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    got, counted = _evaluate()
    assert np.array_equal(got, want)
    assert (counted["disk_refused"], counted["disk_hits"], counted["compiles"]) == (1, 0, 1)
    got, counted = _evaluate()
    assert np.array_equal(got, want)
    assert (counted["disk_refused"], counted["disk_hits"], counted["compiles"]) == (0, 1, 0)


def test_an_entry_that_others_may_write_is_replaced(folder: Path) -> None:
    _evaluate()
    _entry(folder).chmod(0o666)
    _, counted = _evaluate()
    assert (counted["disk_refused"], counted["compiles"]) == (1, 1)
    assert _entry(folder).stat().st_mode & 0o777 == 0o600
    assert _evaluate()[1]["disk_hits"] == 1


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_only_regular_files_are_read(folder: Path, tmp_path: Path, kind: str) -> None:
    _evaluate()
    path = _entry(folder)
    path.rename(tmp_path / "elsewhere")
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir()
    _, counted = _evaluate()
    assert (counted["disk_hits"], counted["compiles"]) == (0, 1)
    assert _evaluate()[1]["disk_hits"] == (0 if kind == "folder" else 1)


def test_a_folder_that_others_may_write_is_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    folder.chmod(0o770)
    with config.override(log=frozenset({"compile"})):
        for _ in range(2):
            _, counted = _evaluate()
            assert (counted["compiles"], counted["disk_hits"]) == (1, 0)
            assert counted["disk_errors"] > 0
    assert list(folder.iterdir()) == []
    lines = [x for x in capsys.readouterr().err.splitlines() if "are not kept" in x]
    assert len(lines) == 1
    assert "others may write to it" in lines[0]


def test_a_folder_of_somebody_else_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    _, counted = _evaluate()
    assert (counted["compiles"], counted["disk_hits"], counted["disk_writes"]) == (1, 0, 0)


def test_a_folder_that_cannot_be_made(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("")
    with config.override(cache_dir=str(tmp_path / "file" / "programs")):
        result, counted = _evaluate()
    assert np.isfinite(result).all()
    assert (counted["compiles"], counted["disk_writes"]) == (1, 0)
    assert counted["disk_errors"] > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    _, counted = _evaluate()
    assert (counted["compiles"], counted["disk_writes"], counted["disk_errors"]) == (1, 0, 1)
    assert list(folder.iterdir()) == []  # nothing half written stays behind


def test_a_folder_that_may_only_be_read_still_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate()

    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", fail)
    assert _evaluate()[1]["disk_hits"] == 1


def _graph(*values: Value, outputs: tuple[int, ...]) -> Graph:
    return Graph(values, outputs)


def _leaf(shape: tuple[int, ...] = (4, 4), dtype: dt.DType = dt.float32) -> Value:
    return Value(BUFFER, (), shape, dtype)


def _sum(**changes: object) -> Graph:
    op = intern(rd.Sum(**{"dims": (1,), "keepdim": False, **changes}))
    shape = (4, 1) if op.keepdim else (4,)
    return _graph(_leaf(), Value(op, (0,), shape, dt.float32), outputs=(1,))


def _constant(value: float | int | bool, dtype: dt.DType = dt.float32) -> Graph:
    op = intern(mv.Full((), value, dtype))
    return _graph(Value(op, (), (), dtype), outputs=(0,))


def _product(
    inputs: tuple[int, int] = (0, 1),
    outputs: tuple[int, ...] = (2,),
    donated: tuple[tuple[int, int], ...] = (),
    shape: tuple[int, ...] = (4, 4),
    dtype: dt.DType = dt.float32,
    second: Op = BUFFER,
) -> Graph:
    op = intern(ew.Mul())
    values = (
        _leaf(shape, dtype),
        Value(second, (), shape, dtype),
        Value(op, inputs, shape, dtype),
    )
    return Graph(values, outputs, donated)


DIFFERENT: dict[str, Callable[[], Graph]] = {
    "product": _product,
    "order of inputs": lambda: _product(inputs=(1, 0)),
    "one input twice": lambda: _product(inputs=(0, 0)),
    "outputs": lambda: _product(outputs=(2, 2)),
    "donation": lambda: _product(donated=((0, 0),)),
    "donation of the other": lambda: _product(donated=((0, 1),)),
    "shape": lambda: _product(shape=(2, 8)),
    "rank": lambda: _product(shape=(16,)),
    "dtype": lambda: _product(dtype=dt.int32),
    "dtype of equal size": lambda: _product(dtype=dt.uint32),
    "no dimensions": lambda: _product(shape=()),
    "a scalar": lambda: _product(shape=(), second=SCALAR),
    "sum": _sum,
    "sum over another axis": lambda: _sum(dims=(0,)),
    "sum that keeps its axis": lambda: _sum(keepdim=True),
    "0.0": lambda: _constant(0.0),
    "-0.0": lambda: _constant(-0.0),
    "1.0": lambda: _constant(1.0),
    "1": lambda: _constant(1),
    "True": lambda: _constant(True),
    "1.0 of another type": lambda: _constant(1.0, dt.float64),
    "next after 1.0": lambda: _constant(float(np.nextafter(1.0, 2.0))),
    "infinity": lambda: _constant(float("inf")),
    "nan": lambda: _constant(float("nan")),
}


def test_different_graphs_have_different_keys(folder: Path) -> None:
    keys = {name: disk.entry_for(make()).key for name, make in DIFFERENT.items()}
    owners: dict[str, list[str]] = {}
    for name, key in keys.items():
        owners.setdefault(key, []).append(name)
    assert [names for names in owners.values() if len(names) > 1] == []
    assert keys == {name: disk.entry_for(make()).key for name, make in DIFFERENT.items()}


def test_settings_are_part_of_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _product()
    keys = [disk.entry_for(graph).key]
    for change in ({"fuse": False}, {"plan": False}, {"schedule": "default"}, {"num_threads": 77}):
        with config.override(**change):
            keys.append(disk.entry_for(graph).key)
    monkeypatch.setattr(disk, "_environment", lambda: b"there")
    keys.append(disk.entry_for(graph).key)
    assert len(set(keys)) == len(keys)


def test_lines_of_the_user_are_not_part_of_the_key(folder: Path) -> None:
    graph = _product()
    moved = Graph(
        tuple(
            dataclasses.replace(v, place=(compile("0", "other.py", "eval"), 0))
            for v in graph.values
        ),
        graph.outputs,
    )
    assert disk.entry_for(graph).key == disk.entry_for(moved).key


def test_what_has_no_text_is_not_kept(folder: Path) -> None:
    class Foreign(ew.Neg):
        """Its code is not among the sources that are hashed."""

    def of(op: Op) -> Graph:
        return _graph(_leaf(), Value(op, (0,), (4, 4), dt.float32), outputs=(1,))

    assert disk.entry_for(of(intern(ew.Neg()))) is not None
    assert disk.entry_for(of(Foreign())) is None
    assert disk.entry_for(of(intern(mv.Full((4, 4), np.float32(1.0), dt.float32)))) is None


@pytest.mark.parametrize("setting", ["check", "poison", "validate", "debug", "cache_dir"])
def test_looking_inside_needs_a_compile(folder: Path, setting: str) -> None:
    value = {"debug": 1, "cache_dir": None}.get(setting, True)
    with config.override(**{setting: value}):
        assert disk.entry_for(_product()) is None
    assert disk.entry_for(_product()) is not None


def test_sources_that_changed_under_the_process_identify_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "_LOADED", time.time() + 3600)
    assert len(disk.sources.__wrapped__()) == 64
    monkeypatch.setattr(disk, "_LOADED", 0.0)
    assert disk.sources.__wrapped__() is None


def test_least_recently_used_programs_go_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _evaluate()
    content = _entry(folder).read_bytes()
    kept = _entry(folder)
    now = time.time()
    for age in range(1, 5):
        path = folder / f"{age}.mtvm"
        path.write_bytes(content)
        os.utime(path, (now - 100 * age,) * 2)
    os.utime(kept, (now - 1000,) * 2)
    (folder / "note.txt").write_bytes(content)
    abandoned = folder / ".x.mtvm-tmp"
    abandoned.write_bytes(content)
    os.utime(abandoned, (now - 7200,) * 2)
    writing = folder / ".y.mtvm-tmp"
    writing.write_bytes(content)

    assert _evaluate()[1]["disk_hits"] == 1  # used now: the youngest
    monkeypatch.setattr(disk, "LIMIT_BYTES", int(len(content) * 3.5))
    lazy.clear_cache()
    mt.eval(mt.ones(3) + mt.ones(3))  # one more, about as large at most
    names = {p.name for p in folder.iterdir()}
    assert kept.name in names
    assert {"4.mtvm", "3.mtvm"}.isdisjoint(names)
    assert {"1.mtvm", "note.txt", ".y.mtvm-tmp"} <= names
    assert abandoned.name not in names


def test_writers_and_readers_do_not_disturb_each_other(folder: Path) -> None:
    _evaluate()
    program = lazy.last_executor().program
    entry = disk.entry_for(program.graph)
    before = EVENTS.get("disk_refused"), EVENTS.get("disk_errors")

    def work(number: int) -> bool:
        if number % 2:
            entry.store(program)
            return True
        return entry.load() == program

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert (EVENTS.get("disk_refused"), EVENTS.get("disk_errors")) == before
    assert {p.suffix for p in folder.iterdir() if p.name != "index"} == {".mtvm"}


@pytest.mark.parametrize(
    ("env", "want"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache/minitorch_tvm/programs"),
        ({"XDG_CACHE_HOME": "/var/c"}, "/var/c/minitorch_tvm/programs"),
        (
            {"XDG_CACHE_HOME": "relative", "HOME": "/home/a"},
            "/home/a/.cache/minitorch_tvm/programs",
        ),
        ({"MTVM_CACHE_DIR": "/x/y"}, "/x/y"),
        ({"MTVM_CACHE_DIR": "~/y", "HOME": "/home/a"}, "/home/a/y"),
        ({"MTVM_CACHE_DIR": ""}, None),
        ({"MTVM_CACHE_DIR": " 0 "}, None),
    ],
)
def test_where_programs_are_kept(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], want: str | None
) -> None:
    if "HOME" in env:
        monkeypatch.setenv("HOME", env["HOME"])
    assert config._from_env(env).cache_dir == want
