"""Sends S3's requests, lists open uploads, and maps answers to outcomes. An unlisted answer is UNKNOWN.

The tables are based on those of Amazon S3's API reference ("Error responses", CompleteMultipartUpload,
AbortMultipartUpload, If-None-Match), tested against versitygw 1.8.0 where it returns them. Errors that botocore 1.44
retries in its modes ``standard`` and ``legacy`` are also listed.

S3 answers NoSuchUpload for completed and for aborted uploads alike, so neither that answer nor an existing key proves
anything. The object at the key decides, by its upload's metadata. A store may also report
success for a completion that it did not carry out: Versitygw 1.8.0 does so while another completion is in progress, and
whenever there is any object at the key. Only the response to the completion that created the object has a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_plus

from sparkonce.errors import one_line
from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks._shared.error_table import ErrorTable, Meaning
from sparkonce.sinks.files.names import name_in
from sparkonce.sinks.files.store import Fields


def ask(request: Callable[..., Any], **arguments: Any) -> Mapping[str, Any] | Answer:
    """Returns the response to a request, or an `Answer` with the reason why there is none."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError  # noqa: A004
    from botocore.parsers import ResponseParserError

    try:
        response: Mapping[str, Any] = request(**arguments)
    except ClientError as error:
        return refusal(error)
    except (ConnectionError, HTTPClientError, ResponseParserError) as error:
        return Answer(status=None, code=type(error).__name__, reason=one_line(error))
    except BotoCoreError as error:  # The request was not sent, for example because there are no credentials.
        return Answer(status=NOT_SENT, code=type(error).__name__, reason=one_line(error))
    return response


def refusal(error: Any) -> Answer:
    """Returns botocore's ClientError as a value."""
    told = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    return Answer(
        status=int(meta.get("HTTPStatusCode", 0)),
        code=one_line(told.get("Code", "")),
        reason=one_line(told.get("Message", "")),
        deleted=meta.get("HTTPHeaders", {}).get("x-amz-delete-marker") == "true",
    )


def head_object(client: Any, bucket: str, key: str) -> Present | Answer:
    """Returns the object at a key, or HeadObject's error response."""
    answer = ask(client.head_object, Bucket=bucket, Key=key)
    if isinstance(answer, Answer):
        return answer
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return Present(
        size=int(answer["ContentLength"]),
        etag=str(answer.get("ETag", "")).strip('"'),
        transaction=metadata.get(TRANSACTION, ""),
        mark=metadata.get(UPLOAD, ""),
    )


def read_object(*, client: Any, bucket: str, key: str) -> Mapping[str, Any]:
    """Returns an object's whole content, as ``Body``."""
    answer = client.get_object(Bucket=bucket, Key=key)
    with answer["Body"] as body:
        return {"Body": body.read()}


MOST_A_PAGE = 1_000


def list_uploads(client: Any, bucket: str, prefix: str, page: int) -> Iterator[tuple[str, str] | Answer]:
    """Yields the key and ID of every open upload below a prefix. Ends with an `Answer` if the store rejects a page.

    A page has at most 1,000 uploads.
    """
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxUploads": page, "EncodingType": "url"}
    key = ""
    while True:
        answer = ask(client.list_multipart_uploads, **asked)
        if isinstance(answer, Answer) and answer.code == "InvalidArgument" and asked.get("UploadIdMarker"):
            # Versitygw 1.8.0 does not support markers within a key: list all uploads of that key, then those after it.
            yield from _of_one_key(client, bucket, key)
            del asked["UploadIdMarker"]
            answer = ask(client.list_multipart_uploads, **asked)
        if isinstance(answer, Answer):
            yield answer
            return
        yield from _uploads(answer)
        if not answer.get("IsTruncated"):
            return
        key = _decoded(answer, answer["NextKeyMarker"])
        asked |= {"KeyMarker": key, "UploadIdMarker": answer.get("NextUploadIdMarker", "")}


def _of_one_key(client: Any, bucket: str, key: str) -> Iterator[tuple[str, str] | Answer]:
    answer = ask(client.list_multipart_uploads, Bucket=bucket, Prefix=key, MaxUploads=MOST_A_PAGE, EncodingType="url")
    if isinstance(answer, Answer):
        yield answer
        return
    yield from ((found, upload) for found, upload in _uploads(answer) if found == key)


def _uploads(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for upload in answer.get("Uploads", ()):
        yield _decoded(answer, upload["Key"]), str(upload["UploadId"])


def _decoded(answer: Mapping[str, Any], key: str) -> str:
    return unquote_plus(key) if answer.get("EncodingType") == "url" else key


TRANSACTION = "sparkonce-transaction"
"""The object's metadata key for its transaction's name."""

UPLOAD = "sparkonce-upload"
"""The metadata key for a random string from the writer, which distinguishes two uploads with the same name."""

NO_SUCH_UPLOAD = "NoSuchUpload"
OCCUPIED = "PreconditionFailed"
DONE = ""
"""The code of an answer that reports success."""

NOT_SENT = 0
"""The status of a request that boto3 itself did not send."""

LOOK = frozenset({NO_SUCH_UPLOAD, OCCUPIED, DONE})
"""Answers to a completion that do not show the outcome: only the object at the key does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An error response from the server, or the absence of a response.

    Attributes:
        status: HTTP's status; None if no answer came, `NOT_SENT` if boto3 sent nothing.
        code: S3's code; HTTP's status if S3 sends no body, as to HeadObject.
        reason: The server's message, or why no answer came.
        deleted: True if the newest version at the key marks the object as deleted.
    """

    status: int | None
    code: str
    reason: str = ""
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The object at a key, with its metadata `TRANSACTION` and `UPLOAD`, each empty if it has none."""

    size: int
    etag: str
    transaction: str = ""
    mark: str = ""


_RETRY, _UNKNOWN = Outcome.RETRY, Outcome.UNKNOWN
_RIGHT = "Nothing is lost yet: grant the right before a lifecycle rule aborts the upload."
_SLOWER = Meaning(_RETRY, "The store asks for fewer requests.")
_CONFLICT = Meaning(_RETRY, "Another request for the same object is in progress.")
_MEANINGS = {
    # All codes that botocore treats as throttling, including those of other AWS services, because S3-compatible stores
    # use them, too.
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
    "InsufficientStorage": Meaning(_RETRY, "The store is full: free some space."),
    "ServiceUnavailable": Meaning(_RETRY, "The store is overloaded or unreachable."),
    "InternalError": Meaning(_RETRY, "The store failed; it may have applied the request."),
    "RequestTimeout": Meaning(_RETRY, "The store gave up waiting for the request."),
    "RequestTimeoutException": Meaning(_RETRY, "The store gave up waiting for the request."),
    "BadDigest": Meaning(_RETRY, "The request was damaged in transit."),
    "XAmzContentSHA256Mismatch": Meaning(_RETRY, "The request was damaged in transit."),
    "OperationAborted": _CONFLICT,
    "ConditionalRequestConflict": _CONFLICT,
    "409": _CONFLICT,  # HeadObject's error responses have no body, so the code is the HTTP status.
    "AccessDenied": Meaning(_UNKNOWN, _RIGHT),
    "AllAccessDisabled": Meaning(_UNKNOWN, "The bucket or the account is locked."),
    "InvalidAccessKeyId": Meaning(_UNKNOWN, "The store does not know the access key: correct the credentials."),
    "SignatureDoesNotMatch": Meaning(_UNKNOWN, "The secret key is wrong: correct the credentials."),
    "NoCredentialsError": Meaning(_UNKNOWN, "boto3 finds no credentials: set them, or give the machine a role."),
    "CredentialRetrievalError": Meaning(_RETRY, "boto3 could not fetch credentials."),
    "ExpiredToken": Meaning(_UNKNOWN, "The session token has expired: renew the credentials."),
    "InvalidToken": Meaning(_UNKNOWN, "The session token is wrong: renew the credentials."),
    "RequestTimeTooSkewed": Meaning(
        _UNKNOWN, "This machine's clock and the store's are too far apart: set the clock (NTP)."
    ),
    "NoSuchBucket": Meaning(_UNKNOWN, "The bucket is gone, or endpoint_url leads to another store."),
    "PermanentRedirect": Meaning(_UNKNOWN, "The bucket is in another region: set region_name."),
    "AuthorizationHeaderMalformed": Meaning(_UNKNOWN, "The bucket is in another region: set region_name."),
    "InvalidPart": Meaning(_UNKNOWN, "A part of the upload is missing or is not the one that was written."),
    "InvalidPartOrder": Meaning(_UNKNOWN, "The handle's list of parts is damaged."),
    "EntityTooSmall": Meaning(_UNKNOWN, "A part is smaller than the store allows: raise part_size_bytes."),
    "EntityTooLarge": Meaning(_UNKNOWN, "The file is larger than the store allows."),
    "NotImplemented": Meaning(_UNKNOWN, "The store does not have this request, or one of its headers."),
}
_TABLE = ErrorTable(_MEANINGS)
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
_KMS = "The encryption key cannot be used: see sse_kms_key_id, and its policy."

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
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
"""The IAM permission that each request needs."""


def read(answer: Answer, request: str) -> Finished:
    """Returns the outcome of a rejected request, based on the error response alone. ``request`` is the S3 operation."""
    if answer.status is None:
        return Finished(outcome=_RETRY, reason=f"{request}: no answer: {answer.reason}")
    code = answer.code if answer.code in _MEANINGS else _BY_STATUS.get(answer.status, answer.code)
    if answer.code.startswith("KMS."):
        return Finished(outcome=_UNKNOWN, reason=f"{request}: {answer.code}. {_KMS}")
    if code not in _MEANINGS:
        return _TABLE.finished(code, "", shown=f"{request}: {answer.status} {code}: {answer.reason}".rstrip(": "))
    shown = code if answer.code == code else f"{code} ({answer.code})"
    right = f" (missing: {RIGHTS[request]})" if code == "AccessDenied" and request in RIGHTS else ""
    return _TABLE.finished(code, "", shown=f"{request}: {shown}{right}")


def outcome_by_object(code: str, found: Present | Answer, fields: Fields) -> Finished:
    """Returns the outcome of a completion according to the object that is now at the key.

    Args:
        code: The answer to the completion, one of `LOOK`.
        found: The object, or HeadObject's error response.
        fields: The handle's fields.
    """
    if isinstance(found, Present):
        if is_own(found, fields):
            done = Outcome.COMMITTED if code == DONE else Outcome.ALREADY_COMMITTED
            return Finished(outcome=done)
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=(
                f"At {fields['path']} is an object of somebody else, {found.size} bytes, ETag {found.etag}, where "
                f"this file of {fields.get('size', '?')} bytes belongs or has been."
            ),
        )
    if found.status != 404 or found.code == "NoSuchBucket":
        return read(found, "HeadObject")
    if found.deleted:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"{fields['path']} was published and deleted: its newest version is a delete marker.",
        )
    if code != NO_SUCH_UPLOAD:
        return Finished(outcome=Outcome.RETRY, reason="The store is still putting the object together.")
    return Finished(
        outcome=Outcome.LOST, reason=f"{NO_SUCH_UPLOAD}, and no object: the upload was aborted, by a rule or by hand."
    )


def is_own(found: Present, fields: Fields) -> bool:
    """Returns True if the upload of this handle created the object.

    Compares the upload's metadata, or ETag and size if the store keeps no metadata.
    """
    if "mark" not in fields:  # The handle was created from a listing, which contains only names.
        return bool(found.transaction) and found.transaction == name_text(str(fields["path"]))
    if found.size != fields["size"]:
        return False
    if found.mark:
        return found.mark == fields["mark"]
    return found.etag == fields["checksum"]


def name_text(path: str) -> str:
    """Returns the name of a file's transaction in ASCII, for metadata; empty if the path contains none."""
    name = name_in(path)
    return "" if name is None else quote(str(name))
