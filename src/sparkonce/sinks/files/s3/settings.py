"""Validates the user's settings for a bucket, and creates boto3 clients from them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Any

from sparkonce.arguments import flag, missing_package, one_of, whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.sinks._shared.settings import seconds

MIB = 1024 * 1024
SMALLEST_PART_BYTES = 5 * MIB
"""S3's own minimum for every part but the last."""

_LOCATION = re.compile(r"s3[an]?://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?", re.DOTALL)
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "addressing_style": lambda name, value: one_of(name, value, ("auto", "path", "virtual")),
    "connect_timeout_s": seconds,
    "read_timeout_s": seconds,
    "attempts": partial(whole_number, least=1),
    "part_size_bytes": partial(whole_number, least=SMALLEST_PART_BYTES),
    "upload_threads": partial(whole_number, least=1),
    "finish_threads": partial(whole_number, least=1),
    "if_none_match": flag,
}
"""The checks for settings that are not strings. `verify` and the strings have their own checks below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """The settings for reaching and writing to a bucket. None leaves a setting to boto3.

    Attributes:
        endpoint_url: The URL of a store other than AWS, for example ``http://127.0.0.1:7070``.
        region_name: The bucket's region.
        profile_name: A profile in the shared configuration files, which must exist on every machine that runs a task.
        aws_access_key_id: Better left to boto3's chain (environment, profile, role of the machine): a key that is
            passed here is sent to the workers with the sink.
        aws_secret_access_key: See `aws_access_key_id`.
        aws_session_token: See `aws_access_key_id`. The token is not renewed.
        addressing_style: ``path`` (host/bucket/key), ``virtual`` (bucket.host/key) or ``auto``.
        verify: False to trust any certificate, or the path of a CA bundle.
        connect_timeout_s: Seconds to wait for a connection.
        read_timeout_s: Seconds to wait for the next bytes of an answer.
        attempts: The maximum number of times that a repeatable request is sent. A completion is sent once per call.
        part_size_bytes: The size of the first 1,000 parts of a file; later parts are larger.
        upload_threads: The number of parts uploaded in parallel by a worker process. Each thread holds one part in
            memory.
        finish_threads: The number of files that the driver completes or aborts in parallel.
        if_none_match: Complete an upload only if no object is at its key. Turn it off for stores that do not support
            this.
        server_side_encryption: ``AES256``, ``aws:kms`` or ``aws:kms:dsse``.
        sse_kms_key_id: The key for ``aws:kms``.
        storage_class: For example ``STANDARD_IA``.
    """

    endpoint_url: str | None = None
    region_name: str | None = None
    profile_name: str | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    addressing_style: str = "auto"
    verify: bool | str = True
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    attempts: int = 4
    part_size_bytes: int = 8 * MIB
    upload_threads: int = 4
    finish_threads: int = 16
    if_none_match: bool = True
    server_side_encryption: str | None = None
    sse_kms_key_id: str | None = None
    storage_class: str | None = None

    def encryption(self) -> dict[str, str]:
        options = {"ServerSideEncryption": self.server_side_encryption, "SSEKMSKeyId": self.sse_kms_key_id}
        return {name: value for name, value in options.items() if value is not None}

    def object_options(self) -> dict[str, str]:
        """Returns the settings of a new file.

        Small files do not get the storage class, because reading from an archive takes hours.
        """
        storage = {} if self.storage_class is None else {"StorageClass": self.storage_class}
        return {**self.encryption(), **storage}


def read_location(location: str) -> tuple[str, str]:
    """Returns the bucket, and the prefix of all keys: empty or ending in ``/``."""
    found = _LOCATION.fullmatch(location)
    prefix = (found["prefix"] or "").rstrip("/") if found else ""
    if found is None or prefix.startswith("/") or "//" in prefix:
        raise ConfigurationError(
            f"The location {location!r} is not s3://bucket/prefix.",
            next_step="Name the bucket, and a prefix without empty parts.",
            setting="location",
        )
    return found["bucket"], f"{prefix}/" if prefix else ""


def read_settings(user: Mapping[str, Any]) -> S3Settings:
    """Checks the user's settings.

    Raises:
        ConfigurationError: If a setting is unknown or invalid. The message names it, but never shows a secret.
    """
    known = [one.name for one in fields(S3Settings)]
    for name in user:
        if name not in known:
            raise ConfigurationError(
                f"{name!r} is not a setting of the S3 store.",
                next_step=f"Give one of {', '.join(known)}.",
                setting=name,
            )
    settings = S3Settings(**{name: _CHECKS.get(name, _text)(name, value) for name, value in user.items()})
    _check_together(settings)
    return settings


def _text(setting: str, value: Any) -> Any:
    """Checks a text, or `verify`, which may also be a boolean."""
    if isinstance(value, str) or (isinstance(value, bool) if setting == "verify" else value is None):
        return value
    shown = "…" if setting.startswith("aws_") else repr(value)
    raise ConfigurationError(
        f"{setting}={shown} is not a text.", next_step="Give a text, or leave it out.", setting=setting
    )


def _check_together(settings: S3Settings) -> None:
    if "@" in (settings.endpoint_url or ""):  # Not shown, because this message could end up in the decision log.
        raise ConfigurationError(
            "endpoint_url holds credentials before its host.",
            next_step="Take them out: give aws_access_key_id and aws_secret_access_key, or let boto3 find them.",
            setting="endpoint_url",
        )
    if (settings.aws_access_key_id is None) != (settings.aws_secret_access_key is None):
        raise ConfigurationError(
            "aws_access_key_id and aws_secret_access_key belong together, and one of them is missing.",
            next_step="Give both, or neither for boto3 to find them.",
        )
    encryption = settings.server_side_encryption
    if settings.sse_kms_key_id is not None and not str(encryption).startswith("aws:kms"):
        raise ConfigurationError(
            f"sse_kms_key_id={settings.sse_kms_key_id!r} with server_side_encryption={encryption!r}: "
            "the key is not used.",
            next_step="Give server_side_encryption='aws:kms', or leave the key out.",
            setting="sse_kms_key_id",
        )


def client(settings: S3Settings, *, attempts: int | None = None) -> Any:
    """Returns a boto3 client, which is shared in this process by all callers with the same settings.

    ``attempts`` limits how often boto3 sends a request; its default is the setting of this name.

    Raises:
        ConfigurationError: If boto3 is missing, or cannot create a client with the settings.
    """
    return _client(settings, settings.attempts if attempts is None else attempts, os.getpid())


@lru_cache(maxsize=16)
def _client(settings: S3Settings, attempts: int, _pid: int) -> Any:  # A forked child must not share connections.
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise missing_package("The S3 store", "boto3", "s3") from error
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=settings.finish_threads + settings.upload_threads,
        # Many stores do not support boto3's newer checksums. Instead, the signature includes each body's SHA-256, at
        # half the cost of Content-MD5. Set this explicitly, because a profile might turn it off.
        s3={"addressing_style": settings.addressing_style, "payload_signing_enabled": True},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.session.Session(
            aws_access_key_id=settings.aws_access_key_id,
            aws_secret_access_key=settings.aws_secret_access_key,
            aws_session_token=settings.aws_session_token,
            region_name=settings.region_name,
            profile_name=settings.profile_name,
        )
        return session.client("s3", endpoint_url=settings.endpoint_url, verify=settings.verify, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"boto3 cannot create a client with {settings!r}: {error}", next_step="Correct the setting that it names."
        ) from error
