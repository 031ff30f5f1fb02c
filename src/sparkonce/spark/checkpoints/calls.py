"""Calls of Hadoop's file systems: each with a deadline, and its Java exception as an ``OSError``."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError

from sparkonce.storage.files import PutUnknownError, within
from sparkonce.storage.objects import is_full

DEADLINE_S = 30.0
"""The time after which a call is given up. Hadoop's own clients may try again for many minutes."""

_ERRNOS = {
    "AccessControlException": errno.EACCES,
    "AccessDeniedException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "CredentialInitializationException": errno.EACCES,
    "NoAuthWithAWSException": errno.EACCES,
    "NoAwsCredentialsException": errno.EACCES,
    "DSQuotaExceededException": errno.EDQUOT,
    "NSQuotaExceededException": errno.EDQUOT,
    "QuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "SafeModeException": errno.EAGAIN,
    "FileNotFoundException": errno.ENOENT,
    "UnknownStoreException": errno.ENXIO,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "AWSBadRequestException": errno.EINVAL,
    "AWSRedirectException": errno.EINVAL,
    "IllegalArgumentException": errno.EINVAL,
    "InvalidPathException": errno.EINVAL,
    "NotInMountpointException": errno.EINVAL,
    "PathIOException": errno.EINVAL,
    "UnsupportedOperationException": errno.EINVAL,
    "PathExistsException": errno.EEXIST,
    "FileAlreadyExistsException": errno.EEXIST,
}
"""The errno of a Java exception, by its short name. All others may pass: no connection, a fail-over, no room."""

CONFLICT = 409
_MOST_CAUSES = 20

Answer = TypeVar("Answer")


class StoreError(OSError):
    """A call that Hadoop's client has refused, or that failed.

    Attributes:
        kinds: The short names of the Java exception and its causes.
        status: The status of the HTTP answer; 0 if there is none.
    """

    def __init__(self, error: Py4JError) -> None:
        self.kinds, self.status, text = _told(error)
        # S3A calls a conflict, which says that another put is under way, a bad request.
        codes = [_ERRNOS[kind] for kind in self.kinds if kind in _ERRNOS and self.status != CONFLICT]
        if self.status and is_full(self.status, text):
            codes = [errno.ENOSPC]
        super().__init__(codes[0] if codes else errno.EHOSTDOWN, text)

    @property
    def may_pass(self) -> bool:
        """True if the same call may succeed soon."""
        return self.errno == errno.EHOSTDOWN


class Decisive:
    """The point of a call from which on its outcome is unknown while it is not answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._given_up = False

    def begin(self) -> None:
        """Notes that the request which decides is about to be sent.

        Raises:
            TimeoutError: if the caller has given up before: it must not be sent any more.
        """
        with self._lock:
            if self._given_up:
                raise TimeoutError(errno.ETIMEDOUT, "the call was given up")
            self._begun = True

    def give_up(self) -> bool:
        """Returns if the request may have been sent. It will not be sent from now on."""
        with self._lock:
            self._given_up = True
            return self._begun


def called(call: Callable[[], Answer]) -> Answer:
    """Returns what a call of the JVM returns.

    Raises:
        StoreError: if it raises a Java exception.
    """
    try:
        return call()
    except Py4JError as error:
        raise StoreError(error) from error


def in_time(call: Callable[[], Answer], decisive: Decisive | None = None) -> Answer:
    """Returns what a call returns, made in a thread of its own.

    Its thread in the JVM is its own, too: Spark interrupts the query's thread when the query is stopped, and an
    interrupt in the middle of a put would leave its outcome unknown.

    Args:
        call: Made once.
        decisive: Tells how far the call has come when it is given up.

    Raises:
        PutUnknownError: if there was no answer in time to a request that decides.
        TimeoutError: if there was no answer in time to any other.
    """
    (answer,) = within(DEADLINE_S, [call])
    if isinstance(answer, TimeoutError) and answer.errno is None:
        late = f"no answer within {DEADLINE_S:g} s"
        if decisive is not None and decisive.give_up():
            raise PutUnknownError(late)
        raise TimeoutError(errno.ETIMEDOUT, late)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _told(error: Py4JError) -> tuple[tuple[str, ...], int, str]:
    """Returns the short names of an exception and its causes, an HTTP answer's status, and the first line."""
    if not isinstance(error, Py4JJavaError):
        return (), 0, f"the JVM does not answer: {error}"
    thrown: Any = error.java_exception
    text = str(thrown.toString()).partition("\n")[0]
    kinds: list[str] = []
    status = 0
    while thrown is not None and len(kinds) < _MOST_CAUSES:
        kind = str(thrown.getClass().getName())
        kinds.append(_short(kind))
        if kind.endswith(".RemoteException"):
            kinds.append(_short(str(thrown.getClassName())))
        if kind.startswith("software.amazon.awssdk.services."):
            status = int(thrown.statusCode())
        thrown = thrown.getCause()
    return tuple(kinds), status, text


def each_in_time(calls: Sequence[Callable[[], object]]) -> None:
    """Makes several calls, some beside each other.

    Raises:
        OSError: the first error.
    """
    for answer in within(DEADLINE_S, calls):
        if isinstance(answer, BaseException):
            raise TimeoutError(errno.ETIMEDOUT, str(answer)) if isinstance(answer, TimeoutError) else answer


def _short(kind: str) -> str:
    return kind.rpartition(".")[2].rpartition("$")[2]
