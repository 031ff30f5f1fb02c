"""Pravega streams, by its Java client.

The sink: rows wait in files, and the driver's JVM writes a batch in one transaction of a stream. The files and their
ledger are those of `sparkonce.write_ahead`.

- ``cluster``: the cluster's address, and how to log in there
- ``sink``: settings, columns, preflight
- ``application``: the driver half: writes once, and asks for a transaction's status where that is unknown
- ``notes``: the transactions that were begun for a batch, in the checkpoint
- ``segments``: the times at which a stream's segments were made, which tell it from a later one of its name
- ``client``: Pravega's Java client, in the JVM of the driver's session

The source is of Java, in the folder ``java``:

- ``PravegaSource``: the format, as Spark finds it; ``CutStream``: what Spark asks of it in the driver
- ``Cut``: a stream cut, which is Spark's offset; ``Planner``: what is between two of them, and where a batch ends
- ``StreamClient``: asks Pravega; ``AwayException`` says that it does not answer
- ``Part``: the events of a task; ``ReaderFactory`` and ``EventReader`` read them
- ``compiled`` compiles it, and gives it to a session
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.lazy import lazy as _lazy

if TYPE_CHECKING:
    from sparkonce_pravega.cluster import Pravega as Pravega
    from sparkonce_pravega.read import read_pravega as read_pravega
    from sparkonce_pravega.sink import PravegaSink as PravegaSink

HOMES = {
    "Pravega": "sparkonce_pravega.cluster",
    "PravegaSink": "sparkonce_pravega.sink",
    "read_pravega": "sparkonce_pravega.read",
}
"""The public names, and the module that defines each."""

__all__ = sorted(HOMES)
__getattr__, __dir__ = _lazy(__name__, HOMES)
