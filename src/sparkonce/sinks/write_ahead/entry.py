"""What a handle says about a file of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sparkonce.protocol.handles import Handle, Scalar
from sparkonce.protocol.ownership import TransactionName


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a handle says about a file of rows.

    Attributes:
        name: The transaction's.
        size_bytes: How long the file is.
        checksum: See `rows.check`.
        identity: Of the folder that it was written to.
        begun_ms: When, in milliseconds since the epoch, by the executor's clock.
    """

    name: TransactionName
    size_bytes: int
    checksum: str
    identity: str
    begun_ms: int

    def fields(self) -> dict[str, Scalar]:
        """As a handle keeps them."""
        return {**asdict(self), "name": str(self.name)}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Scalar]) -> Entry | None:
        """The entry, or None if these are not the fields of one."""
        name = TransactionName.parse(str(fields.get("name", "")))
        if name is None or set(fields) != {"name", "size_bytes", "checksum", "identity", "begun_ms"}:
            return None
        return cls(
            name=name,
            size_bytes=int(fields["size_bytes"]),
            checksum=str(fields["checksum"]),
            identity=str(fields["identity"]),
            begun_ms=int(fields["begun_ms"]),
        )

    @classmethod
    def of_handle(cls, handle: Handle) -> Entry | None:
        """The entry, or None if the handle is none of ours."""
        return cls.of_fields(dict(handle.transaction))
