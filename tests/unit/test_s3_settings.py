from __future__ import annotations

import hashlib
import logging
import pickle
from contextlib import suppress
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.exceptions import ClientError

from sparkonce.errors import ConfigurationError
from sparkonce.sinks.files.s3.preflight import DAY_S, inspect_bucket, read_rules
from sparkonce.sinks.files.s3.settings import MIB, client, read_location, read_settings
from sparkonce.sinks.files.s3.store import LARGEST_PART_BYTES, MOST_PARTS, S3Store, final_etag, part_size

SECRETS = {
    "aws_access_key_id": "AKIA-id",
    "aws_secret_access_key": "very-secret",
    "aws_session_token": "very-secret-token",
}


@pytest.mark.parametrize("location", ["b/a", "s3:b", "s3:///a", "s3://b//a", "s3://b/a//c", "https://b/a", ""])
def test_other_locations_are_refused(location):
    with pytest.raises(ConfigurationError, match="s3://bucket/prefix"):
        read_location(location)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"endpoint": "http://x"}, "endpoint"),
        ({"part_size_bytes": 5 * MIB - 1}, "part_size_bytes"),
        ({"part_size_bytes": "8"}, "part_size_bytes"),
        ({"upload_threads": 0}, "upload_threads"),
        ({"finish_threads": True}, "finish_threads"),
        ({"attempts": 0}, "attempts"),
        ({"read_timeout_s": -1}, "read_timeout_s"),
        ({"addressing_style": "host"}, "addressing_style"),
        ({"sse_kms_key_id": "k"}, "sse_kms_key_id"),
        ({"if_none_match": "yes"}, "if_none_match"),
        ({"aws_access_key_id": "k"}, "aws_secret_access_key"),
    ],
)
def test_an_impossible_setting_is_named(settings, named):
    with pytest.raises(ConfigurationError, match=named):
        read_settings(settings)


def test_settings_are_taken():
    settings = read_settings(
        {"read_timeout_s": 3, "verify": "/ca.pem", "server_side_encryption": "aws:kms", "sse_kms_key_id": "k"}
    )
    assert settings.verify == "/ca.pem"
    assert settings.object_options() == {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"}
    assert read_settings({"storage_class": "STANDARD_IA"}).object_options() == {"StorageClass": "STANDARD_IA"}
    assert read_settings({"storage_class": "STANDARD_IA"}).encryption() == {}
    assert read_settings({"verify": False, "endpoint_url": None}).verify is False

    assert S3Store("s3://b/a/").location == S3Store("s3://b/a").location == "s3://b/a"
    assert S3Store("s3a://b/").location == "s3a://b"

    store = S3Store("s3://b/a", SECRETS)
    client(store.settings)
    other = pickle.loads(pickle.dumps(store))  # noqa: S301 - pickled on the same line
    assert (other.location, other.settings) == (store.location, store.settings)


def test_secrets_are_shown_nowhere(caplog):
    with caplog.at_level(logging.DEBUG, logger="sparkonce"):
        store = S3Store("s3://b/a", SECRETS)
        told = [repr(store), repr(store.settings), str(vars(store))]
        for wrong in ({**SECRETS, "nope": 1}, {**SECRETS, "attempts": 0}, {**SECRETS, "aws_session_token": 7}):
            with pytest.raises(ConfigurationError) as refused:
                S3Store("s3://b/a", wrong)
            told.append(str(refused.value) + repr(refused.value) + str(refused.value.details))
        with pytest.raises(ConfigurationError) as refused:
            client(read_settings({**SECRETS, "endpoint_url": "not a url"}))
        told.append(str(refused.value))
    assert not any(
        "secret" in one.replace("aws_secret_access_key", "") or "AKIA" in one for one in [*told, caplog.text]
    )


def test_a_body_is_in_its_signature_behind_tls_too(tmp_path, monkeypatch):
    """Otherwise a store would accept a part that a proxy behind the TLS damaged, since no other checksum is sent."""
    (tmp_path / "config").write_text("[default]\ns3 =\n  payload_signing_enabled = false\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    asked = {"Bucket": "b", "Key": "k", "UploadId": "u", "PartNumber": 1}
    reached = client(read_settings({**SECRETS, "endpoint_url": "https://127.0.0.1:9", "region_name": "r"}))
    signed: list[str] = []

    def answer(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        found = request.headers["X-Amz-Content-SHA256"]
        signed.append(found.decode() if isinstance(found, bytes) else found)
        return AWSResponse(request.url, 200, {}, None)

    reached.meta.events.register("before-send.s3.UploadPart", answer)
    try:
        with suppress(AttributeError):  # the reply has no body
            reached.upload_part(**asked, Body=bytearray(b"hello"))
    finally:
        reached.meta.events.unregister("before-send.s3.UploadPart", answer)
    assert signed == [hashlib.sha256(b"hello").hexdigest()]


def test_parts_grow_so_that_the_largest_file_fits():
    assert [part_size(number, 8 * MIB) for number in (1, 1_000, 1_001, 2_001)] == [8 * MIB, 8 * MIB, 16 * MIB, 32 * MIB]
    sizes = [part_size(number, 8 * MIB) for number in range(1, MOST_PARTS + 1)]
    assert sum(sizes) >= 5 * 1024 * 1024 * MIB
    assert part_size(MOST_PARTS, 1024 * MIB) == LARGEST_PART_BYTES

    one, two = "5d41402abc4b2a76b9719d911017c592", "7d793037a0760186574b0282f2f435e7"
    assert final_etag([one]) == "62109206880d38a4010a98e11243924a-1"
    assert final_etag([one, two]).endswith("-2")
    assert final_etag([one, "not-an-md5"]).startswith("sha256:")


def rule(**more: Any) -> dict[str, Any]:
    return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, **more}


def aborts(days: int, **more: Any) -> dict[str, Any]:
    return rule(AbortIncompleteMultipartUpload={"DaysAfterInitiation": days}, **more)


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        ([], None),
        ([rule(Expiration={"Days": 3})], None),
        ([aborts(3)], 3),
        ([aborts(3), aborts(2), aborts(9)], 2),
        ([aborts(3, Status="Disabled")], None),
        ([aborts(3, Filter={"Prefix": "out/"})], 3),
        ([aborts(3, Filter={"Prefix": "out/x/deeper"})], 3),
        ([aborts(3, Filter={"Prefix": "other/"})], None),
        ([aborts(3, Filter={"And": {"Prefix": "other/", "Tags": []}})], None),
        ([{"Status": "Enabled", "Prefix": "ou", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 4}}], 4),
        ([{"Status": "Enabled", "Prefix": "x", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 4}}], None),
    ],
)
def test_the_first_rule_to_abort_is_the_timeout(rules, days):
    found = read_rules(rules, "out/x/")
    assert found.timeout_s == (None if days is None else days * DAY_S)
    assert any("no lifecycle rule aborts" in note for note in found.notes) == (days is None)


@pytest.mark.parametrize(("expiration", "told"), [({"Days": 30}, "30 days"), ({"Date": "2030-01-01"}, "2030-01-01")])
def test_a_rule_that_deletes_objects_is_told(expiration, told):
    (note,) = read_rules([aborts(7), rule(ID="cleanup", Expiration=expiration)], "out/").notes
    assert "'cleanup'" in note
    assert told in note


def test_the_rules_are_asked_for():
    class Lifecycle:
        """A store with lifecycle rules, which the other tests' server lacks."""

        def __init__(self, rules: list[dict[str, Any]] | str) -> None:
            self._rules = rules

        def get_bucket_lifecycle_configuration(self, **_: str) -> dict[str, Any]:
            if isinstance(self._rules, str):
                told = {"Error": {"Code": self._rules}, "ResponseMetadata": {"HTTPStatusCode": 403}}
                raise ClientError(told, "GetBucketLifecycleConfiguration")
            return {"Rules": self._rules}

    found = inspect_bucket(Lifecycle([aborts(5)]), "b", "out/")
    assert found.timeout_s == 5 * DAY_S
    assert found.notes == ()

    found = inspect_bucket(Lifecycle("AccessDenied"), "b", "out/")
    assert found.timeout_s is None
    assert "s3:GetLifecycleConfiguration" in found.notes[0]

    found = inspect_bucket(Lifecycle("NoSuchLifecycleConfiguration"), "b", "out/")
    assert "AbortIncompleteMultipartUpload" in found.notes[0]

    assert read_rules([aborts(7), rule(Expiration={"ExpiredObjectDeleteMarker": True})], "").notes == ()


@pytest.mark.parametrize(
    ("location", "bucket", "prefix"),
    [("s3://b", "b", ""), ("s3://b/", "b", ""), ("s3a://b/a/c", "b", "a/c/"), ("s3://b/a/c/", "b", "a/c/")],
)
def test_a_location_is_a_bucket_and_a_prefix(location, bucket, prefix):
    assert read_location(location) == (bucket, prefix)
