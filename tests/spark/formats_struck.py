"""A format whose decision log strikes: it kills its own process, or the whole driver, beside the put of a decision."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

from sparkonce.checkpoint.local import LocalFiles
from sparkonce.log.base import DecisionLog, Landed, Taken
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import codec
from sparkonce.protocol.records import Claim, Commit
from sparkonce.spark.formats.sources import KafkaFormat

BEFORE, AFTER, DEPOSED = "before", "after", "deposed"
PROCESS, DRIVER = "process", "driver"


class StrikingStore(LocalLogStore):
    """Strikes once, at the decision of one batch.

    Args:
        checkpoint: Of the log.
        when: `BEFORE` or `AFTER` the put; `DEPOSED`: another run claims first.
        what: `PROCESS`: the one that puts. `DRIVER`: also its JVM, and all that belongs to it.
        batch: Whose.
        struck: A file that is made by the strike.
    """

    def __init__(self, checkpoint: Path, when: str, what: str, batch: int, struck: Path) -> None:
        super().__init__(checkpoint)
        self._when, self._what, self._batch, self._struck = when, what, batch, struck

    def put(self, position: int, data: bytes) -> Landed | Taken:
        record = codec.decode_record(data)
        if not isinstance(record, Commit) or record.batch != self._batch or self._struck.exists():
            return super().put(position, data)
        self._struck.touch()
        if self._when == DEPOSED:
            claim = Claim(nonce="0" * 8, run=str(uuid.uuid4()), query=record.query, location=self.location)
            super().put(position, codec.encode_record(claim, at_ms=0))
            return super().put(position, data)
        if self._when == AFTER:
            super().put(position, data)
        for pid in [os.getpid()] if self._what == PROCESS else _session():
            os.kill(pid, signal.SIGKILL)
        raise AssertionError("this process is dead")


def _session() -> list[int]:
    """All of this driver's processes, this one last."""
    mine, members = os.getsid(0), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == mine:
                    members.append(int(entry.name))
            except ProcessLookupError:
                continue
    return sorted(members, key=lambda pid: pid == os.getpid())


class StruckKafka(KafkaFormat):
    """``struck-kafka``: as ``sparkonce-kafka``, with one option more: ``when what batch file``."""

    @classmethod
    def name(cls) -> str:
        return "struck-kafka"

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in super()._given().items() if name != "strike"}

    def _log_at(self, files: LocalFiles) -> DecisionLog:
        strike = {name.lower(): value for name, value in dict(self.options).items()}.get("strike")
        if strike is None:
            return super()._log_at(files)
        when, what, batch, struck = strike.split(" ", 3)
        return DecisionLog(StrikingStore(files.folder, when, what, int(batch), Path(struck)))
