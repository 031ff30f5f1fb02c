"""Opens a checkpoint without a JVM, and translates Hadoop's settings for the clients of `sparkonce.storage`.

Spark Connect, the formats, the command line and other tools open a checkpoint by its location. They use Hadoop's
settings where these are known, and this process's environment elsewhere. A setting that cannot be translated is an
error that names it, so that a checkpoint is never opened with other credentials than Spark's. Messages never contain
the value of a setting that may be a secret.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from xml.etree import ElementTree

from sparkonce.arguments import need_package
from sparkonce.errors import ConfigurationError
from sparkonce.storage.files import CheckpointFiles
from sparkonce.storage.hdfs import HdfsFiles, checked_settings
from sparkonce.storage.local import LocalFiles
from sparkonce.storage.location import HADOOP, checked_location, local_folder
from sparkonce.storage.objects import ObjectAccess, ObjectFiles

_HADOOP = "spark.hadoop."
OF_STORES = ("dfs.", "fs.", "google.cloud.", "hadoop.security.", "ipc.")
"""Prefixes of Hadoop's settings for stores."""
_URL = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<authority>[^/]*))?(?P<path>/?.*)", re.DOTALL)
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def open_location(location: str, settings: Mapping[str, str] | None = None) -> CheckpointFiles:
    """Returns the files of a checkpoint. Uses Hadoop's settings or, without any, this process's environment.

    With settings, an object store is accessed as Spark's connector would access it. Without settings, S3 uses the
    environment variables of Amazon's tools (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, …), Azure uses
    ``AZURE_STORAGE_…``, and Google uses ``GOOGLE_APPLICATION_CREDENTIALS``. HDFS uses the files in ``HADOOP_CONF_DIR``.

    Args:
        location: See `sparkonce.storage.location.checked_location`. A path is on this machine, unless ``fs.defaultFS``
            names a different store.
        settings: Hadoop's settings, without the prefix ``spark.hadoop.``; None to use the environment. For HDFS, they
            take precedence over the files in ``HADOOP_CONF_DIR``.

    Raises:
        ConfigurationError: If the location is invalid, a setting has no counterpart, or a package is missing.
    """
    url = checked_location(_qualified(checked_location(location), (settings or {}).get("fs.defaultFS", "")))
    scheme, _, rest = url.partition("://")
    if scheme in HADOOP:
        return HdfsFiles(url, checked_settings(url, settings or {}))
    if scheme in _OPENED and settings is not None:
        return object_files(url, PlainSettings(settings))
    if scheme in _OPENED:
        authority, _, path = rest.partition("/")
        return ObjectFiles(url, path.strip("/"), _OPENED[scheme](authority))
    return LocalFiles(local_folder(url))


def _qualified(location: str, default: str) -> str:
    """Returns a location as Hadoop qualifies it, with the scheme and host of the default store if it has none."""
    url, store = (cast(re.Match[str], _URL.fullmatch(one)) for one in (location, default))
    scheme, authority = url["scheme"], url["authority"]
    if not scheme and store["scheme"] not in (None, "file"):
        scheme, authority = store["scheme"], store["authority"]
    elif scheme == store["scheme"] and scheme != "file":
        authority = authority or store["authority"]
    return location if scheme in (None, "file") else f"{scheme}://{authority or ''}{url['path']}"


def read_settings(shown: Mapping[str, str]) -> dict[str, str]:
    """Reads Hadoop's settings for stores without a JVM: those in ``HADOOP_CONF_DIR``, overridden by the session's.

    Args:
        shown: All settings of the session. As in Spark, a setting without the prefix ``spark.hadoop.`` takes precedence
            over one with it.

    Raises:
        ConfigurationError: If ``core-site.xml`` cannot be read.
    """
    file = Path(os.environ.get("HADOOP_CONF_DIR", ""), "core-site.xml")
    found: dict[str, str] = {}
    if os.environ.get("HADOOP_CONF_DIR") and file.exists():
        try:
            of_site = ElementTree.parse(file).iter("property")  # noqa: S314 - the operator's own file
        except (OSError, ElementTree.ParseError) as error:
            raise ConfigurationError(
                f"{file} cannot be read: {error}.",
                next_step="Correct HADOOP_CONF_DIR, the folder of Hadoop's XML files, or the file.",
                setting="HADOOP_CONF_DIR",
            ) from None
        found = {one.findtext("name", "").strip(): one.findtext("value", "").strip() for one in of_site}
    found |= {name.removeprefix(_HADOOP): value for name, value in shown.items() if name.startswith(_HADOOP)}
    return {name: value for name, value in (found | dict(shown)).items() if name.startswith(OF_STORES)}


def _s3_by_environment(bucket: str) -> ObjectAccess:
    options = {"conditional_put": "etag", "virtual_hosted_style_request": False}
    endpoint = next((os.environ[name] for name in _ENDPOINT_VARIABLES if os.environ.get(name)), "")
    if endpoint:
        options["endpoint"] = endpoint
    return ObjectAccess(kind="s3", bucket=bucket, options=options, allow_http=endpoint.startswith("http:"))


def _azure_by_environment(authority: str) -> ObjectAccess:
    container, _, host = authority.rpartition("@")
    options = {"account_name": host.partition(".")[0], "endpoint": f"https://{host.replace('.dfs.', '.blob.')}"}
    return ObjectAccess(kind="azure", bucket=container, options=options)


def _google_by_environment(bucket: str) -> ObjectAccess:
    return ObjectAccess(kind="gcs", bucket=bucket)


_OPENED: Mapping[str, Callable[[str], ObjectAccess]] = {
    "s3a": _s3_by_environment,
    "abfs": _azure_by_environment,
    "abfss": _azure_by_environment,
    "gs": _google_by_environment,
}

_DEFAULT_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider,"
    "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider"
)

_AMAZON = re.compile(r"(?:https?://)?s3(?:[.-](?P<region>[a-z]{2,3}(?:-[a-z]+)+-\d))?\.amazonaws\.com(?:\.cn)?/?")
_REGION_ELSEWHERE = "us-east-2"
"""S3A's region for a store other than Amazon's, if no setting names one."""
_ROLE_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"
)
"""S3A's providers of the keys for assuming a role, if no setting names them."""
_ENCRYPTIONS = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse", "SSE-C": "sse-c"}
_KMS_KEY, _CUSTOMER_KEY = "sse_kms_key_id", "sse_customer_key_base64"
_PROVIDER_PATH = "hadoop.security.credential.provider.path"
_LISTED = "Use credentials that docs/checkpoints.md lists."
_UNDERSTOOD = "Remove it for this bucket: docs/checkpoints.md lists the settings that are understood."
_REFUSED_OF_S3 = ("delegation.token.binding", "accesspoint.arn", "custom.signers", "proxy.username", "endpoint.fips")
"""S3A settings that lead to different requests or credentials, and have no counterpart."""


class HadoopSettings:
    """A session's settings, as a connector reads them from a copy of the session's Hadoop ``Configuration``.

    ``particular`` returns the name of a setting that applies only to this bucket or account, given its general name.
    """

    def __init__(self, configuration: Any, particular: Callable[[str], str]) -> None:
        self._configuration = configuration
        self._particular = particular

    def get(self, name: str) -> str:
        found = self._configuration.get(self._particular(name)) or self._configuration.get(name) or ""
        return str(found).strip()

    def secret(self, name: str) -> str:
        """Returns a setting that may be stored in a Hadoop credential file; empty if it is not set."""
        for one in (self._particular(name), name):
            if found := self._configuration.getPassword(one):
                return "".join(found).strip()
        return ""

    def is_on(self, name: str, *, default: bool) -> bool:
        return (self.get(name) or str(default)).lower() == "true"

    def add_credential_files(self, name: str) -> None:
        """Adds a connector's own credential files, which are searched for secrets first."""
        if own := self.get(name):
            others = str(self._configuration.get(_PROVIDER_PATH) or "")
            self._configuration.set(_PROVIDER_PATH, ",".join(filter(None, (own, others))))


class PlainSettings:
    """Hadoop's settings without a JVM, with the methods of Hadoop's ``Configuration``. Cannot read credential files."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = dict(settings)

    def get(self, name: str) -> str | None:
        return self._settings.get(name)

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value

    def getPassword(self, name: str) -> str | None:  # noqa: N802 - Hadoop's name
        """Returns a secret; raises ConfigurationError if it may be in a credential file."""
        if self._settings.get(_PROVIDER_PATH):
            raise _refused(_PROVIDER_PATH, "", "Give the keys as settings or in the environment.", "needs Spark's JVM")
        return self._settings.get(name)


def object_files(url: str, configuration: Any) -> ObjectFiles:
    """Returns the files of a folder in an object store, accessed as the session's connector would access them.

    ``configuration`` is `PlainSettings` or a copy of the session's Hadoop ``Configuration``.

    Raises:
        ConfigurationError: If a setting has no counterpart.
    """
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    access = {"s3a": _s3, "abfs": _azure, "abfss": _azure, "gs": _google}[scheme](authority, configuration)
    return ObjectFiles(url.rstrip("/"), path.strip("/"), access)


# --- S3 -------------------------------------------------------------------------------------------------------------


def _s3(bucket: str, configuration: Any) -> ObjectAccess:
    settings = HadoopSettings(configuration, lambda name: f"fs.s3a.bucket.{bucket}.{name.removeprefix('fs.s3a.')}")
    settings.add_credential_files("fs.s3a.security.credential.provider.path")
    for name in _REFUSED_OF_S3:
        if settings.get(f"fs.s3a.{name}") not in ("", "false"):
            raise _refused(f"fs.s3a.{name}", "", _UNDERSTOOD)
    options = {**_endpoint_of_s3(bucket, settings), **_encryption(settings)}
    if settings.is_on("fs.s3a.requester.pays.enabled", default=False):
        options["request_payer"] = True
    keys, more = _credentials_of_s3(settings, "fs.s3a.aws.credentials.provider", _DEFAULT_PROVIDERS)
    provider = more.pop(_PROVIDER, None)
    host, port = settings.get("fs.s3a.proxy.host"), settings.get("fs.s3a.proxy.port")
    return ObjectAccess(
        kind="s3",
        bucket=bucket,
        options={**options, **more},
        keys=keys,
        provider=provider,
        allow_http=str(options["endpoint"]).startswith("http:"),
        proxy=f"http://{host}:{port or 80}" if host else None,
    )


def _endpoint_of_s3(bucket: str, settings: HadoopSettings) -> dict[str, Any]:
    """Returns the endpoint and the region, as S3A determines them."""
    address, region = settings.get("fs.s3a.endpoint"), settings.get("fs.s3a.endpoint.region")
    amazon = _AMAZON.fullmatch(address or "s3.amazonaws.com")
    secure = "https" if settings.is_on("fs.s3a.connection.ssl.enabled", default=True) else "http"
    by_path = settings.is_on("fs.s3a.path.style.access", default=False)
    if amazon:
        region = region or amazon["region"] or os.environ.get("AWS_REGION") or "us-east-1"
        address = f"s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"
        by_path = by_path or "." in bucket  # Otherwise, the name would not match the server's certificate.
    scheme, _, host = address.rpartition("://")
    host = host.rstrip("/")
    return {
        "endpoint": f"{scheme or secure}://{host if by_path else f'{bucket}.{host}'}",
        "region": region or _REGION_ELSEWHERE,
        "virtual_hosted_style_request": not by_path,
        "conditional_put": "etag",
        "skip_signature": False,
    }


def _encryption(settings: HadoopSettings) -> dict[str, str]:
    name = "fs.s3a.encryption.algorithm"
    algorithm = settings.get(name) or settings.get("fs.s3a.server-side-encryption-algorithm")
    if not algorithm:
        return {}
    if algorithm not in _ENCRYPTIONS:
        raise _refused(name, algorithm, _UNDERSTOOD)
    key = settings.secret("fs.s3a.encryption.key") or settings.secret("fs.s3a.server-side-encryption.key")
    setting = _CUSTOMER_KEY if algorithm == "SSE-C" else _KMS_KEY
    return {"server_side_encryption": _ENCRYPTIONS[algorithm], **({setting: key} if key else {})}


_PROVIDER = "provider"
"""The key of `ObjectAccess.provider` among the options."""


def _credentials_of_s3(
    settings: HadoopSettings, name: str, default: str
) -> tuple[dict[str, str] | None, dict[str, Any]]:
    """Returns the keys and further options from the first provider that has credentials.

    ``name`` is the setting that lists the providers, and ``default`` lists them if the setting is not set.

    Raises:
        ConfigurationError: If no provider has credentials, or one that comes before the first with credentials has no
            counterpart.
    """
    for provider in re.split(r"[\s,]+", settings.get(name) or default):
        short = provider.rpartition(".")[2]
        if short not in _PROVIDERS:
            raise _refused(name, provider, _LISTED)
        if (found := _PROVIDERS[short](settings)) is not None:
            return found
    raise _refused(name, "", "Set keys, or a provider that has some.", why="gives no credentials")


_Found = tuple[dict[str, str] | None, dict[str, Any]] | None


def _simple(settings: HadoopSettings) -> _Found:
    access, key = settings.secret("fs.s3a.access.key"), settings.secret("fs.s3a.secret.key")
    return ({"access_key_id": access, "secret_access_key": key}, {}) if access and key else None


def _temporary(settings: HadoopSettings) -> _Found:
    found, token = _simple(settings), settings.secret("fs.s3a.session.token")
    return ({**(found[0] or {}), "token": token}, {}) if found and token else None


def _environment(_settings: HadoopSettings) -> _Found:
    return (None, {}) if os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY") else None


def _web_identity(_settings: HadoopSettings) -> _Found:
    if not os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") or not os.environ.get("AWS_ROLE_ARN"):
        return None
    return _without(("AWS_ACCESS_KEY_ID",))


def _instance(_settings: HadoopSettings) -> _Found:
    return _without(("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"))


def _default_chain(settings: HadoopSettings) -> _Found:
    if (found := _environment(settings) or _web_identity(settings)) is not None:
        return found
    return _profile(settings) or _instance(settings)


def _profile(_settings: HadoopSettings) -> _Found:
    if not os.environ.get("AWS_PROFILE") and not Path("~/.aws/credentials").expanduser().exists():
        return None
    need_package("A profile of ~/.aws/credentials", "boto3", "boto3", "s3")
    return None, {_PROVIDER: _keys_of_profile}


def _keys_of_profile() -> dict[str, Any]:
    import boto3

    if (found := boto3.Session().get_credentials()) is None:
        raise OSError(errno.EACCES, "The profile of ~/.aws/credentials gives no credentials")
    keys = found.get_frozen_credentials()
    until = datetime.now(timezone.utc) + timedelta(minutes=10)
    return {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token,
        "expires_at": until,
    }


def _assumed_role(settings: HadoopSettings) -> _Found:
    name = "fs.s3a.assumed.role."
    role = {one: settings.get(name + one) for one in ("arn", "session.name", "session.duration", "policy")}
    if not role["arn"]:
        raise _refused(f"{name}arn", "", "Set it to the role that the bucket's owner has given.", why="is not set")
    need_package(f"{name}arn", "boto3", "boto3", "s3")
    keys, _ = _credentials_of_s3(settings, f"{name}credentials.provider", _ROLE_PROVIDERS)
    duration = re.fullmatch(r"(\d+)([smh]?)", role["session.duration"] or "30m")
    if duration is None:
        raise _refused(f"{name}session.duration", role["session.duration"], "Set it to minutes, such as 30m.")
    endpoint = settings.get(f"{name}sts.endpoint")
    return None, {
        _PROVIDER: partial(
            _keys_of_role,
            {
                "RoleArn": role["arn"],
                "RoleSessionName": role["session.name"] or "sparkonce",
                "DurationSeconds": int(duration[1]) * {"m": 60, "h": 3600}.get(duration[2], 1),
                **({"Policy": role["policy"]} if role["policy"] else {}),
            },
            {
                "endpoint_url": (endpoint if "://" in endpoint else f"https://{endpoint}") if endpoint else None,
                "region_name": settings.get(f"{name}sts.endpoint.region")
                or settings.get("fs.s3a.endpoint.region")
                or "us-east-1",
                **{_BOTO3[one]: key for one, key in (keys or {}).items()},
            },
        )
    }


_BOTO3 = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "token": "aws_session_token",
}


def _keys_of_role(request: Mapping[str, Any], client: Mapping[str, Any]) -> dict[str, Any]:
    import boto3

    keys = boto3.client("sts", **client).assume_role(**request)["Credentials"]
    return {
        "access_key_id": keys["AccessKeyId"],
        "secret_access_key": keys["SecretAccessKey"],
        "token": keys["SessionToken"],
        "expires_at": keys["Expiration"],
    }


def _anonymous(_settings: HadoopSettings) -> _Found:
    return None, {"skip_signature": True}


_PROVIDERS: Mapping[str, Callable[[HadoopSettings], _Found]] = {
    "TemporaryAWSCredentialsProvider": _temporary,
    "SimpleAWSCredentialsProvider": _simple,
    "EnvironmentVariableCredentialsProvider": _environment,
    "WebIdentityTokenFileCredentialsProvider": _web_identity,
    "WebIdentityTokenCredentialsProvider": _web_identity,
    "IAMInstanceCredentialsProvider": _instance,
    "InstanceProfileCredentialsProvider": _instance,
    "ContainerCredentialsProvider": _instance,
    "EC2ContainerCredentialsProviderWrapper": _instance,
    "ProfileCredentialsProvider": _profile,
    "AssumedRoleCredentialProvider": _assumed_role,
    "DefaultCredentialsProvider": _default_chain,
    "DefaultAWSCredentialsProviderChain": _default_chain,
    "AnonymousAWSCredentialsProvider": _anonymous,
    "AnonymousCredentialsProvider": _anonymous,
}
"""The readers of providers, by class name. Hadoop and both versions of Amazon's library each have their own classes."""


# --- Azure ----------------------------------------------------------------------------------------------------------


def _azure(authority: str, configuration: Any) -> ObjectAccess:
    container, _, host = authority.rpartition("@")
    settings = HadoopSettings(configuration, lambda name: f"{name}.{host}")
    _without(("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_TOKEN"))
    name = "fs.azure.account.auth.type"
    kind = settings.get(name) or "SharedKey"
    if kind not in _AZURE_KINDS:
        raise _refused(name, kind, _LISTED)
    options = _AZURE_KINDS[kind](settings)
    endpoint = f"https://{host.replace('.dfs.', '.blob.')}"
    account = {"account_name": host.partition(".")[0], "endpoint": endpoint}
    return ObjectAccess(kind="azure", bucket=container, options={**account, **options})


def _shared_key(settings: HadoopSettings) -> dict[str, Any]:
    return {"account_key": _needed(settings, "fs.azure.account.key")}


def _sas(settings: HadoopSettings) -> dict[str, Any]:
    name = "fs.azure.sas.token.provider.type"
    if (provider := settings.get(name)) and not provider.endswith(".FixedSASTokenProvider"):
        raise _refused(name, provider, _LISTED)
    return {"sas_key": _needed(settings, "fs.azure.sas.fixed.token")}


def _oauth(settings: HadoopSettings) -> dict[str, Any]:
    name = "fs.azure.account.oauth.provider.type"
    provider = settings.get(name)
    client = settings.secret("fs.azure.account.oauth2.client.id")
    if provider.endswith(".ClientCredsTokenProvider"):
        endpoint = urlsplit(_needed(settings, "fs.azure.account.oauth2.client.endpoint"))
        return {
            "client_id": client,
            "client_secret": _needed(settings, "fs.azure.account.oauth2.client.secret"),
            "tenant_id": endpoint.path.strip("/").partition("/")[0],
            "authority_host": f"{endpoint.scheme}://{endpoint.netloc}",
        }
    if provider.endswith(".MsiTokenProvider"):
        return {"client_id": client} if client else {}
    if provider.endswith(".WorkloadIdentityTokenProvider"):
        return {
            "client_id": client,
            "tenant_id": _needed(settings, "fs.azure.account.oauth2.msi.tenant"),
            "federated_token_file": _needed(settings, "fs.azure.account.oauth2.token.file"),
        }
    raise _refused(name, provider, _LISTED)


_AZURE_KINDS: Mapping[str, Callable[[HadoopSettings], dict[str, Any]]] = {
    "SharedKey": _shared_key,
    "SAS": _sas,
    "OAuth": _oauth,
}


# --- Google ---------------------------------------------------------------------------------------------------------


def _google(bucket: str, configuration: Any) -> ObjectAccess:
    settings = HadoopSettings(configuration, lambda name: name.replace("fs.gs.auth.", "google.cloud.auth."))
    file = settings.get("fs.gs.auth.service.account.json.keyfile")
    kind = settings.get("fs.gs.auth.type")
    _without(("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"))
    if kind not in ("", "SERVICE_ACCOUNT_JSON_KEYFILE", "APPLICATION_DEFAULT", "COMPUTE_ENGINE"):
        raise _refused("fs.gs.auth.type", kind, _LISTED)
    options = {"service_account": file} if file and kind in ("", "SERVICE_ACCOUNT_JSON_KEYFILE") else {}
    return ObjectAccess(kind="gcs", bucket=bucket, options=options)


# --- all of them ----------------------------------------------------------------------------------------------------


def _without(names: tuple[str, ...]) -> tuple[None, dict[str, Any]]:
    """Rejects environment variables that the client would read, but the session's connector would not."""
    for name in names:
        if os.environ.get(name):
            raise ConfigurationError(
                f"{name} is set in the driver's environment, and the Hadoop settings name other credentials.",
                next_step="Unset it, or name the credentials of the environment in the Hadoop settings.",
                setting=name,
            )
    return None, {}


def _needed(settings: HadoopSettings, name: str) -> str:
    if not (found := settings.secret(name)):
        raise ConfigurationError(
            f"{name} is not set, and the checkpoint's store needs it.",
            next_step=f"Set spark.hadoop.{name}, as Spark's own checkpoint needs it, too.",
            setting=name,
        )
    return found


def _refused(
    name: str, value: str, next_step: str, why: str = "has no counterpart in the client of the log"
) -> ConfigurationError:
    shown = f"{name}={value}" if value else name
    return ConfigurationError(f"{shown} {why}.", next_step=next_step, setting=name)
