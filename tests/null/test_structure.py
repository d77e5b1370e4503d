"""The shape of the code base: layers, file lengths, docstrings, generated documentation."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import minitorch_tvm as mt
from minitorch_tvm.core import config

ROOT = Path(__file__).resolve().parents[2]
HARD_LIMIT = 700


def _sources() -> list[Path]:
    return [
        path
        for folder in ("minitorch_tvm", "tests", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def test_imports_point_down() -> None:
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports as l; import sys; sys.exit(l(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_no_file_is_too_long() -> None:
    lengths = {p.relative_to(ROOT): len(p.read_text().splitlines()) for p in _sources()}
    assert len(lengths) > 50
    assert {p: n for p, n in lengths.items() if n > HARD_LIMIT} == {}


def test_what_an_import_has_no_use_for_stays_out_of_it() -> None:
    rest = {"tvm", "torch", "minitorch_tvm.distributions"}
    code = f"import sys, minitorch_tvm; print(sorted({rest} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def _public(module: types.ModuleType, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Everything reachable by public names, methods of public classes included."""
    for name, thing in vars(module).items():
        if name.startswith("_") or id(thing) in seen:
            continue
        home = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", "")
        if not str(home).startswith("minitorch_tvm"):
            continue
        seen.add(id(thing))
        # Named by where it is defined: the order of imports must not matter.
        where = str(home) if inspect.ismodule(thing) else f"{home}.{name}"
        yield where, thing
        if inspect.ismodule(thing):
            yield from _public(thing, seen)
        elif inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and (
                    inspect.isroutine(value) or isinstance(value, property)
                ):
                    yield f"{where}.{member}", getattr(thing, member)


_WHOLE = (
    "minitorch_tvm.ir",
    "minitorch_tvm.ops",
    "minitorch_tvm.compiler.dialect",
    "minitorch_tvm.lazy.Handle",
)


def _documented(thing: Any) -> bool:
    return bool((inspect.getdoc(thing) or "").strip())


def _undocumented() -> list[str]:
    # Ops, protocols and the compiler's dialects are documented as a whole, in their base classes.
    found = [(w, t) for w, t in _public(mt, set()) if not w.startswith(_WHOLE)]
    # A method that fulfils a protocol is described there: its name is documented somewhere.
    contracts = {w.rpartition(".")[2] for w, t in found if _documented(t)}
    kinds = (property, type, types.FunctionType, types.MethodType, types.ModuleType)
    missing = [w for w, t in found if isinstance(t, kinds) and not _documented(t)]
    return [w for w in missing if w.rpartition(".")[2] not in contracts]


def test_every_public_name_has_a_docstring() -> None:
    for name in ("nn", "optim", "utils.data", "serialize", "distributions"):
        import_module(f"minitorch_tvm.{name}")
    names = [where for where, _ in _public(mt, set())]
    assert any(n.endswith("Tensor.softmax") for n in names)
    assert len(names) > 200
    assert _undocumented() == []


def test_environment_table_is_current() -> None:
    path = ROOT / "docs" / "environment.md"
    if not path.exists():
        pytest.skip("docs/environment.md is not written yet")
    assert config.describe() in path.read_text()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MTVM_TARGET", "cuda", "MTVM_TARGET='cuda': expected one of cpu, numpy"),
        ("MTVM_MAX_PENDING", "0", "MTVM_MAX_PENDING='0': expected an integer >= 1"),
        ("MTVM_NUM_THREADS", "two", "NUM_THREADS='two': expected an integer from 1 to 1024"),
        ("MTVM_LOG", "compile,shapes", "MTVM_LOG: no topic 'shapes', expected compile, sync"),
        ("MTVM_NUM_THREADS", "0", "NUM_THREADS='0': expected an integer from 1 to 1024"),
        # The system would refuse to start so many, and the process would be aborted.
        ("MTVM_NUM_THREADS", "100000", "='100000': expected an integer from 1 to 1024"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config._from_env({name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": "mine"}, "setting schedule='mine': expected one of 'ours', 'default'"),
        ({"matrix_unit": "0"}, "setting matrix_unit='0': expected one of None, False, True"),
        ({"fuse": "0"}, "setting fuse='0': expected one of False, True"),
        ({"debug": "3"}, "setting debug='3': expected one of 0, 1, 2, 3, 4, 5"),
    ],
)
def test_a_wrong_override_is_refused(change: dict[str, object], words: str) -> None:
    before = config.CONFIG
    with pytest.raises(ValueError, match=words), config.override(**change):
        pass
    assert config.CONFIG is before


def test_settings_are_read_and_restored() -> None:
    read = config._from_env({"MTVM_FUSE": "0", "MTVM_LOG": "sync, compile", "MTVM_CHECK": " 1 "})
    assert (read.fuse, read.log, read.check) == (False, frozenset({"sync", "compile"}), True)
    for value, want in (("", None), ("auto", None), ("0", False), ("1", True)):
        assert config._from_env({"MTVM_MATRIX_UNIT": value}).matrix_unit is want
    before = config.CONFIG
    with config.override(fuse=False) as changed:
        assert not changed.fuse
        assert config.CONFIG is changed
    assert config.CONFIG is before
    fields = set(config.Config.__dataclass_fields__)
    by_programs = {"anomaly", "check_nan"}
    assert {v.field for v in config.VARIABLES} == fields - by_programs
