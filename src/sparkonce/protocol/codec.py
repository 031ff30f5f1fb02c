"""The file format of records and floors.

Each file is text: a header line ``sparkonce <kind> <version> <sha256>``, followed by JSON. The checksum covers the
kind, the version and the JSON bytes. Older versions are accepted, newer ones are rejected. Nothing is ever unpickled:
no matter what a file contains, reading it returns plain values or raises an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from sparkonce.protocol.handles import Handle, Scalar
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Amend, Claim, Commit, Decision, Floor, Record, Run, SinkFacts, TopicIds, Void

FORMATS = {"record": 2, "floor": 3}
"""The newest format of each kind.

A writer uses the oldest format that can hold the value, so that older versions can read it. A `Void` record needs
format 2. A floor with a decision needs format 2, or 3 if the decision has void handles.
"""
_MAGIC = "sparkonce"
_VERSION = re.compile(r"[0-9]{1,9}")


class Unreadable(ValueError):  # noqa: N818 - the name describes the state of the file
    """The bytes are not what was written: they are torn, altered, or not ours."""


class TooNew(ValueError):  # noqa: N818 - the name describes the state of the file
    """The bytes were written in a newer format."""


def encode_record(record: Record, *, at_ms: int) -> bytes:
    """Serializes a record. ``at_ms``, milliseconds since the epoch, is informational: the protocol never reads it."""
    body = {"at_ms": at_ms, "kind": _KINDS[type(record)], **_ENCODERS[type(record)](record)}
    return _seal("record", body, version=2 if isinstance(record, Void) else 1)


def decode_record(data: bytes) -> Record:
    """Deserializes a record.

    Raises:
        Unreadable: If the bytes are torn or altered.
        TooNew: If a newer version of the library wrote them.
    """
    body = _open("record", data)
    try:
        return _DECODERS[body["kind"]](body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the record does not have the shape of its kind: {error!r}") from error


def decided_at_ms(data: bytes) -> int:
    """Returns when a record was written, in milliseconds since the epoch by its driver's clock."""
    return number(_open("record", data)["at_ms"])


def encode_floor(floor: Floor) -> bytes:
    """Serializes a floor."""
    runs = [
        {
            "token": _token(run.token),
            "query": run.query,
            "location": run.location,
            "sinks": _facts(run.sinks),
            **_topics(run.sources),
        }
        for run in floor.runs
    ]
    body: dict[str, Any] = {"position": floor.position, "runs": runs}
    if floor.newest is None:
        return _seal("floor", body)
    newest = {"position": floor.newest.position, **_decision(floor.newest)}
    return _seal("floor", {**body, "newest": newest}, version=3 if floor.newest.void else 2)


def decode_floor(data: bytes) -> Floor:
    """Deserializes a floor.

    Raises:
        Unreadable: If the bytes are torn or altered.
        TooNew: If a newer version of the library wrote them.
    """
    body = _open("floor", data)
    try:
        runs = tuple(
            Run(
                token=_to_token(run["token"]),
                query=text(run["query"]),
                location=text(run["location"]),
                sinks=_to_facts(run["sinks"]),
                sources=_to_topics(run),
            )
            for run in body["runs"]
        )
        newest = body.get("newest")
        decision = None if newest is None else _to_newest(newest)
        return Floor(position=_position(body["position"]), runs=runs, newest=decision)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"the floor does not have its shape: {error!r}") from error


def encode_handle(handle: Handle) -> str:
    """Serializes a handle as one line of text."""
    return json.dumps(_handle(handle), separators=(",", ":"))


def decode_handle(line: str) -> Handle:
    """Deserializes the output of `encode_handle`."""
    return _to_handle(json.loads(line))


def _seal(kind: str, body: dict[str, Any], version: int = 1) -> bytes:
    written = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    head = f"{_MAGIC} {kind} {version} {_checksum(kind, str(version), written)}\n"
    return head.encode() + written


def _checksum(kind: str, version: str, body: bytes) -> str:
    return hashlib.sha256(f"{kind} {version}\n".encode() + body).hexdigest()


def _open(kind: str, data: bytes) -> dict[str, Any]:
    head, newline, written = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 4 or words[:2] != [_MAGIC, kind] or not _VERSION.fullmatch(words[2]):
        raise Unreadable(f"the file does not begin like a {kind} of {_MAGIC}")
    if int(words[2]) > FORMATS[kind]:
        raise TooNew(f"the {kind} has format {words[2]}, and this library reads formats up to {FORMATS[kind]}")
    if _checksum(kind, words[2], written) != words[3]:
        raise Unreadable(f"the {kind}'s checksum does not match its bytes")
    try:
        body = read_json(written)
    except ValueError as error:
        raise Unreadable(f"the {kind} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Unreadable(f"the {kind} is not an object")
    return body


def _token(token: Token) -> list[Any]:
    return [token.position, token.nonce]


def _to_token(value: Any) -> Token:
    position, nonce = value
    return Token(_position(position), text(nonce))


def _position(value: Any) -> int:
    if number(value) < 0:
        raise ValueError(f"position {value}")
    return number(value)


def _facts(sinks: SinkFacts) -> dict[str, dict[str, str]]:
    return {name: dict(facts) for name, facts in sinks}


def _to_facts(value: Any) -> SinkFacts:
    return tuple(
        (name, tuple(sorted((key, text(fact)) for key, fact in facts.items()))) for name, facts in sorted(value.items())
    )


def _topics(sources: TopicIds) -> dict[str, Any]:
    return {"sources": dict(sources)} if sources else {}


def _to_topics(body: dict[str, Any]) -> TopicIds:
    """Reads topic ids. Records of older versions have none."""
    return tuple(sorted((name, text(topic_id)) for name, topic_id in body.get("sources", {}).items()))


def _handle(handle: Handle) -> list[Any]:
    fields = dict(handle.transaction)
    return [handle.sink, handle.slot, handle.rows, handle.fingerprint, handle.opened_ms, fields]


def _to_handle(value: Any) -> Handle:
    sink, slot, rows, fingerprint, opened_ms, fields = value
    return Handle(
        sink=text(sink),
        slot=number(slot),
        rows=number(rows),
        fingerprint=number(fingerprint),
        opened_ms=number(opened_ms),
        transaction=tuple(sorted((name, _scalar(value)) for name, value in fields.items())),
    )


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, str) else number(value)


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "nonce": claim.nonce,
        "run": claim.run,
        "query": claim.query,
        "host": claim.host,
        "process": claim.process,
        "library": claim.library,
        "location": claim.location,
        "sinks": _facts(claim.sinks),
        **_topics(claim.sources),
        "renews": None if claim.renews is None else _token(claim.renews),
    }


def _to_claim(body: dict[str, Any]) -> Claim:
    return Claim(
        nonce=text(body["nonce"]),
        run=text(body["run"]),
        query=text(body["query"]),
        host=text(body["host"]),
        process=number(body["process"]),
        library=text(body["library"]),
        location=text(body["location"]),
        sinks=_to_facts(body["sinks"]),
        sources=_to_topics(body),
        renews=None if body["renews"] is None else _to_token(body["renews"]),
    )


def _decision(record: Commit | Amend | Void | Decision) -> dict[str, Any]:
    void = () if isinstance(record, Commit | Amend) else record.void
    return {
        "token": _token(record.token),
        "query": record.query,
        "batch": record.batch,
        "offsets": list(record.offsets),
        "handles": [_handle(handle) for handle in record.handles],
        **({"void": [list(key) for key in void]} if void else {}),
    }


def _to_decision(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "token": _to_token(body["token"]),
        "query": text(body["query"]),
        "batch": number(body["batch"]),
        "offsets": tuple(text(line) for line in body["offsets"]),
        "handles": tuple(_to_handle(handle) for handle in body["handles"]),
    }


def _to_keys(value: Any) -> tuple[tuple[str, int], ...]:
    return tuple((text(sink), number(slot)) for sink, slot in value)


def _to_newest(body: dict[str, Any]) -> Decision:
    return Decision(position=_position(body["position"]), void=_to_keys(body.get("void", ())), **_to_decision(body))


_MOST = 2**64
"""Greater than any number ever written. Fingerprints are the largest numbers."""


def read_json(data: bytes) -> Any:
    """Parses JSON that consists of objects, arrays, strings, integers, booleans and null.

    Raises:
        ValueError: For anything else: invalid UTF-8, invalid JSON, nesting too deep for Python's parser, duplicate keys
            in an object, or a fraction, NaN or infinity, none of which is ever written.
    """
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_float=_refuse, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def text(value: Any) -> str:
    """Returns the value if it is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} where a text is written")
    return value


def number(value: Any) -> int:
    """Returns the value if it is an integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST < value < _MOST:
        raise ValueError(f"{type(value).__name__} where a whole number of at most 64 bits is written")
    return value


def is_scalar(value: Any) -> bool:
    """Returns True if the value is a string or an integer of at most 64 bits, the only types that handles contain."""
    try:
        return isinstance(value, str) or number(value) == value
    except ValueError:
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word[:20]} is not a whole number")


_KINDS: dict[type, str] = {Claim: "claim", Commit: "commit", Amend: "amend", Void: "void"}
_ENCODERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Claim: _claim,
    Commit: _decision,
    Amend: _decision,
    Void: _decision,
}

_DECODERS: dict[str, Callable[[dict[str, Any]], Record]] = {
    "claim": _to_claim,
    "commit": lambda body: Commit(**_to_decision(body)),
    "amend": lambda body: Amend(**_to_decision(body)),
    "void": lambda body: Void(void=_to_keys(body["void"]), **_to_decision(body)),
}
