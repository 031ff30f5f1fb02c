"""Manifests: one small file for each whole batch, which says what belongs to it.

They are in the folder ``_manifest`` beside the data and are called
``<prefix>.<query>.<position>-<nonce>.<batch>.manifest``, so that a listing alone says whose they are. Once a hundred
batches lie well in the past, their manifests are merged into one, ``<prefix>.<query>.<first>-<last>.merged``, and a
hundred of those into one again, so the folder holds some four hundred files and one more for every 10,000 batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkonce.errors import CorruptRecordError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.plain import read_json
from sparkonce.sinks.files.partitions import values_of
from sparkonce.sinks.files.store import Fields, FileStore

FOLDER = "_manifest"
MERGED = 100
"""How many manifests become one."""

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
        path: Relative to the sink's path, with ``/``.
        rows: How many it holds.
        size_bytes: Its size.
        checksum: Such as ``crc32:1c291ca3``, or an ETag.
    """

    path: str
    rows: int
    size_bytes: int
    checksum: str

    @property
    def partition(self) -> dict[str, str | None]:
        """Its partition's columns and values as text, None for null."""
        return values_of(self.path.rpartition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole batch.

    Attributes:
        sink: The sink's name.
        prefix: What the names of its files begin with, after ``part-``.
        query: The short form of the query's id.
        token: Of the run that wrote it; where runs have healed it, of the newest of them.
        batch: Spark's batch id.
        files: All its files.
        transactions: The fields of the handles that committed it.
    """

    sink: str
    prefix: str
    query: str
    token: Token
    batch: int
    files: tuple[CommittedFile, ...]
    transactions: tuple[Mapping[str, str | int], ...] = field(default=(), repr=False)

    @property
    def rows(self) -> int:
        """Of all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestName:
    """What a manifest's name says. A merged one has batches of several runs, and no token.

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
        """The name as a value, or None if it is not one."""
        match = _NAME.fullmatch(text)
        if match is None:
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
        """How many batches may be in it."""
        return self.last - self.first + 1


def of_batch(
    sink: str, prefix: str, query: str, token: Token, batch: int, handles: Mapping[Handle, Sequence[Fields]]
) -> Manifest:
    """The manifest of a batch whose handles are committed."""
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
    """Puts a batch's manifest: again, it is the same."""
    token = f"{manifest.token.position}-{manifest.token.nonce}"
    name = f"{manifest.prefix}.{manifest.query}.{token}.{manifest.batch}.manifest"
    store.put(f"{FOLDER}/{name}", _encode([manifest]))


def list_manifests(store: FileStore) -> list[ManifestName]:
    """All manifests there are, by name."""
    return [name for text in store.list_names(FOLDER) if (name := ManifestName.parse(text)) is not None]


def read(store: FileStore, name: ManifestName) -> list[Manifest]:
    """The batches in a manifest; none if it was merged into another one meanwhile.

    Raises:
        CorruptRecordError: if it cannot be read.
    """
    content = store.get(f"{FOLDER}/{name.text}")
    return [] if content is None else _decode(content, f"{store.location}/{FOLDER}/{name.text}")


def read_all(store: FileStore) -> list[Manifest]:
    """Every whole batch once, by query and number.

    A manifest that was merged while this read is looked for again.
    """
    found: dict[tuple[str, str, int], Manifest] = {}
    seen: set[str] = set()
    while fresh := [name for name in list_manifests(store) if name.text not in seen]:
        for name in fresh:
            batches = read(store, name)
            seen.add(name.text)
            found.update({(one.prefix, one.query, one.batch): one for one in batches})
    return [found[key] for key in sorted(found)]


def merge(store: FileStore, prefix: str, query: str, before: int) -> None:
    """Merges full hundreds of a query's batches that end before this one; then hundreds of hundreds.

    Two drivers may do so at once: they write the same, and a manifest is deleted only when the merged one is there.
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
    # What the handles said is for the log's newest batches, which are not merged.
    plain = [batches[number] for number in sorted(batches)]
    store.put(f"{FOLDER}/{text}", _encode(plain, transactions=False))
    store.delete([f"{FOLDER}/{name.text}" for name in group])


def _encode(batches: Iterable[Manifest], *, transactions: bool = True) -> bytes:
    """A line for each batch, after one that says what this is."""
    lines = [json.dumps({"sparkonce_manifest": _FORMAT})]
    for batch in batches:
        plain = asdict(batch)
        if not transactions:
            plain["transactions"] = []
        lines.append(json.dumps(plain, separators=(",", ":")))
    return ("\n".join(lines) + "\n").encode()


def _decode(content: bytes, path: str) -> list[Manifest]:
    try:
        first, *lines = content.splitlines()
        version = read_json(first)["sparkonce_manifest"]
        if version > _FORMAT:
            raise CorruptRecordError(
                f"{path} has format {version}, and this version knows {_FORMAT}.", next_step="Update sparkonce."
            )
        return [_of_plain(read_json(line)) for line in lines]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(
            f"{path} cannot be read as a manifest: {error!r}.",
            next_step="Move it away; the data it lists stay as they are, but its batches are not known to be whole.",
        ) from error


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "token": lambda one: Token(one["position"], one["nonce"]),
    "files": lambda many: tuple(CommittedFile(**one) for one in many),
    "transactions": tuple,
}


def _of_plain(plain: dict[str, Any]) -> Manifest:
    return Manifest(**{name: _FIELDS[name](value) if name in _FIELDS else value for name, value in plain.items()})
