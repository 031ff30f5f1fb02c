"""A small Schema Registry for tests, in this process and on a loopback port, which can fail in various ways.

The registry supports the requests of confluent-kafka's client, with Confluent's error codes: registering (with
references, BACKWARD or NONE compatibility, and schemas of any type), lookups, versions, ids, soft deletes, and the
compatibility setting.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sparkonce.avro.schemas import Schema, inline

_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

_STOP_WITHIN_S = 10.0


class _RefusedError(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(slots=True)
class _Version:
    number: int
    id: int
    deleted: bool = False


@dataclass(slots=True)
class _Store:
    """The content of a registry. A schema has one id, even if it is registered under several subjects."""

    ids: dict[str, int] = field(default_factory=dict)
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[_Version]] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    next_id: int = 1


class RegistryServer:
    """A Schema Registry that runs in a ``with`` block."""

    def __init__(
        self,
        *,
        auth: tuple[str, str] | None = None,
        certificate: tuple[str | Path, str | Path] | None = None,
    ) -> None:
        self.requests: list[str] = []
        """The requests so far, such as ``GET /schemas/ids/1``, in order, without query strings."""
        self._auth = auth
        self._certificate = certificate
        self._store = _Store()
        self._lock = threading.RLock()
        self._status: int | None = None
        self._delay_s = 0.0
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> RegistryServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address. It stays the same after a restart."""
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listens for requests, with everything that was registered before a stop."""
        server = _Server(("127.0.0.1", self._port), _handler(self))
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*map(str, self._certificate))
            server.tls = context
        self._port = server.server_address[1]
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True, name="schema registry")
        self._thread.start()

    def stop(self) -> None:
        """Refuses connections until the next start."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_WITHIN_S)
        self._server = self._thread = None

    @contextmanager
    def down(self) -> Iterator[None]:
        """Makes the registry unreachable inside the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def failing(self, status: int) -> Iterator[None]:
        """Responds to everything with this HTTP status inside the block."""
        self._status = status
        try:
            yield
        finally:
            self._status = None

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Waits this many seconds before each response inside the block."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    def count(self, request: str) -> int:
        """Counts the requests that equal or begin with a string, such as ``GET /schemas/ids/1``."""
        with self._lock:
            return sum(one.startswith(request) for one in self.requests)

    def register(
        self,
        subject: str,
        schema: str | Mapping[str, Any] | Sequence[Any],
        *,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
    ) -> int:
        """Registers a schema as a client would, and returns its id.

        Args:
            subject: The subject.
            schema: JSON, or a value to be serialized as JSON.
            kind: AVRO, JSON or PROTOBUF. Schemas of the last two are stored unchanged.
            references: For each type that is defined elsewhere: its name, and the subject and version that define it.

        Raises:
            ValueError: If the server would reject the schema.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        listed = [{"name": name, "subject": where, "version": version} for name, where, version in references]
        try:
            return int(self._register(subject, {"schema": text, "schemaType": kind, "references": listed})["id"])
        except _RefusedError as refused:
            raise ValueError(f"{refused.code}: {refused.message}") from None

    def set_compatibility(self, level: str, subject: str = "") -> None:
        """Sets BACKWARD, the default, or NONE, for one subject or for all subjects without a rule."""
        self._set_level({"compatibility": level}, subject)

    def delete_version(self, subject: str, number: int) -> None:
        """Soft-deletes a version. Its id still refers to its schema."""
        self._delete(subject, str(number))

    def answer(self, method: str, target: str, body: Mapping[str, Any], user: str | None) -> tuple[int, Any]:
        """Returns the HTTP status and the JSON for a request. Called by the server's handler."""
        parts = urlsplit(target)
        with self._lock:
            self.requests.append(f"{method} {parts.path}")
        time.sleep(self._delay_s)
        if self._status is not None:
            return self._status, _error(self._status, "failing, as the test wants it")
        if self._auth is not None and user != ":".join(self._auth):
            return 401, _error(401, "Unauthorized")
        try:
            with self._lock:
                return 200, self._dispatch(method, parts.path, parse_qs(parts.query), body)
        except _RefusedError as refused:
            return refused.status, _error(refused.code, refused.message)

    def _dispatch(self, method: str, path: str, query: Mapping[str, list[str]], body: Mapping[str, Any]) -> Any:
        deleted = query.get("deleted", ["false"])[-1].lower() == "true"
        routes: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("GET", r"/subjects", lambda: sorted(self._store.subjects)),
            ("GET", r"/schemas/types", lambda: ["JSON", "PROTOBUF", "AVRO"]),
            ("GET", r"/schemas/ids/(\d+)", self._schema),
            ("GET", r"/schemas/ids/(\d+)/subjects", lambda schema_id: self._subjects(schema_id, deleted)),
            ("POST", r"/subjects/([^/]+)/versions", lambda subject: self._register(subject, body)),
            ("POST", r"/subjects/([^/]+)", lambda subject: self._lookup(subject, body)),
            ("GET", r"/subjects/([^/]+)/versions", lambda subject: self._numbers(subject, deleted)),
            ("GET", r"/subjects/([^/]+)/versions/([^/]+)", lambda one, number: self._version(one, number, deleted)),
            ("DELETE", r"/subjects/([^/]+)/versions/([^/]+)", self._delete),
            ("PUT", r"/config/?([^/]*)", lambda subject: self._set_level(body, subject)),
            ("GET", r"/config/?([^/]*)", lambda subject: {"compatibilityLevel": self._level(subject)}),
        )
        for its_method, pattern, action in routes:
            found = re.fullmatch(pattern, path)
            if method == its_method and found is not None:
                return action(*(unquote(one) for one in found.groups()))
        raise _RefusedError(404, 404, f"HTTP 404 Not Found: {method} {path}")

    def _schema(self, schema_id: str) -> dict[str, Any]:
        if int(schema_id) not in self._store.schemas:
            raise _RefusedError(404, 40403, f"Schema {schema_id} not found")
        return _shown(self._store.schemas[int(schema_id)])

    def _subjects(self, schema_id: str, deleted: bool) -> list[str]:
        self._schema(schema_id)
        its = int(schema_id)
        listed = sorted(self._store.subjects.items())
        return [name for name, them in listed if any(one.id == its and (deleted or not one.deleted) for one in them)]

    def _register(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            schema = self._checked(body)
            versions = self._store.subjects.get(subject, [])
            key = json.dumps(schema, sort_keys=True)
            known = self._store.ids.get(key)
            if not any(one.id == known and not one.deleted for one in versions):
                self._check_compatible(subject, versions, schema)
                if known is None:
                    known = self._store.ids[key] = self._store.next_id
                    self._store.schemas[known] = schema
                    self._store.next_id += 1
                self._store.subjects[subject] = [*versions, _Version(len(versions) + 1, known)]
            return {"id": known}

    def _lookup(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        known = self._store.ids.get(json.dumps(self._checked(body), sort_keys=True))
        for one in self._versions(subject):
            if one.id == known and not one.deleted:
                return self._version(subject, str(one.number))
        raise _RefusedError(404, 40403, "Schema not found")

    def _checked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "schema": str(body.get("schema")),
            "schemaType": body.get("schemaType") or "AVRO",
            "references": list(body.get("references") or ()),
        }
        if schema["schemaType"] == "AVRO":
            from fastavro.schema import SchemaParseException, UnknownType, parse_schema

            try:
                schema["schema"] = json.dumps(json.loads(schema["schema"]), separators=(",", ":"))
                parse_schema(self._whole(schema))
            except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
                raise _RefusedError(422, 42201, f"Invalid schema: {error!r}") from None
        return schema

    def _whole(self, schema: Mapping[str, Any]) -> Any:
        """Returns an Avro schema with its references inlined."""
        references = {
            one["name"]: self._whole(
                self._store.schemas[self._found(one["subject"], str(one["version"]), deleted=True).id]
            )
            for one in schema["references"]
        }
        parsed = json.loads(schema["schema"])
        return inline(parsed, references) if references else parsed

    def _check_compatible(self, subject: str, versions: Sequence[_Version], schema: Mapping[str, Any]) -> None:
        earlier = [one for one in versions if not one.deleted]
        if not earlier or schema["schemaType"] != "AVRO" or self._level(subject) == "NONE":
            return
        last = self._store.schemas[earlier[-1].id]
        if last["schemaType"] != "AVRO" or not _can_read(self._whole(schema), self._whole(last)):
            raise _RefusedError(
                409, 409, f'Schema being registered is incompatible with an earlier schema for subject "{subject}"'
            )

    def _versions(self, subject: str) -> list[_Version]:
        versions = self._store.subjects.get(subject)
        if not versions:
            raise _RefusedError(404, 40401, f"Subject '{subject}' not found.")
        return versions

    def _numbers(self, subject: str, deleted: bool) -> list[int]:
        found = [one.number for one in self._versions(subject) if deleted or not one.deleted]
        if not found:
            raise _RefusedError(404, 40401, f"Subject '{subject}' not found.")
        return found

    def _found(self, subject: str, number: str, *, deleted: bool) -> _Version:
        there = [one for one in self._versions(subject) if deleted or not one.deleted]
        for one in there[-1:] if number in ("latest", "-1") else there:
            if number in ("latest", "-1", str(one.number)):
                return one
        raise _RefusedError(404, 40402, f"Version {number} not found.")

    def _version(self, subject: str, number: str, deleted: bool = False) -> dict[str, Any]:
        one = self._found(subject, number, deleted=deleted)
        return {"subject": subject, "version": one.number, "id": one.id, **_shown(self._store.schemas[one.id])}

    def _delete(self, subject: str, number: str) -> int:
        one = self._found(subject, number, deleted=False)
        one.deleted = True
        return one.number

    def _level(self, subject: str) -> str:
        return self._store.levels.get(subject) or self._store.levels.get("", "BACKWARD")

    def _set_level(self, body: Mapping[str, Any], subject: str) -> dict[str, Any]:
        level = str(body.get("compatibility")).upper()
        if level not in ("BACKWARD", "NONE"):
            raise _RefusedError(422, 42203, f"Invalid compatibility level {level}: this double knows BACKWARD and NONE")
        self._store.levels[subject] = level
        return {"compatibility": level}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Performs the TLS handshake in the connection's thread, so that a stalled one does not block the others."""
        if self.tls is not None:
            try:
                request = self.tls.wrap_socket(request, server_side=True)
            except (ssl.SSLError, OSError):
                return
        super().finish_request(request, client_address)
        if self.tls is not None:
            self.shutdown_request(request)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """Ignores a client that disconnects."""


def _handler(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Uses HTTP/1.0, so each connection ends with its response, and none outlives `RegistryServer.stop`."""

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}") if length else {}
            scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
            user = base64.b64decode(credentials).decode() if scheme == "Basic" else None
            status, answer = registry.answer(self.command, self.path, body, user)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - http.server looks for these names

        def log_message(self, *_: object) -> None:
            """Writes nothing, to keep the output of tests quiet."""

    return Handler


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_code": code, "message": message}


def _shown(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that a real registry shows. Like a real registry, omits the type AVRO and empty references."""
    shown = {"schema": schema["schema"]}
    if schema["schemaType"] != "AVRO":
        shown["schemaType"] = schema["schemaType"]
    if schema["references"]:
        shown["references"] = schema["references"]
    return shown


_WIDER = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""For each plain type, the wider types that can read it.

See https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""


def _can_read(reader: Schema, writer: Schema) -> bool:
    """Returns True if new fields have defaults, and plain types only become wider. Does not check nested types."""
    if not isinstance(reader, dict) or not isinstance(writer, dict) or "fields" not in reader or "fields" not in writer:
        return reader == writer
    written = {field["name"]: field["type"] for field in writer["fields"]}
    for wanted in reader["fields"]:
        name = next((one for one in (wanted["name"], *wanted.get("aliases", ())) if one in written), "")
        if not name and "default" not in wanted:
            return False
        before, now = written.get(name), wanted["type"]
        if isinstance(before, str) and isinstance(now, str) and before != now and now not in _WIDER.get(before, ()):
            return False
    return True
