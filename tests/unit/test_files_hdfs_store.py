from __future__ import annotations

from typing import Any

import pytest

from sparkonce.errors import UnknownOutcomeError

pytest.importorskip("hdfs_native")

from sparkonce.sinks.files.hdfs import HdfsStore

SEALED = {"path": "p=1/f.parquet", "held": "f.parquet.held", "size": 3, "checksum": "crc32:352441c2"}


class EmptyCluster:
    def get_file_info(self, path: str) -> Any:
        raise FileNotFoundError(path)


def store_with(client: object) -> HdfsStore:
    store = HdfsStore("hdfs://127.0.0.1:1/out")
    store._client = client  # type: ignore[assignment]
    return store


def test_where_the_folder_itself_is_missing_no_file_is_gone() -> None:
    with pytest.raises(UnknownOutcomeError, match="/out/.sparkonce/held"):
        store_with(EmptyCluster()).look([SEALED])
