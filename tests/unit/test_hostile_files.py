"""Arbitrary bytes in the product's own files lead to one of its own errors, and never execute code.

A checksum detects torn files only. Whoever can write the file can also compute the checksum, so security must not
depend on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkonce.decision_log import DecisionLog
from sparkonce.driver.start import read_log
from sparkonce.errors import CorruptRecordError, LogError
from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Claim, Commit
from sparkonce.sinks.sql.mysql.settings import StagingTable
from sparkonce.sinks.sql.settings import Target
from sparkonce.sinks.write_ahead.ledger import Ledger, entries_of
from sparkonce.storage.local import LocalFiles

DEEP = 100_000
PATIENTLY = settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
"""Timing does not matter here, so a busy machine must not make the test fail."""


class Standing(DecisionLog):
    location = "here"

    def __init__(self, records: list[bytes], floor: bytes | None = None) -> None:
        self._records = records
        self._floor = floor

    def read_bytes(self, position: int) -> list[bytes]:
        return self._records[position:]

    def floor_bytes(self) -> bytes | None:
        return self._floor


def sealed(kind: str, body: bytes, version: str = "1") -> bytes:
    checksum = hashlib.sha256(f"{kind} {version}\n".encode() + body).hexdigest()
    return f"sparkonce {kind} {version} {checksum}\n".encode() + body


def refused(records: list[bytes], floor: bytes | None = None) -> None:
    with pytest.raises(LogError):
        read_log(Standing(records, floor))


CLAIM = codec.encode_record(Claim(nonce="00000000", run="run", query="query", location="here"), at_ms=0)


def test_a_pickle_in_a_records_place_is_not_run(tmp_path):
    class Marker:
        def __init__(self, path: Path) -> None:
            self.path = path

        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(self.path),))

    data = pickle.dumps(Marker(tmp_path / "run"))
    for one in (data, sealed("record", data), sealed("floor", data)):
        refused([one])
        refused([], one)
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileNotFoundError):
        (tmp_path / "run").rmdir()
    pickle.loads(data)  # noqa: S301 - made by this test
    assert (tmp_path / "run").exists(), "it would have been"


@PATIENTLY
@given(st.data())
def test_any_other_value_in_any_place_is_refused_or_read(data):
    """The checksum is valid, as if somebody had edited the log with our own library."""

    def _replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
        if not path:
            return value
        copy = dict(body) if isinstance(body, dict) else list(body)
        copy[path[0]] = _replaced(body[path[0]], path[1:], value)
        return copy

    def _paths(body: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        children = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
        return [at, *(path for key, value in children for path in _paths(value, (*at, key)))]

    plain = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
    commit = codec.encode_record(
        Commit(
            token=Token(0, "00000000"),
            query="query",
            batch=0,
            offsets=("{}",),
            handles=(Handle(sink="s", slot=0, transaction=(("name", "n"),)),),
        ),
        at_ms=0,
    )
    floor = codec.encode_floor(codec.decode_floor(sealed("floor", FLOOR)))
    kind, whole = data.draw(st.sampled_from([("record", CLAIM), ("record", commit), ("floor", floor)]))
    body = json.loads(whole.partition(b"\n")[2])
    path = data.draw(st.sampled_from(_paths(body)))
    altered = sealed(kind, json.dumps(_replaced(body, path, data.draw(plain))).encode())
    records = [] if kind == "floor" else [altered] if whole is CLAIM else [CLAIM, altered]
    with suppress(LogError):
        read_log(Standing(records, altered if kind == "floor" else None))


FLOOR = b'{"position":2,"runs":[{"token":[0,"00000000"],"query":"q","location":"l","sinks":{"s":{"k":"v"}}}]}'
DEEP_LIST = b"[" * DEEP + b"]" * DEEP
HOSTILE = {
    "nested too deep": DEEP_LIST,
    "nested too deep inside": b'{"kind":' + DEEP_LIST + b"}",
    "an endless number": b'{"kind":"claim","at_ms":' + b"9" * 5_000 + b"}",
    "a number of 100 bits": FLOOR.replace(b":2,", b":1267650600228229401496703205376,"),
    "infinity": FLOOR.replace(b":2,", b":Infinity,"),
    "a number that is infinite": FLOOR.replace(b":2,", b":1e999,"),
    "not a number": FLOOR.replace(b":2,", b":NaN,"),
    "a negative position": FLOOR.replace(b":2,", b":-2,"),
    "a fraction": FLOOR.replace(b":2,", b":2.5,"),
    "a truth for a number": FLOOR.replace(b":2,", b":true,"),
    "a number for a text": FLOOR.replace(b'"q"', b"7"),
    "no UTF-8": FLOOR.replace(b'"q"', b'"\xff"'),
    "half of a surrogate pair": FLOOR.replace(b'"q"', b'"\xed\xa0\x80"'),
    "UTF-16": FLOOR.decode().encode("utf-16"),
    "a key twice": FLOOR.replace(b'{"position"', b'{"position":9,"position"'),
    "a kind that is a list": b'{"kind":[]}',
    "no kind": b"{}",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=list(HOSTILE))
def test_what_json_allows_and_nobody_writes_is_refused(body):
    refused([sealed("record", body)])
    refused([], sealed("floor", body))


@pytest.mark.parametrize("name", ["5", "²", "9" * 21, f"{5:020d}.tmp", "-0000000000000000005"])
def test_a_strangers_file_among_floors_is_left_alone(tmp_path, name):
    """A number that is not written as in our own names used to be looked up under our name, forever."""
    log = DecisionLog(LocalFiles(tmp_path))
    log.raise_floor_bytes(3, b"ours")
    (tmp_path / "sparkonce" / "floors" / name).write_text("theirs")
    assert log.floor_bytes() == b"ours"
    log.delete_below(3)
    assert (tmp_path / "sparkonce" / "floors" / name).exists()


BODIES = [DEEP_LIST, b'[{"a":' + b"9" * 5000 + b"}]", b'[1e999, "x"]', b"7", b"[7]", b'"a"', b"{}", b"\xff"]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_what_others_may_have_written_elsewhere_is_no_surprise_either(tmp_path, body):
    with pytest.raises(OSError, match="note is damaged"):
        entries_of(body, "note")
    assert StagingTable.parse("sparkonce_stage_0123456789ab", body.decode("latin-1")) is None
    with pytest.raises(ValueError):
        Target.from_text(body.decode("latin-1"))


def test_manifests_and_notes_that_are_none(tmp_path):
    from sparkonce.sinks.files.manifests import decode

    for body in (DEEP_LIST, b"[7]", b"{}", b'{"token":[]}', b"\xff"):
        with pytest.raises(CorruptRecordError, match="cannot be read as a manifest"):
            decode(b'{"sparkonce_manifest":1}\n' + body + b"\n", "path")

    ledger = Ledger(LocalFiles(tmp_path))
    ledger.make()
    (tmp_path / "forgotten" / "query").write_text("many")
    with pytest.raises(OSError, match="batch's number"):
        ledger.forgotten_up_to("query")

    for version in ("9" * 5_000, "²", "-1", "1_0", ""):
        refused([sealed("record", CLAIM.partition(b"\n")[2], version)])
