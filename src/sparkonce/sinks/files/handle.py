"""The handle of a slot's files: all of them in one field, or in a list beside them if that would be long."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks.files.names import HIDDEN
from sparkonce.sinks.files.store import Fields

LONGEST_BYTES = 16_384
"""The limit of a handle's field. A slot of a hundred partitions fits, one of thousands does not belong into the log."""

LISTS = f"{HIDDEN}/lists"


FIELDS = frozenset({"name", "begun_ms", "folder", "files", "list", "list_checksum"})
"""The fields of a handle, with ``files`` or a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A handle as a value.

    Attributes:
        name: The transaction's name.
        files: The fields of each file; None if they are in a list.
        list_path: The path of the list, relative.
        list_checksum: The checksum of the list.
        begun_ms: When the transaction was begun, by the executor's clock.
        folder: The id of the folder that they were written to, see `FileStore.doubt`; empty if the handle has none.
    """

    name: TransactionName
    files: tuple[Fields, ...] | None
    list_path: str
    list_checksum: str
    begun_ms: int
    folder: str


def fields_of(
    name: TransactionName, files: Sequence[Fields], begun_ms: int, folder: str
) -> tuple[dict[str, str | int], bytes | None]:
    """Returns a handle's fields, and the content of its list if it has one."""
    fields: dict[str, str | int] = {"name": str(name), "begun_ms": begun_ms, "folder": folder}
    text = json.dumps([dict(one) for one in files], separators=(",", ":"), sort_keys=True)
    if len(text) <= LONGEST_BYTES:
        return {**fields, "files": text}, None
    content = text.encode()
    return {**fields, "list": f"{LISTS}/{name}", "list_checksum": _checksum(content)}, content


def read_handle(handle: Handle) -> Listed:
    """Reads a handle.

    Raises:
        ValueError: if it is not one of the files sink's.
    """
    fields = dict(handle.transaction)
    name = TransactionName.parse(str(fields.get("name", "")))
    if name is None or not ("files" in fields or "list" in fields):
        raise ValueError(f"The handle {fields} is not one of the files sink's.")
    return Listed(
        name=name,
        files=tuple(json.loads(str(fields["files"]))) if "files" in fields else None,
        list_path=str(fields.get("list", "")),
        list_checksum=str(fields.get("list_checksum", "")),
        begun_ms=int(fields.get("begun_ms", 0)),
        folder=str(fields.get("folder", "")),
    )


def read_list(content: bytes, checksum: str) -> tuple[Fields, ...] | None:
    """Returns the files in a list; None if its checksum is not the handle's."""
    if _checksum(content) != checksum:
        return None
    found: list[Mapping[str, str | int]] = json.loads(content)
    return tuple(found)


def _checksum(content: bytes) -> str:
    return f"crc32:{zlib.crc32(content):08x}"
