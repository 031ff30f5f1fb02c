"""The files of a folder in an object store, through a client without a JVM: S3, Azure and Google Cloud Storage.

A put is conditional: the store only accepts it if no object of that name exists (``If-None-Match: *``, or generation
0). The client does not read Hadoop's settings; `sparkonce.storage.opening` translates them. The client's error messages
are never passed on, because URLs in them may contain a signature.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, BinaryIO, Literal, TypeVar

from sparkonce.arguments import missing_package
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import PART_BYTES, CheckpointFiles, Landed, PutUnknownError, Taken, opened

CONNECT_S, REQUEST_S = 5, 20
DEADLINE_S = 60.0
"""The time limit for all attempts of one request, in seconds."""
_PUTS_IN_DOUBT = 4
"""How many times a put is sent if answers are lost. A repeated put may find the bytes of an earlier one."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_AT_ONCE = 8
_PARTS_AT_ONCE = 4
_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
_METADATA = re.compile(r"uri: Some\(\s*https?://(169\.254\.|metadata\.google|\[fd00:ec2)")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "The specified bucket does not exist")
_NO_ROOM = ("QuotaExceeded", "StorageFull", "InsufficientStorage", "InsufficientAccountPermissionsQuota")
_PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
"""S3's codes below 500 that ask for a retry (API reference, "List of error codes")."""
_REQUEST_TIMEOUT, _TOO_MANY, _FULL, _NOT_IMPLEMENTED = 408, 429, 507, 501
_SERVER = 500
_ERRNO = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENODEV,  # Only a missing bucket is an error: a missing file is a normal answer.
    _TOO_MANY: errno.EAGAIN,
    _NOT_IMPLEMENTED: errno.ENOTSUP,
}

Answer = TypeVar("Answer")
_used_by: set[int] = set()
"""The processes that have used the client: this one, or its ancestors before a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAccess:
    """The settings for accessing a bucket or container. They can be pickled, and their repr shows no secret.

    Attributes:
        kind: The store's kind.
        bucket: The bucket or container.
        options: The client's settings, under obstore's names.
        keys: S3 keys, under obstore's names. They take precedence over keys in the environment.
        provider: Returns temporary S3 keys with ``expires_at``. The client calls it again before they expire.
        allow_http: True to allow connections without TLS.
        proxy: The URL of an HTTP proxy.
    """

    kind: Literal["s3", "azure", "gcs"]
    bucket: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keys: Mapping[str, str] | None = field(default=None, repr=False)
    provider: Callable[[], dict[str, Any]] | None = field(default=None, repr=False)
    allow_http: bool = False
    proxy: str | None = None

    def client(self, *, repeats: bool) -> Any:
        """Returns a new client, which may resend a request whose answer was lost if ``repeats`` is True."""
        store, refused = _obstore().store, _obstore().exceptions.BaseError
        _check_not_forked()
        how: dict[str, Any] = {
            "config": dict(self.options),
            "client_options": {
                "allow_http": self.allow_http,
                "connect_timeout": f"{CONNECT_S}s",
                "timeout": f"{REQUEST_S}s",
                **({"proxy_url": self.proxy} if self.proxy else {}),
            },
            "retry_config": {
                "max_retries": 10 if repeats else 0,
                "retry_timeout": timedelta(seconds=DEADLINE_S),
                "backoff": {"max_backoff": timedelta(seconds=_LONGEST_PAUSE_S)},
            },
        }
        if self.keys is not None:
            how["credential_provider"] = partial(_without_none, self.keys)
        elif self.provider is not None:
            how["credential_provider"] = self.provider
        kinds = {"s3": store.S3Store, "azure": store.AzureStore, "gcs": store.GCSStore}
        try:
            return kinds[self.kind](self.bucket, **how)
        except (refused, ValueError, TypeError) as error:
            reason = f"{type(error).__name__}: {read_error(error).reason}"
            raise ConfigurationError(
                f"The client of {self.kind} does not accept the settings of {self.bucket!r}: {reason}.",
                next_step="See docs/checkpoints.md for the settings that are understood.",
                setting="checkpoint",
            ) from None


class ObjectFiles(CheckpointFiles):
    """The files of a folder in an object store.

    Args:
        location: The folder's URL, as Hadoop qualifies it.
        prefix: The key of the folder, without slashes at its ends. As in Hadoop, it is not decoded.
        access: The settings for accessing the bucket.
    """

    modules = ("obstore",)

    def __init__(self, location: str, prefix: str, access: ObjectAccess) -> None:
        self._location = location
        self._prefix = prefix
        self._access = access
        self._clients: dict[tuple[int, bool], Any] = {}
        self._making = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "prefix": self._prefix, "access": self._access}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObjectFiles.__init__(self, **state)

    def __repr__(self) -> str:
        return f"ObjectFiles({self._location!r})"

    @property
    def location(self) -> str:
        return self._location

    @property
    def endpoint(self) -> str | None:
        """The store's address. Every store is tested, because many S3-compatible stores ignore a put's condition."""
        return str(self._access.options.get("endpoint", self._access.kind))

    def read(self, path: str) -> bytes | None:
        try:
            return self._ask(path, lambda client: bytes(_obstore().get(client, self._key(path)).bytes()))
        except FileNotFoundError:
            return None

    def exists(self, path: str) -> bool:
        # The response to HEAD has no body, so it does not distinguish a missing object from a missing bucket. A read
        # does.
        return self._size(path) is not None or self.read(path) is not None

    def open(self, path: str) -> BinaryIO | None:
        """Opens a file, which is read a part at a time."""
        size = self._size(path)
        if size is None:
            return super().open(path)
        return opened(partial(self._part, path), size)

    def _part(self, path: str, start: int, length: int) -> bytes:
        return self._ask(
            path, lambda client: bytes(_obstore().get_range(client, self._key(path), start=start, length=length))
        )

    def put_large(self, path: str, file: BinaryIO) -> None:
        """Puts a large object in parts. The object appears once all parts are there."""
        parts = {"chunk_size": PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
        self._ask(path, lambda client: _obstore().put(client, self._key(path), file, **parts))

    def names(self, folder: str) -> Sequence[str]:
        prefix = self._key(folder)
        found = self._ask(folder, lambda client: _obstore().list_with_delimiter(client, prefix or None)["objects"])
        start = f"{prefix}/" if prefix else ""
        # A store may list the folder itself, as an empty object whose name ends with a slash.
        names = [one["path"][len(start) :] for one in found if one["path"].startswith(start)]
        return [name for name in names if name and "/" not in name and not name.startswith(".")]

    def put(self, path: str, data: bytes) -> Landed | Taken:
        """Puts a file. A put without an answer is repeated, and may then find its own bytes."""
        client, until_s = self._client(repeats=False), time.monotonic() + DEADLINE_S
        doubts, pause_s = 0, _FIRST_PAUSE_S
        while True:
            try:
                _obstore().put(client, self._key(path), data, mode="create", use_multipart=False)
            except Exception as error:  # noqa: BLE001 - the client's errors have no common base
                answer = read_error(error)
                if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
                    if (standing := self._standing(path)) is not None:
                        return Taken(standing=standing)
                elif not answer.is_refusal:
                    doubts += 1
                elif doubts == 0:
                    raise answer.error(self._shown(path)) from None
                if doubts >= _PUTS_IN_DOUBT or time.monotonic() + pause_s > until_s:
                    raise PutUnknownError(f"{self._shown(path)}: {answer.reason}") from None
            else:
                return Landed()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def replace(self, path: str, data: bytes) -> None:
        self._ask(path, lambda client: _obstore().put(client, self._key(path), data, use_multipart=False))

    def delete(self, paths: Iterable[str]) -> None:
        # Delete objects one by one, since not every S3-compatible store can delete several in one request.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._delete, paths))

    def check(self) -> None:
        """Puts a file twice, and reads and lists it."""
        probe, data = f".sparkonce-{secrets.token_hex(6)}", secrets.token_bytes(8)
        try:
            self.put(probe, data)
            try:
                again = self.put(probe, b"again")
                self.names("")
            finally:
                self.delete([probe])
        except (OSError, PutUnknownError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigurationError(
                f"checkpoint={self.location!r} cannot be written to: {reason}.",
                next_step=_next_step(error),
                setting="checkpoint",
            ) from None
        if not isinstance(again, Taken) or again.standing != data:
            raise ConfigurationError(
                f"checkpoint={self.location!r}: the store replaced an object although it was asked to put one only if "
                "none has its name.",
                next_step="Use a store that supports If-None-Match, or a mounted disk: see docs/checkpoints.md.",
                setting="checkpoint",
            )

    def inside(self, folder: str) -> ObjectFiles:
        return ObjectFiles(self._shown(folder), self._key(folder), self._access)

    def _size(self, path: str) -> int | None:
        try:
            return int(self._ask(path, lambda client: _obstore().head(client, self._key(path)))["size"])
        except FileNotFoundError:
            return None

    def _standing(self, path: str) -> bytes | None:
        """Returns the file that has the name; None if there is none, because another put was in progress.

        Raises:
            PutUnknownError: If the file cannot be read. This put itself may have written it.
        """
        try:
            return self.read(path)
        except OSError as error:
            raise PutUnknownError(f"{self._shown(path)} already exists, and could not be read: {error}") from None

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._ask(path, lambda client: _obstore().delete(client, self._key(path)))

    def _ask(self, path: str, request: Callable[[Any], Answer]) -> Answer:
        """Sends a request that may be repeated. Raises FileNotFoundError if the file definitely does not exist."""
        client = self._client(repeats=True)
        try:
            return request(client)
        except FileNotFoundError as error:
            if is_missing_file(error):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._shown(path)) from None
            raise read_error(error).error(self._shown(path)) from None
        except Exception as error:  # noqa: BLE001 - the client's errors have no common base
            raise read_error(error).error(self._shown(path)) from None

    def _client(self, *, repeats: bool) -> Any:
        """Returns this process's client. A forked process gets a new one."""
        key = os.getpid(), repeats
        with self._making:
            if key not in self._clients:
                self._clients[key] = self._access.client(repeats=repeats)
            return self._clients[key]

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _shown(self, path: str) -> str:
        return f"{self._location}/{path}" if path else self._location


def _obstore() -> Any:
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise missing_package("A checkpoint in an object store", "obstore", "objects") from error
    return obstore


def _without_none(keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns keys in the form that the client expects for keys that do not expire."""
    return {"token": None, **keys, "expires_at": None}


def _check_not_forked() -> None:
    """Rejects a process that was forked from one that uses the client, since a fork lacks the client's threads."""
    if _used_by - {os.getpid()}:
        raise OSError(errno.ENOTSUP, "A process cannot use the store's client that was forked from one that uses it")
    _used_by.add(os.getpid())


def _next_step(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENODEV:
        return "Create the bucket, or correct the location."
    if number == errno.EACCES:
        return (
            "Allow this user to read, list, put and delete objects there; docs/checkpoints.md lists the credentials "
            "that are understood."
        )
    if number == errno.EINVAL:
        return "Set the bucket's region, fs.s3a.endpoint.region, and its endpoint: see docs/checkpoints.md."
    return "Check whether the store runs, and its endpoint is right: see docs/checkpoints.md."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAnswer:
    """The answer to a request that did not succeed.

    Attributes:
        errno: The nearest POSIX error, by which the driver decides whether to wait.
        reason: A clause for messages.
        is_refusal: True if the request was definitely not carried out, and never will be.
    """

    errno: int
    reason: str
    is_refusal: bool

    def error(self, where: str) -> OSError:
        """Returns the answer as a file error."""
        return OSError(self.errno, self.reason, where)


def read_error(error: BaseException) -> StoreAnswer:
    """Returns the answer that one of the client's errors represents."""
    text = str(error)
    if _METADATA.search(text):
        return _refused(errno.EAGAIN, "No credentials: the machine's metadata service does not answer")
    if (status := _STATUS.search(text)) is not None:
        return _by_status(int(status[1]), text)
    if (kind := _KIND.search(text)) is not None:
        if kind[1] == "Connect":
            return _refused(
                errno.EHOSTDOWN, f"No connection ({'name not found' if 'dns error' in text else 'refused'})"
            )
        return _unknown("No answer in time" if kind[1] == "Timeout" else "The answer was lost")
    if "BareRedirect" in text:
        return _refused(errno.EINVAL, "The bucket is in another region")
    if type(error).__name__ == "UnauthenticatedError":
        return _refused(errno.EACCES, "No credentials")
    if type(error).__name__ in ("PermissionDeniedError", "InvalidPathError", "NotSupportedError"):
        return _refused(errno.EINVAL, type(error).__name__)
    if isinstance(error, NotImplementedError):
        return _refused(errno.ENOTSUP, "The client cannot do that on this store")
    return _unknown(f"An error of the client, {type(error).__name__}")


def is_missing_file(error: FileNotFoundError) -> bool:
    """Returns True if a file is missing, rather than the bucket."""
    return not any(one in str(error) for one in _NO_BUCKET)


def is_full(status: int, text: str) -> bool:
    """Returns True if the status and text of an HTTP answer mean that the store is full."""
    return status == _FULL or any(one in text for one in _NO_ROOM)


def _by_status(status: int, text: str) -> StoreAnswer:
    code, message = _CODE.search(text), _MESSAGE.search(text)
    detail = ": ".join(found[1].strip() for found in (code, message) if found)
    reason = f"HTTP {status}{f' {detail}' if detail else ''}"
    if is_full(status, text):
        return _refused(errno.ENOSPC, reason)
    if code is not None and code[1] in _PASSING:
        return _unknown(reason)
    if status in _ERRNO or (status < _SERVER and status != _REQUEST_TIMEOUT):
        return _refused(_ERRNO.get(status, errno.EINVAL), reason)
    return _unknown(reason)


def _refused(number: int, reason: str) -> StoreAnswer:
    return StoreAnswer(errno=number, reason=reason, is_refusal=True)


def _unknown(reason: str) -> StoreAnswer:
    return StoreAnswer(errno=errno.ETIMEDOUT, reason=reason, is_refusal=False)
