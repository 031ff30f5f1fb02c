"""Folders of partitions as Hive and Spark name them: ``a=1/b=x``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.sinks._shared.arrow_text import plain_text

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder of null, and as in Spark of empty strings: a folder's name cannot be empty."""

_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that Spark's ``ExternalCatalogUtils`` and Hive escape, and NUL, which no folder's name can have."""


def escape(text: str) -> str:
    """Returns a text as a part of a folder's name: ``a/b`` becomes ``a%2Fb``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def folder_of(names: Sequence[str], values: Sequence[str | None]) -> str:
    """Returns the folder of one partition, relative.

    Args:
        names: The names of the columns.
        values: Their values as text; None for null.
    """
    named = zip(names, values, strict=True)
    return "/".join(f"{escape(name)}={escape(value) if value else NULL}" for name, value in named)


def values_of(folder: str) -> dict[str, str | None]:
    """Returns the columns and values that a folder's path names, as text; None for null."""
    parts = (part.partition("=") for part in folder.split("/") if "=" in part)
    return {unquote(name): None if value == NULL else unquote(value) for name, _, value in parts}


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yields each partition's folder and its rows, in their order, without the columns that name it.

    Raises:
        PrepareError: naming the column with a string that is not UTF-8.
    """
    # The rows are copied, so that one partition does not keep the memory of the others.
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        column = rows.column(name).combine_chunks()
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        # Made dense again after each column, so that many columns do not overflow.
        codes = np.unique(codes, return_inverse=True)[1]
    counts = np.bincount(codes)
    order = np.argsort(codes.astype(np.uint16) if len(counts) <= 1 << 16 else codes, kind="stable")
    ends = np.cumsum(counts)
    starts = ends - counts
    firsts = pa.array(order[starts])
    texts = [plain_text(rows.column(name).take(firsts).combine_chunks(), name).to_pylist() for name in names]
    rest = rows.drop_columns(list(names))
    for first, start, end in zip(zip(*texts, strict=True), starts, ends, strict=True):
        yield folder_of(names, first), rest if len(counts) == 1 else rest.take(pa.array(order[start:end]))
