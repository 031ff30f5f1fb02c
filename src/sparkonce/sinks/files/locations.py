"""Opens the store of a path or URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from sparkonce.errors import ConfigurationError
from sparkonce.needs import WorkerNeeds, addresses_of
from sparkonce.sinks.files.names import ID
from sparkonce.sinks.files.store import FileStore

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):.*", re.DOTALL)
_KNOWN = "Use a local path, a file: URL, hdfs://host:port/path or s3://bucket/prefix."


def as_text(path: str | os.PathLike[str]) -> str:
    """Returns a path or URL as a string; raises ConfigurationError if it is neither."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"path={path!r} is not a text.", next_step=_KNOWN, setting="path")
    return str(path)


def scheme_of(path: str) -> str:
    """Returns the scheme of a path: ``file``, ``hdfs`` or ``s3``.

    Raises:
        ConfigurationError: If no store supports the path.
    """
    match = _SCHEME.fullmatch(path)
    scheme = "file" if match is None else match["scheme"].lower()
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    if not path or scheme not in ("file", "hdfs", "s3"):
        raise ConfigurationError(f"path={path!r} names no location for files.", next_step=_KNOWN, setting="path")
    try:
        parts = urlsplit(path)
    except ValueError as error:
        raise ConfigurationError(f"path={path!r} is not a URL: {error}.", next_step=_KNOWN, setting="path") from None
    # Old s3n: URLs contained keys. The message does not show this part, since it may be a secret.
    if scheme == "s3" and "@" in parts.netloc:
        raise ConfigurationError(
            "path holds credentials before its bucket's name.",
            next_step="Take them out: boto3's own chain finds them, or give them in store_options.",
            setting="path",
        )
    if match is not None and scheme != "s3" and (parts.query or parts.fragment):
        raise ConfigurationError(
            f"path={path!r} is a URL with '?' or '#', behind which nothing belongs to the folder's name.",
            next_step="Write %3F for '?' and %23 for '#'.",
            setting="path",
        )
    if match is not None and scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigurationError(f"path={path!r} names a host.", next_step="Write file:///path.", setting="path")
    if scheme in ("hdfs", "s3") and not parts.netloc:
        raise ConfigurationError(f"path={path!r} names no {'bucket' if scheme == 's3' else 'host'}.", next_step=_KNOWN)
    return scheme


def open_store(path: str, options: Mapping[str, Any]) -> FileStore:
    """Opens the store for a sink's path and store options.

    Raises:
        ConfigurationError: If a setting is wrong, or a package is not installed. The message names it.
    """
    scheme = scheme_of(path)
    try:
        if scheme == "hdfs":
            from sparkonce.sinks.files.hdfs import HdfsStore

            return HdfsStore(path, **options)
        if scheme == "s3":
            from sparkonce.sinks.files.s3.store import S3Store

            return S3Store(path, options)
        from sparkonce.sinks.files.local import LocalStore

        if options:
            raise TypeError(f"A local folder has no options, and {', '.join(sorted(options))} is given")
        return LocalStore(local_folder(path))
    except TypeError as error:
        raise ConfigurationError(
            f"store_options={sorted(options)!r} do not fit path={path!r}: {error}.",
            next_step="Correct or remove the option it names.",
            setting="store_options",
        ) from error


def local_folder(path: str) -> Path:
    """Returns the absolute folder of a local path or ``file:`` URL."""
    if _SCHEME.fullmatch(path):
        path = unquote(urlsplit(path).path)
    return Path(path).expanduser().absolute()


def check_absolute(path: str) -> None:
    """Rejects a relative path with a ConfigurationError, since it would refer to a different folder in each process."""
    if scheme_of(path) != "file":
        return
    named = Path(unquote(urlsplit(path).path) if _SCHEME.fullmatch(path) else path).expanduser()
    if not named.is_absolute():
        raise ConfigurationError(
            f"path={path!r} is relative to this process's working folder, and executors have different ones.",
            next_step=f"Give the absolute path: {str(local_folder(path))!r}.",
            setting="path",
        )


def overlaps(path: str, other: str) -> bool:
    """Returns True if one of two locations, in any form that Spark accepts, is the other or lies inside it."""
    one, two = _parts(path), _parts(other)
    return one[: len(two)] == two[: len(one)]


def _parts(path: str) -> list[str]:
    match = _SCHEME.fullmatch(path)
    scheme = "file" if match is None else match["scheme"].lower()
    if scheme == "file":
        return ["file", *local_folder(path).resolve().parts]
    found = urlsplit(path)
    return ["s3" if scheme in ("s3a", "s3n") else scheme, found.netloc, *filter(None, found.path.split("/"))]


def needs_in(path: str, options: Mapping[str, Any], *, modules: tuple[str, ...]) -> WorkerNeeds:
    """Returns the modules, files and addresses that writers need on the executors' hosts."""
    scheme = scheme_of(path)
    if scheme == "file":
        # If an executor cannot see this file, a different disk is mounted there. The first preflight creates the file,
        # so before that there is nothing to check.
        mark = local_folder(path) / ID
        return WorkerNeeds(modules=modules, files=(("path", str(mark)),) if mark.exists() else ())
    if scheme == "hdfs":
        addresses = addresses_of(path, 0)
        return WorkerNeeds(modules=modules, addresses=tuple(one for one in addresses if one[1]))
    endpoint, bundle = str(options.get("endpoint_url") or ""), options.get("verify")
    # boto3 uses a proxy from the environment, without which the server may be unreachable.
    addresses = () if getproxies() else addresses_of(endpoint, 443 if endpoint.startswith("https:") else 80)
    files = (("verify", bundle),) if isinstance(bundle, str) else ()
    return WorkerNeeds(modules=modules, files=files, addresses=addresses)
