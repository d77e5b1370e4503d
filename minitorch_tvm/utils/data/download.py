"""Fetch one gzipped file from several mirrors, verified, and put in place atomically."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import http.client

_CHUNK = 1 << 16  # bytes per read
_AGENT = "minitorch_tvm"


class DownloadError(OSError):
    """No mirror delivered the file."""


def download_gzip(
    name: str,
    target: Path,
    *,
    mirrors: Sequence[str],
    sha256: str,
    size: int,
    timeout: float = 10.0,
    rounds: int = 2,
    backoff: float = 1.0,
) -> None:
    """Download ``name`` (a gzip file) and store it *uncompressed* as ``target``.

    The mirrors are asked in turn, all of them up to ``rounds`` times, with a pause of ``backoff``
    seconds after the first round that doubles after each. Bytes go to a temporary file beside
    ``target``, are hashed on the way, and are renamed to ``target`` only when complete and right;
    so ``target`` is either absent or good, also when two processes download at once.

    Args:
        name: file name to append to each mirror's address.
        target: where to store the uncompressed bytes; its folder is made if need be.
        mirrors: addresses that end in ``/``.
        sha256: hex digest of the uncompressed bytes.
        size: length of the uncompressed bytes.
        timeout: seconds without an answer before a mirror is given up.
        rounds: how often each mirror is asked.
        backoff: seconds.

    Raises:
        DownloadError: every attempt failed, and the message lists each mirror's reason; or
            ``target``'s folder cannot be written.
        OSError: the disk is full.
    """
    import urllib.error  # see _fetch

    failures: list[str] = []
    hopeless: set[str] = set()  # mirrors that said the file is not there
    for attempt in range(rounds):
        if attempt:
            time.sleep(backoff * 2 ** (attempt - 1))
        for mirror in mirrors:
            if mirror in hopeless:
                continue
            try:
                with _temporary(target) as file:
                    _fetch(mirror + name, file, sha256, size, timeout)
                return
            except urllib.error.HTTPError as error:
                if 400 <= error.code < 500:
                    hopeless.add(mirror)
                error.close()
                reason = f"HTTP {error.code} {error.reason}"
            except _TransferError as error:
                reason = str(error)
            failures.append(f"{mirror + name}: {reason}")
    raise DownloadError(
        f"could not download {name}:\n  "
        + "\n  ".join(failures)
        + f"\nCheck the network, or put the file at {target} (uncompressed) or beside it as {name}."
    )


class _TransferError(Exception):
    """One attempt failed; the message says why."""


def _fetch(url: str, file: IO[bytes], sha256: str, size: int, timeout: float) -> None:
    """Stream ``url`` through gzip into ``file``, checking length and digest."""
    # Loaded by the first download: 5 MB, and a tenth of the time to import this package.
    import http.client
    import urllib.error
    import urllib.request

    digest = hashlib.sha256()
    written = 0
    request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            body = _Counted(response, url.rsplit("/", 1)[-1])
            with gzip.GzipFile(fileobj=io.BufferedReader(body)) as stream:
                # One byte more than expected is enough to know that the file is wrong, and keeps
                # a hostile one from filling the disk.
                while chunk := stream.read(min(_CHUNK, size + 1 - written)):
                    digest.update(chunk)
                    file.write(chunk)
                    written += len(chunk)
            body.done()
    except urllib.error.HTTPError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error, http.client.HTTPException) as error:
        raise _TransferError(f"damaged or interrupted transfer ({error})") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise _TransferError(f"no connection ({getattr(error, 'reason', error)})") from error
    if written != size or digest.hexdigest() != sha256:
        raise _TransferError(
            f"wrong content: expected {size} bytes with sha256 {sha256}, got "
            f"{'more' if written > size else written} with {digest.hexdigest()}"
        )


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[IO[bytes]]:
    """A file that becomes ``target`` if the block succeeds, and vanishes if it does not."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".part", dir=target.parent
        )
    except OSError as error:
        raise DownloadError(f"cannot write to {target.parent}: {error}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's 0600 would hide a shared data folder from its users
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


class _Counted(io.RawIOBase):
    """A response whose progress is shown on standard error, if that is a terminal."""

    def __init__(self, response: http.client.HTTPResponse, label: str) -> None:
        super().__init__()
        self._response = response
        self._label = label
        length = response.headers.get("Content-Length", "")
        self._total = int(length) if length.isdigit() else 0
        self._seen = 0
        self._shown = -1
        self._live = sys.stderr.isatty()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._response.readinto(buffer)
        self._seen += count
        if self._live and self._total:
            percent = 100 * self._seen // self._total
            if percent != self._shown:
                self._shown = percent
                bar = "#" * (percent * 30 // 100)
                done = f"{self._seen / 1e6:.1f} of {self._total / 1e6:.1f} MB"
                print(f"\r{self._label} [{bar:<30}] {done}", end="", file=sys.stderr, flush=True)
        return count

    def done(self) -> None:
        if self._live:
            print(file=sys.stderr)
        else:
            print(f"downloaded {self._label} ({self._seen / 1e6:.1f} MB)", file=sys.stderr)
