"""For readers that must not see a part of a batch: the files of whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkonce.sinks.files import manifests
from sparkonce.sinks.files.manifests import Manifest
from sparkonce.sinks.files.places import open_store


def read_manifests(path: str | Path, *, store_options: Mapping[str, Any] | None = None) -> list[Manifest]:
    """What is known of every whole batch that was written to a path, by query and batch.

    Args:
        path: The `FilesSink`'s.
        store_options: The `FilesSink`'s.

    Raises:
        UnknownOutcomeError: if the place cannot be asked now.
        CorruptRecordError: if a manifest cannot be read.
    """
    store = open_store(str(path), dict(store_options or {}))
    try:
        return manifests.read_all(store)
    finally:
        store.close()


def whole_batches(path: str | Path, *, store_options: Mapping[str, Any] | None = None) -> list[str]:
    """The full paths of the files of whole batches, for example for ``duckdb.read_parquet`` or ``spark.read.parquet``.

    A file that is published but not in the list belongs to a batch whose other files are being published.

    Args:
        path: The `FilesSink`'s.
        store_options: The `FilesSink`'s.

    Raises:
        UnknownOutcomeError: if the place cannot be asked now.
        CorruptRecordError: if a manifest cannot be read.
    """
    store = open_store(str(path), dict(store_options or {}))
    try:
        return [f"{store.location}/{file.path}" for one in manifests.read_all(store) for file in one.files]
    finally:
        store.close()
