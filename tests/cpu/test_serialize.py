"""Saving and loading: round trips, interchange, damaged files, atomic writes."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as st

import minitorch_tvm as mt
from minitorch_tvm import nn


def round_trip(obj: Any) -> Any:
    file = io.BytesIO()
    mt.save(obj, file)
    return mt.load(io.BytesIO(file.getvalue()))


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    opt = mt.optim.Adam(net.parameters(), lr=0.1)
    net(mt.ones(1, 3)).sum().backward()
    opt.step()
    path = tmp_path / "checkpoint.safetensors"
    mt.save({"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}, path)
    assert os.listdir(tmp_path) == [path.name]
    found = mt.load(path, map_location="cpu")
    assert found["epoch"] == 3
    assert type(found["model"]) is OrderedDict
    twin = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    twin.load_state_dict(found["model"])
    other = mt.optim.Adam(twin.parameters())
    other.load_state_dict(found["optimizer"])
    assert other.param_groups[0]["lr"] == 0.1
    assert other.param_groups[0]["betas"] == (0.9, 0.999)
    for n, o in ((net, opt), (twin, other)):
        o.zero_grad()
        n(mt.ones(1, 3)).sum().backward()
        o.step()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())


@pytest.mark.parametrize("dtype", [mt.float32, mt.float64, mt.int32, mt.int64, mt.uint8, mt.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_tensors_of_every_type(dtype: Any, shape: Any) -> None:
    numbers = np.random.default_rng(0).integers(0, 1 << 62, shape)
    t = mt.tensor(numbers.astype(dtype.name))
    u = round_trip(t)
    assert u.dtype is dtype
    assert u.shape == t.shape
    np.testing.assert_array_equal(u.numpy(), t.numpy())


def test_plain_values_keep_their_types() -> None:
    value = {
        "none": None,
        "flags": [True, False],
        "numbers": (1, -2.5, float("inf"), 0.1),
        3: {"nested": [(), [], {}]},
        (1, "a"): "text \u00e4",
        "size": mt.Size((2, 3)),
        "dtype": mt.float64,
        "ordered": OrderedDict(b=1, a=2),
    }
    found = round_trip(value)
    assert found == value
    assert list(map(type, found["numbers"])) == [int, float, float, float]
    assert type(found["size"]) is mt.Size
    assert np.isnan(round_trip(float("nan")))


def test_arrays_and_numbers_of_numpy_keep_their_types() -> None:
    """Such as the state of numpy's generator, or the mean of some losses."""
    state = np.random.RandomState(3).get_state()
    rows = np.arange(6, dtype=np.int16).reshape(2, 3)
    value = {
        "state": state,
        "best": np.float64(0.5),
        "half": np.float16(-1.5),
        "flag": np.bool_(True),
        "count": np.uint32(1 << 31),
        "turned": rows.T,
        "again": [rows, rows],
        "single": np.array(2.5),
        "none": np.zeros((0, 2), np.uint8),
        "tensor": mt.ones(2),
    }
    found = round_trip(value)
    for key, given in value.items():
        assert type(found[key]) is type(given), key
    for key in ("best", "half", "flag", "count"):
        assert found[key] == value[key]
    for key in ("turned", "single", "none"):
        assert found[key].dtype == value[key].dtype
        np.testing.assert_array_equal(found[key], value[key], strict=True)
    assert found["again"][0] is found["again"][1]
    found["again"][0][0, 0] = 7  # nothing else has its memory
    twin = np.random.RandomState()
    twin.set_state(found["state"])
    assert twin.rand() == np.random.RandomState(3).rand()


def test_tensors_keep_identity_and_gradient_flag() -> None:
    w = mt.ones(2, requires_grad=True)
    found = round_trip([w, w, nn.Parameter(mt.zeros(1)), w * 2])
    assert found[0] is found[1]
    assert [t.requires_grad for t in found] == [True, True, True, False]
    np.testing.assert_array_equal(found[3].numpy(), 2)


def test_keys_that_look_alike_stay_apart() -> None:
    value = {"a.b": mt.zeros(1), "a": {"b": mt.ones(1)}, 1: mt.ones(2), "1": mt.zeros(2)}
    found = round_trip(value)
    assert found["a.b"].item() == 0
    assert found["a"]["b"].item() == 1
    assert found[1].tolist() == [1, 1]
    assert found["1"].tolist() == [0, 0]


def test_other_tools_read_our_files_and_we_read_theirs(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    mt.save(net.state_dict(), tmp_path / "ours")
    arrays = st.load_file(tmp_path / "ours")
    assert sorted(arrays) == ["bias", "weight"]
    np.testing.assert_array_equal(arrays["weight"], net.weight.detach().numpy())
    st.save_file({"weight": arrays["weight"] + 1, "bias": arrays["bias"]}, tmp_path / "theirs")
    net.load_state_dict(mt.load(tmp_path / "theirs"))
    np.testing.assert_array_equal(net.weight.detach().numpy(), arrays["weight"] + 1)
    st.save_file({"half": np.zeros(2, np.float16)}, tmp_path / "half")
    with pytest.raises(TypeError, match=r"tensor 'half'.*float16"):
        mt.load(tmp_path / "half")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"type set \(at 'a.1'\)"),
        (nn.Linear(1, 1), r"type Linear.*save its state_dict\(\)"),
        ({b"x": 1}, "key of type bytes"),
        ({"f": len}, r"builtin_function_or_method \(at 'f'\)"),
        ({"a": np.array(["x"])}, r"type ndarray \(at 'a'\)"),
        ([np.complex64(1)], r"type complex64 \(at '0'\)"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        mt.save(value, io.BytesIO())


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mt.save({"a": 1}, path)
    with pytest.raises(TypeError):
        mt.save({"a": object()}, path)
    assert mt.load(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        mt.save({"a": 1}, tmp_path / "missing" / "file")


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file"
    mt.save({"a": 1}, path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        mt.save({"a": 2}, path)
    monkeypatch.undo()
    assert mt.load(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["file"]


def test_every_damaged_byte_and_length_is_noticed() -> None:
    file = io.BytesIO()
    mt.save({"w": mt.arange(6.0), "n": {"epoch": 3, "rate": 0.25}}, file)
    data = file.getvalue()
    good = mt.load(io.BytesIO(data))
    for length in range(0, len(data), 7):
        with pytest.raises(RuntimeError, match="is damaged or no safetensors file"):
            mt.load(io.BytesIO(data[:length]))
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 0x04
        try:
            found = mt.load(io.BytesIO(bytes(broken)))
        except RuntimeError:
            continue
        except (TypeError, FileNotFoundError) as error:
            pytest.fail(f"byte {position}: {error!r}")
        # Only bytes that carry no content (such as the name of our format) may go unnoticed.
        values = found["w"].numpy()
        np.testing.assert_array_equal(values, good["w"].numpy(), err_msg=f"byte {position}")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    with pytest.raises(RuntimeError, match="looks like a pickle"):
        mt.load(io.BytesIO(pickle.dumps(Bomb())))
    with pytest.raises(RuntimeError, match="looks like a pickle"):
        mt.load(io.BytesIO(b"PK\x03\x04" + bytes(50)))
    with pytest.raises(RuntimeError, match="looks like a pickle"):
        mt.load(io.BytesIO(pickle.dumps(Bomb())), weights_only=False)
    assert not os.listdir(tmp_path)


def test_wrong_targets(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mt.load(tmp_path / "nothing")
    with pytest.raises(TypeError, match="expected a path"):
        mt.load(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a path"):
        mt.save({}, 3)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="only device 'cpu'"):
        mt.load(io.BytesIO(), map_location="cuda")


def test_headers_of_all_lengths() -> None:
    """A length may begin with the byte that a pickle begins with."""
    first = set()
    for n in range(0, 300, 8):
        file = io.BytesIO()
        mt.save({"text": "x" * n}, file)
        first.add(file.getvalue()[:1])
        assert mt.load(io.BytesIO(file.getvalue())) == {"text": "x" * n}
    assert b"\x80" in first
