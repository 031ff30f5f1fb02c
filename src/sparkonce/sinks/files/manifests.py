"""Manifests: one small file for each whole batch, which lists its files.

A manifest is in the folder ``_manifest`` beside the data. Its name,
``<prefix>.<query>.<position>-<nonce>.<batch>.manifest``, tells in a listing whose it is. A hundred manifests of old
batches are merged into one, ``<prefix>.<query>.<first>-<last>.merged``, and a hundred of those into one again. So the
folder holds some four hundred files, and one more for every 10,000 batches. What a compaction has made of old batches
is said by ``generations``, and replaces what their manifests say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from sparkonce.errors import CorruptRecordError
from sparkonce.protocol.codec import read_json
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.sinks.files.partitions import values_of
from sparkonce.sinks.files.store import Fields, FileStore

FOLDER = "_manifest"
GENERATION = "compacted~"
"""The beginning of the names of compactions' results; a sink's name has no ``~``."""

MERGED = 100
"""The number of manifests that become one."""

_FORMAT = 1
_NUMBER = "0|[1-9][0-9]{0,18}"
_NAME = re.compile(
    r"(?P<prefix>.+)\.(?P<query>[0-9a-f]{12})\."
    rf"(?:(?P<position>{_NUMBER})-(?P<nonce>[0-9a-f]{{8}})\.(?P<batch>{_NUMBER})\.manifest"
    rf"|(?P<first>{_NUMBER})-(?P<last>{_NUMBER})\.merged)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedFile:
    """A file of a whole batch.

    Attributes:
        path: Its path relative to the sink's, with ``/``.
        rows: How many rows it holds.
        size_bytes: Its size.
        checksum: Its checksum, such as ``crc32:1c291ca3``, or its ETag.
    """

    path: str
    rows: int
    size_bytes: int
    checksum: str

    @property
    def partition(self) -> dict[str, str | None]:
        """The columns and values of its partition as text, None for null."""
        return values_of(self.path.rpartition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole batch.

    Attributes:
        sink: The sink's name.
        prefix: The beginning of the names of its files, after ``part-``.
        query: The short form of the query's id.
        token: The token of the run that wrote it, or of the newest of the runs that healed it.
        batch: Spark's batch id; the newest one's of compacted batches.
        files: All its files.
        transactions: The fields of the handles that committed it.
        compacted: The first and last number of each run of batches that share these files; empty for a batch that is
            not compacted.
    """

    sink: str
    prefix: str
    query: str
    token: Token
    batch: int
    files: tuple[CommittedFile, ...]
    transactions: tuple[Mapping[str, str | int], ...] = field(default=(), repr=False)
    compacted: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestName:
    """A manifest's name as a value. A merged one has batches of several runs, and no token.

    Attributes:
        text: The name.
        prefix: See `Manifest`.
        query: See `Manifest`.
        token: See `Manifest`.
        first: The first batch that may be in it.
        last: The last batch that may be in it.
    """

    text: str
    prefix: str
    query: str
    token: Token | None
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ManifestName | None:
        """Reads a name, or returns None if it is no manifest's."""
        match = _NAME.fullmatch(text)
        if match is None or text.startswith(GENERATION):
            return None
        single = match["batch"] is not None
        return cls(
            text=text,
            prefix=match["prefix"],
            query=match["query"],
            token=Token(int(match["position"]), match["nonce"]) if single else None,
            first=int(match["batch"] if single else match["first"]),
            last=int(match["batch"] if single else match["last"]),
        )

    @property
    def span(self) -> int:
        """The most batches that may be in it."""
        return self.last - self.first + 1


def of_batch(
    sink: str, prefix: str, query: str, token: Token, batch: int, handles: Mapping[Handle, Sequence[Fields]]
) -> Manifest:
    """Returns the manifest of a batch whose handles are committed."""
    files = [
        CommittedFile(
            path=str(one["path"]), rows=int(one["rows"]), size_bytes=int(one["size"]), checksum=str(one["checksum"])
        )
        for slot in handles.values()
        for one in slot
    ]
    return Manifest(
        sink=sink,
        prefix=prefix,
        query=query,
        token=token,
        batch=batch,
        files=tuple(sorted(files, key=lambda one: one.path)),
        transactions=tuple(dict(handle.transaction) for handle in handles),
    )


def write(store: FileStore, manifest: Manifest) -> None:
    """Puts a batch's manifest; a repeat puts the same content."""
    token = f"{manifest.token.position}-{manifest.token.nonce}"
    name = f"{manifest.prefix}.{manifest.query}.{token}.{manifest.batch}.manifest"
    store.put(f"{FOLDER}/{name}", encode([manifest]))


def list_manifests(store: FileStore) -> list[ManifestName]:
    """Lists the names of all manifests."""
    return [name for text in store.list_names(FOLDER) if (name := ManifestName.parse(text)) is not None]


def read(store: FileStore, name: ManifestName) -> list[Manifest]:
    """Returns the batches in a manifest; none if it was merged into another one meanwhile.

    Raises:
        CorruptRecordError: if it cannot be read.
    """
    content = store.get(f"{FOLDER}/{name.text}")
    return [] if content is None else decode(content, f"{store.location}/{FOLDER}/{name.text}")[1]


def merge(store: FileStore, prefix: str, query: str, before: int) -> None:
    """Merges full hundreds of a query's batches that end before this one; then hundreds of hundreds.

    Two drivers may merge at once: they write the same, and delete a manifest only after the merged one was put.
    """
    for span in (MERGED, MERGED * MERGED):
        names = [one for one in list_manifests(store) if (one.prefix, one.query) == (prefix, query)]
        groups: dict[int, list[ManifestName]] = {}
        for name in names:
            if name.span < span and (name.first // span + 1) * span <= before:
                groups.setdefault(name.first // span, []).append(name)
        for number, group in groups.items():
            _merge_group(store, f"{prefix}.{query}.{number * span}-{(number + 1) * span - 1}.merged", group)


def _merge_group(store: FileStore, text: str, group: Sequence[ManifestName]) -> None:
    whole = ManifestName.parse(text)
    batches = {one.batch: one for name in group for one in read(store, name)}
    if whole is None or not batches:
        return
    batches.update({one.batch: one for one in read(store, whole)})
    # Transactions are asked for only for the log's newest batches, which are not merged.
    plain = [batches[number] for number in sorted(batches)]
    store.put(f"{FOLDER}/{text}", encode(plain, transactions=False))
    store.delete([f"{FOLDER}/{name.text}" for name in group])


def encode(
    batches: Iterable[Manifest], *, transactions: bool = True, head: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Returns a line with the format, and one for each batch.

    Args:
        batches: The batches.
        transactions: Whether to write their transactions.
        head: More fields of the first line.
    """
    lines = [json.dumps({"sparkonce_manifest": _FORMAT, **head}, separators=(",", ":") if head else None)]
    for batch in batches:
        plain = asdict(batch)
        if not transactions:
            plain["transactions"] = []
        if not batch.compacted:
            del plain["compacted"]  # versions that know no compaction refuse the field
        lines.append(json.dumps(plain, separators=(",", ":")))
    return ("\n".join(lines) + "\n").encode()


def decode(content: bytes, path: str, known: int = _FORMAT) -> tuple[Mapping[str, Any], list[Manifest]]:
    """Returns the fields of the first line, and the batches.

    Raises:
        CorruptRecordError: if it cannot be read, or has a newer format than ``known``.
    """
    try:
        first, *lines = content.splitlines()
        head = read_json(first)
        version = head["sparkonce_manifest"]
        if version > known:
            raise CorruptRecordError(
                f"{path} has format {version}, and this version knows {known}.", next_step="Update sparkonce."
            )
        return head, [_of_plain(read_json(line)) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(
            f"{path} cannot be read as a manifest: {error!r}.",
            next_step="Move it away; the data it lists stay as they are, but its batches are not known to be whole.",
        ) from error


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "token": lambda one: Token(one["position"], one["nonce"]),
    "files": lambda many: tuple(CommittedFile(**one) for one in many),
    "transactions": tuple,
    "compacted": lambda runs: tuple((first, last) for first, last in runs),
}


def _of_plain(plain: dict[str, Any]) -> Manifest:
    return Manifest(**{name: _FIELDS[name](value) if name in _FIELDS else value for name, value in plain.items()})
