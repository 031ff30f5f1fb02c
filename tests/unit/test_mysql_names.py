from __future__ import annotations

import pytest
from pymysql.err import OperationalError

from sparkonce.protocol.handles import Outcome
from sparkonce.protocol.ownership import Token, TransactionName
from sparkonce.sinks.sql.mysql.connection import MARIADB, MYSQL, flavour_of, numbers_of
from sparkonce.sinks.sql.mysql.names import FORMAT_ID, StagingTable, Xid, quote, stage_table
from sparkonce.sinks.sql.mysql.outcomes import finished
from sparkonce.sinks.sql.mysql.statements import merge_steps, upsert_tail
from sparkonce.sinks.sql.settings import Target

NAME = TransactionName(
    prefix="sparkonce.é",
    query="0123456789ab",
    token=Token(10**19 - 1, "89abcdef"),
    batch=10**19 - 1,
    slot=10**9 - 1,
    copy="0a1b2c3d4e5f",
)
XID = Xid.of(NAME)


def test_an_xid_is_read_back() -> None:
    assert Xid.parse(FORMAT_ID, len(XID.gtrid), len(XID.bqual), XID.gtrid + XID.bqual) == XID
    assert len(XID.gtrid) == 54
    assert str(XID) == f"X'{XID.gtrid.hex()}',X'{XID.bqual.hex()}',{FORMAT_ID}"
    assert Xid.of(XID.named()) == XID


@pytest.mark.parametrize(
    ("format_id", "gtrid", "bqual"),
    [
        (1, XID.gtrid, XID.bqual),
        (FORMAT_ID, XID.gtrid + b"0", XID.bqual),
        (FORMAT_ID, b"x" + XID.gtrid[1:], XID.bqual),
        (FORMAT_ID, XID.gtrid, b""),
        (FORMAT_ID, XID.gtrid, b"\xff"),
        (FORMAT_ID, XID.gtrid, b"x" * 65),
        (FORMAT_ID, b"", b""),
    ],
)
def test_xids_of_others_are_none(format_id: int, gtrid: bytes, bqual: bytes) -> None:
    assert Xid.parse(format_id, len(gtrid), len(bqual), gtrid + bqual) is None


@pytest.mark.parametrize("data", [XID.gtrid + XID.bqual, f"0x{(XID.gtrid + XID.bqual).hex().upper()}"])
def test_rows_of_xa_recover(data: bytes | str) -> None:
    lengths = (len(XID.gtrid), len(XID.bqual))
    assert Xid.parse(FORMAT_ID, *lengths, data) == XID
    assert Xid.parse(FORMAT_ID, lengths[0], lengths[1] + 1, data) is None
    assert Xid.parse(FORMAT_ID, 1, 1, "no digits") is None


def test_a_staging_table_is_read_back() -> None:
    stage = StagingTable(name=NAME, begun_ms=5, target=Target(table="a 'b\\", mode="upsert", keys=("k", "l")))
    table = stage_table(NAME.copy)
    assert StagingTable.parse(table, stage.comment()) == stage
    assert len(table) <= 64
    for other, comment in [
        (stage_table("0" * 12), stage.comment()),
        ("sparkonce_stage_x", stage.comment()),
        (table, ""),
        (table, "{}"),
        (table, "[]"),
        (table, stage.comment().replace(":5", ":null")),
    ]:
        assert StagingTable.parse(other, comment) is None

    assert quote("a`b") == "`a``b`"


@pytest.mark.parametrize(
    ("version", "flavour", "numbers"),
    [
        ("10.11.19-MariaDB-0+deb12u1", MARIADB, (10, 11, 19)),
        ("5.5.5-10.4.1-MariaDB", MARIADB, (10, 4, 1)),
        ("8.0.36", MYSQL, (8, 0, 36)),
        ("5.7.44-log", MYSQL, (5, 7, 44)),
    ],
)
def test_servers_are_told_apart(version: str, flavour: object, numbers: tuple[int, ...]) -> None:
    assert flavour_of(version) is flavour
    assert numbers_of(version) == numbers


def test_versions_that_lose_prepared_transactions_are_too_old() -> None:
    assert numbers_of("10.4.30-MariaDB") < MARIADB.oldest < numbers_of("10.5.0-MariaDB")
    assert numbers_of("5.7.44") < MYSQL.oldest < numbers_of("8.4.0")
    assert numbers_of("unheard of") < MYSQL.oldest

    assert upsert_tail(MARIADB, ["k", "v"], ["K"]) == " ON DUPLICATE KEY UPDATE `v` = VALUES(`v`)"
    assert upsert_tail(MYSQL, ["k"], ["k"]) == " AS sparkonce_new ON DUPLICATE KEY UPDATE `k` = sparkonce_new.`k`"
    assert "ON DUPLICATE" not in merge_steps(["s"], Target(table="t"), ["k"])[0]

    assert {finished(OperationalError(number, "")).outcome for number in range(5000)} == {
        Outcome.RETRY,
        Outcome.UNKNOWN,
    }


@pytest.mark.parametrize(
    ("number", "outcome"),
    [
        (2013, Outcome.RETRY),
        (None, Outcome.RETRY),
        (1397, Outcome.RETRY),
        (1213, Outcome.RETRY),
        (1062, Outcome.UNKNOWN),
        (1146, Outcome.UNKNOWN),
        (1290, Outcome.UNKNOWN),
        (4711, Outcome.UNKNOWN),
    ],
)
def test_what_errors_mean(number: int | None, outcome: Outcome) -> None:
    found = finished(OperationalError(number, "its words") if number else ConnectionResetError("its words"))
    assert found.outcome is outcome
    assert "its words" in found.reason
