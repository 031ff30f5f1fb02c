"""Targets for the write-ahead sink: a database that stores the token, a keyed table, and an append-only list.

Each target counts its calls in a separate file, so that calls from other processes are counted too.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkonce import WriteAheadSink
from sparkonce.protocol.handles import Handle
from sparkonce.storage.files import CheckpointFiles
from sparkonce.write_ahead import ApplyToken
from sparkonce_lab.systems.base import System
from sparkonce_lab.systems.files import expire_rows, waiting_rows
from sparkonce_lab.systems.injections import Injections


@dataclass(frozen=True)
class Target:
    """A callable, picklable target that stores its data in a folder."""

    folder: Path

    def __call__(self, rows: pa.RecordBatchReader, token: ApplyToken) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "calls").open("a") as calls:
            calls.write(json.dumps([token.id, list(token.slots), token.rows]) + "\n")
        self.apply([number for batch in rows for number in batch.column("number").to_pylist()], token)

    def apply(self, numbers: list[int], token: ApplyToken) -> None:
        raise NotImplementedError

    def visible(self) -> list[int]:
        raise NotImplementedError

    def calls(self) -> list[tuple[str, list[int], int]]:
        """The arguments of each call: the token's id, its slots and the number of rows."""
        path = self.folder / "calls"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class SqliteTarget(Target):
    """Stores the token in the transaction that writes the rows."""

    def apply(self, numbers: list[int], token: ApplyToken) -> None:
        with closing(self._connect()) as connection, connection:
            try:
                connection.execute("INSERT INTO applied VALUES (?)", [token.id])
            except sqlite3.IntegrityError:
                return
            connection.executemany("INSERT INTO rows VALUES (?)", [(number,) for number in numbers])

    def is_applied(self, token: ApplyToken) -> bool:
        with closing(self._connect()) as connection:
            return connection.execute("SELECT 1 FROM applied WHERE id = ?", [token.id]).fetchone() is not None

    def visible(self) -> list[int]:
        with closing(self._connect()) as connection:
            return [number for (number,) in connection.execute("SELECT number FROM rows")]

    def _connect(self) -> sqlite3.Connection:
        self.folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.folder / "target.db", timeout=60)
        connection.executescript(
            "CREATE TABLE IF NOT EXISTS applied (id TEXT PRIMARY KEY);CREATE TABLE IF NOT EXISTS rows (number INTEGER);"
        )
        return connection


class KeyedTarget(Target):
    """Writes one file for each number, so the same rows lead to the same state."""

    def apply(self, numbers: list[int], token: ApplyToken) -> None:
        for number in numbers:
            (self.folder / f"row-{number}").touch()

    def visible(self) -> list[int]:
        return [int(path.name.removeprefix("row-")) for path in self.folder.glob("row-*")]


class AppendingTarget(Target):
    """Appends a line for each number, no matter how often it arrives."""

    def apply(self, numbers: list[int], token: ApplyToken) -> None:
        descriptor = os.open(self.folder / "rows", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "w") as file:
            file.write("".join(f"{number}\n" for number in numbers))

    def visible(self) -> list[int]:
        path = self.folder / "rows"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


class WriteAheadSystem(System):
    """The write-ahead sink's rows in a folder or a store, and a target.

    Args:
        target: Makes the target in a folder.
        store: Makes the store in which the rows wait; by default the folder itself.
    """

    name = "write-ahead"

    def __init__(
        self,
        target: type[Target] = SqliteTarget,
        store: Callable[[Path], CheckpointFiles] | None = None,
        **options: Any,
    ) -> None:
        self.injections: Injections = {}
        self._target, self._store, self._options = target, store, options
        self.target: Any = None

    def start(self, folder: Path) -> None:
        self.parent = folder

    def stop(self) -> None:
        pass

    def place(self, *columns: str) -> None:
        root = self.parent / f"place-{secrets.token_hex(5)}"
        self.folder = root / "waiting"
        self.target = self._target(root / "target")
        self.target.visible()
        self.files = self._store(self.folder) if self._store is not None else None

    def arguments(self, **options: Any) -> dict[str, Any]:
        where = {"folder": self.folder} if self.files is None else {"files": self.files}
        applied = {"is_applied": self.target.is_applied} if isinstance(self.target, SqliteTarget) else {}
        return {"apply": self.target, **where, **applied, **self._options, **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> WriteAheadSink:
        given = dict(arguments)
        files = given.pop("files", None)
        sink = WriteAheadSink(given.pop("apply"), **given)
        if files is not None:
            sink.use_rows(files)
        return sink

    def expire(self, handle: Handle) -> bool:
        return expire_rows(self.folder, handle)

    def visible(self, *columns: str) -> list[Any]:
        return self.target.visible()

    def left_open(self) -> Sequence[str]:
        return waiting_rows(self.folder)
