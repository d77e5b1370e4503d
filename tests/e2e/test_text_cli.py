"""The command line of examples/text.py: it learns, writes and refuses."""

import re
from pathlib import Path

import numpy as np
import pytest
import text

import minitorch_tvm as mt
from minitorch_tvm.core.events import EVENTS

SMALL = ["--width", "32", "--layers", "2", "--heads", "2", "--context", "16", "--lr", "0.01"]


@pytest.fixture
def rhyme(tmp_path: Path) -> str:
    file = tmp_path / "rhyme.txt"
    file.write_text("one two three four five\n" * 60, encoding="utf-8")
    return str(file)


def test_it_learns_a_rhyme_and_writes_it(rhyme: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--file", rhyme, "--steps", "150", "--length", "60", "--temperature", "0.1"]
    programs = EVENTS.get("compiles") + EVENTS.get("disk_hits")
    assert text.main([*SMALL, *options, "--prompt", "one t"]) == 0
    out = capsys.readouterr().out
    held_out = [float(x) for x in re.findall(r"held out ([\d.]+)", out)]
    assert len(held_out) == 2  # after 100 steps and at the end
    assert held_out[-1] < 0.3
    assert ("one two three four five\n" * 4)[:65] in out
    # Sixty windows of other lengths, which are not so many programs.
    assert EVENTS.get("compiles") + EVENTS.get("disk_hits") - programs < 20


def test_what_is_written_depends_on_nothing_behind_it(rhyme: str) -> None:
    mt.manual_seed(0)
    model = text.GPT(9, context=12, width=16, layers=1, heads=2)
    tokens = np.arange(12) % 9
    scores = model(mt.tensor([tokens])).detach().numpy()
    tokens[5:] = 0
    changed = model(mt.tensor([tokens])).detach().numpy()
    np.testing.assert_allclose(changed[0, :5], scores[0, :5], rtol=1e-5)
    assert not np.allclose(changed[0, 5:], scores[0, 5:])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--width", "10", "--heads", "4"], "--width 10 is not a multiple of --heads 4"),
        (["--steps", "0"], "--steps must be at least 1, but got 0"),
        (["--temperature", "0"], "--temperature must be a positive number, but got 0.0"),
        (["--prompt", ""], "--prompt must have a character"),
        (["--save", "/nowhere/at/all"], "there is no such folder to write to"),
    ],
)
def test_wrong_options(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        text.main(options)
    assert words in capsys.readouterr().err


def test_a_text_that_is_missing_or_too_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text.main(["--file", str(tmp_path / "nothing.txt")]) == 2
    assert "nothing.txt" in capsys.readouterr().err
    short = tmp_path / "short.txt"
    short.write_text("too short")
    assert text.main(["--file", str(short)]) == 2
    assert "the text has 9 characters, too few for --context 64" in capsys.readouterr().err
