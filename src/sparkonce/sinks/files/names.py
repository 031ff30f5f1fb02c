"""Names of files: the path at which a transaction's file is published, and what is hidden from readers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from sparkonce.errors import PrepareError
from sparkonce.protocol.ownership import TransactionName

HIDDEN = ".sparkonce"
"""The folder, or prefix of keys, that no reader looks into."""

ID = f"{HIDDEN}/id"
"""The file that tells a folder from another one at its path."""

TEMPORARY = re.compile(r"(put|id|probe)-[0-9a-f]{12}")
"""Names of what a start tries out, and of small files that are not whole yet. A kill may leave one behind."""

STALE_S = 86_400.0
"""The age at which a start deletes a temporary file: nobody can still be at work on it."""

_SHORTEN = "Shorten the values of the columns in partition_by, or do not partition by them."
_FILE = re.compile(r"part-(?P<name>.+)-[0-9]+((\.[a-z0-9]+){1,2})", re.DOTALL)


def file_path(folder: str, name: TransactionName, number: int, extension: str) -> str:
    """Returns the path at which a transaction's file is published: ``<folder>/part-<name>-<number><extension>``.

    Args:
        folder: The partition, such as ``a=1/b=x``; empty if there is none.
        name: The transaction's name.
        number: The file's number within the transaction, from 0: no two files of a transaction have the same.
        extension: The extension with its dot, such as ``.parquet`` or ``.csv.gz``.
    """
    base = f"part-{name}-{number}{extension}"
    return f"{folder}/{base}" if folder else base


def name_in(path: str) -> TransactionName | None:
    """Returns the transaction that a file of `file_path` belongs to, or None if the file is not one of ours."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return None if match is None else TransactionName.parse(match["name"])


def extension_in(path: str) -> str:
    """Returns the extension of a file of `file_path`, such as ``.csv.gz``; empty if the file is not one of ours."""
    match = _FILE.fullmatch(path.rpartition("/")[2])
    return "" if match is None else match[2]


def check_lengths(paths: Iterable[str], longest_name: int, longest_path: int) -> None:
    """Refuses a file that could not be published when the batch is decided.

    Args:
        paths: All paths that the file is to have, absolute.
        longest_name: The bytes that the file system allows for one name.
        longest_path: The bytes that it allows for a whole path.

    Raises:
        PrepareError: naming the folder or file.
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
