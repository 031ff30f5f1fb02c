"""A folder with many small files on each store, and a store that ends or pauses a compaction at any of its steps."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from hdfs_native import Client

from integration.files_scene import Life
from s3_bucket import Bucket
from shared_servers import hdfs_server, s3_server
from sparkonce.sinks.files.local.writing import LocalStagedFile
from sparkonce.sinks.files.places import open_store
from sparkonce.sinks.files.sink import FilesSink
from sparkonce.sinks.files.store import FileStore


class Place(Protocol):
    """A folder, as a reader sees it that knows nothing of manifests."""

    url: str
    options: Mapping[str, Any]

    def read(self, path: str) -> bytes:
        """Reads a file by its full path."""

    def plain(self) -> list[str]:
        """Lists the full paths of all files that are not hidden."""


class Disk:
    def __init__(self, folder: Path) -> None:
        self.url, self.options = str(folder), {}

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def plain(self) -> list[str]:
        return [str(one) for one in Path(self.url).rglob("*") if one.is_file() and _is_plain(one.relative_to(self.url))]


class S3:
    def __init__(self) -> None:
        self.bucket = Bucket(s3_server())
        self.url, self.options = f"s3://{self.bucket.name}/out", self.bucket.server.settings()

    def read(self, path: str) -> bytes:
        return self.bucket.read(path.removeprefix(f"s3://{self.bucket.name}/"))

    def plain(self) -> list[str]:
        return [f"s3://{self.bucket.name}/{key}" for key in self.bucket.published()]


class OnHdfs:
    def __init__(self) -> None:
        server = hdfs_server()
        self.client = Client(server.url)
        self.folder = f"/out-{secrets.token_hex(6)}"
        self.url, self.options = f"{server.url}{self.folder}", {}

    def read(self, path: str) -> bytes:
        return bytes(self.client.read(self.folder + path.removeprefix(self.url)).read())

    def plain(self) -> list[str]:
        listed = [one.path for one in self.client.list_status(self.folder, recursive=True) if not one.isdir]
        below = [one.removeprefix(self.folder) for one in listed]
        return [self.url + one for one in below if _is_plain(Path(one.lstrip("/")))]


def _is_plain(path: Path) -> bool:
    return not any(part[:1] in "._" for part in path.parts)


def life_of(place: Place, **settings: Any) -> Life:
    return Life(FilesSink(place.url, store_options=place.options, **settings))


def run_batch(life: Life, batch: int) -> None:
    """Writes four rows, of two days."""
    numbers = range(4 * batch, 4 * batch + 4)
    life.run_batch(pa.table({"number": list(numbers), "day": [1, 1, 2, 2]}), batch=batch)


def numbers(place: Place, paths: list[str]) -> list[int]:
    """Returns the numbers in files, sorted: one for each row."""
    tables = [pq.ParquetFile(pa.BufferReader(place.read(path))).read() for path in paths]
    return sorted(number for table in tables for number in table.column("number").to_pylist())


class Killed(BaseException):
    """The end of a process."""


class Steps:
    """Stands before a store, and calls before each step that changes something, and after it.

    Args:
        at: Called with the number of the point. Raises `Killed` to end the process: no later step happens then.
    """

    def __init__(self, inner: FileStore, at: Callable[[int], None]) -> None:
        self._inner = inner
        self._at = at
        self._count = 0
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "close" or not callable(call):
            return call
        if name in ("publish", "discard", "delete"):  # one at a time: it may end in between
            return lambda items: [one for item in items for one in self._step(call, [item]) or ()]
        if name == "stage":
            return lambda *given: _Staged(self, self._step(call, *given))
        return lambda *given: self._step(call, *given) if name == "put_new" else self._alive(call, *given)

    def _alive(self, call: Callable[..., Any], *given: Any) -> Any:
        if self.dead:
            raise Killed
        return call(*given)

    def _point(self) -> None:
        try:
            self._at(self._count)
        except Killed:
            self.dead = True
            raise
        self._count += 1

    def _step(self, call: Callable[..., Any], *given: Any) -> Any:
        if self.dead:
            raise Killed
        self._point()
        done = call(*given)
        try:
            self._point()
        except Killed:
            _close(done)
            raise
        return done


class _Staged:
    def __init__(self, steps: Steps, inner: Any) -> None:
        self._steps = steps
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name == "discard":
            return self._discard
        return partial(self._steps._step, call) if name == "seal" else call

    def _discard(self) -> None:
        if not self._steps.dead:
            self._steps._step(self._inner.discard)
        else:
            _close(self._inner)


def _close(staged: Any) -> None:
    """Closes a file as the end of a process does."""
    if isinstance(staged, LocalStagedFile):
        staged._stream.file.close()


def with_steps(at: Callable[[int], None]) -> Callable[[str, Mapping[str, Any]], Any]:
    """Returns what opens stores with these steps."""
    return lambda path, options: Steps(open_store(path, options), at)
