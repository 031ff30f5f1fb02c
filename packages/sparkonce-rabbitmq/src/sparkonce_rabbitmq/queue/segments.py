"""Received messages in the checkpoint's store. They form numbered segments, each put only if its number is free.

A receiver takes the queue over by putting an empty segment, its claim. An older receiver then fails at its next put,
and stops. The messages that it has received since then return to the queue. A segment never changes. Segments are
deleted after their batches are finished. The ids of their messages are kept for longer, in separate files.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparkonce.errors import ConfigurationError, CorruptRecordError, NewerFormatError, SupersededError
from sparkonce.source import CheckpointFiles, Landed, PutUnknownError, Taken
from sparkonce_rabbitmq.queue.messages import ID_BYTES, SCHEMA

SEGMENTS, IDS, IDENTITY = "segments", "ids", "identity"
_MAGIC = b"sparkonce-queue"
_VERSION = 1
_TOKEN_BYTES = 16
_HEAD = len(_MAGIC) + 1 + hashlib.sha256().digest_size
_DIGITS = 12
RESTORE = (
    "Restore the checkpoint with all of its folders, from its newest copy: messages that were acknowledged after a "
    "copy was made are no longer in the queue."
)
"""The next step if the stored messages of a query are not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Messages that were stored together by the receiver with this token.

    `ids` are in the order of the messages, and `rows` is an Arrow stream, which is empty for a claim.
    """

    token: bytes
    ids: tuple[bytes, ...]
    rows: bytes = b""

    def encode(self) -> bytes:
        return _sealed(self.token + len(self.ids).to_bytes(4, "big") + b"".join(self.ids) + self.rows)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Segment:
        """Deserializes a segment from a file at ``where``.

        Raises:
            CorruptRecordError: If the contents have changed.
            NewerFormatError: If a newer version has written the file.
        """
        body = _opened(data, where)
        count = int.from_bytes(body[_TOKEN_BYTES : _TOKEN_BYTES + 4], "big")
        begin = _TOKEN_BYTES + 4
        end = begin + count * ID_BYTES
        return cls(token=body[:_TOKEN_BYTES], ids=_split(body[begin:end]), rows=body[end:])

    def table(self) -> pa.Table:
        return pa.ipc.open_stream(self.rows).read_all() if self.rows else SCHEMA.empty_table()


def arrow_stream(rows: pa.RecordBatch) -> bytes:
    """Serializes rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


class Segments:
    """The segments of a queue."""

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    def identity(self, identified: str) -> str:
        """Returns the id that distinguishes this folder from one that replaced it. Creates the id if it is missing.

        ``identified`` is the way to identify messages. It cannot be changed, since stored ids would not be recognized.

        Raises:
            ConfigurationError: If messages were identified differently before.
            OSError: If the store cannot be read.
        """
        found = self.files.read(IDENTITY)
        if found is None:
            found = json.dumps({"identity": secrets.token_hex(8), "identified": identified}).encode()
            try:
                if isinstance(put := self.files.put(IDENTITY, found), Taken):
                    found = put.standing
            except PutUnknownError as error:
                raise OSError(str(error)) from error
        said = json.loads(found)
        if said["identified"] != identified:
            raise ConfigurationError(
                f"identify={identified!r}, and the query began with {said['identified']!r}: redelivered messages "
                "would not be recognized.",
                next_step="Leave it as it was, or begin on a new checkpoint.",
                setting="identify",
            )
        return str(said["identity"])

    def numbers(self) -> list[int]:
        """Lists the numbers of existing segments in ascending order: the newest one, and those before it without a gap.

        A file below a gap is not a segment: a receiver that had been superseded has put it late.
        """
        there = sorted((int(name) for name in self.files.names(SEGMENTS) if name.isdigit()), reverse=True)
        run = [number for at, number in enumerate(there) if number == there[0] - at]
        return run[::-1]

    def read(self, number: int) -> Segment:
        """Returns a segment; raises CorruptRecordError if it is missing or has changed."""
        path = _segment(number)
        data = self.files.read(path)
        if data is None:
            raise CorruptRecordError(
                f"{self.files.location}/{path} is missing: it holds messages that a batch still has to read.",
                next_step=RESTORE,
            )
        return Segment.decode(data, f"{self.files.location}/{path}")

    def put(self, number: int, segment: Segment) -> None:
        """Puts a segment, which is durable when the call returns.

        Raises:
            SupersededError: If another receiver has put a segment with this number, or has already deleted it.
            PutUnknownError: If it is unknown whether the segment was stored. Retry with the same segment.
            OSError: If the segment was not stored.
        """
        data = segment.encode()
        found = self.files.put(_segment(number), data)
        if not isinstance(found, Landed) and found.standing != data:
            raise superseded(self.files.location)
        # The number may be free only because newer receivers put a segment there and then deleted it.
        if self.numbers()[-1] != number:
            raise superseded(self.files.location)

    def check_newest(self, number: int) -> None:
        """Checks that no other receiver has put a segment after this one; raises SupersededError if one has."""
        if self.files.exists(_segment(number + 1)):
            raise superseded(self.files.location)

    def forget(self, segments: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """Deletes consecutive segments, one after another, and keeps the ids of their messages."""
        ids = [one for _, some in segments for one in some]
        first, last = segments[0][0], segments[-1][0]
        if ids:
            try:
                self.files.put(f"{IDS}/{first:0{_DIGITS}}-{last:0{_DIGITS}}", _sealed(b"".join(ids)))
            except PutUnknownError as error:  # The caller retries the put with the same content.
                raise OSError(str(error)) from error
        for number, _ in segments:  # Delete in order: see `put`.
            self.files.delete([_segment(number)])

    def recorded_ids(self) -> list[tuple[str, tuple[bytes, ...]]]:
        """Lists the files of ids, oldest first, with their contents."""
        found = []
        for name in sorted(self.files.names(IDS)):
            data = self.files.read(f"{IDS}/{name}")
            if data is not None:
                found.append((name, _split(_opened(data, f"{self.files.location}/{IDS}/{name}"))))
        return found

    def delete_ids(self, names: Sequence[str]) -> None:
        self.files.delete([f"{IDS}/{name}" for name in names])


def new_token() -> bytes:
    """Returns a receiver's token."""
    return secrets.token_bytes(_TOKEN_BYTES)


def _segment(number: int) -> str:
    return f"{SEGMENTS}/{number:0{_DIGITS}}"


def _split(ids: bytes) -> tuple[bytes, ...]:
    return tuple(ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES))


def _sealed(body: bytes) -> bytes:
    return b"".join((_MAGIC, bytes([_VERSION]), hashlib.sha256(body).digest(), body))


def _opened(data: bytes, where: str) -> bytes:
    body = data[_HEAD:]
    if data.startswith(_MAGIC) and len(data) > len(_MAGIC) and data[len(_MAGIC)] > _VERSION:
        raise NewerFormatError(
            f"{where} was written by a newer version of sparkonce.", next_step="Install that version, or a newer one."
        )
    if not data.startswith(_MAGIC) or data[len(_MAGIC) + 1 : _HEAD] != hashlib.sha256(body).digest():
        raise CorruptRecordError(f"{where} was changed: its checksum is wrong.", next_step="Restore it from a copy.")
    return body


def superseded(where: str) -> SupersededError:
    """Returns the error for a receiver that was superseded by another one."""
    return SupersededError(
        f"Another run is receiving from the queue and keeps its messages in {where}. Messages that this run has not "
        "kept return to the queue.",
        next_step="Stop one of the two drivers; the newer one continues.",
    )
