"""The live page with a real broker: open transactions, their verdicts, and how far readers of held partitions get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from eventually import eventually
from integration.kafka_witness import Prepared, Witness, new_name
from page_scene import PageScene, many, now_ms
from sparkonce.operate.systems import OperatorFile, read_file
from sparkonce.protocol.ownership import Token, TransactionalId, short_query
from sparkonce.storage.local import LocalFiles
from sparkonce.ui.alarms import alarms_of
from sparkonce.ui.watcher import PageWatcher

pytestmark = pytest.mark.kafka
LIMIT_S = 120


class Held:
    """An open transaction of the newest run, and one of an unknown run."""

    def __init__(self, witness: Witness, folder: Path) -> None:
        self.scene = PageScene(folder / "totals")
        self.scene.write(many(60, now_ms()))
        self.topic = witness.create_topic()
        position, _, nonce = self.scene.run.partition("-")
        self.mine = self._open(witness, Token(int(position), nonce), "a", "b")
        self.unknown = self._open(witness, Token(7, "00000007"), "c")
        self.path = folder / "systems.yaml"
        self.path.write_text(
            f"systems:\n  kafka: {{bootstrap.servers: '{witness.bootstrap}'}}\n"
            "  gone: {system: redis, url: 'redis://127.0.0.1:1/0'}\n"
        )

    @property
    def file(self) -> OperatorFile:
        return read_file(str(self.path), {})

    def name(self, one: Prepared) -> str:
        return str(one.handle["transactional_id"])

    def _open(self, witness: Witness, token: Token, *values: str) -> Prepared:
        query = short_query(self.scene.query)
        name = TransactionalId(prefix=new_name("orders"), query=query, token=token, worker="a" * 12, lane=0)
        return witness.prepare(self.topic, *values, transactional_id=str(name))

    def close(self) -> None:
        for one in (self.mine, self.unknown):
            with suppress(KafkaException):  # the test has ended it
                one.producer.abort_transaction()


@pytest.fixture
def held(witness: Witness, tmp_path: Path) -> Iterator[Held]:
    with closing(Held(witness, tmp_path)) as opened:
        yield opened


def test_open_transactions_have_verdict_timeout_and_lag(held: Held) -> None:
    watcher = PageWatcher(
        {"totals": LocalFiles(held.scene.path)}, held.file, checkpoints_every_s=0.1, systems_every_s=0.1
    )

    def found() -> dict[str, Any]:
        kafka = watcher.state().systems[0]
        return {one.name: one for one in kafka.open if one.query == short_query(held.scene.query)}

    try:
        names = {held.name(held.mine), held.name(held.unknown)}
        eventually(lambda: found().keys() == names, "both are listed", limit_s=LIMIT_S)
        one, other = (found()[held.name(each)] for each in (held.mine, held.unknown))
        assert (one.verdict, other.verdict) == ("under way", "not known")
        assert 0 <= one.age_s < one.timeout_s == 60.0
        (part,) = one.partitions
        assert (part.topic, part.begins, part.readable, part.end, part.blocks) == (held.topic, 0, 0, 3, True)
        (late,) = other.partitions
        assert (late.begins, late.readable, late.blocks) == (2, 0, False)
        eventually(lambda: watcher.state().systems[1].error, "the other one is said to be away", limit_s=LIMIT_S)
        assert watcher.state().systems[1].answered_ms is None
    finally:
        watcher.close()


def test_another_applications_transaction_in_a_querys_topic_is_shown_and_an_alarm(
    witness: Witness, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkonce.ui.alarms.STRANGE_S", 0.0)
    monkeypatch.setattr("sparkonce.ui.watcher.targets_of", lambda _: {(held.topic, "")})
    billing = witness.prepare(held.topic, "theirs", transactional_id=new_name("billing"))
    watcher = PageWatcher(
        {"totals": LocalFiles(held.scene.path)}, held.file, checkpoints_every_s=0.1, systems_every_s=0.1
    )
    try:
        eventually(lambda: held.name(billing) in [one.name for one in watcher.state().systems[0].open], "it is shown")
        (one,) = [one for one in watcher.state().systems[0].open if one.name == held.name(billing)]
        assert (one.verdict, one.query, one.timeout_s, one.age_s >= 0) == ("foreign", "", 60.0, True)
        assert [part.blocks for part in one.partitions] == [False], "behind those of the query"
        for other in (held.mine, held.unknown):
            other.producer.abort_transaction()
        title = "kafka: another application's transaction blocks readers"
        eventually(lambda: title in [one.title for one in alarms_of(watcher.state())], "an alarm", limit_s=LIMIT_S)
    finally:
        watcher.close()
        billing.producer.abort_transaction()
