"""One file of rows, as its handle names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sparkonce.protocol.handles import Handle, Scalar
from sparkonce.protocol.ownership import TransactionName

FIELDS = frozenset({"name", "size_bytes", "checksum", "identity", "begun_ms", "parts"})
"""The fields of a handle, of which ``parts`` may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of rows.

    Attributes:
        name: The transaction's name.
        size_bytes: The size of the file.
        checksum: The checksum of the file, see `rows.check`.
        identity: The identity of the folder that it was written to.
        begun_ms: When it was begun, in milliseconds since the epoch, by the executor's clock.
        parts: The rows of each part of the target, as the sink writes them; empty if it has no parts.
    """

    name: TransactionName
    size_bytes: int
    checksum: str
    identity: str
    begun_ms: int
    parts: str = ""

    def fields(self) -> dict[str, Scalar]:
        """Returns the entry as a handle keeps it."""
        fields = {**asdict(self), "name": str(self.name)}
        return fields if self.parts else {name: one for name, one in fields.items() if name != "parts"}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Scalar]) -> Entry | None:
        """Returns the entry, or None if these are not the fields of one."""
        name = TransactionName.parse(str(fields.get("name", "")))
        if name is None or set(fields) | {"parts"} != FIELDS:
            return None
        return cls(
            name=name,
            size_bytes=int(fields["size_bytes"]),
            checksum=str(fields["checksum"]),
            identity=str(fields["identity"]),
            begun_ms=int(fields["begun_ms"]),
            parts=str(fields.get("parts", "")),
        )

    @classmethod
    def of_handle(cls, handle: Handle) -> Entry | None:
        """Returns the entry, or None if the handle is none of ours."""
        return cls.of_fields(dict(handle.transaction))
