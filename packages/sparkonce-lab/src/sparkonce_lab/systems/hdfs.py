"""A folder in HDFS that the files sink writes to."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sparkonce.errors import SparkonceError
from sparkonce.storage.files import within
from sparkonce_lab.rig.disk import SmallDisk, affordable
from sparkonce_lab.rig.process import HOST
from sparkonce_lab.rig.servers.hdfs import Hdfs
from sparkonce_lab.systems.base import ServerSystem
from sparkonce_lab.systems.files import HELD, FilesSystem, is_published, rows_in
from sparkonce_lab.systems.injections import of_disk, of_server

if TYPE_CHECKING:
    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import TwoPhaseCommitSink
    from sparkonce_lab.rig.proxy import Request

_ANSWERS_WITHIN_S = 10.0


@cache
def _missing() -> str:
    try:
        import hdfs_native  # noqa: F401

        Hdfs(Path())
    except (ImportError, SparkonceError) as error:
        return f"HDFS is not available here: {error}"
    return ""


class HdfsSystem(ServerSystem):
    """A name node and a data node that are started here.

    The proxy is in front of the name node, which knows the files. Clients transfer blocks directly to and from the data
    node. The disk that is filled is the data node's. The name node's disk contains its journal, without which the name
    node exits.
    """

    name = "hdfs"
    REQUESTS: ClassVar[Mapping[str, Mapping[str, Request]]] = {
        # Match the method and the name of a held file, because other clients also send requests, to probe and to put
        # other files.
        "held": {
            "prepare": re.compile(rb"\x08complete\x12.{1,200}\.held", re.DOTALL),
            "commit": re.compile(rb"\x07rename2\x12.{1,200}\.held", re.DOTALL),
            "abort": re.compile(rb"\x06delete\x12.{1,200}\.held", re.DOTALL),
        }
    }

    def __init__(self, megabytes: int = 64, *, server: Hdfs | None = None) -> None:
        self._megabytes = megabytes
        self._borrowed = server
        self._address = ""
        self._rows: dict[str, bytes] = {}
        self.folder = ""

    @classmethod
    def missing(cls) -> str:
        return _missing()

    def start(self, folder: Path) -> None:
        if self._borrowed is not None:
            self.borrow(self._borrowed)
            self._address = self._borrowed.address
            return
        self._disk = SmallDisk(folder / "disk", affordable(self._megabytes))
        self.server = self._own = server = Hdfs(folder / "hdfs", blocks=self._disk.folder / "blocks")
        server.start()
        self.injections = {**of_server(server), **of_disk(self._disk, server)}
        self._address = self.start_proxy((HOST, server.port), self.REQUESTS["held"]).address

    def place(self, *columns: str) -> None:  # noqa: ARG002 - files need none
        """Creates nothing on the server: the sink itself creates the folder."""
        self.folder = f"/sparkonce-verify-{secrets.token_hex(5)}"

    def drop_place(self) -> None:
        """Does nothing, because the server was started here."""

    def close(self) -> None:
        """Does nothing, because every request uses a new client."""

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {"path": f"hdfs://{self._address}{self.folder}", **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> TwoPhaseCommitSink:
        return FilesSystem.build(arguments)

    def expire(self, handle: Handle) -> bool:
        """Deletes the held files of a transaction, as somebody might do while cleaning up."""
        from sparkonce.sinks.files.store import read_handle

        for one in read_handle(handle).files or ():
            self._ask("delete", f"{self.folder}/{HELD}/{one['held']}")
        return True

    def visible(self, *columns: str) -> list[Any]:
        """Fetches each file once, because published files do not change."""
        listed = [path for path in self._list() if is_published(Path(path), Path(self.folder))]
        for path in set(listed) - self._rows.keys():
            self._rows[path] = bytes(self._ask("read", path).read())
        return [row for path in listed for row in rows_in(path, self._rows[path], columns)]

    def left_open(self) -> Sequence[str]:
        """Returns held files."""
        return [path for path in self._list() if path.startswith(f"{self.folder}/{HELD}/")]

    def _list(self) -> list[str]:
        try:
            found = self._ask("list_status", self.folder, recursive=True)
        except FileNotFoundError:  # There is no such folder before the first run.
            return []
        return [one.path for one in found if not one.isdir]

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        """Sends a request with a deadline. Uses a new client, since a client retries for minutes during an outage."""
        from hdfs_native import Client

        url = f"hdfs://{HOST}:{self.server.port}" if self.server is not None else ""

        def ask() -> Any:
            answer = getattr(Client(url), method)(path, **options)
            return list(answer) if method == "list_status" else answer

        (answer,) = within(_ANSWERS_WITHIN_S, [ask])
        if isinstance(answer, BaseException):
            raise answer
        return answer
