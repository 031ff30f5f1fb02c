"""What S3's answers mean: one table. What is not listed is UNKNOWN.

Where the answers come from: Amazon S3's API reference ("Error responses", CompleteMultipartUpload,
AbortMultipartUpload, If-None-Match), tried against versitygw 1.8.0 as far as that has them, and what botocore 1.44
repeats in its modes ``standard`` and ``legacy``.

An upload that is gone was completed or given up, and S3 says NoSuchUpload for both. So that answer, and that somebody's
object stands at the key, say nothing yet: what stands there decides. It is told by the metadata that the upload was
begun with. A store may also answer "done" to a completion that it did not do: versitygw 1.8.0 does while another
completion is at work, and whenever any object stands at the key. Only the answer that it did do has a checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.files.store import Fields

TRANSACTION = "sparkonce-transaction"
"""The object's metadata that says whose it is: the text of the transaction's name."""

UPLOAD = "sparkonce-upload"
"""The object's metadata that tells two uploads of one name apart: what the writer drew."""

NO_SUCH_UPLOAD = "NoSuchUpload"
OCCUPIED = "PreconditionFailed"
DONE = ""
"""In place of a code: the server said that it has done it."""

NOT_SENT = 0
"""In place of a status: boto3 itself refused."""

LOOK = frozenset({NO_SUCH_UPLOAD, OCCUPIED, DONE})
"""Answers to a completion that say nothing before one has looked at what stands at the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A refusal by the server, or that none came.

    Attributes:
        status: HTTP's; None if no answer came, `NOT_SENT` if nothing was asked.
        code: S3's; HTTP's status where S3 sends no body, as to HeadObject.
        reason: The server's message, or why no answer came.
        deleted: Whether the newest version at the key says that the object was deleted.
    """

    status: int | None
    code: str
    reason: str = ""
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The object that stands at a key.

    Attributes:
        size: In bytes.
        etag: Without quotes.
        transaction: Its metadata `TRANSACTION`, empty if it has none.
        mark: Its metadata `UPLOAD`, empty if it has none.
    """

    size: int
    etag: str
    transaction: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class _Meaning:
    outcome: Outcome
    sentence: str


_RIGHT = "Nothing is lost yet: grant the right before a lifecycle rule ends the upload."
_SLOWER = _Meaning(Outcome.RETRY, "The store asks for fewer requests.")
_CONFLICT = _Meaning(Outcome.RETRY, "Another request for the same object is at work.")
_TABLE: Mapping[str, _Meaning] = {
    # All that botocore takes for throttling, of whichever of AWS's services: stores that are not S3 use them, too.
    "SlowDown": _SLOWER,
    "BandwidthLimitExceeded": _SLOWER,
    "EC2ThrottledException": _SLOWER,
    "LimitExceededException": _SLOWER,
    "PriorRequestNotComplete": _SLOWER,
    "ProvisionedThroughputExceededException": _SLOWER,
    "RequestLimitExceeded": _SLOWER,
    "RequestThrottled": _SLOWER,
    "RequestThrottledException": _SLOWER,
    "ThrottledException": _SLOWER,
    "Throttling": _SLOWER,
    "ThrottlingException": _SLOWER,
    "TooManyRequests": _SLOWER,
    "TooManyRequestsException": _SLOWER,
    "TransactionInProgressException": _SLOWER,
    "InsufficientStorage": _Meaning(Outcome.RETRY, "The store has no room: make some."),
    "ServiceUnavailable": _Meaning(Outcome.RETRY, "The store is overloaded or away."),
    "InternalError": _Meaning(Outcome.RETRY, "The store failed; it may have applied the request."),
    "RequestTimeout": _Meaning(Outcome.RETRY, "The store gave up waiting for the request."),
    "RequestTimeoutException": _Meaning(Outcome.RETRY, "The store gave up waiting for the request."),
    "BadDigest": _Meaning(Outcome.RETRY, "The request was damaged on its way."),
    "OperationAborted": _CONFLICT,
    "ConditionalRequestConflict": _CONFLICT,
    "409": _CONFLICT,  # without a body
    "AccessDenied": _Meaning(Outcome.UNKNOWN, _RIGHT),
    "AllAccessDisabled": _Meaning(Outcome.UNKNOWN, "The bucket or the account is locked."),
    "InvalidAccessKeyId": _Meaning(Outcome.UNKNOWN, "The store does not know the access key: correct the credentials."),
    "SignatureDoesNotMatch": _Meaning(Outcome.UNKNOWN, "The secret key is wrong: correct the credentials."),
    "NoCredentialsError": _Meaning(
        Outcome.UNKNOWN, "boto3 finds no credentials: set them, or give the machine a role."
    ),
    "CredentialRetrievalError": _Meaning(Outcome.RETRY, "boto3 could not fetch credentials."),
    "ExpiredToken": _Meaning(Outcome.UNKNOWN, "The session token has expired: renew the credentials."),
    "InvalidToken": _Meaning(Outcome.UNKNOWN, "The session token is wrong: renew the credentials."),
    "RequestTimeTooSkewed": _Meaning(
        Outcome.UNKNOWN, "This machine's clock and the store's are too far apart: set the clock (NTP)."
    ),
    "NoSuchBucket": _Meaning(Outcome.UNKNOWN, "The bucket is gone, or endpoint_url leads to another store."),
    "PermanentRedirect": _Meaning(Outcome.UNKNOWN, "The bucket is in another region: set region_name."),
    "AuthorizationHeaderMalformed": _Meaning(Outcome.UNKNOWN, "The bucket is in another region: set region_name."),
    "InvalidPart": _Meaning(Outcome.UNKNOWN, "A part of the upload is missing or is not the one that was written."),
    "InvalidPartOrder": _Meaning(Outcome.UNKNOWN, "The handle's list of parts is damaged."),
    "EntityTooSmall": _Meaning(Outcome.UNKNOWN, "A part is smaller than the store allows: raise part_size_bytes."),
    "EntityTooLarge": _Meaning(Outcome.UNKNOWN, "The file is larger than the store allows."),
    "NotImplemented": _Meaning(
        Outcome.UNKNOWN, "The store does not know the request; if it is If-None-Match, set if_none_match=False."
    ),
}
_BY_STATUS: Mapping[int, str] = {
    301: "PermanentRedirect",
    403: "AccessDenied",
    408: "RequestTimeout",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    502: "ServiceUnavailable",
    503: "ServiceUnavailable",
    504: "ServiceUnavailable",
    507: "InsufficientStorage",
    509: "BandwidthLimitExceeded",
}
_KMS = "The key of the encryption cannot be used: see sse_kms_key_id, and its policy."

RIGHTS: Mapping[str, str] = {
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "PutObject": "s3:PutObject",
    "ListParts": "s3:ListMultipartUploadParts",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject and s3:ListBucket",
    "DeleteObject": "s3:DeleteObject",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
"""Which right each request needs, in IAM's words."""


def read(answer: Answer, request: str) -> Finished:
    """What a refusal says by itself.

    Args:
        answer: The server's.
        request: What was asked, in S3's words: names the right that is missing.
    """
    if answer.status is None:
        return Finished(outcome=Outcome.RETRY, reason=f"{request}: no answer: {answer.reason}")
    name = answer.code if answer.code in _TABLE else _BY_STATUS.get(answer.status, answer.code)
    meaning = _TABLE.get(name)
    if answer.code.startswith("KMS."):
        meaning = _Meaning(Outcome.UNKNOWN, _KMS)
    if meaning is None:
        said = f"{request}: {answer.status} {answer.code}: no answer this request is known to get. {answer.reason}"
        return Finished(outcome=Outcome.UNKNOWN, reason=said.rstrip())
    right = f" It is {RIGHTS[request]}." if name == "AccessDenied" and request in RIGHTS else ""
    shown = answer.code if answer.code == name else f"{name} ({answer.code})"
    return Finished(outcome=meaning.outcome, reason=f"{request}: {shown}: {meaning.sentence}{right}")


def after_look(code: str, standing: Present | Answer, fields: Fields) -> Finished:
    """What a completion came to, by what stands at the key now.

    Args:
        code: One of `LOOK`: the answer to the completion.
        standing: The object there, or HeadObject's refusal.
        fields: The handle's.
    """
    if isinstance(standing, Present):
        if is_own(standing, fields):
            done = Outcome.COMMITTED if code == DONE else Outcome.ALREADY_COMMITTED
            return Finished(outcome=done)
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"At {fields['path']} stands an object of somebody else, {standing.size} bytes, ETag "
            f"{standing.etag}, where this file of {fields.get('size', '?')} bytes belongs or has been.",
        )
    if standing.status != 404 or standing.code == "NoSuchBucket":
        return read(standing, "HeadObject")
    if standing.deleted:
        return Finished(
            outcome=Outcome.UNKNOWN, reason=f"{fields['path']} was published and deleted: its newest version is a mark."
        )
    if code != NO_SUCH_UPLOAD:
        return Finished(outcome=Outcome.RETRY, reason="The store is still putting the object together.")
    return Finished(
        outcome=Outcome.LOST, reason=f"{NO_SUCH_UPLOAD}, and no object: the upload was given up, by a rule or by hand."
    )


def is_own(standing: Present, fields: Fields) -> bool:
    """Whether the object is what this handle's upload makes.

    By the metadata that the upload was begun with; where a store does not keep metadata, by ETag and size. A handle
    out of a listing knows its name alone.
    """
    if "mark" not in fields:
        return bool(standing.transaction) and standing.transaction == name_text(str(fields["path"]))
    if standing.size != fields["size"]:
        return False
    if standing.mark:
        return standing.mark == fields["mark"]
    return standing.etag == fields["checksum"]


def name_text(path: str) -> str:
    """The name of the transaction that a file belongs to, as metadata can hold it: ASCII. Empty if it has none."""
    name = name_in(path)
    return "" if name is None else quote(str(name))
