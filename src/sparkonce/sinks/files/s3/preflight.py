"""Tries every request that the sink makes, at the start, and reads the bucket's own rules."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files.names import HIDDEN
from sparkonce.sinks.files.s3.requests import MOST_A_PAGE, OCCUPIED, Answer, ask, list_uploads, read
from sparkonce.sinks.files.s3.settings import S3Settings

log = logging.getLogger(__name__)

DAY_S = 86_400.0

ALWAYS: tuple[str, ...] = (
    "nobody else writes, moves or deletes the sink's objects, nor aborts its multipart uploads, before the next batch "
    "is committed",
    "the store's name always leads to the same bucket: a replica in its place has no uploads in progress, and what it "
    "lacks counts as lost",
)

_NO_RULE = (
    "no lifecycle rule aborts incomplete multipart uploads here (AbortIncompleteMultipartUpload): what a query that "
    "is never restarted leaves behind costs money until it is aborted manually"
)

_NOT_LISTED = (
    "the store does not list open uploads by prefix. MinIO lists those of a whole bucket, forgets them when it is "
    "restarted, and aborts every upload after 24 h: raise its setting stale_uploads_expiry above the longest time that "
    "a batch may wait for its commit. What a killed run left before MinIO was restarted stays until then"
)

_TRIAL = b"sparkonce"
_METHODS: Mapping[str, str] = {
    "HeadBucket": "head_bucket",
    "ListObjectsV2": "list_objects_v2",
    "ListMultipartUploads": "list_multipart_uploads",
    "CreateMultipartUpload": "create_multipart_upload",
    "UploadPart": "upload_part",
    "ListParts": "list_parts",
    "PutObject": "put_object",
    "HeadObject": "head_object",
    "DeleteObject": "delete_object",
    "AbortMultipartUpload": "abort_multipart_upload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the bucket's rules do to staged files, with notes for the operator.

    An open upload is aborted after `timeout_s` seconds, or never if that is None.
    """

    timeout_s: float | None = None
    notes: tuple[str, ...] = ()


def check(client: Any, settings: S3Settings, bucket: str, prefix: str) -> Findings:
    """Checks that the bucket exists and allows every request that the sink makes.

    Raises:
        PreflightError: If a check fails. The message names the bucket, the setting or the permission.
    """
    trial = _Trial(client, settings, bucket)
    trial.ask("HeadBucket", Bucket=bucket)
    trials = f"{prefix}{HIDDEN}/check-"
    trial.ask("ListObjectsV2", Bucket=bucket, Prefix=trials)
    trial.ask("ListMultipartUploads", Bucket=bucket, Prefix=trials)
    key = f"{trials}{secrets.token_hex(8)}"
    upload = trial.ask("CreateMultipartUpload", Bucket=bucket, Key=key, **settings.object_options())["UploadId"]
    try:
        _try_upload(trial, settings, bucket, key, upload)
        is_listed = (key, upload) in list_uploads(client, bucket, trials, MOST_A_PAGE)
    except BaseException:
        with suppress(PreflightError):  # The first error shows what is wrong.
            trial.ask("AbortMultipartUpload", Bucket=bucket, Key=key, UploadId=upload)
        raise
    trial.ask("AbortMultipartUpload", Bucket=bucket, Key=key, UploadId=upload)
    found = inspect_bucket(client, bucket, prefix)
    if not is_listed:
        log.warning("%s: %s", bucket, _NOT_LISTED)
        return Findings(timeout_s=min(found.timeout_s or DAY_S, DAY_S), notes=(_NOT_LISTED, *found.notes))
    return found


def _try_upload(trial: _Trial, settings: S3Settings, bucket: str, key: str, upload: str) -> None:
    own = {"Bucket": bucket, "Key": key, "UploadId": upload}
    part = {"PartNumber": 1, "ETag": trial.ask("UploadPart", **own, PartNumber=1, Body=_TRIAL)["ETag"]}
    trial.ask("ListParts", **own)
    trial.ask("PutObject", Bucket=bucket, Key=key, Body=_TRIAL, **settings.encryption())
    try:
        trial.ask("HeadObject", Bucket=bucket, Key=key)
        if settings.if_none_match:
            parts = {"Parts": [part]}
            answer = ask(trial.client.complete_multipart_upload, **own, MultipartUpload=parts, IfNoneMatch="*")
            _check_refused(answer, bucket)
    finally:
        trial.ask("DeleteObject", Bucket=bucket, Key=key)


def _check_refused(answer: Mapping[str, Any] | Answer, bucket: str) -> None:
    if isinstance(answer, Answer) and answer.code == OCCUPIED:
        return
    if isinstance(answer, Answer) and answer.code != "NotImplemented" and answer.status != 501:
        raise _refused(bucket, "CompleteMultipartUpload", answer)
    raise PreflightError(
        f"The store of bucket {bucket!r} does not know If-None-Match on CompleteMultipartUpload, which if_none_match="
        "True relies on: it would replace an object that is at a file's key.",
        next_step="Set if_none_match=False, if nobody else writes below the prefix.",
        setting="if_none_match",
    )


class _Trial:
    """Requests that must succeed for the sink to work."""

    def __init__(self, client: Any, settings: S3Settings, bucket: str) -> None:
        self.client = client
        self._settings = settings
        self._bucket = bucket

    def ask(self, request: str, **arguments: Any) -> Mapping[str, Any]:
        answer = ask(getattr(self.client, _METHODS[request]), **arguments)
        if not isinstance(answer, Answer):
            return answer
        if answer.status is None:
            raise PreflightError(
                f"The store of bucket {self._bucket!r} at endpoint_url={self._settings.endpoint_url!r} (None is AWS) "
                f"does not answer: {answer.reason}",
                next_step="Correct endpoint_url and region_name, or check whether the store runs.",
                setting="endpoint_url",
            )
        raise _refused(self._bucket, request, answer)


def _refused(bucket: str, request: str, answer: Answer) -> PreflightError:
    if answer.status == 404 and request in {"HeadBucket", "ListObjectsV2", "CreateMultipartUpload"}:
        return PreflightError(
            f"There is no bucket {bucket!r}.", next_step="Create it, or correct the location.", setting="location"
        )
    reason = read(answer, request).reason
    return PreflightError(
        f"The bucket {bucket!r} cannot be used: {reason}",
        next_step="Correct what it names; the documentation of the S3 store lists the rights that are needed.",
    )


def inspect_bucket(client: Any, bucket: str, prefix: str) -> Findings:
    """Returns how the bucket's own rules affect objects below the prefix.

    If the rules cannot be read, the result contains only a note that says so.
    """
    rules = ask(client.get_bucket_lifecycle_configuration, Bucket=bucket)
    if not isinstance(rules, Answer):
        return read_rules(rules.get("Rules", ()), prefix)
    if rules.code == "NoSuchLifecycleConfiguration":
        return read_rules((), prefix)
    return Findings(notes=(_unread(rules),))


def _unread(answer: Answer) -> str:
    if read(answer, "GetBucketLifecycleConfiguration").outcome is Outcome.RETRY:
        return (
            f"whether a lifecycle rule aborts uploads was not answered ({answer.code}): the query continues as if "
            "none does"
        )
    return (
        f"the bucket's lifecycle rules may not be read ({answer.code}; s3:GetLifecycleConfiguration): if one aborts "
        "incomplete multipart uploads, it does so only after the longest time that the query may be down"
    )


def read_rules(rules: Sequence[Mapping[str, Any]], prefix: str) -> Findings:
    """Returns how lifecycle rules affect uploads and objects whose keys begin with the sink's prefix.

    The rules are those of GetBucketLifecycleConfiguration.
    """
    touching = [
        rule
        for rule in rules
        if rule.get("Status") == "Enabled" and (prefix.startswith(_prefix(rule)) or _prefix(rule).startswith(prefix))
    ]
    days = [rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation") for rule in touching]
    abort_after = min((int(one) for one in days if one), default=None)
    notes = [] if abort_after is not None else [_NO_RULE]
    for rule in touching:
        told = rule.get("Expiration", {})
        if "Days" in told or "Date" in told:
            when = f"{told['Days']} days" if "Days" in told else f"{told['Date']}"
            notes.append(
                f"lifecycle rule {rule.get('ID', 'without ID')!r} deletes the sink's objects after {when}: readers "
                "must be faster, and a query that was down longer must not commit its last batch again"
            )
    return Findings(timeout_s=None if abort_after is None else abort_after * DAY_S, notes=tuple(notes))


def _prefix(rule: Mapping[str, Any]) -> str:
    inner = rule.get("Filter", {})
    return str(rule.get("Prefix") or inner.get("Prefix") or inner.get("And", {}).get("Prefix") or "")
