"""Received messages in the checkpoint's store: segments, put one after the other, each only if its number is free.

A receiver takes the queue over by a put of an empty segment, its claim. So an older receiver loses its next put, and
stops: what it has received since goes back to the queue. A segment never changes. Behind finished batches segments are
deleted; the ids of their messages stay for longer, in files of their own.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Messages that were kept together.

    Attributes:
        token: Of the receiver that has put it.
        ids: Of the messages, in order.
        rows: The messages as an Arrow stream; empty for a claim.
    """

    token: bytes
    ids: tuple[bytes, ...]
    rows: bytes = b""

    def encode(self) -> bytes:
        """Returns the file's bytes."""
        return _sealed(self.token + len(self.ids).to_bytes(4, "big") + b"".join(self.ids) + self.rows)

    @classmethod
    def decode(cls, data: bytes, where: str) -> Segment:
        """Returns the segment in a file's bytes.

        Raises:
            CorruptRecordError: if they were changed.
            NewerFormatError: if a newer version has written them.
        """
        body = _opened(data, where)
        count = int.from_bytes(body[_TOKEN_BYTES : _TOKEN_BYTES + 4], "big")
        begin = _TOKEN_BYTES + 4
        end = begin + count * ID_BYTES
        return cls(token=body[:_TOKEN_BYTES], ids=_split(body[begin:end]), rows=body[end:])

    def table(self) -> pa.Table:
        """Returns the rows."""
        return pa.ipc.open_stream(self.rows).read_all() if self.rows else SCHEMA.empty_table()


def arrow_stream(rows: pa.RecordBatch) -> bytes:
    """Returns rows as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


class Segments:
    """The segments of a queue.

    Args:
        files: The files of the folder that they are kept in.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files

    def identity(self, identified: str) -> str:
        """Returns what tells this folder from another in its place; made if it is missing.

        Args:
            identified: What tells messages from each other: it cannot be changed, for ids would not be known again.

        Raises:
            ConfigurationError: if it was another.
            OSError: if the store cannot be asked.
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
                f"identify={identified!r}, and the query began with {said['identified']!r}: messages that come again "
                "would not be known.",
                next_step="Leave it as it was, or begin on a new checkpoint.",
                setting="identify",
            )
        return str(said["identity"])

    def numbers(self) -> list[int]:
        """Lists the numbers of segments that are there, ascending: those up to the newest without a gap.

        A file below a gap was put late, by a receiver that had been replaced: it is no segment.
        """
        there = sorted((int(name) for name in self.files.names(SEGMENTS) if name.isdigit()), reverse=True)
        run = [number for at, number in enumerate(there) if number == there[0] - at]
        return run[::-1]

    def read(self, number: int) -> Segment:
        """Returns a segment.

        Raises:
            CorruptRecordError: if it is missing, or was changed.
        """
        path = _segment(number)
        data = self.files.read(path)
        if data is None:
            raise CorruptRecordError(
                f"{self.files.location}/{path} is missing: it holds messages that a batch has to read.",
                next_step="Restore the checkpoint with all of its folders, as they were at one time.",
            )
        return Segment.decode(data, f"{self.files.location}/{path}")

    def put(self, number: int, segment: Segment) -> None:
        """Puts a segment: it is durable when this returns.

        Raises:
            SupersededError: if another receiver has taken its number, or has gone on from it long ago.
            PutUnknownError: if it is not known whether it landed. Ask again, with the same segment.
            OSError: if it has not landed.
        """
        data = segment.encode()
        found = self.files.put(_segment(number), data)
        if not isinstance(found, Landed) and found.standing != data:
            raise superseded(self.files.location)
        # Its number may have been free only because newer receivers have deleted what stood there.
        if self.numbers()[-1] != number:
            raise superseded(self.files.location)

    def check_newest(self, number: int) -> None:
        """Checks that no other receiver has put the segment behind one.

        Raises:
            SupersededError: if it has.
            OSError: if the store cannot be asked.
        """
        if self.files.exists(_segment(number + 1)):
            raise superseded(self.files.location)

    def forget(self, segments: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """Deletes segments without a gap, one after the other, and keeps the ids of their messages."""
        ids = [one for _, some in segments for one in some]
        first, last = segments[0][0], segments[-1][0]
        if ids:
            try:
                self.files.put(f"{IDS}/{first:0{_DIGITS}}-{last:0{_DIGITS}}", _sealed(b"".join(ids)))
            except PutUnknownError as error:  # it is put again, with the same content
                raise OSError(str(error)) from error
        for number, _ in segments:  # in order: see `put`
            self.files.delete([_segment(number)])

    def kept_ids(self) -> list[tuple[str, tuple[bytes, ...]]]:
        """Lists the files of ids, oldest first, with what they hold."""
        found = []
        for name in sorted(self.files.names(IDS)):
            data = self.files.read(f"{IDS}/{name}")
            if data is not None:
                found.append((name, _split(_opened(data, f"{self.files.location}/{IDS}/{name}"))))
        return found

    def delete_ids(self, names: Sequence[str]) -> None:
        """Deletes files of ids."""
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
    """Returns the error of a receiver whose place another one has taken."""
    return SupersededError(
        f"Another run receives from the queue, and keeps its messages in {where}. What this one has not kept goes back "
        "to the queue.",
        next_step="Stop one of the two drivers; the newer one goes on.",
    )
