"""Computes with positions in streams, which are plain values that Spark stores as JSON in the offset log.

For each stream, a position has ``offset``, the offset of the next message, and ``first``, the offset at which the query
started. ``first`` is needed if Spark repeats batch 0: Spark then queries the start again, and may get a different
result. Once messages were read, a position also has ``chunk`` and ``at``: the first offset and the time of the chunk
with the last message, which distinguish the stream from another one with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparkonce.errors import CheckpointMismatchError, StaleServerError

Position: TypeAlias = dict[str, int]
Positions: TypeAlias = dict[str, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRange:
    """A part of a stream that a batch reads.

    Attributes:
        stream: The stream's name.
        start: The offset of the first message.
        end: The offset after the last message.
        before: The first offset and the time of the chunk with the message before `start`; None if the query starts
            there.
        last: The first offset and the time of the chunk with the message before `end`.
    """

    stream: str
    start: int
    end: int
    before: tuple[int, int] | None
    last: tuple[int, int]


def beginning(offset: int) -> Position:
    """Returns the position at which a query starts in a stream."""
    return {"offset": offset, "first": offset}


def behind(offset: int, chunk: tuple[int, int], begun: Position) -> Position:
    """Returns the position before ``offset``, in a stream that has been read since ``begun``.

    The chunk with the previous message is given by its first offset and its time.
    """
    return {"offset": offset, "chunk": chunk[0], "at": chunk[1], "first": begun["first"]}


def shares(available: Mapping[str, int], most: int | None) -> Mapping[str, int]:
    """Returns the number of messages of each stream in a batch: all, or ``most`` in proportion to the available ones.

    A batch has at least one message of each stream that has any, so that no stream waits forever.
    """
    total = sum(available.values())
    if most is None or total <= most:
        return available
    return {stream: min(count, max(1, count * most // total)) for stream, count in available.items()}


def ranges_of(start: Positions, end: Positions) -> list[StreamRange]:
    """Returns the parts of the streams between two positions, without empty parts.

    Raises:
        CheckpointMismatchError: If the end is before the start.
    """
    found = []
    for stream, to in end.items():
        known = start.get(stream)
        # If the start position has no chunk, start where the query began, which the end position records as `first`.
        position = known if known is not None and "chunk" in known else beginning(to["first"])
        if to["offset"] < position["offset"]:
            raise CheckpointMismatchError(
                f"The batch ends at offset {to['offset']} of the stream {stream!r}, before its start at "
                f"{position['offset']}.",
                next_step="Check whether offsets were changed manually in the checkpoint.",
            )
        if to["offset"] > position["offset"]:
            found.append(
                StreamRange(
                    stream=stream,
                    start=position["offset"],
                    end=to["offset"],
                    before=chunk_of(position),
                    last=(to["chunk"], to["at"]),
                )
            )
    return found


def chunk_of(position: Position) -> tuple[int, int] | None:
    """Returns the first offset and the time of the chunk before a position; None if the query starts there."""
    return (position["chunk"], position["at"]) if "chunk" in position else None


def another(stream: str, offset: int, why: str) -> StaleServerError:
    """Returns the error for a stream that is not the one that was read before."""
    return StaleServerError(
        f"The stream {stream!r} is not the one that this query has read up to offset {offset}: {why}. It was deleted "
        "and recreated, or its server returned to an older state.",
        next_step="If its messages are to be read from the beginning, start the job with a new checkpoint. Otherwise "
        "restore the stream.",
        stream=stream,
    )


def rows_between(before: Any, after: Any) -> int | None:
    """Counts the messages between two values of Spark's offset log; None if they are not positions in streams."""
    if not after or not _are_positions(before) or not _are_positions(after):
        return None
    return sum(
        int(position["offset"]) - int(before.get(stream, {}).get("offset", 0)) for stream, position in after.items()
    )


def _are_positions(value: Any) -> bool:
    known = {"offset", "first", "chunk", "at"}
    return isinstance(value, dict) and all(
        isinstance(position, dict) and {"offset", "first"} <= position.keys() <= known for position in value.values()
    )
