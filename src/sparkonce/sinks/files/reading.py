"""Lists the files of whole batches, for readers that must never see part of a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import FilesGoneError
from sparkonce.sinks.files.locations import as_text, open_store
from sparkonce.sinks.files.manifests import Manifest, read_all
from sparkonce.sinks.files.store import FileStore

_THREADS = 8


def read_manifests(path: str | Path, *, store_options: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Returns the manifests of all whole batches that were written to a path, by query and batch.

    Args:
        path: The path of the `FilesSink`.
        store_options: The options of the `FilesSink`.

    Raises:
        UnknownOutcomeError: If the store is currently unavailable.
        CorruptRecordError: If a manifest cannot be read.
    """
    store = open_store(as_text(path), mapping("store_options", store_options or {}, example="what FilesSink is given"))
    try:
        return read_all(store)
    finally:
        store.close()


def whole_batches(
    path: str | Path, *, store_options: Mapping[str, Any] | None = None, missing_ok: bool = False
) -> list[str]:
    """Lists the full paths of whole batches' files, for example for ``duckdb.read_parquet`` or ``spark.read.parquet``.

    A published file that is not in the list belongs to a batch that is still being published.

    Args:
        path: The path of the `FilesSink`.
        store_options: The options of the `FilesSink`.
        missing_ok: True to leave out missing files, for example because another program deletes old ones.

    Raises:
        FilesGoneError: If files are missing and ``missing_ok`` is False.
        UnknownOutcomeError: If the store is currently unavailable.
        CorruptRecordError: If a manifest cannot be read.
    """
    store = open_store(as_text(path), mapping("store_options", store_options or {}, example="what FilesSink is given"))
    try:
        named, before = _named(store), None
        there = present(store, named)
        # A compaction may have replaced the missing files since they were listed.
        while len(there) < len(named) and named != before:
            named, before = _named(store), named
            there = present(store, named)
        if not missing_ok:
            refuse_gone(store, named, there)
        return [f"{store.location}/{path}" for path in named if path in there]
    finally:
        store.close()


def _named(store: FileStore) -> list[str]:
    return [file.path for one in read_all(store) for file in one.files]


def present(store: FileStore, paths: Iterable[str]) -> frozenset[str]:
    """Returns the paths of those files that exist. Lists each folder once."""
    wanted = frozenset(paths)
    return frozenset(path for path in list_folders(store, wanted) if path in wanted)


def list_folders(store: FileStore, paths: Iterable[str]) -> list[str]:
    """Returns the paths of all files in these files' folders."""
    folders = sorted({path.rpartition("/")[0] for path in paths})
    with ThreadPoolExecutor(_THREADS) as pool:
        listed = list(pool.map(store.list_names, folders))
    return [f"{folder}/{name}".lstrip("/") for folder, names in zip(folders, listed, strict=True) for name in names]


def refuse_gone(store: FileStore, named: Collection[str], there: Collection[str]) -> None:
    """Raises FilesGoneError with the names of missing files, if there are any."""
    if gone := sorted(set(named) - set(there)):
        raise FilesGoneError(
            f"{len(gone)} of the {len(named)} files of whole batches in {store.location} are gone; the first is "
            f"{gone[0]}.",
            next_step="If they were deleted on purpose, set missing_ok=True to read those that are left.",
            gone=gone,
        )
