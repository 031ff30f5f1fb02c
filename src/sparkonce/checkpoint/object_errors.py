"""Reads the errors of the object stores' client: the store's answer, and if a put can have landed.

No text of the client is passed on: its addresses may hold a signature.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
_METADATA = re.compile(r"uri: Some\(\s*https?://(169\.254\.|metadata\.google|\[fd00:ec2)")

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "FilesystemNotFound", "The specified bucket does not exist")
_NO_ROOM = ("QuotaExceeded", "StorageFull", "InsufficientStorage", "InsufficientAccountPermissionsQuota")
_PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
"""S3's codes below 500 that ask for a repetition (API reference, "List of error codes")."""
_REQUEST_TIMEOUT, _TOO_MANY, _FULL, _NOT_IMPLEMENTED = 408, 429, 507, 501
_SERVER = 500
_ERRNO = {
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENODEV,  # of the bucket: a missing file is an answer
    _TOO_MANY: errno.EAGAIN,
    _NOT_IMPLEMENTED: errno.ENOTSUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAnswer:
    """The answer to a request that did not succeed.

    Attributes:
        errno: The nearest error of a POSIX disk, by which the driver knows what is waited for.
        reason: A clause for people.
        is_refusal: True if the request surely was not carried out, and never will be.
    """

    errno: int
    reason: str
    is_refusal: bool

    def error(self, where: str) -> OSError:
        """Returns the answer as the error of a file."""
        return OSError(self.errno, self.reason, where)


def read_error(error: BaseException) -> StoreAnswer:
    """Returns the answer that an error of the client stands for."""
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
    """Tells if a file is missing, rather than the bucket."""
    return not any(one in str(error) for one in _NO_BUCKET)


def is_full(status: int, text: str) -> bool:
    """Tells if an HTTP answer says that there is no room, by its status and its text."""
    return status == _FULL or any(one in text for one in _NO_ROOM)


def _by_status(status: int, text: str) -> StoreAnswer:
    code, message = _CODE.search(text), _MESSAGE.search(text)
    told = ": ".join(found[1].strip() for found in (code, message) if found)
    reason = f"HTTP {status}{f' {told}' if told else ''}"
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
