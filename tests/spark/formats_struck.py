"""Formats whose decision log kills its own process before or after a decision is put."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import forwarding_log
import sparkonce
from forwarding_log import ForwardingLog
from spark.in_process import travelling
from sparkonce.log import DecisionLog, Landed, Taken
from sparkonce.protocol import codec
from sparkonce.protocol.view import Commit
from sparkonce.spark.formats.options import session_settings
from sparkonce.spark.formats.sources import FormatSource, sources
from sparkonce.storage.files import CheckpointFiles

BEFORE, AFTER = "before", "after"


class StrikingLog(ForwardingLog):
    """Kills its process at the decision of one batch.

    Args:
        log: The wrapped log.
        when: `BEFORE` or `AFTER` the put.
        batch: The batch.
        struck: A file that is created then, so that it happens once.
    """

    def __init__(self, log: DecisionLog, when: str, batch: int, struck: Path) -> None:
        super().__init__(log)
        self._when, self._batch, self._struck = when, batch, struck

    def put_bytes(self, position: int, data: bytes) -> Landed | Taken:
        record = codec.decode_record(data)
        if not isinstance(record, Commit) or record.batch != self._batch or self._struck.exists():
            return super().put_bytes(position, data)
        self._struck.touch()
        if self._when == AFTER:
            super().put_bytes(position, data)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process is dead")


class Struck(FormatSource):
    """``struck-kafka`` and so on: like ``sparkonce-kafka``, with one additional option: ``when batch file``."""

    @classmethod
    def name(cls) -> str:
        return cls.of.name.replace("sparkonce", "struck")

    def _given(self) -> dict[str, str]:
        return {name: value for name, value in super()._given().items() if name != "strike"}

    def _log_at(self, files: CheckpointFiles) -> DecisionLog:
        log = super()._log_at(files)
        strike = {name.lower(): value for name, value in dict(self.options).items()}.get("strike")
        if strike is None:
            return log
        when, batch, struck = strike.split(" ", 2)
        return StrikingLog(log, when, int(batch), Path(struck))


def register(spark: Any) -> None:
    """Registers the formats and those that strike in a session, with its settings of stores."""
    sparkonce.register(spark)
    with travelling(sys.modules[__name__], forwarding_log):
        for source in sources(session_settings(spark)):
            spark.dataSource.register(type(source.__name__, (Struck, source), {}))
