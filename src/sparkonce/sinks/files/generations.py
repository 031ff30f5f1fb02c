"""Generations: one small file names all that the compactions of a query's old batches have made, until the next one.

A generation is ``_manifest/compacted~<number>.<prefix>.<query>.0-0.merged``. It names the compacted batches, all their
files, and what these have replaced. It is put only if there is none of its number, so one of two compactions wins. The
manifests of the batches stay as they are. The end of its name and a format of its own make readers of versions that
know no compaction refuse the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.manifests import FOLDER, GENERATION, Manifest
from sparkonce.sinks.files.store import FileStore

FORMAT = 2

_NAME = re.compile(
    GENERATION + r"(?P<number>[1-9][0-9]{0,18})\.(?P<prefix>.+)\.(?P<query>[0-9a-f]{12})\.0-0\.merged", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The sum of all compactions of one query's files up to this one.

    Attributes:
        prefix: See `Manifest`.
        query: See `Manifest`.
        number: Its number, from 1. 0 stands for the state before the first one.
        nonce: Drawn by the compaction that wrote it.
        whole: The compacted batches, and their files; None if there are none.
        replaced: Files that are not in it any more, and may be there still: when they were replaced, in milliseconds
            since 1970, and their paths.
    """

    prefix: str
    query: str
    number: int = 0
    nonce: str = ""
    whole: Manifest | None = None
    replaced: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def path(self) -> str:
        """The path of its file below the sink's."""
        return f"{FOLDER}/{GENERATION}{self.number}.{self.prefix}.{self.query}.0-0.merged"

    @property
    def named(self) -> frozenset[str]:
        """All paths that it names, of files that belong to readers or did so."""
        files = self.whole.files if self.whole is not None else ()
        return frozenset((*(one.path for one in files), *(path for _, some in self.replaced for path in some)))

    def covers(self, batch: int) -> bool:
        """Returns whether the batch is compacted."""
        return self.whole is not None and any(first <= batch <= last for first, last in self.whole.compacted)

    def encode(self) -> bytes:
        """Returns the content of its file."""
        head = {"sparkonce_manifest": FORMAT, "nonce": self.nonce, "replaced": self.replaced}
        return manifests.encode((self.whole,) if self.whole is not None else (), head=head)


def list_generations(names: Iterable[str]) -> dict[tuple[str, str], list[int]]:
    """Returns the numbers of each prefix's and query's generations, the newest last."""
    found: dict[tuple[str, str], list[int]] = {}
    for name in names:
        if match := _NAME.fullmatch(name):
            found.setdefault((match["prefix"], match["query"]), []).append(int(match["number"]))
    return {key: sorted(numbers) for key, numbers in found.items()}


def read(store: FileStore, prefix: str, query: str, number: int) -> Generation | None:
    """Returns a generation; None if a newer one has replaced it meanwhile.

    Raises:
        CorruptRecordError: if it cannot be read.
    """
    path = Generation(prefix=prefix, query=query, number=number).path
    content = store.get(path)
    if content is None:
        return None
    head, batches = manifests.decode(content, f"{store.location}/{path}", FORMAT)
    return Generation(
        prefix=prefix,
        query=query,
        number=number,
        nonce=str(head.get("nonce", "")),
        whole=batches[0] if batches else None,
        replaced=tuple((int(at), tuple(paths)) for at, paths in head.get("replaced", ())),
    )


def read_everything(store: FileStore) -> tuple[list[Manifest], dict[tuple[str, str], Generation]]:
    """Returns every batch's own manifest once, compacted or not, by query and number; and the newest generations."""
    # Listed again until nothing is new: a manifest may be merged into another one meanwhile, a generation replaced.
    found: dict[tuple[str, str, int], Manifest] = {}
    newest: dict[tuple[str, str], Generation] = {}
    seen: set[str] = set()
    while fresh := [text for text in store.list_names(FOLDER) if text not in seen]:
        seen.update(fresh)
        for name in (name for text in fresh if (name := manifests.ManifestName.parse(text)) is not None):
            batches = manifests.read(store, name)
            found.update({(one.prefix, one.query, one.batch): one for one in batches})
        for (prefix, query), numbers in list_generations(fresh).items():
            generation = read(store, prefix, query, numbers[-1])
            known = newest.get((prefix, query))
            if generation is not None and (known is None or known.number < generation.number):
                newest[prefix, query] = generation
    return [found[key] for key in sorted(found)], newest


def read_all(store: FileStore) -> list[Manifest]:
    """Returns what readers read: every whole batch once, by query and number, compacted batches as one."""
    batches, newest = read_everything(store)
    single = [
        one for one in batches if (known := newest.get((one.prefix, one.query))) is None or not known.covers(one.batch)
    ]
    whole = [one.whole for one in newest.values() if one.whole is not None]
    return sorted((*single, *whole), key=lambda one: (one.prefix, one.query, one.batch))
