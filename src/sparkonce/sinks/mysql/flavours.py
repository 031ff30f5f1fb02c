"""The differences between MariaDB and MySQL, in one table.

MariaDB's side is tried against MariaDB 10.11. MySQL's is written by its manual (8.0 and 8.4) and has not been tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """The statements and limits of one of the servers.

    Attributes:
        name: Its name in messages.
        oldest: The oldest version that is taken, as numbers.
        why_oldest: The lack of older ones.
        recover: Lists prepared transactions, with ids that survive any character set.
        identity: Gives the server's own id, and the comment of the table of markers; None where it has no id, see
            `sparkonce.sinks.mysql.markers`.
        new_value: The value that was to be inserted, in ``ON DUPLICATE KEY UPDATE``; ``{}`` is the column.
        row_alias: The text between VALUES and ``ON DUPLICATE KEY UPDATE``.
        recover_right: The right that ``XA RECOVER`` needs.
    """

    name: str
    oldest: tuple[int, ...]
    why_oldest: str
    recover: str
    identity: str | None
    new_value: str
    row_alias: str
    recover_right: str


MARIADB = Flavour(
    name="MariaDB",
    oldest=(10, 5),
    why_oldest="before 10.5 a prepared transaction is rolled back when its connection ends (MDEV-742)",
    recover="XA RECOVER",
    identity=None,
    new_value="VALUES({})",
    row_alias="",
    recover_right="none",
)
MYSQL = Flavour(
    name="MySQL",
    oldest=(8, 0, 19),
    why_oldest="before 5.7.7 a prepared transaction is rolled back when its connection ends, and before 8.0.19 upserts "
    "cannot name the new row",
    recover="XA RECOVER CONVERT XID",
    identity="SELECT @@server_uuid, (SELECT TABLE_COMMENT FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'sparkonce_commits')",
    new_value="sparkonce_new.{}",
    row_alias=" AS sparkonce_new",
    recover_right="XA_RECOVER_ADMIN",
)

_VERSION = re.compile(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)")


def flavour_of(version: str) -> Flavour:
    """Returns the kind of a server.

    Args:
        version: Its answer to ``SELECT VERSION()``.
    """
    return MARIADB if "mariadb" in version.lower() else MYSQL


def numbers_of(version: str) -> tuple[int, ...]:
    """Returns the version as numbers; empty if there are none."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match.groups()) if match else ()
