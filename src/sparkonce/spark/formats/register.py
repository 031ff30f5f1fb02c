"""Makes the formats known to a session."""

from __future__ import annotations

from typing import Any

from sparkonce.spark.formats.sources import sources
from sparkonce.spark.formats.stores import session_settings


def register(spark: Any) -> None:
    """Registers ``sparkonce-kafka``, ``-postgres``, ``-mysql``, ``-redis`` and ``-files`` as formats of a session.

    Then ``df.writeStream.format("sparkonce-kafka")`` and ``df.write.format("sparkonce-kafka")`` write exactly once.
    See docs/formats.md.

    Args:
        spark: The session.
    """
    for source in sources(session_settings(spark)):
        spark.dataSource.register(source)
