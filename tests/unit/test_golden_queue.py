"""The messages of a queue, as earlier versions have kept them in a checkpoint, read by today's code.

``golden/queue`` never changes. It was written by `write`, with the version of the format that its name says.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sparkonce.checkpoint.local import LocalFiles
from sparkonce.errors import NewerFormatError, SupersededError
from sparkonce.sources.rabbitmq.queue.messages import QueueMessage, id_of, rows_of
from sparkonce.sources.rabbitmq.queue.segments import Segment, Segments, arrow_stream

GOLDEN = Path(__file__).parents[1] / "golden" / "queue"
TOKEN = b"0123456789abcdef"
IDENTITY = "872fa69c2925a8a0"
FORGOTTEN = [QueueMessage(b"before", "m0")]
MESSAGES = [
    QueueMessage(b"plain", "m1"),
    QueueMessage(b"\x00\xff", "m2", "orders", "eu.é", 1_795_634_115, {"type": "order"}, {"n": 3, "no": None}, True),
]


def ids(messages: list[QueueMessage]) -> tuple[bytes, ...]:
    return tuple(id_of(one, "message_id") for one in messages)


def write(folder: Path) -> None:
    """Writes what a receiver keeps: segment 1 was forgotten, 2 has messages, 3 is a claim."""
    segments = Segments(LocalFiles(folder))
    segments.files.put("identity", b'{"identity": "%s", "identified": "message_id"}' % IDENTITY.encode())
    segments.put(0, Segment(token=TOKEN, ids=()))
    segments.put(1, Segment(token=TOKEN, ids=ids(FORGOTTEN), rows=arrow_stream(rows_of(FORGOTTEN))))
    segments.put(2, Segment(token=TOKEN, ids=ids(MESSAGES), rows=arrow_stream(rows_of(MESSAGES))))
    segments.put(3, Segment(token=TOKEN, ids=()))
    segments.forget([(0, ()), (1, ids(FORGOTTEN))])


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    shutil.copytree(GOLDEN / "v1", tmp_path / "v1")
    return Segments(LocalFiles(tmp_path / "v1"))


def test_messages_that_were_kept_are_read(segments: Segments) -> None:
    assert segments.identity("message_id") == IDENTITY
    assert segments.numbers() == [2, 3]
    kept = segments.read(2)
    assert (kept.token, kept.ids) == (TOKEN, ids(MESSAGES))
    assert kept.table().to_batches() == [rows_of(MESSAGES)]
    assert segments.read(3) == Segment(token=TOKEN, ids=())
    assert segments.kept_ids() == [("000000000000-000000000001", ids(FORGOTTEN))]


def test_a_receiver_goes_on_behind_them(segments: Segments) -> None:
    with pytest.raises(SupersededError):
        segments.put(3, Segment(token=b"f" * 16, ids=()))
    segments.put(4, Segment(token=b"f" * 16, ids=()))
    assert segments.numbers() == [2, 3, 4]


def test_a_newer_format_is_named(segments: Segments) -> None:
    path = Path(str(segments.files.location)) / "segments" / f"{2:012}"
    data = bytearray(path.read_bytes())
    data[len(b"sparkonce-queue")] += 1
    path.write_bytes(data)
    with pytest.raises(NewerFormatError):
        segments.read(2)
