"""The command line of examples/mnist.py: its options, its reports and its errors."""

import gzip
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mnist
import mnist_data
import mnist_models
import numpy as np
import pytest

import minitorch_tvm as mt
from minitorch_tvm import lazy
from minitorch_tvm.core import config
from minitorch_tvm.utils.data import DataLoader, SyntheticDigits, TensorDataset
from minitorch_tvm.utils.data.images import ImageDataset

Digits = tuple[ImageDataset, ImageDataset]
SCRIPT = Path(mnist.__file__)


@pytest.fixture
def small(few_digits: Digits, monkeypatch: pytest.MonkeyPatch) -> Digits:
    """The command line finds 1,200 synthetic digits instead of MNIST."""
    monkeypatch.setattr(mnist_data, "load_mnist_or_synthetic", lambda folder, **_: few_digits)
    return few_digits


@pytest.mark.parametrize("model", ["logreg", "mlp", "cnn"])
def test_every_model_trains(small: Digits, capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert mnist.main(["--model", model, "--epochs", "2", "--batch-size", "50"]) == 0
    text = capsys.readouterr().out
    losses = [float(x) for x in re.findall(r"epoch \d+: loss ([\d.]+)", text)]
    assert len(losses) == 2
    assert losses[1] < losses[0] < 3
    assert len(re.findall(r"validation accuracy [\d.]+%", text)) == 2
    assert re.search(r"test accuracy \(synthetic\): [\d.]+%", text)
    assert re.search(r"time per epoch: first [\d.]+ s .* later [\d.]+ s", text)


def test_steps_stop_early(
    small: Digits, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original: Callable[..., object] = mt.optim.Adam.step
    monkeypatch.setattr(mt.optim.Adam, "step", lambda self: (seen.append(1), original(self))[1])
    assert mnist.main(["--model", "logreg", "--batch-size", "200", "--steps", "8"]) == 0
    assert len(seen) == 8  # 6 batches of the first epoch and 2 of the second
    assert "epoch 2" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["ours", "default"])
def test_explain(small: Digits, capsys: pytest.CaptureFixture[str], schedule: str) -> None:
    lazy.clear_cache()
    options = ["--model", "logreg", "--batch-size", "20", "--steps", "1", "--explain"]
    assert mnist.main([*options, "--schedule", schedule]) == 0
    text = capsys.readouterr().out
    assert re.search(r"program 1 of 3: \d+ nodes, \d+ kernels, \d+ stages, 1 calls", text)
    arena = re.search(
        r"arena: ([\d,]+) bytes planned .*naive sum ([\d,]+), lower bound ([\d,]+)", text
    )
    assert arena is not None
    planned, naive, bound = (int(x.replace(",", "")) for x in arena.groups())
    assert 0 < bound <= planned <= naive
    assert re.search(r"compile seconds: [\d.]+ \(", text)
    rules = set(re.findall(r"^  \w+ +(\w+) +\d+ +\d+ +[\d.]+ +[\d.]+  mnist.py:\d+$", text, re.M))
    if schedule == "default":
        assert rules == {"default"}
    else:
        assert "product" in rules
        assert "default" not in rules


def test_the_last_line_says_whether_the_first_epoch_compiled(
    small: Digits,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    options = ["--model", "logreg", "--batch-size", "30", "--steps", "2"]
    lazy.evaluate()  # what other tests have left pending would be part of the first program
    with config.override(check=False, cache_dir=str(tmp_path)):
        lines = []
        for _ in range(2):
            lazy.clear_cache()  # in memory; the second run finds the files of the first
            assert mnist.main(options) == 0
            lines.append(capsys.readouterr().out.splitlines()[-1])
    assert re.fullmatch(r"time per epoch: first [\d.]+ s \([1-9]\d* programs? compiled\)", lines[0])
    assert lines[1].endswith("s (nothing compiled: all from the cache)")


def test_explain_before_anything_ran() -> None:
    lazy.clear_cache()
    assert mt.debug.explain() == "no program has been compiled"
    assert mt.debug.programs() == []


def test_saved_parameters_reproduce_the_accuracy(
    small: Digits, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mlp.safetensors"
    assert mnist.main(["--epochs", "2", "--batch-size", "50", "--save", str(file)]) == 0
    text = capsys.readouterr().out
    model = mnist_models.build("mlp")
    data = mnist_data.batches(*small, 50)
    assert mnist.accuracy(model, data.test) < 0.5
    model.load_state_dict(mt.load(file))
    reported = f"test accuracy (synthetic): {mnist.accuracy(model, data.test):.2%}"
    assert reported in text


def test_one_seed_gives_one_result(small: Digits, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file, seed in zip(files, ("1", "1", "2"), strict=True):
        options = ["--model", "logreg", "--steps", "5", "--seed", seed, "--save", str(file)]
        assert mnist.main(options) == 0
    a, b, c = (mt.load(file)["1.weight"].numpy() for file in files)
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_plot_writes_a_png(small: Digits, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "curves.png"
    assert mnist.main(["--model", "logreg", "--epochs", "2", "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_course_option(small: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    assert mnist.main(["--model", "mlp", "--course", "--epochs", "1"]) == 0
    # One batch of 1,000: the loss at the assignment's starting point, in float64.
    train, _ = small
    random = np.random.RandomState(123)
    weights = [random.normal(scale=0.1, size=s) for s in ((784, 256), (256, 100), (100, 10))]
    h = train.data[:1000].reshape(1000, 784) / 256.0
    for number, w in enumerate(weights):
        h = h @ w + random.normal(scale=0.1, size=w.shape[1])
        h = h if number == 2 else np.maximum(h, 0)
    picked = h[np.arange(1000), train.targets[:1000]]
    expected = (np.log(np.exp(h).sum(1)) - picked).mean()
    assert f"epoch 1: loss {expected:.4f}" in capsys.readouterr().out


def test_batch_of_one(small: Digits, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("mlp", "cnn"):
        assert mnist.main(["--model", model, "--batch-size", "1", "--steps", "3"]) == 0
        loss = re.search(r"loss ([\d.]+)", capsys.readouterr().out)
        assert loss is not None
        assert math.isfinite(float(loss[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "cnn", "--course"], "no cnn"),
        (["--course", "--lr", "0.1"], "fixes"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--batch-size", "-3"], "--batch-size must be at least 1"),
        (["--lr", "nan"], "--lr must be a positive number"),
        (["--save", "/no/such/folder/file"], "no such folder"),
        (["--save", "."], "is a folder, not a file to write"),
        (["--plot", "/"], "is a folder, not a file to write"),
        (["--plot", "curve.pdf"], "ends in .png, not curve.pdf"),
        (["--model", "vgg"], "invalid choice"),
    ],
)
def test_wrong_options(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        mnist.main(options)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_wrong_data_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = tmp_path / "nowhere"
    assert mnist.main(["--data", str(wrong)]) == 2
    said = capsys.readouterr().err
    assert f"--data: there is no folder {wrong}" in said
    assert "root" not in said.replace(str(tmp_path), "")
    assert mnist.main(["--data", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "--data: found neither train-images-idx3-ubyte nor" in said
    assert "as --data" in said


def test_corrupted_file(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(5000))
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(whole[: len(whole) // 2])
    done = _script("--data", str(tmp_path))
    assert done.returncode == 2
    assert "train-images-idx3-ubyte.gz: the gzip stream is damaged" in done.stderr
    assert "Traceback" not in done.stderr


# Drawing all 70,000 takes longer than everything else that the example does with them.
FEWER = """
from minitorch_tvm.utils.data import SyntheticDigits

draw = SyntheticDigits.__init__
SyntheticDigits.__init__ = lambda self, train, n, *others: draw(
    self, train, 6000 if train else 1000, *others
)
"""


def test_without_files_and_network_it_trains_on_synthetic_digits(tmp_path: Path) -> None:
    done = _script("--model", "logreg", "--steps", "20", first=FEWER, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    loud = [line for line in done.stderr.splitlines() if "SYNTHETIC DIGITS" in line]
    assert len(loud) == 1
    assert "test accuracy (synthetic):" in done.stdout


def _script(*options: str, first: str = "", **changes: str) -> "subprocess.CompletedProcess[str]":
    """Run the example as users do, behind a proxy that refuses every connection."""
    dead = "http://127.0.0.1:9"
    env = {k: v for k, v in os.environ.items() if k not in ("MTVM_DATA", "no_proxy", "NO_PROXY")}
    env |= {"https_proxy": dead, "http_proxy": dead, "HTTPS_PROXY": dead, **changes}
    command = [sys.executable, str(SCRIPT), *options]
    if first:
        run = f"import runpy\nrunpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
        env["PYTHONPATH"] = os.pathsep.join((str(SCRIPT.parent), env.get("PYTHONPATH", "")))
        command[1:2] = ["-c", f"{first}\n{run}"]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_empty_dataset() -> None:
    with pytest.raises(ValueError, match="the dataset is empty: 0 training images"):
        mnist_data.batches(SyntheticDigits(True, 0), SyntheticDigits(False, 0), 10)
    model = mnist_models.build("logreg")
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    nothing = DataLoader(TensorDataset(mt.zeros(0, 1, 28, 28), mt.zeros(0, dtype=mt.int64)))
    with pytest.raises(ValueError, match="the dataset is empty"):
        mnist.train_epoch(model, optimizer, nothing)
    assert math.isnan(mnist.accuracy(model, nothing))


@pytest.mark.parametrize("label", [10, -1])
def test_label_out_of_range(label: int) -> None:
    model = mnist_models.build("logreg")
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().numpy().copy() for p in model.parameters()]
    batch = (mt.rand(3, 1, 28, 28), mt.tensor([0, label, 9]))
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        mnist.train_epoch(model, optimizer, [batch])
    for p, old in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)


@pytest.mark.parametrize("name", ["logreg", "mlp", "cnn"])
def test_nan_input(name: str) -> None:
    model = mnist_models.build(name)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    images = np.ones((4, 1, 28, 28), np.float32)
    images[1, 0, 14, 14] = np.nan
    batches = [(mt.tensor(images), mt.tensor([0, 1, 2, 3]))] * 2
    mean, last = mnist.train_epoch(model, optimizer, batches)
    assert math.isnan(mean)
    assert math.isnan(last)
    assert 0 <= mnist.accuracy(model, batches) <= 1
