"""Downloads, against an HTTP server on this machine."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minitorch_tvm.utils.data import MNIST, DownloadError, write_idx
from minitorch_tvm.utils.data.download import download_gzip
from minitorch_tvm.utils.data.mnist import Resource

BODY = bytes(np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8))
SHA = hashlib.sha256(BODY).hexdigest()
ZIPPED = gzip.compress(BODY)


class Server:
    """Answers by the first part of the path; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.flaky = 0
        self.files: dict[str, bytes] = {}
        self.base = ""

    def mirror(self, *names: str) -> tuple[str, ...]:
        return tuple(f"{self.base}/{name}/" for name in names)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind = self.path.split("/")[1]
            state.asked.append(kind)
            if kind == "stuck":
                release.wait(5)
                return
            code, body, length = 200, ZIPPED, None
            if kind == "absent":
                code, body = 404, b"no such file"
            elif kind == "broken":
                code, body = 503, b"try later"
            elif kind == "flaky" and state.asked.count("flaky") == 1:
                code, body = 500, b"first time fails"
            elif kind == "corrupt":
                body = gzip.compress(BODY[:-1] + bytes([BODY[-1] ^ 1]))
            elif kind == "html":
                body = b"<html>log in to the network</html>"
            elif kind == "bomb":
                body = gzip.compress(bytes(50_000_000))
            elif kind == "cut":
                body, length = ZIPPED[: len(ZIPPED) // 2], len(ZIPPED)
            elif kind == "files":
                body = state.files[self.path.rsplit("/", 1)[-1]]
            with contextlib.suppress(ConnectionError):  # the bomb's reader hangs up
                self.send_response(code)
                self.send_header("Content-Length", str(length or len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    release = threading.Event()
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base = f"http://127.0.0.1:{httpd.server_address[1]}"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        socket.create_connection(httpd.server_address[:2], 1).close()
    except OSError as error:
        httpd.shutdown()
        thread.join()
        httpd.server_close()
        pytest.skip(f"no network at all, not even to this machine: {error}")
    yield state
    release.set()
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def fetch(target: Path, mirrors: tuple[str, ...], **options: float) -> None:
    settings = {"timeout": 2.0, "rounds": 2, "backoff": 0.01, **options}
    download_gzip("x.gz", target, mirrors=mirrors, sha256=SHA, size=len(BODY), **settings)  # type: ignore[arg-type]


def test_good_mirror_stores_uncompressed_bytes_only(server, tmp_path):
    target = tmp_path / "new" / "folder" / "x"
    fetch(target, server.mirror("good"))
    assert target.read_bytes() == BODY
    assert [path.name for path in target.parent.iterdir()] == ["x"]
    assert server.asked == ["good"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("absent", "HTTP 404"),
        ("broken", "HTTP 503"),
        ("corrupt", "wrong content: expected 300000 bytes"),
        ("html", "damaged or interrupted transfer"),
        ("cut", "damaged or interrupted transfer"),
        ("bomb", "wrong content.*got more"),
        ("stuck", "no connection"),
    ],
)
def test_a_bad_mirror_leaves_nothing_and_the_next_one_serves(
    server, tmp_path, capsys, kind, reason
):
    timeout = 0.3 if kind == "stuck" else 5.0
    target = tmp_path / "x"
    with pytest.raises(DownloadError, match=reason) as info:
        fetch(target, server.mirror(kind), rounds=1, timeout=timeout)
    assert list(tmp_path.iterdir()) == []
    assert f"/{kind}/x.gz" in str(info.value)
    assert str(target) in str(info.value)
    capsys.readouterr()

    server.asked.clear()
    fetch(target, server.mirror(kind, "good"), timeout=timeout)
    assert server.asked == [kind, "good"]
    assert target.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert not re.search(reason, capsys.readouterr().err)  # what failed meanwhile is no news


def test_rounds_retry_what_may_recover_and_skip_what_is_absent(server, tmp_path):
    fetch(tmp_path / "x", server.mirror("absent", "flaky"))
    assert server.asked == ["absent", "flaky", "flaky"]
    server.asked.clear()
    with pytest.raises(DownloadError) as info:
        fetch(tmp_path / "y", server.mirror("absent", "broken"), rounds=3)
    assert server.asked == ["absent", "broken", "broken", "broken"]
    assert str(info.value).count("HTTP 503") == 3


def test_pauses_grow(server, tmp_path, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("minitorch_tvm.utils.data.download.time.sleep", pauses.append)
    with pytest.raises(DownloadError):
        fetch(tmp_path / "x", server.mirror("broken"), rounds=4, backoff=0.5)
    assert pauses == [0.5, 1.0, 2.0]


def test_nobody_listens(tmp_path, server):
    with pytest.raises(DownloadError, match="no connection"):
        fetch(tmp_path / "x", ("http://127.0.0.1:1/",), rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"cannot write to .*file"):
        fetch(tmp_path / "file" / "x", server.mirror("good"))
    assert server.asked == []


def test_an_interrupt_cleans_up_and_an_old_file_survives(server, tmp_path, monkeypatch):
    target = tmp_path / "x"
    target.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minitorch_tvm.utils.data.download.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(target, server.mirror("good"))
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_mnist_downloads_what_is_missing_once(server, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    resources = []
    for name, array in (("images", images), ("labels", labels)):
        write_idx(tmp_path / name, array)
        content = (tmp_path / name).read_bytes()
        server.files[f"{name}.gz"] = gzip.compress(content)
        resources.append(Resource(name, hashlib.sha256(content).hexdigest(), len(content)))

    class Small(MNIST):
        train_files = test_files = tuple(resources)  # type: ignore[assignment]
        mirrors = server.mirror("files")

    root = tmp_path / "root"
    np.testing.assert_array_equal(Small(root, download=True).data, images)
    assert sorted(p.name for p in (root / "MNIST" / "raw").iterdir()) == ["images", "labels"]
    (root / "MNIST" / "raw" / "labels").unlink()
    assert Small(root, download=True).targets.tolist() == labels.tolist()
    assert len(Small(root)) == 6
    assert server.asked == ["files"] * 3
