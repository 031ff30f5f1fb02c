"""File names: published names, names that are hidden from readers, and partition folders.

Partition folders are named as in Hive and Spark: ``a=1/b=x``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import TransactionName
from sparkonce.sinks._shared.arrow import plain_text

HIDDEN = ".sparkonce"
"""The folder, or key prefix, that readers ignore."""

ID = f"{HIDDEN}/id"
"""The file whose content identifies a folder, in case another folder appears at its path."""

_SHORTEN = "Shorten the values of the columns in partition_by, or do not partition by them."
_FILE = re.compile(r"part-(?P<name>.+)-[0-9]+((\.[a-z0-9]+){1,2})", re.DOTALL)


def file_path(folder: str, name: TransactionName, number: int, extension: str) -> str:
    """Returns the path at which a transaction's file is published: ``<folder>/part-<name>-<number><extension>``.

    The folder is the partition, such as ``a=1/b=x``, or empty. Files of a transaction are numbered from 0. The
    extension includes its dot, as in ``.csv.gz``.
    """
    base = f"part-{name}-{number}{extension}"
    return f"{folder}/{base}" if folder else base


def name_in(path: str) -> TransactionName | None:
    """Returns the transaction of a file with a path from `file_path`; None if sparkonce did not write the file."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return None if match is None else TransactionName.parse(match["name"])


def extension_in(path: str) -> str:
    """Returns the extension of a path from `file_path`, such as ``.csv.gz``; empty for a foreign file."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return "" if match is None else match[2]


def check_lengths(paths: Iterable[str], longest_name: int, longest_path: int) -> None:
    """Rejects a file that could not be published once the batch is decided.

    Args:
        paths: All absolute paths that the file will have.
        longest_name: The maximum length of a name, in bytes.
        longest_path: The maximum length of a whole path, in bytes.

    Raises:
        PrepareError: If a name or path is too long. The message names the folder or file.
    """
    for path in paths:
        for name in path.split("/"):
            if (size := len(os.fsencode(name))) > longest_name:
                raise PrepareError(
                    f"A folder or file would be called {name[:60]!r}…, which has {size} bytes, and the file system "
                    f"allows {longest_name}.",
                    next_step=_SHORTEN,
                )
        if (size := len(os.fsencode(path))) > longest_path:
            raise PrepareError(
                f"The path of a file would be {path[:60]!r}…, which has {size} bytes, and the file system allows "
                f"{longest_path}.",
                next_step=_SHORTEN,
            )


NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder of null and, as in Spark, of empty strings: a folder's name cannot be empty."""

_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that Spark's ``ExternalCatalogUtils`` and Hive escape, and NUL, which a folder's name cannot contain.
"""


def escape(text: str) -> str:
    """Escapes a string for a folder's name: ``a/b`` becomes ``a%2Fb``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def folder_of(names: Sequence[str], values: Sequence[str | None]) -> str:
    """Returns the relative path of the folder of one partition, whose values are strings or None for null."""
    named = zip(names, values, strict=True)
    return "/".join(f"{escape(name)}={escape(value) if value else NULL}" for name, value in named)


def values_of(folder: str) -> dict[str, str | None]:
    """Returns the columns and values in a folder's path, as strings; None for null."""
    parts = (part.partition("=") for part in folder.split("/") if "=" in part)
    return {unquote(name): None if value == NULL else unquote(value) for name, _, value in parts}


def split(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yields each partition's folder and its rows, in order, without the partition columns."""
    # Copy the rows, so that one partition does not keep the other partitions' memory in use.
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        column = rows.column(name).combine_chunks()
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        # Renumber the codes without gaps after each column, so that many columns do not overflow.
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
