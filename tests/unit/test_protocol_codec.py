from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkonce.protocol import codec
from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.view import Amend, Claim, Commit, Floor, LogView, Run, Void

names = st.text(min_size=1, max_size=12)
hexadecimal = st.text("0123456789abcdef", min_size=8, max_size=8)
tokens = st.builds(Token, st.integers(0, 2**63 - 1), hexadecimal)
facts = st.dictionaries(names, st.dictionaries(names, st.text(max_size=12), max_size=3), max_size=3).map(
    lambda found: tuple(sorted((name, tuple(sorted(known.items()))) for name, known in found.items()))
)
topics = st.dictionaries(names, names, max_size=3).map(lambda found: tuple(sorted(found.items())))
handles = st.builds(
    Handle,
    sink=names,
    slot=st.integers(0, 10_000),
    rows=st.integers(0, 2**63 - 1),
    fingerprint=st.integers(0, 2**64 - 1),
    opened_ms=st.integers(0, 2**53),
    transaction=st.dictionaries(names, st.text(max_size=12) | st.integers(-(2**63), 2**63), max_size=4).map(
        transaction_fields
    ),
)


def decisions(kind: type) -> st.SearchStrategy:
    return st.builds(
        kind,
        token=tokens,
        query=names,
        batch=st.integers(0, 2**63 - 1),
        offsets=st.lists(st.text(max_size=20), max_size=3).map(tuple),
        handles=st.lists(handles, max_size=4).map(tuple),
    )


voids = st.tuples(decisions(Commit), st.lists(st.tuples(names, st.integers(0, 2**31)), min_size=1, max_size=3)).map(
    lambda drawn: Void(
        token=drawn[0].token,
        query=drawn[0].query,
        batch=drawn[0].batch,
        offsets=drawn[0].offsets,
        handles=drawn[0].handles,
        void=tuple(drawn[1]),
    )
)

COMMIT = Commit(
    token=Token(3, "0a1b2c3d"),
    query="5f6a2c1e-0000-4000-8000-000000000000",
    batch=7,
    offsets=('{"orders":{"0":500}}',),
    handles=(Handle(sink="out", slot=0, rows=9, fingerprint=2**63, transaction=(("epoch", 1), ("id", "a.b"))),),
)
WRITTEN = codec.encode_record(COMMIT, at_ms=1_700_000_000_000)
FLOOR = codec.encode_floor(Floor(4, (Run(token=Token(3, "0a1b2c3d"), query="q", sinks=(("out", (("k", "v"),)),)),)))


@given(
    st.builds(
        Claim,
        nonce=hexadecimal,
        run=names,
        query=names,
        host=st.text(max_size=12),
        process=st.integers(0, 2**31),
        library=st.text(max_size=12),
        sinks=facts,
        sources=topics,
        renews=st.none() | tokens,
    )
    | decisions(Commit)
    | decisions(Amend)
    | voids,
    st.integers(0, 2**53),
)
def test_a_record_is_read_as_it_was_written(record, at_ms):
    data = codec.encode_record(record, at_ms=at_ms)
    assert codec.decode_record(data) == record
    assert codec.decided_at_ms(data) == at_ms


@given(voids, st.integers(0, 2**53))
def test_only_what_older_libraries_do_not_know_is_in_a_newer_format(void, at_ms):
    assert codec.encode_record(void, at_ms=at_ms).startswith(b"sparkonce record 2 ")
    assert WRITTEN.startswith(b"sparkonce record 1 ")
    decision = LogView(runs=(Run(token=void.token, query=void.query),)).apply(0, void).newest_decision
    assert decision.void == void.void
    floor = Floor(position=5, newest=decision)
    data = codec.encode_floor(floor)
    assert data.startswith(b"sparkonce floor 3 ")
    assert codec.decode_floor(data) == floor
    without = replace(floor, newest=replace(decision, void=()))
    assert codec.encode_floor(without).startswith(b"sparkonce floor 2 ")


@given(
    st.builds(
        Floor,
        st.integers(0, 2**63 - 1),
        st.lists(st.builds(Run, token=tokens, query=names, sinks=facts, sources=topics), max_size=3).map(tuple),
    )
)
def test_a_floor_is_read_as_it_was_written(floor):
    assert codec.decode_floor(codec.encode_floor(floor)) == floor


@pytest.mark.parametrize("data", [WRITTEN, FLOOR], ids=["record", "floor"])
def test_a_torn_file_is_refused(data):
    decode = codec.decode_record if data is WRITTEN else codec.decode_floor
    for length in range(len(data)):
        with pytest.raises(codec.Unreadable):
            decode(data[:length])


@pytest.mark.parametrize("data", [WRITTEN, FLOOR], ids=["record", "floor"])
def test_a_file_with_one_other_bit_is_refused(data):
    decode = codec.decode_record if data is WRITTEN else codec.decode_floor
    for place in range(len(data) * 8):
        altered = bytearray(data)
        altered[place // 8] ^= 1 << (place % 8)
        # With some digits changed, the record looks like one from a newer version, which is rejected before anything
        # else is checked.
        with pytest.raises((codec.Unreadable, codec.TooNew)):
            decode(bytes(altered))


def test_a_floor_is_no_record_and_a_record_no_floor():
    with pytest.raises(codec.Unreadable, match="like a record"):
        codec.decode_record(FLOOR)
    with pytest.raises(codec.Unreadable, match="like a floor"):
        codec.decode_floor(WRITTEN)

    with pytest.raises(codec.Unreadable):
        codec.decode_record(WRITTEN + b" ")
