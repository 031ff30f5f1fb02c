"""Tries at a start what publishing does in an HDFS folder, before anything is written there."""

from __future__ import annotations

import secrets
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from sparkonce.sinks.files.names import HIDDEN, ID, STALE_S, TEMPORARY
from sparkonce.storage.hdfs import create

if TYPE_CHECKING:
    from hdfs_native import Client, WriteOptions


def check(client: Client, root: str, held: str, options: WriteOptions) -> str:
    """Makes the folder if it is missing, renames a file there, and returns the folder's id.

    Args:
        client: The client.
        root: The sink's folder, without a slash at its end.
        held: The folder of staged files within it.
        options: The options of a new file.
    """
    client.mkdirs(held, 0o755, True)
    identity = _identity(client, f"{root}/{ID}", options)
    _delete_stale(client, held, f"{root}/{HIDDEN}")
    probe, second = f"{held}/probe-{secrets.token_hex(6)}", f"{root}/.probe-{secrets.token_hex(6)}"
    create(client, probe, options).close()
    client.rename(probe, second, False)
    client.delete(second)
    return identity


def _identity(client: Client, path: str, options: WriteOptions) -> str:
    """Returns the id that tells this folder from another at the same path. The first start makes it."""
    with suppress(FileNotFoundError):
        return str(bytes(client.read(path).read()), "ascii").strip()
    temporary = f"{path}-{secrets.token_hex(6)}"
    write_durably(client, temporary, uuid.uuid4().hex.encode(), options)
    try:
        client.rename(temporary, path, False)
    except FileExistsError:
        client.delete(temporary)
    return str(bytes(client.read(path).read()), "ascii")


def _delete_stale(client: Client, *folders: str) -> None:
    with suppress(Exception):  # it may be another user's, and a start can do without
        for folder in folders:
            for one in client.list_status(folder):
                age_s = time.time() - one.modification_time / 1000
                if TEMPORARY.fullmatch(one.path.rpartition("/")[2]) and age_s > STALE_S:
                    client.delete(one.path)


def write_durably(client: Client, path: str, content: bytes, options: WriteOptions) -> None:
    """Writes a new file whose content is on the data nodes' disks."""
    file = create(client, path, options)
    file.write(content)
    file.hsync()
    file.close()
