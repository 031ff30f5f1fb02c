"""A sink for the toy server: a correct one, against which the matrix itself is tried out."""

from __future__ import annotations

import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from crashes.target import DISK_FULL, MEMORY_FULL, Target
from sparkonce.errors import PrepareError, UnknownOutcomeError
from sparkonce.lab.systems.injections import ServerSystem
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import TransactionName
from sparkonce.rig.servers.process import HOST, Server
from sparkonce.sink import Owner, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext

DEADLINE_S = 1.0
REQUESTS = {"prepare": b" PREPARE ", "commit": re.compile(rb" (COMMIT|APPEND) "), "abort": b" ABORT "}
OUTCOMES = {
    "committed": Outcome.COMMITTED,
    "already": Outcome.ALREADY_COMMITTED,
    "aborted": Outcome.ABORTED,
    "lost": Outcome.LOST,
}


class Connection:
    """Asks the server; connects when it must.

    Raises:
        OSError: from `ask`, if there is no answer in time.
    """

    def __init__(self, port: int, place: str) -> None:
        self._port = port
        self._place = place
        self._socket: socket.socket | None = None

    def ask(self, question: str) -> str:
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self._port), timeout=DEADLINE_S)
            self._socket.sendall(f"{self._place} {question}\n".encode())
            answer = b""
            while not answer.endswith(b"\n"):
                if not (more := self._socket.recv(65_536)):
                    raise ConnectionError("the server has closed the connection")
                answer += more
            return answer.decode().strip()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        found, self._socket = self._socket, None
        if found is not None:
            found.close()


class ToySink(TwoPhaseCommitSink):
    """A sink whose parts a broken one replaces."""

    def __init__(self, port: int, place: str) -> None:
        super().__init__("toy")
        self.port = port
        self.place = place

    def connect(self) -> Connection:
        return Connection(self.port, self.place)

    def writer(self, context: WriterContext) -> SinkWriter:
        return ToyWriter(self, context)

    def committer(self) -> SinkCommitter:
        return ToyCommitter(self)


class ToyWriter(SinkWriter):
    def __init__(self, sink: ToySink, context: WriterContext) -> None:
        self.connection = sink.connect()
        self.name = str(
            TransactionName(
                prefix=sink.name,
                query=context.owner.query,
                token=context.owner.token,
                batch=context.batch,
                slot=context.slot,
                copy=secrets.token_hex(6),
            )
        )

    def begin(self) -> None:
        self.ask("ROWS", "open")

    def write(self, rows: pa.RecordBatch) -> None:
        self.ask("ROWS", "open", *map(str, rows.column("number").to_pylist()))

    def prepare(self) -> Mapping[str, str | int]:
        self.ask("PREPARE", "prepared")
        return {"name": self.name}

    def abort(self) -> None:
        with suppress(OSError):  # a sweep finds it
            self.connection.ask(f"ABORT {self.name}")
        self.close()

    def close(self) -> None:
        self.connection.close()

    def ask(self, verb: str, wanted: str, *words: str) -> None:
        try:
            answer = self.connection.ask(" ".join([verb, self.name, *words]))
        except OSError as error:
            raise PrepareError(f"{verb} was not answered: {error}") from error
        if answer != wanted:
            raise PrepareError(f"the transaction is {answer}")


class ToyCommitter(SinkCommitter):
    def __init__(self, sink: ToySink) -> None:
        self.sink = sink
        self.connection = sink.connect()

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self.finish("COMMIT", str(dict(handle.transaction).get("name", ""))) for handle in handles]

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [self.finish("ABORT", str(dict(handle.transaction).get("name", ""))) for handle in handles]

    def finish(self, verb: str, name: str) -> Finished:
        try:
            return Finished(outcome=OUTCOMES.get(self.connection.ask(f"{verb} {name}"), Outcome.UNKNOWN))
        except OSError as error:
            return self.unanswered(verb, str(error))

    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.RETRY, reason=reason)

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        tokens = frozenset(owner.token for owner in owners)
        try:
            names = self.connection.ask("LIST").split()
        except OSError as error:
            raise UnknownOutcomeError(f"LIST was not answered: {error}") from error
        parsed = [name for name in map(TransactionName.parse, names) if name is not None]
        return [
            Handle(sink=self.sink.name, slot=0, transaction=transaction_fields({"name": str(name)}))
            for name in parsed
            if name.belongs_to(self.sink.name, owners[0].query, tokens)
        ]

    def close(self) -> None:
        self.connection.close()


class ToyServer(Server):
    def initialise(self) -> None:
        pass

    def command(self) -> Sequence[str]:
        script = Path(__file__).parent / "toy_server.py"
        return [sys.executable, "-S", str(script), str(self.folder), str(self.port)]

    def is_up(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True


class ToySystem(ServerSystem):
    name = "toy"

    def start(self, folder: Path) -> None:
        self.start_own(ToyServer(folder), None)
        self.start_proxy((HOST, self.port), REQUESTS)

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port

    def place(self, *columns: str) -> None:
        self.table = f"t{secrets.token_hex(5)}"

    def drop_place(self) -> None:
        pass

    def close(self) -> None:
        pass

    def arguments(self, **options: Any) -> dict[str, Any]:
        assert self.proxy is not None
        return {"port": self.proxy.port, "place": self.table, **options}

    @staticmethod
    def build(arguments: Mapping[str, Any]) -> ToySink:
        given = dict(arguments)
        kind: type[ToySink] = given.pop("kind", ToySink)
        return kind(**given)

    def visible(self, *columns: str) -> list[Any]:
        return [int(number) for number in self._ask("SEE")]

    def left_open(self) -> Sequence[str]:
        return self._ask("LIST")

    def _ask(self, question: str) -> list[str]:
        connection = Connection(self.port, self.table)
        try:
            return connection.ask(question).split()
        finally:
            connection.close()


class ToyTarget(Target):
    while_s = 1.5
    """Longer than `DEADLINE_S`, so that a client gives up in the meantime."""

    def __init__(self, kind: type[ToySink] = ToySink, **more: Any) -> None:
        given = {"requests": REQUESTS, "options": {"kind": kind}, "cannot": (DISK_FULL, MEMORY_FULL), **more}
        super().__init__("toy", ToySystem, gone_within_s=0.5, **given)
