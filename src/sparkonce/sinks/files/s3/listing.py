"""Lists open uploads, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

from sparkonce.sinks.files.s3.outcomes import Answer
from sparkonce.sinks.files.s3.requests import ask

MOST_A_PAGE = 1_000


def list_uploads(client: Any, bucket: str, prefix: str, page: int) -> Iterator[tuple[str, str] | Answer]:
    """Yields key and id of every open upload below a prefix; ends with an `Answer` if the store refuses to continue.

    Args:
        client: A boto3 client.
        bucket: The bucket.
        prefix: The prefix of the keys.
        page: How many uploads to ask for at once, at most 1,000.
    """
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxUploads": page, "EncodingType": "url"}
    key = ""
    while True:
        answer = ask(client.list_multipart_uploads, **asked)
        if _refuses_marker(answer, asked):
            # Versitygw 1.8.0 takes no marker within a key: all uploads of that key, then those after it.
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


def _refuses_marker(answer: Mapping[str, Any] | Answer, asked: Mapping[str, Any]) -> bool:
    return isinstance(answer, Answer) and answer.code == "InvalidArgument" and bool(asked.get("UploadIdMarker"))


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
