from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkonce.errors import ConfigurationError
from sparkonce.spark.checkpoints.opening import open_checkpoint
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.objects import ObjectAccess, ObjectFiles
from sparkonce.storage.opening import object_files

HADOOP = "org.apache.hadoop.fs.s3a"
PROVIDERS = "fs.s3a.aws.credentials.provider"
KEYS = {"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hidden-secret"}
ROLE = {
    **KEYS,
    PROVIDERS: f"{HADOOP}.auth.AssumedRoleCredentialProvider",
    "fs.s3a.assumed.role.arn": "arn:aws:iam::1:role/log",
    "fs.s3a.assumed.role.session.duration": "1h",
    "fs.s3a.assumed.role.sts.endpoint": "sts.here.org",
}
AZURE = "abfss://box@account.dfs.core.windows.net/ck"
OAUTH = {
    "fs.azure.account.auth.type": "OAuth",
    "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
    "fs.azure.account.oauth2.client.id": "client",
    "fs.azure.account.oauth2.client.secret": "hidden-secret",
    "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
}


class Configuration:
    def __init__(self, settings: dict[str, str], files: dict[str, str] | None = None) -> None:
        self.settings = dict(settings)
        self.files = files or {}

    def get(self, name: str) -> str | None:
        return self.settings.get(name)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def getPassword(self, name: str) -> list[str] | None:
        found = self.files.get(name) if self.get("hadoop.security.credential.provider.path") else None
        found = found or self.settings.get(name)
        return None if found is None else list(found)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def files_of(url: str, settings: dict[str, str], files: dict[str, str] | None = None) -> ObjectFiles:
    return object_files(url, Configuration(settings, files))


def access_of(settings: dict[str, str], url: str = "s3a://bkt/ck/a%20b") -> ObjectAccess:
    return files_of(url, settings)._access


def test_keys_and_endpoint():
    files = files_of(
        "s3a://bkt/ck/a%20b/",
        {**KEYS, "fs.s3a.endpoint": "minio:9000", "fs.s3a.path.style.access": "true"}
        | {"fs.s3a.connection.ssl.enabled": "false", "fs.s3a.endpoint.region": "here"},
    )
    assert (files.location, files._prefix) == ("s3a://bkt/ck/a%20b", "ck/a%20b")
    access = files._access
    assert access.keys == {"access_key_id": "AKIA", "secret_access_key": "hidden-secret"}
    assert access.allow_http
    assert access.options["endpoint"] == "http://minio:9000"
    assert access.options["region"] == "here"
    assert access.options["virtual_hosted_style_request"] is False
    assert "hidden-secret" not in repr(access) + str(access) + repr(files)


@pytest.mark.parametrize(
    ("settings", "endpoint", "region"),
    [
        ({}, "https://bkt.s3.us-east-1.amazonaws.com", "us-east-1"),
        ({"fs.s3a.endpoint.region": "eu-west-1"}, "https://bkt.s3.eu-west-1.amazonaws.com", "eu-west-1"),
        (
            {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
            "https://bkt.s3.eu-central-1.amazonaws.com",
            "eu-central-1",
        ),
        ({"fs.s3a.endpoint": "https://s3.here.org/"}, "https://bkt.s3.here.org", "us-east-2"),
        ({"fs.s3a.endpoint.region": "cn-north-1"}, "https://bkt.s3.cn-north-1.amazonaws.com.cn", "cn-north-1"),
    ],
)
def test_addresses(settings, endpoint, region):
    options = access_of({**KEYS, **settings}).options
    assert (options["endpoint"], options["region"]) == (endpoint, region)


def test_whose_keys_are_taken():
    options = access_of(KEYS, "s3a://a.b/ck").options
    assert options["endpoint"] == "https://s3.us-east-1.amazonaws.com"
    assert options["virtual_hosted_style_request"] is False

    own = {"fs.s3a.bucket.bkt.access.key": "OWN", "fs.s3a.bucket.bkt.secret.key": "own-secret"}
    assert access_of({**KEYS, **own}).keys == {"access_key_id": "OWN", "secret_access_key": "own-secret"}
    assert access_of({**KEYS, **own}, "s3a://other/ck").keys == access_of(KEYS).keys

    files = {"fs.s3a.access.key": "FILED", "fs.s3a.secret.key": "filed"}
    where = {"fs.s3a.security.credential.provider.path": "jceks://file/tmp/keys.jceks"}
    assert files_of("s3a://bkt/ck", where, files)._access.keys == {
        "access_key_id": "FILED",
        "secret_access_key": "filed",
    }


def test_providers_are_asked_in_their_order(monkeypatch):
    first_provider = "software.amazon.awssdk.auth.credentials"
    token = {**KEYS, "fs.s3a.session.token": "token"}
    assert access_of(token).keys == {"access_key_id": "AKIA", "secret_access_key": "hidden-secret", "token": "token"}
    assert access_of({**token, PROVIDERS: f"{HADOOP}.SimpleAWSCredentialsProvider"}).keys == {
        "access_key_id": "AKIA",
        "secret_access_key": "hidden-secret",
    }
    anonymous = access_of({PROVIDERS: f"{HADOOP}.AnonymousAWSCredentialsProvider"})
    assert (anonymous.keys, anonymous.options["skip_signature"]) == (None, True)
    both = f"{first_provider}.EnvironmentVariableCredentialsProvider,\n {HADOOP}.SimpleAWSCredentialsProvider"
    assert access_of({**KEYS, PROVIDERS: both}).keys is not None
    assert access_of({}).keys is None, "the machine's role"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    assert access_of({**KEYS, PROVIDERS: both}).keys is None
    assert access_of({}).keys is None
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID is set") as refused:
        access_of({PROVIDERS: f"{HADOOP}.auth.IAMInstanceCredentialsProvider"})
    assert "ENV" not in str(refused.value).replace("environment", "")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({PROVIDERS: f"{HADOOP}.auth.AssumedRoleCredentialProvider"}, "fs.s3a.assumed.role.arn is not set"),
        ({**ROLE, "fs.s3a.assumed.role.session.duration": "soon"}, "fs.s3a.assumed.role.session.duration=soon"),
        ({**ROLE, "fs.s3a.secret.key": ""}, "fs.s3a.assumed.role.credentials.provider gives no credentials"),
        ({PROVIDERS: "com.example.Own"}, "com.example.Own"),
        ({PROVIDERS: f"{HADOOP}.SimpleAWSCredentialsProvider"}, "gives no credentials"),
        ({**KEYS, "fs.s3a.delegation.token.binding": "x"}, "fs.s3a.delegation.token.binding"),
        ({**KEYS, "fs.s3a.bucket.bkt.accesspoint.arn": "arn"}, "fs.s3a.accesspoint.arn"),
        ({**KEYS, "fs.s3a.encryption.algorithm": "CSE-KMS"}, "CSE-KMS"),
        ({**KEYS, "fs.s3a.endpoint.fips": "true"}, "fs.s3a.endpoint.fips"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(settings, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        access_of(settings)
    assert refused.value.next_step
    assert "hidden-secret" not in str(refused.value)


def test_a_role_is_assumed_with_the_sessions_keys():
    pytest.importorskip("boto3")
    access = pickle.loads(pickle.dumps(access_of(ROLE)))  # noqa: S301 - our own
    assert access.keys is None
    request, client = access.provider.args
    assert request == {"RoleArn": "arn:aws:iam::1:role/log", "RoleSessionName": "sparkonce", "DurationSeconds": 3600}
    assert client == {
        "endpoint_url": "https://sts.here.org",
        "region_name": "us-east-1",
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "hidden-secret",
    }
    assert "hidden-secret" not in repr(access)
    pytest.importorskip("obstore")
    assert access.client(repeats=False)


def test_a_profile_is_read_anew_as_its_keys_may_change(monkeypatch, tmp_path):
    pytest.importorskip("boto3")
    assert access_of({PROVIDERS: "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"}).provider is None
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "etl")
    access = access_of({PROVIDERS: "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"})
    assert access.provider is not None
    for key in ("one", "two"):
        (tmp_path / "credentials").write_text(f"[etl]\naws_access_key_id={key}\naws_secret_access_key=s\n")
        assert access.provider()["access_key_id"] == key


def test_encryption():
    own = {**KEYS, "fs.s3a.encryption.algorithm": "SSE-KMS", "fs.s3a.encryption.key": "arn:key"}
    options = access_of(own).options
    assert (options["server_side_encryption"], options["sse_kms_key_id"]) == ("aws:kms", "arn:key")
    customer = access_of({**own, "fs.s3a.encryption.algorithm": "SSE-C"}).options
    assert (customer["server_side_encryption"], customer["sse_customer_key_base64"]) == ("sse-c", "arn:key")
    assert "arn:key" not in repr(access_of(own))


def test_azure_and_google():
    key = access_of({"fs.azure.account.key.account.dfs.core.windows.net": "hidden-secret"}, AZURE)
    assert (key.kind, key.bucket) == ("azure", "box")
    assert key.options == {
        "account_name": "account",
        "endpoint": "https://account.blob.core.windows.net",
        "account_key": "hidden-secret",
    }
    assert "hidden-secret" not in repr(key)
    sas = {"fs.azure.account.auth.type": "SAS", "fs.azure.sas.fixed.token": "sv=1"}
    assert access_of(sas, AZURE).options["sas_key"] == "sv=1"
    oauth = access_of(OAUTH, AZURE).options
    assert (oauth["client_id"], oauth["client_secret"], oauth["tenant_id"]) == ("client", "hidden-secret", "tenant")
    assert oauth["authority_host"] == "https://login.microsoftonline.com"

    file = {"fs.gs.auth.service.account.json.keyfile": "/keys/one.json"}
    assert access_of(file, "gs://bkt/ck").options == {"service_account": "/keys/one.json"}
    assert access_of({}, "gs://bkt/ck").options == {}
    with pytest.raises(ConfigurationError, match="USER_CREDENTIALS"):
        access_of({"fs.gs.auth.type": "USER_CREDENTIALS"}, "gs://bkt/ck")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "fs.azure.account.key is not set"),
        ({"fs.azure.account.auth.type": "Custom"}, "Custom"),
        ({**OAUTH, "fs.azure.account.oauth.provider.type": "x.UserPasswordTokenProvider"}, "UserPassword"),
        ({"fs.azure.account.auth.type": "SAS", "fs.azure.sas.token.provider.type": "x.Own"}, "x.Own"),
    ],
)
def test_what_azure_has_no_counterpart_for(settings, named):
    with pytest.raises(ConfigurationError, match=named):
        access_of(settings, AZURE)


@pytest.mark.parametrize("url", ["s3a://bkt/ck", AZURE, "gs://bkt/ck"])
def test_the_client_accepts_what_is_translated(url):
    pytest.importorskip("obstore")
    settings = {**KEYS, "fs.azure.account.key": "aGlkZGVu", "fs.s3a.requester.pays.enabled": "true"}
    settings |= {"fs.s3a.proxy.host": "127.0.0.1", "fs.s3a.encryption.algorithm": "AES256"}
    assert access_of(settings, url).client(repeats=False)


@pytest.fixture
def site(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    return tmp_path / "core-site.xml"


def connect_session(**shown: str) -> Any:
    return cast("Any", SimpleNamespace(conf=SimpleNamespace(getAll={"spark.app.name": "a", **shown})))


def test_spark_connect_reaches_a_store_as_its_session_does(site):
    keys = "<property><name>fs.s3a.{0}.key</name><value>{1}</value></property>"
    site.write_text(f"<configuration>{keys.format('access', 'SITE')}{keys.format('secret', 'hidden')}</configuration>")
    shown = {"spark.hadoop.fs.s3a.endpoint": "http://one:9000", "spark.hadoop.fs.s3a.access.key": "OURS"}
    files = open_checkpoint(connect_session(**shown, **{"fs.s3a.endpoint": "http://two:9000"}), "s3a://bkt/ck")
    assert files._access.keys == {"access_key_id": "OURS", "secret_access_key": "hidden"}
    assert files._access.options["endpoint"] == "http://bkt.two:9000"


def test_spark_connect_takes_a_path_for_what_spark_takes_it(site):
    assert isinstance(open_checkpoint(connect_session(), "/ck"), LocalFiles)
    site.write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:1</value></property></configuration>"
    )
    files = open_checkpoint(connect_session(**{"spark.hadoop.fs.s3a.secret.key": "hidden"}), "/ck")
    assert (files.location, files._settings) == ("hdfs://nn:1/ck", {"fs.defaultFS": "hdfs://nn:1"})


@pytest.mark.parametrize(
    ("shown", "location", "named"),
    [
        ({"spark.hadoop.hadoop.security.credential.provider.path": "jceks://file/a"}, "s3a://b/c", "provider.path"),
        ({"spark.hadoop.dfs.client.failover.proxy.provider.nn": "org.Own"}, "hdfs://nn/c", "provider.nn='org.Own'"),
    ],
)
def test_what_spark_connect_cannot_reach_is_refused_by_name(site, shown, location, named):
    with pytest.raises(ConfigurationError, match=named) as refused:
        open_checkpoint(connect_session(**shown), location)
    assert refused.value.next_step

    site.write_text("<configuration>")
    with pytest.raises(ConfigurationError, match=r"core-site\.xml cannot be read"):
        open_checkpoint(connect_session(), location)


def test_workers_are_not_sent_to_a_cluster_that_asks_for_a_ticket(site):
    shown = {"spark.hadoop.hadoop.security.authentication": "kerberos"}
    files = open_checkpoint(connect_session(**shown), "hdfs://nn/ck")
    with pytest.raises(ConfigurationError, match=r"hadoop\.security\.authentication='kerberos'") as refused:
        files.for_workers()
    assert "folder=" in str(refused.value.next_step)
