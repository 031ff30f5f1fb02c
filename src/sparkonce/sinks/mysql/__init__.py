"""MariaDB and MySQL, with transactions that workers prepare and the driver commits.

``sink`` puts the parts together. On the executors: ``target`` knows the table, ``encoding`` makes text of its rows,
``writer`` fills one transaction or one staging table. On the driver: ``preflight`` checks the server, ``committer``
finishes what ``prepared`` (XA) and ``staged`` know how to finish, and ``outcomes`` says what each answer means.
``flavours`` holds all that differs between the two servers; ``names``, ``markers`` and ``connection`` serve all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkonce.sinks.mysql.sink import MySQLSink as MySQLSink

__all__ = ["MySQLSink"]


def __getattr__(name: str) -> Any:
    if name != "MySQLSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparkonce.sinks.mysql.sink import MySQLSink

    return MySQLSink
