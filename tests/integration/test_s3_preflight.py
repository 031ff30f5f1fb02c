from __future__ import annotations

import datetime
import json
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import botocore.auth
import pytest

from s3_between import GO_ON, Reply, Request, refusal
from s3_bucket import Bucket, seal
from secured import make_keys
from shared_servers import s3_server
from sparkonce import FilesSink, Guarantee
from sparkonce.errors import PreflightError, PrepareError
from sparkonce.protocol.handles import Outcome
from sparkonce.sinks.files.s3.store import S3Store
from sparkonce_lab.rig.process import free_port
from sparkonce_lab.rig.servers.s3 import S3Server

RIGHTS = {
    *("s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:PutObject", "s3:GetObject"),
    *("s3:ListMultipartUploadParts", "s3:AbortMultipartUpload", "s3:DeleteObject"),
}
"""The permissions that the sink needs according to docs/s3.md."""


@pytest.fixture(scope="module")
def user() -> tuple[str, str]:
    """The access key and secret of a user without permissions."""
    user = f"user-{secrets.token_hex(4)}", secrets.token_hex(16)
    s3_server().add_user(*user)
    return user


def store_of(bucket: Bucket, user: tuple[str, str]) -> S3Store:
    return S3Store(f"s3://{bucket.name}/out", bucket.server.settings(*user))


def grant(bucket: Bucket, user: tuple[str, str], rights: set[str]) -> None:
    arn = f"arn:aws:s3:::{bucket.name}"
    statements = [
        {"Effect": "Allow", "Principal": user[0], "Action": [right], "Resource": resource}
        for right in sorted(rights)
        for resource in ([arn] if right.startswith("s3:ListBucket") else [f"{arn}/out/*"])
    ]
    policy = {"Version": "2012-10-17", "Statement": statements}
    bucket.client.put_bucket_policy(Bucket=bucket.name, Policy=json.dumps(policy))


def leftovers(bucket: Bucket) -> tuple[Sequence[Any], Sequence[str]]:
    return bucket.uploads(), list(bucket.objects(prefix=""))


def test_a_good_bucket_is_said_which_it_is_and_left_clean(bucket):
    store = bucket.store()
    expected = {"endpoint": bucket.server.url, "bucket": bucket.name, "folder": "out/"}
    assert store.check() == store.check() == expected
    assert leftovers(bucket) == ([], [])


def test_credentials_that_are_not_there_are_missed(bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    store = S3Store(f"s3://{bucket.name}/out", {"endpoint_url": bucket.server.url, "region_name": "us-east-1"})
    with pytest.raises(PreflightError, match="boto3 finds no credentials"):
        store.check()


def test_the_rights_that_are_documented_suffice(bucket, user):
    grant(bucket, user, RIGHTS)
    store = store_of(bucket, user)
    store.check()
    assert leftovers(bucket) == ([], [])
    fields = seal(store)
    assert [one.outcome for one in store.publish([fields])] == [Outcome.COMMITTED]
    assert list(store.list_staged()) == []
    store.put("x.json", b"x")
    assert (store.get("x.json"), store.get("y.json"), store.list_names("")) == (b"x", None, ["x.json"])
    store.delete(["x.json"])


@pytest.mark.parametrize("missing", sorted(RIGHTS))
def test_each_right_that_is_missing_is_named(bucket, user, missing):
    grant(bucket, user, RIGHTS - {missing})
    with pytest.raises(PreflightError, match=rf"{missing}\b(?!Multipart)"):
        store_of(bucket, user).check()


def test_a_right_that_is_taken_away_loses_nothing(bucket, user):
    grant(bucket, user, RIGHTS)
    store = store_of(bucket, user)
    fields = seal(store)
    grant(bucket, user, RIGHTS - {"s3:PutObject", "s3:AbortMultipartUpload"})
    (refused,) = store.publish([fields])
    assert refused.outcome is Outcome.UNKNOWN
    assert "s3:PutObject" in refused.reason
    (kept,) = store.discard([fields])
    assert kept.outcome is Outcome.UNKNOWN
    assert "s3:AbortMultipartUpload" in kept.reason
    with pytest.raises(PrepareError, match="s3:PutObject"):
        seal(store)
    grant(bucket, user, RIGHTS)
    assert [one.outcome for one in store.publish([fields])] == [Outcome.COMMITTED]


def test_without_the_right_to_look_nothing_is_lost(bucket, user):
    """S3 answers 403 for objects that are not there to those who may not list."""
    grant(bucket, user, RIGHTS)
    store = store_of(bucket, user)
    fields = seal(store)
    bucket.abort(str(fields["upload_id"]))
    grant(bucket, user, RIGHTS - {"s3:GetObject", "s3:ListBucket"})
    (refused,) = store.publish([fields])
    assert refused.outcome is Outcome.UNKNOWN
    assert "s3:GetObject" in refused.reason
    grant(bucket, user, RIGHTS)
    assert [one.outcome for one in store.publish([fields])] == [Outcome.LOST]


def test_a_clock_that_is_off_is_named(bucket, monkeypatch):
    store = bucket.store()
    fields = seal(store)
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(
        botocore.auth,
        "get_current_datetime",
        lambda *given, **named: now(*given, **named) - datetime.timedelta(hours=1),
    )
    with pytest.raises(PreflightError):
        store.check()
    (finished,) = store.publish([fields])
    assert finished.outcome is Outcome.UNKNOWN
    assert "clock" in finished.reason
    monkeypatch.undo()
    assert [one.outcome for one in store.publish([fields])] == [Outcome.COMMITTED]


@pytest.mark.parametrize(
    "answer",
    [refusal(501, "NotImplemented"), Reply(200, b"<CompleteMultipartUploadResult/>")],
    ids=["refuses", "ignores"],
)
def test_a_store_without_conditions_is_refused_unless_told(bucket, between, answer):
    between.act = lambda request: answer if request.is_complete else GO_ON
    with pytest.raises(PreflightError, match="if_none_match"):
        bucket.store(endpoint_url=between.url).check()
    assert leftovers(bucket) == ([], [])
    bucket.store(endpoint_url=between.url, if_none_match=False).check()
    assert leftovers(bucket) == ([], [])


def test_without_conditions_none_is_sent(bucket, between):
    sent: list[str | None] = []
    between.listen = lambda request, given: sent.append(given.get("If-None-Match")) if request.is_complete else None
    for setting in (True, False):
        store = bucket.store(endpoint_url=between.url, if_none_match=setting)
        assert [one.outcome for one in store.publish([seal(store)])] == [Outcome.COMMITTED]
    assert sent == ["*", None]


def test_other_etags_than_md5_will_do(bucket, between):
    """With SSE-KMS, the ETag of a part is not an MD5, and the ETag of the whole object is unknown in advance."""

    def etag(request: Request) -> str | Reply:
        if request.is_part:
            return Reply(200, b"", (("ETag", '"opaque"'),))
        if request.is_complete:
            assert b"opaque" in request.body
            return Reply(200, b"<CompleteMultipartUploadResult><ETag>other</ETag></CompleteMultipartUploadResult>")
        if request.method == "HEAD":
            return Reply(200, b"", tuple({**metadata, "Content-Length": "4", "ETag": '"other"'}.items()))
        return GO_ON

    between.act = etag
    store = bucket.store(endpoint_url=between.url)
    fields = seal(store)
    metadata = {"x-amz-meta-sparkonce-upload": str(fields["mark"])}
    assert str(fields["checksum"]).startswith("sha256:")
    assert [one.outcome for one in store.publish([fields])] == [Outcome.COMMITTED]
    metadata = {"x-amz-meta-sparkonce-upload": "another"}
    assert [one.outcome for one in store.publish([fields])] == [Outcome.UNKNOWN]


def test_credentials_of_the_environment_are_found(bucket, monkeypatch):
    settings = bucket.server.settings()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", settings.pop("aws_access_key_id"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", settings.pop("aws_secret_access_key"))
    settings["read_timeout_s"] = 59.0  # no other test shares the client
    assert S3Store(f"s3://{bucket.name}/out", settings).check()["bucket"] == bucket.name


def test_a_certificate_is_verified(tmp_path):
    class TlsServer(S3Server):
        keys: Path

        def command(self) -> Sequence[str]:
            program, *rest = super().command()
            return [program, "--cert", str(self.keys / "broker.pem"), "--key", str(self.keys / "broker.key"), *rest]

        @property
        def url(self) -> str:
            return f"https://{self.address}"

        def is_up(self) -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

    server = TlsServer(tmp_path / "s3")
    server.keys = make_keys(tmp_path)
    with server:
        settings = {**server.settings(), "attempts": 1}
        for wrong in ({}, {"verify": str(tmp_path / "stranger.pem")}):
            with pytest.raises(PreflightError, match="endpoint_url"):
                S3Store("s3://bucket/out", {**settings, **wrong}).check()
        with pytest.raises(PreflightError, match="no bucket"):
            S3Store("s3://bucket/out", {**settings, "verify": str(tmp_path / "ca.pem")}).check()


def test_a_bucket_or_store_that_is_not_there_is_named():
    settings = s3_server().settings()
    with pytest.raises(PreflightError, match="no bucket 'nobodys'"):
        S3Store("s3://nobodys/out", settings).check()
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(PreflightError, match=f"endpoint_url='{url}'"):
        S3Store("s3://bucket/out", {**settings, "endpoint_url": url, "attempts": 1}).check()


# --- the sink over the store -----------------------------------------------------------------------------------------

QUERY = "0123456789ab"


def new_sink(bucket: Bucket, *, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, **options: Any) -> FilesSink:
    options = {**bucket.server.settings(), **options}
    return FilesSink(f"s3://{bucket.name}/out", store_options=options, guarantee=guarantee)


def test_a_lifecycle_rule_is_the_timeout_and_another_a_condition(bucket, between):
    rules = b"""<LifecycleConfiguration>
<Rule><ID>uploads</ID><Status>Enabled</Status><Filter><Prefix>out/</Prefix></Filter>
<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>
<Rule><ID>tidy</ID><Status>Enabled</Status><Filter><Prefix>out/</Prefix></Filter>
<Expiration><Days>30</Days></Expiration></Rule>
</LifecycleConfiguration>"""
    sink = new_sink(bucket, endpoint_url=between.url)
    before = sink.preflight(QUERY, None)
    assert sink.transaction_timeout_s(before) is None
    assert not any("'tidy'" in one for one in sink.conditions())
    between.act = lambda request: Reply(200, rules) if request.path.endswith("?lifecycle") else GO_ON
    facts = sink.preflight(QUERY, before)
    assert sink.transaction_timeout_s(facts) == 3 * 24 * 3600, "another rule is not another bucket"
    assert any("'tidy'" in one and "30 days" in one for one in sink.conditions())
    direct = new_sink(bucket, endpoint_url=between.url, guarantee=Guarantee.AT_LEAST_ONCE)
    assert direct.transaction_timeout_s(facts) is None


def test_another_bucket_is_refused(bucket):
    """Its answer for the last batch's uploads would be that they are lost."""
    facts = new_sink(bucket).preflight(QUERY, None)
    with pytest.raises(PreflightError, match="bucket"):
        new_sink(Bucket()).preflight(QUERY, facts)
