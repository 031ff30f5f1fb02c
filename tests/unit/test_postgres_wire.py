"""Which PostgreSQL connections cause a warning, given libpq's parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sparkonce.sinks.sql.postgres.connection import warn_of_wire


def is_warned_of(caplog: pytest.LogCaptureFixture, **given: bytes) -> bool:
    info = [SimpleNamespace(keyword=name.encode(), val=value) for name, value in given.items()]
    warn_of_wire(SimpleNamespace(pgconn=SimpleNamespace(info=info, ssl_in_use=True)))  # type: ignore[arg-type]
    return "sslmode=" in caplog.text


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        (b"localhost", False),
        (b"127.0.0.1", False),
        (b"/var/run/postgresql", False),
        (b"", False),
        (b"localhost,127.0.0.1", False),
        (b"localhost,db2", True),
        (b"localhost.example", True),
        (b"db", True),
    ],
)
def test_only_other_machines_are_warned_of(caplog: pytest.LogCaptureFixture, host: bytes, warned: bool) -> None:
    assert is_warned_of(caplog, host=host, sslmode=b"prefer") is warned


def test_a_server_that_must_prove_who_it_is_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert not is_warned_of(caplog, host=b"db", sslmode=b"verify-full")

    caplog.clear()
    assert is_warned_of(caplog, host=b"db", sslmode=b"prefer", password=b"\xff")
