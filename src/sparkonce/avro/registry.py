"""Queries a Schema Registry through confluent-kafka's client, with its cache, retries and security."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from sparkonce.arguments import mapping, missing_package
from sparkonce.avro.schemas import Schema, inline, parse
from sparkonce.errors import ConfigurationError, RegistryError

T = TypeVar("T")

SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
"""The registry's own error codes, see
https://docs.confluent.io/platform/current/schema-registry/develop/api.html#errors"""

DEFAULTS: Mapping[str, Any] = {"timeout": 10, "max.retries": 3}
"""Settings whose defaults differ from the client's: the client would wait for a response forever."""

_SECRET = re.compile(r"password|secret|user\.info|token")
_USER_IN_URL = re.compile(r"//((?:(?!,\s*https?://).)*)@")
"""The user and password in each URL, up to its last @: a password may contain an unescaped / or @."""

# One client per process and set of settings, so that all copies of a registry that tasks unpickle share one cache.
_clients: dict[str, Any] = {}
_clients_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """An Avro schema that a registry knows.

    Attributes:
        id: The id in the header of the schema's records.
        text: The schema as JSON, with references inlined.
        subject: The subject under which it was requested; None if it was requested by id.
        version: The subject's version, counted from 1; None if it was requested by id.
    """

    id: int
    text: str
    subject: str | None = None
    version: int | None = None


class SchemaRegistry:
    """A Schema Registry that speaks Confluent's protocol. When pickled, it contains only its settings.

    Args:
        settings: The settings of confluent-kafka's ``SchemaRegistryClient``, under its names: ``url`` (several with
            commas), ``basic.auth.user.info`` (``user:password``), ``ssl.ca.location``, ``ssl.certificate.location``,
            ``ssl.key.location``, ``ssl.key.password``, ``bearer.auth.*``, ``proxy``, ``max.retries``,
            ``retries.wait.ms``, ``cache.capacity``, and ``timeout`` in seconds per request, which defaults to 10.

    Raises:
        ConfigurationError: If ``url`` is missing, a setting is unknown, or confluent-kafka lacks its registry client.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {**DEFAULTS, **mapping("settings", settings, example="{'url': 'https://registry:8081'}")}
        self._key = _key(self._settings)
        if not isinstance(self._settings.get("url"), str):
            raise ConfigurationError(
                f"SchemaRegistry has no url among its settings ({', '.join(sorted(self._settings))}).",
                next_step="Give {'url': 'https://registry:8081'} at least.",
            )
        self._client()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self._settings, self._key))

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url})"

    @property
    def url(self) -> str:
        """The registry's URL, without user and password."""
        return _USER_IN_URL.sub("//", self._settings["url"])

    @property
    def key(self) -> str:
        """The key of the client's cache, equal for equal settings. Never show the key: it contains secrets."""
        return self._key

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Returns every version of a subject, newest first, including soft-deleted ones, which records may still have.

        Raises:
            RegistryError: If the subject does not exist, or the registry does not respond.
            ConfigurationError: If a version is not Avro.
        """
        numbers = self._ask(f"subject {subject!r}", lambda client: client.get_versions(subject, deleted=True))
        return [self.version(subject, number) for number in sorted(numbers, reverse=True)]

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the newest version that has not been deleted. Raises the same errors as `versions`."""
        # The client's own `get_latest_version` caches its answer forever.
        numbers = self._ask(f"subject {subject!r}", lambda client: client.get_versions(subject))
        return self.version(subject, max(numbers))

    def version(self, subject: str, number: int) -> RegisteredSchema:
        """Returns one version of a subject. Raises the same errors as `versions`."""
        what = f"version {number} of subject {subject!r}"
        found = self._ask(what, lambda client: client.get_version(subject, number, deleted=True))
        text = self._text(found.schema, what)
        return RegisteredSchema(id=found.schema_id, text=text, subject=subject, version=number)

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """Returns the schema with this id, of any subject; None if the registry has none.

        Raises:
            RegistryError: If the registry rejects the request for a reason other than an unknown id, or does not
                respond.
            ConfigurationError: If the schema is not Avro.
        """
        what = f"schema id {schema_id}"
        try:
            found = self._ask(what, lambda client: client.get_schema(schema_id))
        except RegistryError as error:
            if error.details.get("code") == SCHEMA_NOT_FOUND:
                return None
            raise
        return RegisteredSchema(id=schema_id, text=self._text(found, what))

    def register(self, subject: str, text: str) -> int:
        """Registers a schema, unless it is already registered, and returns its id.

        Raises:
            RegistryError: If the registry or the subject's compatibility rule rejects the schema, or the registry does
                not respond.
        """
        schema = _avro(text)
        what = f"registering under subject {subject!r}"
        return int(self._ask(what, lambda client: client.register_schema(subject, schema)))

    def lookup(self, subject: str, text: str) -> int:
        """Returns the id of a schema that is registered under a subject.

        Raises:
            RegistryError: If the schema is not registered, or the registry does not respond.
        """
        schema = _avro(text)
        what = f"looking the schema up under subject {subject!r}"
        return int(self._ask(what, lambda client: client.lookup_schema(subject, schema).schema_id))

    def _text(self, schema: Any, what: str) -> str:
        """Returns one of the client's schemas as JSON, with references inlined."""
        kind = schema.schema_type or "AVRO"
        if kind != "AVRO":
            raise ConfigurationError(
                f"{what[0].upper()}{what[1:]} at {self.url} is of type {kind}: only AVRO is supported, neither JSON "
                "Schema nor Protobuf.",
                next_step="Give a subject whose schemas are Avro.",
                kind=kind,
            )
        if not schema.references:
            return str(schema.schema_str)
        found: dict[str, Schema] = {}
        self._collect(schema, found)
        return json.dumps(inline(parse(schema.schema_str, what), found))

    def _collect(self, schema: Any, into: dict[str, Schema]) -> None:
        for reference in schema.references or ():
            if reference.name in into:
                continue
            what = f"version {reference.version} of subject {reference.subject!r}, a reference"
            found = self._get_version(what, reference.subject, reference.version)
            into[reference.name] = parse(found.schema_str, what)
            self._collect(found, into)

    def _get_version(self, what: str, subject: str, number: int) -> Any:
        return self._ask(what, lambda client: client.get_version(subject, number, deleted=True)).schema

    def _ask(self, what: str, question: Callable[[Any], T]) -> T:
        """Calls the client, which handles retries and timeouts, and converts its errors to sparkonce's."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question(self._client())
        except SchemaRegistryError as error:
            raise self._refused(what, error) from None
        except Exception as error:  # noqa: BLE001 - the client uses one of two HTTP libraries, with different errors
            said = self._without_secrets(f"{type(error).__name__}: {error}")
            raise RegistryError(
                f"The schema registry at {self.url} gave no answer about {what}: {said}",
                next_step="Check that it runs and can be reached from here, and that the ssl.* settings fit it. "
                "Nothing is lost: start the query again.",
            ) from None  # The client's message may contain secrets.

    def _refused(self, what: str, error: Any) -> RegistryError:
        status, code = error.http_status_code, error.error_code
        said = self._without_secrets(str(error.error_message))
        next_step = _NEXT_STEPS.get(code) or _NEXT_STEPS.get(status) or "See the registry's log."
        return RegistryError(
            f"The schema registry at {self.url} refused {what}: {said} (HTTP {status}, code {code}).",
            next_step=next_step,
            status=status,
            code=code,
        )

    def _without_secrets(self, text: str) -> str:
        values = [str(value) for name, value in self._settings.items() if _SECRET.search(name)]
        values += [user for name in ("url", "proxy") for user in _USER_IN_URL.findall(str(self._settings.get(name)))]
        passwords = [value.partition(":")[2] for value in values]
        # A client splits a URL at unescaped characters, so an error may show a part of a password, escaped or not.
        pieces = [piece for password in passwords for piece in re.split("[@/?#:,]", password) if len(piece) > 2]
        values += [*passwords, *pieces]
        values += [other(value) for value in values for other in (quote, unquote)]
        for value in sorted({*values} - {""}, key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def _client(self) -> Any:
        key = self.key
        with _clients_lock:
            if key not in _clients:
                _clients[key] = self._connect()
            return _clients[key]

    def _connect(self) -> Any:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise missing_package("SchemaRegistry", f"{error.name}", "avro") from error
        try:
            return SchemaRegistryClient(dict(self._settings))
        except (ValueError, TypeError, OSError) as error:
            named = ", ".join(sorted(self._settings))
            raise ConfigurationError(
                f"SchemaRegistry does not accept these settings ({named}): {self._without_secrets(str(error))}",
                next_step="Correct or remove the setting it names.",
            ) from None


_NEXT_STEPS = {
    401: "Give user and password as basic.auth.user.info='user:password'.",
    403: "Let the user of basic.auth.user.info read the subject, or write to it where a schema is registered.",
    SUBJECT_NOT_FOUND: "Check the subject's name: it is <topic>-value unless another strategy is used.",
    VERSION_NOT_FOUND: "Give a version that the subject has.",
    SCHEMA_NOT_FOUND: "Register the schema, or set auto_register=True.",
    409: "Make the schema compatible with the subject's earlier versions, or change the subject's compatibility rule.",
    422: "Correct the schema.",
}


def _key(settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(settings, sort_keys=True)
    except TypeError:  # A function cannot be compared with its unpickled copy.
        return uuid.uuid4().hex


def _restored(settings: Mapping[str, Any], key: str) -> SchemaRegistry:
    registry = SchemaRegistry.__new__(SchemaRegistry)
    registry._settings, registry._key = dict(settings), key
    return registry


def _avro(text: str) -> Any:
    from confluent_kafka.schema_registry import Schema as ClientSchema

    return ClientSchema(text, "AVRO")
