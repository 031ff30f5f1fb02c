"""Publishes and discards staged files, from any process, by their uploads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sparkonce.protocol.handles import Finished, Outcome
from sparkonce.sinks.files.s3.outcomes import (
    DONE,
    LOOK,
    NO_SUCH_UPLOAD,
    Answer,
    Present,
    after_look,
    is_own,
    read,
)
from sparkonce.sinks.files.s3.requests import ask, look
from sparkonce.sinks.files.store import Fields, FileState

NO_UPLOAD = Answer(status=404, code=NO_SUCH_UPLOAD)
_ABORT_WITHIN_S = 10.0
_POLL_S = 0.1
_STATES: Mapping[Outcome, FileState] = {
    Outcome.COMMITTED: FileState.PUBLISHED,
    Outcome.ALREADY_COMMITTED: FileState.PUBLISHED,
    Outcome.LOST: FileState.GONE,
}


class Finisher:
    """Publishes, looks for and discards one file at a time.

    Args:
        client: A boto3 client, which repeats what may be repeated.
        once_client: A client that sends each request once, for completions: each of their answers has to be read.
        if_none_match: Whether to complete an upload only if no object is at its key.
    """

    def __init__(self, client: Any, once_client: Any, *, if_none_match: bool) -> None:
        self._client = client
        self._once = once_client
        self._condition = {"IfNoneMatch": "*"} if if_none_match else {}

    def publish(self, fields: Fields) -> Finished:
        """Completes the upload: one request if its answer suffices, else a look at the object, too."""
        answer = self._complete(fields)
        if not isinstance(answer, Answer):
            # Only the completion that put the object together has a checksum of it, see `outcomes`.
            if answer.get("ChecksumType") and not _differs(answer, fields):
                return Finished(outcome=Outcome.COMMITTED)
            answer = Answer(status=200, code=DONE)
        if answer.code not in LOOK:
            return read(answer, "CompleteMultipartUpload")
        if answer.code == NO_SUCH_UPLOAD and (parts := self._list_parts(fields)) != NO_UPLOAD:
            if isinstance(parts, Answer):
                return read(parts, "ListParts")
            return Finished(outcome=Outcome.RETRY, reason="The upload is there after all.")
        # The look comes last: it sees every completion until now.
        found = look(self._client, str(fields["bucket"]), key_of(fields))
        return after_look(answer.code, found, fields)

    def look(self, fields: Fields) -> FileState | Finished:
        """Returns the file's state, or RETRY or UNKNOWN with its reason if the store does not tell."""
        etags = self._list_parts(fields)
        if not isinstance(etags, Answer):
            return FileState.STAGED if etags == str(fields["etags"]).split(",") else FileState.UNKNOWN
        if etags != NO_UPLOAD:
            return read(etags, "ListParts")
        # Nothing is left to complete; but only a completion learns that another one is still at work.
        finished = self.publish(fields)
        if finished.outcome is not Outcome.UNKNOWN:
            return _STATES.get(finished.outcome, finished)
        present = look(self._client, str(fields["bucket"]), key_of(fields))
        return FileState.UNKNOWN if isinstance(present, Present) or present.deleted else finished

    def discard(self, fields: Fields) -> Finished:
        """Aborts the upload, and again until no part is left: a part may arrive during an abort (S3's manual)."""
        give_up_at = time.monotonic() + _ABORT_WITHIN_S
        answer = ask(self._client.abort_multipart_upload, **_upload(fields))
        if isinstance(answer, Answer):
            return self._after_abort(answer, fields)
        while (parts := self._list_parts(fields)) not in (NO_UPLOAD, []):
            if isinstance(parts, Answer):
                return read(parts, "ListParts")
            if time.monotonic() >= give_up_at:
                return Finished(outcome=Outcome.RETRY, reason="Parts are still arriving at the aborted upload.")
            time.sleep(_POLL_S)
            again = ask(self._client.abort_multipart_upload, **_upload(fields))
            if isinstance(again, Answer) and again.code != NO_SUCH_UPLOAD:
                return read(again, "AbortMultipartUpload")
        if "mark" not in fields:
            return Finished(outcome=Outcome.ABORTED)  # it was listed, so it was open
        return self._after_abort(NO_UPLOAD, fields)

    def _after_abort(self, answer: Answer, fields: Fields) -> Finished:
        """Answers ALREADY_COMMITTED if an upload that is gone was published."""
        if answer.code != NO_SUCH_UPLOAD:
            return read(answer, "AbortMultipartUpload")
        found = look(self._client, str(fields["bucket"]), key_of(fields))
        if isinstance(found, Present):
            published = is_own(found, fields)
            return Finished(outcome=Outcome.ALREADY_COMMITTED if published else Outcome.ABORTED)
        if found.status == 404 and found.code != "NoSuchBucket":
            return Finished(outcome=Outcome.ABORTED)
        return read(found, "HeadObject")

    def _complete(self, fields: Fields) -> Mapping[str, Any] | Answer:
        etags = enumerate(str(fields["etags"]).split(","), 1)
        parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in etags]
        return ask(
            self._once.complete_multipart_upload,
            **_upload(fields),
            MultipartUpload={"Parts": parts},
            **self._condition,
        )

    def _list_parts(self, fields: Fields) -> list[str] | Answer:
        etags: list[str] = []
        marker = 0
        while True:
            answer = ask(self._client.list_parts, **_upload(fields), PartNumberMarker=marker)
            if isinstance(answer, Answer):
                return NO_UPLOAD if answer.code == NO_SUCH_UPLOAD else answer
            etags += [str(part["ETag"]).strip('"') for part in answer.get("Parts", ())]
            if not answer.get("IsTruncated"):
                return etags
            marker = int(answer["NextPartNumberMarker"])


def _upload(fields: Fields) -> dict[str, Any]:
    return {"Bucket": fields["bucket"], "Key": key_of(fields), "UploadId": fields["upload_id"]}


def _differs(answer: Mapping[str, Any], fields: Fields) -> bool:
    """Returns whether the store reports another ETag than S3 would make of the parts."""
    etag = str(answer.get("ETag", "")).strip('"')
    return ":" not in str(fields["checksum"]) and etag != fields["checksum"]


def key_of(fields: Fields) -> str:
    """Returns the key at which the file is published."""
    return f"{fields['prefix']}{fields['path']}"
