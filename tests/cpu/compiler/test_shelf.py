"""What programs on disk were made of makes other programs, in processes that come later."""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import minitorch_tvm as mt
import minitorch_tvm.nn.functional as F
from minitorch_tvm import lazy, nn, optim
from minitorch_tvm.compiler import kernels, native, shelf
from minitorch_tvm.compiler.steps import ENTRY, MOST_POINTERS, entry_helpers
from minitorch_tvm.compiler.table import table_object
from minitorch_tvm.core import config
from minitorch_tvm.core.events import EVENTS
from minitorch_tvm.ir.program import WITHIN
from minitorch_tvm.runtime import disk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test's own, in use."""
    monkeypatch.setattr(disk, "_environment", lambda: b"here")
    path = tmp_path / "programs"
    with config.override(check=False, cache_dir=str(path)):
        yield path
    lazy.clear_cache()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions that LLVM was given."""
    found: list[str] = []
    make = native.Build._make

    def watched(self: native.Build, piece: native.Piece, level: int) -> None:
        found.extend(piece.functions)
        make(self, piece, level)

    monkeypatch.setattr(native.Build, "_make", watched)
    return found


COMMON = {ENTRY, WITHIN, *(helper.name for helper in entry_helpers(2))}


def as_new(run: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """What ``run`` gives in a process that has made nothing yet, and what it counted."""
    lazy.clear_cache()
    gc.collect()
    assert not shelf.PIECES
    before = Counter(EVENTS.snapshot())
    result = run()
    counted = Counter(EVENTS.snapshot())
    counted.subtract(before)
    return result, counted


def without_disk(run: Callable[[], Any]) -> Any:
    with config.override(cache_dir=None):
        return as_new(run)[0]


def network(depth: int, rows: int = 24, drop: float = 0.0, width: int = 48) -> list[Any]:
    """A training step of layers: loss and a weight."""
    mt.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(), nn.Dropout(drop)]
    model = nn.Sequential(*layers, nn.Linear(width, 5))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = mt.tensor(np.linspace(-1, 1, rows * width, dtype=np.float32).reshape(rows, width))
    loss = F.cross_entropy(model(x), mt.arange(rows) % 5)
    loss.backward()
    optimizer.step()
    return [loss.item(), model[0].weight.detach().numpy().tobytes()]


def convolved(channels: int, images: int = 3, more: bool = False) -> list[Any]:
    """Results and gradients of two convolutions, which call helpers; or a sum, too."""
    mt.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(16, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 16, 3, padding=1)
    )
    x = mt.tensor(np.linspace(-1, 1, images * 16 * 400, dtype=np.float32))
    y = model(x.view(images, 16, 20, 20))
    y.square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    found = [y, *grads, *([y.detach().exp().sum(1)] if more else [])]
    mt.eval(*found)
    return [t.detach().numpy().tobytes() for t in found]


def summed() -> list[Any]:
    """What :func:`convolved` makes, and a sum of it: another program with the same convolutions."""
    return convolved(32, more=True)


@pytest.mark.parametrize(
    ("first", "then", "new"),
    [
        (lambda: network(2), lambda: network(5), 0),
        (lambda: network(3), lambda: network(2), 0),
        (lambda: convolved(32), summed, 4),
    ],
)
def test_another_program_of_known_kernels_needs_no_llvm(
    folder: Path, made: list[str], first: Callable[[], Any], then: Callable[[], Any], new: int
) -> None:
    want = without_disk(then)
    as_new(first)
    made.clear()
    found, counted = as_new(then)
    assert found == want  # all bits
    assert counted["compiles"]
    assert counted["disk_kernels"] > 4
    # The entry is one for as many threads as the first program had.
    assert len(set(made) - COMMON) <= new
    assert not any(name.startswith(("conv", "gemm", "turn")) for name in made)


def test_what_is_new_is_all_that_is_made(folder: Path, made: list[str]) -> None:
    want = without_disk(lambda: network(2, drop=0.25))
    as_new(lambda: network(2))
    whole = len(made)
    made.clear()
    found, counted = as_new(lambda: network(2, drop=0.25))
    assert found == want
    assert counted["disk_kernels"] > 4
    assert 0 < len(made) < whole / 2
    made.clear()
    found, _ = as_new(lambda: network(4, drop=0.25))  # from two programs
    assert found == without_disk(lambda: network(4, drop=0.25))


def test_another_size_is_told_to_known_functions(folder: Path, made: list[str]) -> None:
    want = without_disk(lambda: network(3, rows=17))
    as_new(lambda: network(3))
    whole = len(made)
    made.clear()
    found, _ = as_new(lambda: network(3, rows=17))
    assert found == want
    assert len(made) < whole / 2


def test_helpers_are_not_made_again(folder: Path, made: list[str]) -> None:
    want = [without_disk(lambda: convolved(48)), without_disk(lambda: convolved(32, images=2))]
    made.clear()
    as_new(lambda: convolved(32))
    helpers = [name for name in made if name.startswith("turn")]
    made.clear()
    assert as_new(lambda: convolved(48))[0] == want[0]
    assert as_new(lambda: convolved(32, images=2))[0] == want[1]
    assert helpers
    assert not set(helpers) & set(made)


def test_parts_of_two_processes_do_not_collide(folder: Path, tmp_path: Path) -> None:
    """Each made functions that the other made, too, beside others in its object files."""
    programs = [lambda: network(2, drop=0.5), lambda: network(2)]
    folders = [tmp_path / "one", tmp_path / "two"]
    for other, run in zip(folders, programs, strict=True):
        with config.override(cache_dir=str(other)):
            as_new(run)
    shutil.copytree(folders[0], folder)
    for path in folders[1].glob("*.mtvm"):
        shutil.copy2(path, folder)
    # What both have is found in the second one's.
    with (folder / "index").open("ab") as index:
        index.write((folders[1] / "index").read_bytes())
    for depth, drop, rows in ((3, 0.5, 24), (3, 0.0, 24), (4, 0.5, 11)):
        found, counted = as_new(lambda d=depth, p=drop, r=rows: network(d, r, p))
        assert found == without_disk(lambda d=depth, p=drop, r=rows: network(d, r, p))
        assert counted["compiles"]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _of_programs(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: [change(path) for path in folder.glob("*.mtvm")]


def _of_index(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: change(folder / "index")


def _exchanged(path: Path) -> None:
    """Each name leads to the program of another one."""
    content = path.read_bytes()
    rows = [content[i : i + 64] for i in range(0, len(content), 64)]
    keys = [row[32:] for row in rows]
    path.write_bytes(b"".join(r[:32] + k for r, k in zip(rows, keys[1:] + keys[:1], strict=True)))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "programs flipped": _of_programs(_flip),
    "programs gone": _of_programs(Path.unlink),
    "programs others may write": _of_programs(lambda path: path.chmod(0o666)),
    "index gone": _of_index(Path.unlink),
    "index others may write": _of_index(lambda path: path.chmod(0o666)),
    "index empty": _of_index(lambda path: path.write_bytes(b"")),
    "index out of step": _of_index(lambda path: path.write_bytes(b"x" + path.read_bytes())),
    "index of nobody": _of_index(lambda path: path.write_bytes(bytes(640))),
    "index a folder": _of_index(lambda path: (path.unlink(), path.mkdir())),
    "index a link": _of_index(lambda path: path.symlink_to(path.rename("elsewhere").absolute())),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_nothing_but_the_users_own_whole_files_is_used(
    folder: Path, damage: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_new(lambda: network(2))
    monkeypatch.chdir(folder.parent)
    damage(folder)
    found, counted = as_new(lambda: network(3))
    assert found == without_disk(lambda: network(3))
    assert counted["compiles"]
    assert counted["disk_kernels"] == 0
    assert as_new(lambda: network(3))[0] == found


def test_an_index_is_a_hint(folder: Path) -> None:
    as_new(lambda: network(2))
    as_new(lambda: float(mt.ones(3).exp().sum()))
    _exchanged(folder / "index")
    with (folder / "index").open("ab") as index:
        index.write(b"interrupted")
    assert as_new(lambda: network(3))[0] == without_disk(lambda: network(3))
    found, counted = as_new(lambda: network(4))
    assert found == without_disk(lambda: network(4))
    assert counted["disk_kernels"] > 4  # of what the second one wrote behind that


def test_an_index_is_read_where_it_grew(folder: Path) -> None:
    as_new(lambda: network(2))
    known = dict(disk._index(str(folder)))
    path, read = folder / "index", disk._read
    content = path.read_bytes()
    rows = [bytes([i]) * 64 for i in range(3)]
    starts: list[int] = []

    def watched(folder: str, path: str, start: int = 0) -> bytes:
        starts.append(start)
        return read(folder, path, start)

    with mock.patch.object(disk, "_read", watched):
        for row in rows[:2]:
            with path.open("ab") as index:
                index.write(row)
            known[row[:32]] = row[32:]
            assert disk._index(str(folder)) == known
            assert disk._index(str(folder)) == known  # the same file: not read again
        assert starts == [len(content), len(content) + 64]
        other = path.with_name("other")  # as written by who has deleted programs
        other.write_bytes(rows[2] + content + rows[0])
        other.replace(path)
        del known[rows[1][:32]]
        assert disk._index(str(folder)) == known | {rows[2][:32]: rows[2][32:]}
        assert starts[2:] == [0]


def test_a_folder_is_looked_through_after_so_many_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(disk, "_WRITTEN", {})
    monkeypatch.setattr(disk, "_evict", lambda folder, keep: looks.append(keep))
    as_new(lambda: network(2))
    assert looks  # the first program of a process, as others may have written much
    first = len(looks)
    as_new(lambda: network(3))
    assert len(looks) == first
    monkeypatch.setattr(disk, "LIMIT_BYTES", disk._SHARE)
    as_new(lambda: network(4))
    assert len(looks) > first


def wide(*others: Callable[[mt.Tensor], mt.Tensor]) -> list[Any]:
    """A kernel of more pointers than the entry passes, and what fills another object file."""
    line = np.linspace(-1, 1, 64, dtype=np.float32)
    total: Any = 0
    for i in range(MOST_POINTERS + 4):
        x = mt.tensor(line * (i + 1))
        total = total + (x * x + 1).log() * x.exp().tanh()
    found = [total, *(f(mt.tensor(np.linspace(0, 1, 77, dtype=np.float32))) for f in others)]
    mt.eval(*found)
    return [t.numpy().tobytes() for t in found]


def test_what_is_around_a_function_may_be_beside_others(folder: Path, tmp_path: Path) -> None:
    """Each process puts what the entry calls instead of a function beside another function."""
    one: Callable[[], Any] = lambda: wide(lambda x: x.view(7, 11).sin().sum(1))  # noqa: E731
    two: Callable[[], Any] = lambda: wide(lambda x: x.view(11, 7).cos().cumsum(1))  # noqa: E731
    for name, run in (("one", one), ("two", two)):
        with config.override(cache_dir=str(tmp_path / name)):
            as_new(run)
    shutil.copytree(tmp_path / "one", folder)
    for path in (tmp_path / "two").glob("*.mtvm"):
        shutil.copy2(path, folder)
    with (folder / "index").open("ab") as index:
        index.write((tmp_path / "two" / "index").read_bytes())

    def both() -> list[Any]:
        return wide(
            lambda x: x.view(7, 11).sin().sum(1),
            lambda x: x.view(11, 7).cos().cumsum(1),
        )

    want = without_disk(both)
    for _ in range(2):
        found, counted = as_new(both)
        assert found == want
        assert counted["disk_refused"] == 0


def test_what_cannot_be_linked_is_compiled_and_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = without_disk(lambda: network(3))
    as_new(lambda: network(2))
    admits = kernels.Kernels._admits
    monkeypatch.setattr(
        kernels.Kernels,
        "_admits",
        lambda self, *pieces: admits(self, *pieces) and not _emptied(pieces),
    )
    found, counted = as_new(lambda: network(3))
    assert found == want
    assert counted["disk_refused"] >= 1
    monkeypatch.undo()
    monkeypatch.setattr(disk, "_environment", lambda: b"here")
    found, counted = as_new(lambda: network(3))  # as it was compiled without
    assert found == want
    assert counted["disk_refused"] == counted["compiles"] == 0


def _emptied(pieces: Sequence[native.Piece]) -> bool:
    """Leave an object file of a table in their place."""
    for piece in pieces:
        if not piece.functions:  # made by an earlier process
            piece.code = table_object("nothing", [])
    return False


def test_an_index_may_be_no_file(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "index", 0o600)
    for _ in range(2):
        assert as_new(lambda: network(2))[0] == without_disk(lambda: network(2))


def test_common_kernels_stay_when_the_first_program_goes(folder: Path) -> None:
    as_new(lambda: network(2))
    first = set(folder.glob("*.mtvm"))
    as_new(lambda: network(3))
    for path in first:
        os.utime(path, (0, 0))
    size = sum(path.stat().st_size for path in set(folder.glob("*.mtvm")) - first)
    with mock.patch.object(disk, "LIMIT_BYTES", size):
        disk._evict(str(folder), keep="")
    assert not any(path.exists() for path in first)
    assert as_new(lambda: network(4))[1]["disk_kernels"] > 4


def test_sharing_goes_on_behind_a_damaged_program(folder: Path) -> None:
    as_new(lambda: network(2))
    for path in folder.glob("*.mtvm"):
        _flip(path)
    assert as_new(lambda: network(3))[1]["disk_kernels"] == 0
    assert as_new(lambda: network(4))[1]["disk_kernels"] > 4


def test_another_compiler_or_setting_finds_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_new(lambda: network(2))
    with config.override(plan=False):
        assert as_new(lambda: network(3))[1]["disk_kernels"] == 0
    monkeypatch.setattr(disk, "_environment", lambda: b"there")
    assert as_new(lambda: network(3))[1]["disk_kernels"] == 0


def test_names_go_with_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_new(lambda: network(2))
    old = list(folder.glob("*.mtvm"))
    size = (folder / "index").stat().st_size
    assert size > 64
    monkeypatch.setattr(disk, "LIMIT_BYTES", 1)
    as_new(lambda: float(mt.ones(3).exp().sum()))
    assert not any(path.exists() for path in old)
    content = (folder / "index").read_bytes()
    assert 0 < len(content) < size
    keys = {content[i + 32 : i + 64].hex() for i in range(0, len(content), 64)}
    assert keys == {path.stem for path in folder.glob("*.mtvm")}


def test_names_of_programs_that_are_gone_are_given_again(folder: Path) -> None:
    as_new(lambda: network(2))
    for path in folder.glob("*.mtvm"):
        path.unlink()
    as_new(lambda: network(3))
    found, counted = as_new(lambda: network(4))
    assert counted["disk_kernels"] > 4
    assert found == without_disk(lambda: network(4))
