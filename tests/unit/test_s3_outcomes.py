import pytest

from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files.s3.requests import (
    DONE,
    NO_SUCH_UPLOAD,
    NOT_SENT,
    OCCUPIED,
    Answer,
    Present,
    is_own,
    outcome_by_object,
    read,
)

PATH = "a=1/part-out.0123456789ab.7-00112233.4.2.aabbccddeeff-0.parquet"
NAME = "out.0123456789ab.7-00112233.4.2.aabbccddeeff"
FIELDS = {"path": PATH, "mark": "m", "size": 10, "checksum": "abc-1"}
OWN = Present(size=10, etag="abc-1", transaction=NAME, mark="m")
ABSENT = Answer(status=404, code="404")


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (None, "ConnectTimeoutError", Outcome.RETRY),
        (503, "SlowDown", Outcome.RETRY),
        (503, "anything", Outcome.RETRY),
        (500, "InternalError", Outcome.RETRY),
        (502, "", Outcome.RETRY),
        (200, "InternalError", Outcome.RETRY),
        (429, "429", Outcome.RETRY),
        (429, "anything", Outcome.RETRY),
        (408, "408", Outcome.RETRY),
        (509, "509", Outcome.RETRY),
        (400, "RequestTimeout", Outcome.RETRY),
        (400, "BadDigest", Outcome.RETRY),
        (400, "XAmzContentSHA256Mismatch", Outcome.RETRY),
        (409, "OperationAborted", Outcome.RETRY),
        (409, "ConditionalRequestConflict", Outcome.RETRY),
        (409, "409", Outcome.RETRY),
        (409, "InvalidBucketState", Outcome.UNKNOWN),
        (403, "AccessDenied", Outcome.UNKNOWN),
        (403, "403", Outcome.UNKNOWN),
        (403, "RequestTimeTooSkewed", Outcome.UNKNOWN),
        (400, "ExpiredToken", Outcome.UNKNOWN),
        (404, "NoSuchBucket", Outcome.UNKNOWN),
        (400, "InvalidPart", Outcome.UNKNOWN),
        (400, "KMS.DisabledException", Outcome.UNKNOWN),
        (418, "Teapot", Outcome.UNKNOWN),
        (NOT_SENT, "NoCredentialsError", Outcome.UNKNOWN),
        (NOT_SENT, "SomethingElse", Outcome.UNKNOWN),
    ],
)
def test_what_an_answer_says_by_itself(status, code, outcome):
    finished = read(Answer(status=status, code=code, reason="because"), "CompleteMultipartUpload")
    assert finished.outcome is outcome
    assert finished.reason.startswith("CompleteMultipartUpload: ")


def test_a_request_that_a_store_lacks_is_not_blamed_on_a_setting():
    reason = read(Answer(status=501, code="NotImplemented"), "ListMultipartUploads").reason
    assert reason.startswith("ListMultipartUploads: NotImplemented")
    assert "if_none_match" not in reason


@pytest.mark.parametrize(
    ("code", "standing", "outcome"),
    [
        (DONE, OWN, Outcome.COMMITTED),
        (NO_SUCH_UPLOAD, OWN, Outcome.ALREADY_COMMITTED),
        (OCCUPIED, OWN, Outcome.ALREADY_COMMITTED),
        (DONE, ABSENT, Outcome.RETRY),
        (OCCUPIED, ABSENT, Outcome.RETRY),
        (NO_SUCH_UPLOAD, ABSENT, Outcome.LOST),
        (NO_SUCH_UPLOAD, Answer(status=404, code="404", deleted=True), Outcome.UNKNOWN),
        (NO_SUCH_UPLOAD, Answer(status=404, code="NoSuchBucket"), Outcome.UNKNOWN),
        (NO_SUCH_UPLOAD, Answer(status=403, code="403"), Outcome.UNKNOWN),
        (NO_SUCH_UPLOAD, Answer(status=503, code="503"), Outcome.RETRY),
        (NO_SUCH_UPLOAD, Answer(status=None, code="ReadTimeoutError"), Outcome.RETRY),
        *[(code, Present(size=10, etag="zzz"), Outcome.UNKNOWN) for code in (DONE, NO_SUCH_UPLOAD, OCCUPIED)],
    ],
)
def test_what_stands_at_the_key_decides(code, standing, outcome):
    assert outcome_by_object(code, standing, FIELDS).outcome is outcome


def test_an_object_is_known_by_its_mark():
    assert is_own(OWN, FIELDS)
    assert is_own(Present(size=10, etag="other-1", transaction=NAME, mark="m"), FIELDS)
    assert not is_own(Present(size=10, etag="abc-1", transaction=NAME, mark="n"), FIELDS)
    assert not is_own(Present(size=11, etag="abc-1", transaction=NAME, mark="m"), FIELDS)

    assert is_own(Present(size=10, etag="abc-1"), FIELDS)
    assert not is_own(Present(size=10, etag="abc-2"), FIELDS)
    assert not is_own(Present(size=9, etag="abc-1"), FIELDS)

    assert is_own(OWN, {"path": PATH})
    assert not is_own(Present(size=10, etag="abc-1", transaction=NAME.replace(".4.", ".5.")), {"path": PATH})
    assert not is_own(Present(size=10, etag="abc-1"), {"path": "not ours"})

    answers = [Answer(status=status, code=str(status)) for status in (None, 0, 200, 301, 400, 403, 409, 412, 500, 503)]
    for code in (DONE, NO_SUCH_UPLOAD, OCCUPIED):
        assert all(outcome_by_object(code, answer, FIELDS).outcome is not Outcome.LOST for answer in answers)
