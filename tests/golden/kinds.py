"""The golden files of what the golden query does not write: void records, RabbitMQ, Pravega, rows on an object store.

``golden/kinds/v1`` never changes. It was written by `write`, which today's code must repeat byte by byte:

    PYTHONPATH=tests python -m golden.kinds FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from golden.kept import HERE, QUERY, SHORT
from sparkonce.checkpoint.local import LocalFiles
from sparkonce.log.local import LocalLogStore
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.protocol.records import Amend, Claim, Commit, Void
from sparkonce.protocol.view import Decision, Floor, Run
from sparkonce.sinks.rabbitmq.ids import Ids
from sparkonce.sinks.write_ahead.entry import Entry
from sparkonce.sinks.write_ahead.ledger import Ledger
from sparkonce.sinks.write_ahead.sink import FOLDER, LEDGER
from sparkonce.sinks.write_ahead.stored import StoredFolder
from sparkonce.sources.rabbitmq.places import beginning, behind
from sparkonce.spark.pravega.notes import Begun, TransactionNotes
from sparkonce.watch.doubt import InDoubt
from sparkonce.watch.figures import WatchedBatch, WatchedEvent
from sparkonce.watch.timeline import RunNow, TimelineSegment, _path

KINDS = HERE / "kinds"
SINKS = ("pravega", "queue", "streams", "super")
"""Sinks whose rows wait in files: of Pravega, of RabbitMQ's queues, of a stream and of a super stream."""

TOKEN = Token(0, "60a1de0a")
BATCH = 4
AT_MS = 1_795_446_137_275
IDENTITY, LEDGER_IDENTITY = "61635cb6774fc27f", "9c3197f0c7a57c2f"
OFFSETS = ('{"orders":{"0":5,"1":5}}',)
PARTITIONS = ("invoices-0", "invoices-1")
BEGUN = Begun("0e1e9a0c-3c0e-4b7e-8000-000000000001", "shop/orders/0.#epoch.0@1795647840578")

FACTS = {
    "kafka": {"cluster_id": "czPmbJwhYw59f7AveDWhPA", "prefix": "sparkonce.kafka", "topic": "totals"},
    "pravega": {"stream": "shop/orders"},
    "queue": {},
    "streams": {"frame_max": "1048576", "query": SHORT, "stream": "orders"},
    "super": {
        "frame_max": "1048576",
        "partitions": json.dumps(PARTITIONS),
        "query": SHORT,
        "stream": "invoices",
    },
}
WAITING = {"identity": IDENTITY, "ledger": LEDGER_IDENTITY}
PER = {"pravega": "batch", "queue": "slot", "streams": "batch", "super": "batch"}


def entry(sink: str, slot: int) -> Entry:
    """A file of rows, as the sink's writer names it."""
    parts = json.dumps([[one, 3 + number] for number, one in enumerate(PARTITIONS)]) if sink == "super" else ""
    return Entry(
        name=TransactionName(prefix=sink, query=SHORT, token=TOKEN, batch=BATCH, slot=slot, copy=f"{slot:012x}"),
        size_bytes=811,
        checksum="547111e8bb445baba891d95d44e09261",
        identity=IDENTITY,
        begun_ms=AT_MS,
        parts=parts,
    )


def handles() -> tuple[Handle, ...]:
    """Handles of all these sinks, and of Kafka's."""
    fields = {sink: [entry(sink, slot).fields() for slot in (0, 1)] for sink in SINKS}
    id_ = f"sparkonce.kafka.{SHORT}.{TOKEN.position}-{TOKEN.nonce}.fcfd8fbf169d"
    fields["kafka"] = [{"transactional_id": f"{id_}-{lane}", "producer_id": 11 + lane, "epoch": 0} for lane in (0, 1)]
    return tuple(
        Handle(
            sink=sink,
            slot=slot,
            rows=7,
            fingerprint=3438256768684130304 + slot,
            opened_ms=AT_MS,
            transaction=transaction_fields(found[slot]),
        )
        for sink, found in sorted(fields.items())
        for slot in (0, 1)
    )


def facts() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    found = {sink: {**WAITING, "per": PER[sink], **one} if sink in PER else one for sink, one in FACTS.items()}
    return tuple((sink, tuple(sorted(one.items()))) for sink, one in sorted(found.items()))


def records() -> tuple[Claim | Commit | Void | Amend, ...]:
    """A batch that is decided, of which one transaction is void, and written again."""
    claim = Claim(
        nonce=TOKEN.nonce,
        run="00000000-0000-4000-8000-000000000002",
        query=QUERY,
        host="driver.example",
        process=4711,
        library="0.1.0",
        location="/tmp/sparkonce-golden/checkpoint/sparkonce",  # noqa: S108 - nobody looks there
        sinks=facts(),
        sources=(("orders", "0aa23acf-e793-429e-99f0-8ce8e8f7e89d"),),
    )
    decided = {"token": TOKEN, "query": QUERY, "batch": BATCH, "offsets": OFFSETS, "handles": handles()}
    return claim, Commit(**decided), Void(**decided, void=(("kafka", 1),)), Amend(**decided)


def floors() -> tuple[Floor, ...]:
    """One of each format: without a decision, with one, and with one that is void in part."""
    claim, commit, void, _ = records()
    assert isinstance(claim, Claim)
    run = Run(token=TOKEN, query=QUERY, location=claim.location, sinks=claim.sinks, sources=claim.sources)
    newest = []
    for position, one in ((1, commit), (2, void)):
        assert isinstance(one, Commit | Void)
        newest.append(
            Decision(
                position=position,
                token=one.token,
                query=one.query,
                batch=one.batch,
                offsets=one.offsets,
                handles=one.handles,
                void=one.void if isinstance(one, Void) else (),
            )
        )
    return (
        Floor(position=1, runs=(run,)),
        Floor(position=2, runs=(run,), newest=newest[0]),
        Floor(position=3, runs=(run,), newest=newest[1]),
    )


def write(folder: Path) -> None:
    """Writes them all."""
    log = LocalLogStore(folder / "log")
    for position, record in enumerate(records()):
        log.put(position, codec.encode_record(record, at_ms=AT_MS + position))
    for floor in floors():
        LocalLogStore(folder / f"floor-{floor.position}").raise_floor(floor.position, codec.encode_floor(floor))
    for sink in SINKS:
        files = LocalFiles(folder / "checkpoint" / FOLDER / sink)
        files.make("")
        files.put("identity", IDENTITY.encode())
        ledger = Ledger(LocalFiles(folder / "checkpoint" / FOLDER / sink / LEDGER))
        ledger.files.make("")
        ledger.files.put("identity", LEDGER_IDENTITY.encode())
        ledger.make()
        ledger.begin(SHORT, BATCH, 0, [entry(sink, 0), entry(sink, 1)])
        ledger.give_up(SHORT, BATCH, 1, [entry(sink, 2)])
        if sink == "pravega":
            notes = TransactionNotes(ledger.files)
            notes.make()
            notes.put(entry(sink, 0).name, 0, BEGUN)
    _stored(folder / "stored")
    (folder / "timeline").mkdir()
    (folder / _path(timeline().run, timeline().number)).write_bytes(timeline().encoded())
    told = {"publishing ids": {f"{BATCH}.{group}": [one.first, one.last] for group, one in ids().items()}, **offsets()}
    (folder / "said.json").write_text(f"{json.dumps(told, indent=1)}\n")


def _stored(folder: Path) -> None:
    """Rows as they wait where nothing can be renamed: on object stores, which these files stand for."""
    ledger = Ledger(LocalFiles(folder / LEDGER))
    stored = StoredFolder(LocalFiles(folder), ledger)
    stored.files.make("")
    stored.files.put("identity", IDENTITY.encode())
    ledger.files.make("")
    ledger.files.put("identity", LEDGER_IDENTITY.encode())
    stored.make()
    for slot, rows in enumerate((b"begun with", b"discarded", b"waiting")):
        with stored.create(entry("streams", slot).name) as file:
            file.write(rows)
            stored.keep(entry("streams", slot).name, file)
    stored.take(entry("streams", 0).name)
    stored.files.put(f"fate/{entry('streams', 1).name}", b"discarded")


def ids() -> dict[int, Ids]:
    """Publishing ids of two groups of a batch."""
    return {group: Ids.of(BATCH, group, 14) for group in (0, 1)}


def offsets() -> dict[str, object]:
    """Positions of the sources, as Spark keeps them in its offset log."""
    begun = beginning(3)
    return {
        "read_rabbitmq_stream": {"orders": behind(7, (5, AT_MS), begun), "new": begun},
        "read_rabbitmq_queue": {"queue": "872fa69c2925a8a0", "next": 3},
        "read_pravega": {"stream": "shop/orders", "cut": {"0": 120}, "made": {"0": 1795647840578}, "first": {"0": 0}},
    }


def timeline() -> TimelineSegment:
    """A part of what a run keeps for those who watch it."""
    return TimelineSegment(
        run=f"{TOKEN.position}-{TOKEN.nonce}",
        number=3,
        query=QUERY,
        spark_run="00000000-0000-4000-8000-000000000002",
        name="orders",
        host="driver.example",
        timeout_ms={"kafka": 900_000},
        now=RunNow(
            written_ms=AT_MS + 9,
            batch=BATCH + 1,
            phase="WRITING",
            since_ms=AT_MS + 8,
            in_doubt=InDoubt(transactions=2, opened_ms=AT_MS),
        ),
        batches=[
            WatchedBatch(
                batch=BATCH,
                rows={"kafka": 14},
                transactions=2,
                recovered=False,
                healed=1,
                began_ms=AT_MS,
                phases=[("WRITING", 10), ("DECIDING", 3)],
            )
        ],
        events=[WatchedEvent(at_ms=AT_MS, kind="healed", batch=BATCH, text="One was lost.", next_step="Nothing.")],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
