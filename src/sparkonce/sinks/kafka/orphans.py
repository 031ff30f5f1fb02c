"""Lists what sparkonce has open in a Kafka cluster, for the operator. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sparkonce.errors import PreflightError
from sparkonce.protocol.ownership import TransactionalId
from sparkonce.sinks._shared.orphans import Orphan, parse_line, run_of, shown
from sparkonce.sinks.kafka.transaction_client import TransactionClient
from sparkonce.sinks.kafka.translation import admin_settings

ANSWER_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOrphan(Orphan):
    """An open transaction. An id names neither batch nor slot.

    Attributes:
        timeout_s: The age at which the broker aborts it.
    """

    timeout_s: float = shown("timeout, s")


def list_open(settings: str | Mapping[str, Any]) -> list[KafkaOrphan]:
    """Lists all open transactions of sparkonce's that the user of the settings may see, the oldest first.

    Args:
        settings: The sink's, in librdkafka's names, as a mapping or in one line.

    Raises:
        ConfigurationError: if a setting is none.
        PreflightError: if not every broker answers.
    """
    given = parse_line(settings) if isinstance(settings, str) else settings
    with closing(TransactionClient(admin_settings(given))) as client:
        views, missing = client.survey(
            ["Ongoing"], "", attempt_s=ANSWER_WITHIN_S / 2, deadline_s=time.monotonic() + ANSWER_WITHIN_S
        )
    if missing is not None:
        raise PreflightError(
            f"Listing what is open in Kafka at {given.get('bootstrap.servers', '?')} failed: {missing}.",
            next_step="Check the brokers, and the permission to describe the transactional ids.",
        )
    now_ms = time.time_ns() // 1_000_000
    found = []
    for view in views:
        name = TransactionalId.parse(view.transaction.transactional_id)
        if name is not None:
            found.append(
                KafkaOrphan(
                    kind="open",
                    name=str(name),
                    query=name.query,
                    run=run_of(name.token),
                    batch=-1,
                    slot=-1,
                    age_s=max(0, now_ms - view.started_ms) / 1000,
                    holds=tuple(f"{topic}-{partition}" for topic, partition in sorted(view.partitions)),
                    timeout_s=view.timeout_ms / 1000,
                )
            )
    return sorted(found, key=lambda orphan: -orphan.age_s)
