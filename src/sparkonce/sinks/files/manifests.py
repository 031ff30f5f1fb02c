"""Manifests: one small file for each whole batch, which lists its files.

A manifest is in the folder ``_manifest`` next to the data. Its name,
``<prefix>.<query>.<position>-<nonce>.<batch>.manifest``, shows in a listing which query it belongs to. A hundred
manifests of old batches are merged into one, ``<prefix>.<query>.<first>-<last>.merged``, and a hundred of those are
merged again. The folder therefore contains about four hundred files, plus one for every 10,000 batches.

A generation, ``_manifest/compacted~<number>.<prefix>.<query>.0-0.merged``, describes the result of compacting old
batches, and overrides their manifests. A generation lists the compacted batches, all their files, and the files that
were replaced. The generation is written only if its number is free, so only one of two concurrent compactions wins. The
batches' manifests do not change. Versions that do not support compaction reject the folder because of the generation's
name and format.
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
from sparkonce.sinks.files.names import values_of
from sparkonce.sinks.files.store import Fields, FileStore

FOLDER = "_manifest"
GENERATION = "compacted~"
"""The prefix of the names of generations. Sink names cannot contain ``~``."""

MERGED = 100
"""The number of manifests that are merged into one."""

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
    """A file that belongs to a whole batch.

    Attributes:
        path: The path relative to the sink's path, with ``/``.
        rows: The number of rows.
        size_bytes: The size of the file.
        checksum: The checksum, such as ``crc32:1c291ca3``, or the ETag.
    """

    path: str
    rows: int
    size_bytes: int
    checksum: str

    @property
    def partition(self) -> dict[str, str | None]:
        """The columns and values of the file's partition, as strings; None for null."""
        return values_of(self.path.rpartition("/")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole batch.

    Attributes:
        sink: The sink's name.
        prefix: The prefix of the files' names, after ``part-``.
        query: The short form of the query's id.
        token: The token of the run that wrote the batch, or of the newest run that healed it.
        batch: Spark's batch id; for compacted batches, that of the newest one.
        files: All files of the batch.
        transactions: The fields of the handles that committed it.
        compacted: The first and last number of each contiguous range of batches that share these files; empty for a
            batch that is not compacted.
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
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestName:
    """The parsed name of a manifest, whose batches are all from `first` to `last`.

    A merged manifest has batches of several runs, and no token.
    """

    text: str
    prefix: str
    query: str
    token: Token | None
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ManifestName | None:
        """Parses a file's name. Returns None if it is not a manifest's."""
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
        """The maximum number of batches in the manifest."""
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
    """Writes a batch's manifest. Repeated calls write the same content."""
    token = f"{manifest.token.position}-{manifest.token.nonce}"
    name = f"{manifest.prefix}.{manifest.query}.{token}.{manifest.batch}.manifest"
    store.put(f"{FOLDER}/{name}", encode([manifest]))


def list_manifests(store: FileStore) -> list[ManifestName]:
    """Lists the names of all manifests."""
    return [name for text in store.list_names(FOLDER) if (name := ManifestName.parse(text)) is not None]


def read(store: FileStore, name: ManifestName) -> list[Manifest]:
    """Returns the batches in a manifest; none if the manifest has just been merged into another one.

    Raises:
        CorruptRecordError: If the manifest cannot be read.
    """
    content = store.get(f"{FOLDER}/{name.text}")
    return [] if content is None else decode(content, f"{store.location}/{FOLDER}/{name.text}")[1]


def merge(store: FileStore, prefix: str, query: str, before: int) -> None:
    """Merges manifests of a query's batches before this one by the hundred, then merges the merged manifests.

    Two drivers may merge at the same time: they write the same content, and delete a manifest only after the merged
    manifest was written.
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
    # Only transactions of the log's newest batches are ever looked up, and the manifests of these batches are not
    # merged.
    plain = [batches[number] for number in sorted(batches)]
    store.put(f"{FOLDER}/{text}", encode(plain, transactions=False))
    store.delete([f"{FOLDER}/{name.text}" for name in group])


def encode(
    batches: Iterable[Manifest], *, transactions: bool = True, head: Mapping[str, Any] = MappingProxyType({})
) -> bytes:
    """Returns a line with the format and any additional fields, followed by a line for each batch."""
    lines = [json.dumps({"sparkonce_manifest": _FORMAT, **head}, separators=(",", ":") if head else None)]
    for batch in batches:
        plain = asdict(batch)
        if not transactions:
            plain["transactions"] = []
        if not batch.compacted:
            del plain["compacted"]  # Versions without compaction reject this field.
        lines.append(json.dumps(plain, separators=(",", ":")))
    return ("\n".join(lines) + "\n").encode()


def decode(content: bytes, path: str, known: int = _FORMAT) -> tuple[Mapping[str, Any], list[Manifest]]:
    """Returns the fields of the first line, and the batches.

    Raises:
        CorruptRecordError: If the content cannot be read, or has a newer format than ``known``.
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
            next_step=(
                "Move it away; the data that it lists is not affected, but it is unknown whether its batches are whole."
            ),
        ) from error


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "token": lambda one: Token(one["position"], one["nonce"]),
    "files": lambda many: tuple(CommittedFile(**one) for one in many),
    "transactions": tuple,
    "compacted": lambda runs: tuple((first, last) for first, last in runs),
}


def _of_plain(plain: dict[str, Any]) -> Manifest:
    return Manifest(**{name: _FIELDS[name](value) if name in _FIELDS else value for name, value in plain.items()})


FORMAT = 2

_GENERATION_NAME = re.compile(
    GENERATION + r"(?P<number>[1-9][0-9]{0,18})\.(?P<prefix>.+)\.(?P<query>[0-9a-f]{12})\.0-0\.merged", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The cumulative result of all compactions of one query's files so far.

    Attributes:
        prefix: See `Manifest`.
        query: See `Manifest`.
        number: The generation's number, from 1; 0 is the state before the first compaction.
        nonce: Random, generated by the compaction that wrote the generation.
        whole: The compacted batches, and their files; None if there are none.
        replaced: Replaced files that may still exist: when they were replaced, in milliseconds since 1970, and their
            paths.
    """

    prefix: str
    query: str
    number: int = 0
    nonce: str = ""
    whole: Manifest | None = None
    replaced: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def path(self) -> str:
        """The path of the generation's file, relative to the sink's path."""
        return f"{FOLDER}/{GENERATION}{self.number}.{self.prefix}.{self.query}.0-0.merged"

    @property
    def named(self) -> frozenset[str]:
        """The paths of all files that the generation lists, both current and replaced ones."""
        files = self.whole.files if self.whole is not None else ()
        return frozenset((*(one.path for one in files), *(path for _, some in self.replaced for path in some)))

    def covers(self, batch: int) -> bool:
        """Returns True if the batch is compacted."""
        return self.whole is not None and any(first <= batch <= last for first, last in self.whole.compacted)

    def encode(self) -> bytes:
        head = {"sparkonce_manifest": FORMAT, "nonce": self.nonce, "replaced": self.replaced}
        return encode((self.whole,) if self.whole is not None else (), head=head)


def list_generations(names: Iterable[str]) -> dict[tuple[str, str], list[int]]:
    """Returns the generation numbers for each prefix and query, newest last."""
    found: dict[tuple[str, str], list[int]] = {}
    for name in names:
        if match := _GENERATION_NAME.fullmatch(name):
            found.setdefault((match["prefix"], match["query"]), []).append(int(match["number"]))
    return {key: sorted(numbers) for key, numbers in found.items()}


def read_generation(store: FileStore, prefix: str, query: str, number: int) -> Generation | None:
    """Returns a generation; None if a newer one has just replaced it.

    Raises:
        CorruptRecordError: If the generation cannot be read.
    """
    path = Generation(prefix=prefix, query=query, number=number).path
    content = store.get(path)
    if content is None:
        return None
    head, batches = decode(content, f"{store.location}/{path}", FORMAT)
    return Generation(
        prefix=prefix,
        query=query,
        number=number,
        nonce=str(head.get("nonce", "")),
        whole=batches[0] if batches else None,
        replaced=tuple((int(at), tuple(paths)) for at, paths in head.get("replaced", ())),
    )


def read_everything(store: FileStore) -> tuple[list[Manifest], dict[tuple[str, str], Generation]]:
    """Returns the manifest of every batch, by query and number, and the newest generation of each query."""
    # List again until nothing is new, since manifests may be merged and generations replaced during a listing.
    found: dict[tuple[str, str, int], Manifest] = {}
    newest: dict[tuple[str, str], Generation] = {}
    seen: set[str] = set()
    while fresh := [text for text in store.list_names(FOLDER) if text not in seen]:
        seen.update(fresh)
        for name in (name for text in fresh if (name := ManifestName.parse(text)) is not None):
            batches = read(store, name)
            found.update({(one.prefix, one.query, one.batch): one for one in batches})
        for (prefix, query), numbers in list_generations(fresh).items():
            generation = read_generation(store, prefix, query, numbers[-1])
            known = newest.get((prefix, query))
            if generation is not None and (known is None or known.number < generation.number):
                newest[prefix, query] = generation
    return [found[key] for key in sorted(found)], newest


def read_all(store: FileStore) -> list[Manifest]:
    """Returns the manifests that readers should read, by query and number. Compacted batches share one manifest."""
    batches, newest = read_everything(store)
    single = [
        one for one in batches if (known := newest.get((one.prefix, one.query))) is None or not known.covers(one.batch)
    ]
    whole = [one.whole for one in newest.values() if one.whole is not None]
    return sorted((*single, *whole), key=lambda one: (one.prefix, one.query, one.batch))
