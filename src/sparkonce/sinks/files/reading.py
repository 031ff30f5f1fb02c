"""The files of whole batches, for readers that must not read a part of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparkonce.arguments import mapping
from sparkonce.errors import FilesGoneError
from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.manifests import Manifest
from sparkonce.sinks.files.places import as_text, open_store

_THREADS = 8


def read_manifests(path: str | Path, *, store_options: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Returns the manifests of all whole batches that were written to a path, by query and batch.

    Args:
        path: The path of the `FilesSink`.
        store_options: The options of the `FilesSink`.

    Raises:
        UnknownOutcomeError: if the store cannot be asked now.
        CorruptRecordError: if a manifest cannot be read.
    """
    store = open_store(as_text(path), mapping("store_options", store_options or {}, example="what FilesSink is given"))
    try:
        return manifests.read_all(store)
    finally:
        store.close()


def whole_batches(
    path: str | Path, *, store_options: Mapping[str, Any] | None = None, missing_ok: bool = False
) -> list[str]:
    """Lists the full paths of whole batches' files, for example for ``duckdb.read_parquet`` or ``spark.read.parquet``.

    A published file that is not in the list belongs to a batch whose other files are being published.

    Args:
        path: The path of the `FilesSink`.
        store_options: The options of the `FilesSink`.
        missing_ok: Whether to leave out files that are gone, for example because somebody deletes old ones.

    Raises:
        FilesGoneError: if files are gone, and ``missing_ok`` does not allow it.
        UnknownOutcomeError: if the store cannot be asked now.
        CorruptRecordError: if a manifest cannot be read.
    """
    store = open_store(as_text(path), mapping("store_options", store_options or {}, example="what FilesSink is given"))
    try:
        named = [file.path for one in manifests.read_all(store) for file in one.files]
        folders = sorted({path.rpartition("/")[0] for path in named})
        with ThreadPoolExecutor(_THREADS) as pool:
            there = dict(
                zip(folders, pool.map(lambda folder: frozenset(store.list_names(folder)), folders), strict=True)
            )
        found = [path for path in named if path.rpartition("/")[2] in there[path.rpartition("/")[0]]]
        if len(found) < len(named) and not missing_ok:
            gone = sorted(set(named) - set(found))
            raise FilesGoneError(
                f"{len(gone)} of the {len(named)} files of whole batches in {store.location} are gone; the first is "
                f"{gone[0]}.",
                next_step="If they were deleted on purpose, give missing_ok=True for those that are left.",
                gone=gone,
            )
        return [f"{store.location}/{path}" for path in found]
    finally:
        store.close()
