"""Whole processes with a cache folder: the second one never loads the compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes import copy_package, finish, start

PROGRAM = """
import hashlib, json, os, sys
from pathlib import Path
import numpy as np
import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core.events import EVENTS

COMPILER = "minitorch_tvm.compiler."
SCHEDULES = {COMPILER + "schedule.cpu." + name for name in ("conv", "sort", "window")}
SOME = {"tvm", "torch", COMPILER + "api", *SCHEDULES, "ssl"}
mt.manual_seed(0)
nn = mt.nn
more = [m for _ in range(int(os.environ.get("MORE", 0))) for m in (nn.Linear(16, 16), nn.ReLU())]
first = nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.25)
model = nn.Sequential(*first, *more, nn.Linear(16, 4))
optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = np.random.default_rng(0)
losses = []
for _ in range(3):
    x = mt.tensor(data.standard_normal((8, 20)).astype(np.float32))
    y = mt.tensor(np.arange(8) % 4)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
bits = hashlib.sha256(weights).hexdigest()
programs = [x.program for x in lazy.executors()]
# Not getrusage: its peak includes the parent's memory from before exec.
status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
peak = int(status.split()[0])  # KiB
print(json.dumps({
    "bits": bits,
    "losses": losses,
    "events": EVENTS.snapshot(),
    "loaded": sorted(SOME & set(sys.modules)),
    "memory": [(p.arena_bytes, p.naive_bytes, p.lower_bound, p.summary()) for p in programs],
    "resident": peak >> 10,
}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, beside a program that uses it."""
    return copy_package(tmp_path_factory.mktemp("copy"), PROGRAM)


def _start(copy: Path, folder: Path, **env: str) -> subprocess.Popen[str]:
    return start(copy / "program.py", **{"MTVM_CACHE_DIR": str(folder), **env})


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = finish(process)
    return json.loads(out)


def _run(copy: Path, folder: Path, **env: str) -> dict[str, Any]:
    return _result(_start(copy, folder, **env))


def _counts(result: dict[str, Any]) -> tuple[int, int]:
    events = result["events"]
    return events.get("compiles", 0), events.get("disk_hits", 0)


def test_a_second_process_does_not_load_the_compiler(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    cold = _run(copy, folder, PYTHONHASHSEED="1")
    programs, hits = _counts(cold)
    assert (programs >= 1, hits) == (True, 0)
    own = "minitorch_tvm.compiler.api"
    # Not torch, which TVM would import if it could, nor the schedules of convolutions.
    assert set(cold["loaded"]) - {"ssl"} == {"tvm", own}
    warm = _run(copy, folder, PYTHONHASHSEED="2")
    assert _counts(warm) == (0, programs)
    assert warm["loaded"] == []
    for what in ("bits", "losses", "memory"):
        assert warm[what] == cold[what]
    assert warm["resident"] < 150 < cold["resident"]  # MB

    without = _run(copy, folder, MTVM_CACHE_DIR="0")
    assert _counts(without) == (programs, 0)
    assert without["bits"] == cold["bits"]

    assert _counts(_run(copy, folder, MTVM_FUSE="0"))[1] == 0
    assert _counts(_run(copy, folder, MTVM_NUM_THREADS="3"))[1] == 0
    assert _counts(_run(copy, folder))[0] == 0


def test_nor_does_one_of_another_program_that_is_made_of_the_same(
    copy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "programs"
    cold = _run(copy, folder, MORE="2")
    assert "tvm" in cold["loaded"]
    other = _run(copy, folder, MORE="4")
    assert _counts(other)[0] >= 1
    assert other["events"]["disk_kernels"] > 4
    assert not {"tvm", "torch"} & set(other["loaded"])
    without = _run(copy, folder, MORE="4", MTVM_CACHE_DIR="0")
    assert (other["bits"], other["losses"]) == (without["bits"], without["losses"])


LOADING = """
import sys, time
from pathlib import Path
from minitorch_tvm.core import tvm_api

def loaded():
    return "libtvm_compiler" in Path("/proc/self/maps").read_text()

assert not loaded()
tvm_api.load_ahead()
end = time.monotonic() + 60
while not loaded() and time.monotonic() < end:
    time.sleep(0.01)
assert loaded() and "tvm" not in sys.modules
print(tvm_api.tvm().target.codegen.llvm_get_system_cpu())
tvm_api.load_ahead()
"""


def test_the_library_of_the_compiler_is_loaded_ahead_of_it(tmp_path: Path) -> None:
    copy = copy_package(tmp_path, LOADING)
    out, _ = finish(start(copy / "program.py"))
    assert out.strip()


def test_an_edit_of_the_compiler_is_noticed(copy: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited"
    shutil.copytree(copy, edited)
    folder = tmp_path / "programs"
    programs, _ = _counts(_run(edited, folder))
    path = edited / "minitorch_tvm" / "compiler" / "plan.py"
    text = path.read_text()
    changed = text.replace("The", "Tha", 1)  # as long as before, and as old
    assert changed != text
    path.write_text(changed)
    os.utime(path, (1e9, 1e9))
    assert _counts(_run(edited, folder)) == (programs, 0)
    assert _counts(_run(edited, folder)) == (0, programs)
    path.touch()  # edited while, or just before, the process starts: not trusted
    assert _counts(_run(edited, folder)) == (programs, 0)


def test_two_processes_at_once(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    results = [_result(p) for p in [_start(copy, folder) for _ in range(2)]]
    assert results[0]["bits"] == results[1]["bits"]
    for result in results:
        assert not {"disk_errors", "disk_refused"} & set(result["events"])
    warm = _run(copy, folder)
    assert _counts(warm)[0] == 0
    assert warm["bits"] == results[0]["bits"]
    assert {p.suffix for p in folder.iterdir() if p.name != "index"} == {".mtvm"}


def test_parts_of_tvm_that_were_left_out_are_there_when_asked_for(copy: Path) -> None:
    program = (
        "import sys, minitorch_tvm as mt\n"
        "assert (mt.ones(3) * 2).sum().item() == 6\n"
        "assert not any(name.startswith(('tvm.relax.', 'tvm.te.')) for name in sys.modules)\n"
        "import tvm\n"
        "from tvm import te\n"
        "a = te.placeholder((8,), name='a')\n"
        "f = te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0)])\n"
        "tvm.compile(f, target='llvm')\n"
        "assert tvm.s_tir.Schedule(f).mod['main'] is not None\n"
        "from tvm.ir.instrument import PassTimingInstrument\n"
        "with tvm.transform.PassContext(instruments=[PassTimingInstrument()]):\n"
        "    tvm.compile(f, target='llvm')\n"
        "from tvm.support import nvcc\n"
        "assert nvcc.have_fp16('7.0')\n"
        "from tvm.sym import Analyzer\n"
        "assert str(Analyzer().simplify(tvm.tirx.const(1, 'int32') + 1)) == '2'\n"
        "import tvm.topi.nn\n"
        "assert tvm.topi.nn.relu(a).ndim == 1\n"
        "from tvm.script import relax as R\n"
        "from tvm.relax.frontend import nn\n"
        "assert tvm.relax.BlockBuilder and R.function and nn.Module\n"
        "assert 'TVM_DEVICE_BACKEND_AUTOLOAD' not in __import__('os').environ\n"
        "tvm.backend.load('cuda')\n"
        "assert tvm.backend.is_loaded('cuda') and tvm.tirx.cuda\n"
        "assert 'arm/rasp3b' in tvm.target.list_tags()\n"
        "assert 'armv7l' in str(tvm.target.Target('arm/rasp3b'))\n"
        "assert (mt.ones(4) * 2).sum().item() == 8\n"
    )
    (copy / "parts.py").write_text(program)
    finish(start(copy / "parts.py", warn="ignore", MTVM_CACHE_DIR="0"))


def test_compiling_and_linking_leaves_the_process_to_its_user(copy: Path) -> None:
    """TVM's import would replace what reports errors, and its linker run a C++ compiler."""
    program = (
        "import gc, subprocess, sys\n"
        "import minitorch_tvm as mt\n"
        "def report(*error): print('reported', error[1])\n"
        "sys.excepthook = report\n"
        "def run(*command, **options): raise AssertionError(command)\n"
        "subprocess.run = subprocess.Popen = run\n"
        "gc.freeze()\n"
        "frozen = gc.get_freeze_count()\n"
        "assert (mt.ones(3) * 2).sum().item() == 6\n"
        "assert 'tvm' in sys.modules and gc.get_freeze_count() > frozen // 2 > 1000\n"
        "import tvm\n"
        "raise ValueError('mine')\n"
    )
    (copy / "hooks.py").write_text(program)
    process = start(copy / "hooks.py", warn="ignore", MTVM_CACHE_DIR="0")
    out, _ = process.communicate()
    assert out.splitlines() == ["reported mine"]


def test_tvm_finds_all_its_functions_although_their_names_are_read_once(copy: Path) -> None:
    program = (
        "import gc, sys, minitorch_tvm as mt\n"
        "assert (mt.ones(3) * 2).sum().item() == 6\n"
        "assert gc.isenabled()\n"
        "import tvm\n"
        "assert tvm.te.placeholder\n"
        "from tvm_ffi import registry\n"
        "names = registry.list_global_func_names()\n"
        "assert registry.list_global_func_names.__module__ == registry.__name__\n"
        "assert 'tirx.build' in names and len(names) > 1000\n"
        "found = 0\n"
        "for prefix in ('ir', 'tirx', 'tirx.transform', 'target', 'te', 'runtime'):\n"
        "    api = sys.modules['tvm.' + prefix + '._ffi_api']\n"
        "    for name in names:\n"
        "        part, _, own = name.rpartition('.')\n"
        "        if part == prefix and name != 'tirx.build':\n"  # registered by the import itself
        "            assert hasattr(api, own), name\n"
        "            found += 1\n"
        "assert found > 200, found\n"
    )
    (copy / "names.py").write_text(program)
    finish(start(copy / "names.py", warn="ignore", MTVM_CACHE_DIR="0"))


def test_torch_works_after_the_compiler_was_loaded_without_it(copy: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    late = (
        "import sys, minitorch_tvm as mt\n"
        "assert (mt.ones(3) * 2).sum().item() == 6\n"
        "assert 'tvm' in sys.modules and 'torch' not in sys.modules\n"
        "import torch\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "(x @ x).backward()\n"
        "assert x.grad.tolist() == [2, 2, 2]\n"
        "assert (mt.from_numpy(x.detach().numpy()) * 3).sum().item() == 9\n"
    )
    (copy / "late.py").write_text(late)
    finish(start(copy / "late.py", warn="ignore", MTVM_CACHE_DIR="0"))
