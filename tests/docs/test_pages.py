"""Every program in the README and in docs/ runs and prints what the page says."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import names
import numpy as np
import pages
import pytest

from minitorch_tvm.core import config

ROOT = pages.ROOT


@pytest.fixture(autouse=True)
def _op_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide writes a row of the op test table."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cpu" / "ops"))


@pytest.mark.parametrize(
    "page", [p for p in pages.PAGES if pages.blocks(p, "python")], ids=pages.name_of
)
def test_programs_run(page: Path) -> None:
    with config.override(growing=True, varying=True, changing=True):  # as by default
        pages.run(page)


def test_a_wrong_page_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\n>>> x + 1\n2\n```\n")
    assert pages.run(page)["x"] == 1
    page.write_text("```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md.*line 6"):
        pages.run(page)
    page.write_text("text\n\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        pages.run(page)
    assert caught.traceback[-1].lineno + 1 == 5


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    targets += re.findall(r'src="([^"]+)"', text)
    local = [t for t in targets if "://" not in t]
    assert [t for t in local if not (page.parent / t).exists()] == []


def test_all_public_names_are_listed() -> None:
    text = names.PAGE.read_text(encoding="utf-8")
    assert names.with_names(text) == text, "python tests/docs/names.py writes the lists"


# Written as in the text: minitorch_tvm/..., compiler/fuse.py, tests/...
_PATH = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|toml|md)|(?:[\w.]+/)+)`")


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_named_files_exist(page: Path) -> None:
    named = _PATH.findall(page.read_text(encoding="utf-8"))
    homes = (ROOT, ROOT / "minitorch_tvm", page.parent)
    missing = [n for n in named if "/" in n and not any((h / n).exists() for h in homes)]
    assert missing == []


def test_environment_page_is_generated() -> None:
    page = ROOT / "docs" / "environment.md"
    assert page.read_text(encoding="utf-8").split("\n\n", 2)[2].strip() == config.describe()


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "benchmarks"))
    return importlib.import_module("report")


def test_tables_are_put_in_their_places(report: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(report.TABLES, "brief", lambda _: "new")
    empty = "<!-- table: brief -->\n<!-- end -->\n"
    page = f"{empty}between\n{empty}"
    full = page.replace("-->\n<!-- end", "-->\nnew\n<!-- end")
    assert report.filled(page, {}) == full
    assert report.filled(full, {}) == full


def test_tables_of_measurements_are_generated(report: Any) -> None:
    found: set[str] = set()
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        if tables := re.findall(r"<!-- table: (\w+) -->", text):
            # A page's tables are of the file that it names first.
            name = re.findall(r"measurements/(\w+\.json)", text)[0]
            measured = json.loads((ROOT / "docs" / "measurements" / name).read_text())
            assert report.filled(text, measured) == text, f"report.py {name} {page.name}"
        found.update(tables)
    assert found == {*report.TABLES}


def test_the_top_level_is_what_it_should_be() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    visible = {name for name in top if not name.startswith(".")}
    folders = {"minitorch_tvm", "examples", "tests", "docs"}
    assert visible <= folders | {"pyproject.toml", "README.md", "LICENSE"}


def test_guide_adds_an_op_that_passes_the_table() -> None:
    harness = importlib.import_module("test_op_table")
    names = pages.run(ROOT / "docs" / "adding-an-op.md")
    row = names["ROW"]
    harness.test_shape_dtype_value_and_reference(row, np.random.default_rng(0))
    harness.test_special_values(row)
    harness.test_gradient(row, np.random.default_rng(0))
    harness.test_second_gradient(row, np.random.default_rng(0))
    harness.test_text_form(row, np.random.default_rng(0))
    for bad in row.bad:
        harness.test_error_text(bad)


def test_readme_commands_are_those_that_ci_runs() -> None:
    commands = [b.text.strip() for b in pages.blocks(ROOT / "README.md", "sh")]
    assert len(commands) == 2
    for command in commands:
        script = command.split(".venv/bin/python ")[1].split()[0]
        assert script == "-m" or (ROOT / script).is_file()
        extra = re.findall(r"'\.\[(\w+)\]'", command)
        assert len(extra) == 1
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert re.search(rf"^{extra[0]} = \[", declared, re.MULTILINE)
    ci = ROOT / ".ci" / "run"
    assert ci.stat().st_mode & 0o111
    (pattern,) = re.findall(r"grep -E '([^']+)' README\.md", ci.read_text(encoding="utf-8"))
    assert [c for c in commands if re.match(pattern, c)] == commands[1:]
