"""Pravega streams, through its Java client.

The sink: rows wait in files, and the driver's JVM writes a batch in one stream transaction. The files and their ledger
come from `sparkonce.write_ahead`.

- ``cluster``: the cluster's address and login
- ``sink``: settings, columns, preflight
- ``application``: the driver side: writes each batch once, and queries the status of a transaction if it is unknown
- ``notes``: the records, in the checkpoint, of the transactions started for a batch
- ``segments``: the creation times of a stream's segments, which distinguish it from a later stream with its name
- ``client``: Pravega's Java client, in the JVM of the driver's session

The source is written in Java, in the folder ``java``:

- ``PravegaSource``: the format that Spark looks up; ``CutStream``: the part that Spark calls on the driver
- ``Cut``: a stream cut, which is Spark's offset; ``Planner``: finds the events between two cuts, and a batch's end
- ``StreamClient``: queries Pravega; ``AwayException``: Pravega does not respond
- ``Part``: the events of a task; ``ReaderFactory`` and ``EventReader``: read these events
- ``compiled``: compiles the source, and adds it to a session
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
"""The public names, with the module that defines each."""

__all__ = sorted(HOMES)
__getattr__, __dir__ = _lazy(__name__, HOMES)
