"""Makes the formats known to a session."""

from __future__ import annotations

from typing import Any

from sparkonce.spark.formats.sources import SOURCES


def register(spark: Any) -> None:
    """Registers ``sparkonce-kafka``, ``-postgres``, ``-mysql``, ``-redis`` and ``-files`` as formats of a session.

    Then ``df.writeStream.format("sparkonce-kafka")`` and ``df.write.format("sparkonce-kafka")`` write exactly once.
    See docs/formats.md.

    Args:
        spark: The session.
    """
    for source in SOURCES:
        spark.dataSource.register(source)
