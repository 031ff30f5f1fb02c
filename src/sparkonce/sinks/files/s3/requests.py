"""Sends requests, and returns refusals as values, which the table in `outcomes` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparkonce.sinks.files.s3.outcomes import NOT_SENT, TRANSACTION, UPLOAD, Answer, Present
from sparkonce.words import one_line


def ask(request: Callable[..., Any], **arguments: Any) -> Mapping[str, Any] | Answer:
    """Returns the response to a request, or the reason for having none."""
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError  # noqa: A004
    from botocore.parsers import ResponseParserError

    try:
        response: Mapping[str, Any] = request(**arguments)
    except ClientError as error:
        return refusal(error)
    except (ConnectionError, HTTPClientError, ResponseParserError) as error:
        return Answer(status=None, code=type(error).__name__, reason=one_line(error))
    except BotoCoreError as error:  # it was not sent, for want of credentials for example
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


def look(client: Any, bucket: str, key: str) -> Present | Answer:
    """Returns the object at a key, or the refusal of HeadObject."""
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
