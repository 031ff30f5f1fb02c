"""Wrong rules of the protocol, and misinterpreted server responses. The simulation has to find each of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from mutants.operators import wrong
from mutants.rules import RULES
from simulation.config import KINDS, STAGED
from simulation.kafka import Kafka
from simulation.model_log import ModelLog

_SWEEPS = "a sweep takes newer runs' transactions, too"


@dataclass(frozen=True)
class Mutant:
    """A wrong rule, or a model of a server that exposes one.

    Attributes:
        name: The rule, in words.
        kinds: The sinks that it concerns. In other worlds it changes nothing.
        first_seed: The seed to begin with, for a fault that few schedules show.
        family: The family of worlds in which to look for it.
        rule: Its name in `mutants.rules`, if that differs.
        patches: Attributes of models to replace: owner, name, value.
    """

    name: str
    kinds: tuple[str, ...] = KINDS
    first_seed: int = 0
    family: str = "transactions"
    rule: str = ""
    patches: tuple[tuple[Any, str, Any], ...] = ()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Patches the product inside the block."""
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            if (self.rule or self.name) in RULES:
                stack.enter_context(wrong(self.rule or self.name))
            yield


def _mutants(family: str, kinds: tuple[str, ...], *found: tuple[str, int]) -> list[Mutant]:
    return [Mutant(name, kinds, seed, family) for name, seed in found]


_KAFKA, _S3 = ("kafka-v1", "kafka-v2"), ("s3", "s3-gateway")

MUTANTS = [
    *_mutants(
        "transactions",
        KINDS,
        ("a decision of its own is taken for somebody else's, and undone", 0),
        ("a run stops at a decision of its own as if a newer one had put it", 0),
        ("a put without an answer is read as absent", 0),
        ("a commit before the decision", 0),
        ("a handle is dropped from the decision", 0),
        ("a loss is passed over", 0),
        ("no answer is read as a loss", 0),
        ("an answer that nobody knows is read as a loss", 0),
        ("an answer that nobody knows is read as done", 0),
        ("a sink that is lost in part is written again in whatever slots", 0),
        ("a sink that is lost as a whole needs the slots of before", 109),
        ("a decision is acted on that fell below the floor", 607),
        ("a sink that could not be swept counts as swept", 0),
        ("a write that failed is done again, and what it left open is not looked for", 0),
        ("a put that has waited for room is taken for done where another run's stands", 435),
        ("the thread that sweeps does not wait until no batch is at work", 0),
        ("what the thread has not swept yet is left when a run ends in order", 0),
    ),
    Mutant(
        "a record that stands and cannot be read is taken for one that was not written",
        first_seed=8124,
        patches=((ModelLog, "unreadable", staticmethod(lambda: OSError(errno.ESTALE, "stale file handle"))),),
    ),
    *_mutants(
        "transactions",
        _KAFKA,
        ("Kafka: executors' clocks alone say how old transactions are before a decision", 2065),
        ("Kafka: a fence is taken for a loss after superseding, lanes used again at once", 494),
        ("Kafka: a commit whose markers are still to be written is lost", 0),
        ("Kafka: a lane whose initialisation was not answered is given back", 12261),
        ("Kafka: a producer is kept for the next task after its transaction", 0),
        ("Kafka: a coordinator that has moved is not looked up again", 2461),
        ("Kafka: what has lost rows is committed", 143),
        ("Kafka: a broker that does not say whether it has the rows is taken to have them", 315),
    ),
    *_mutants(
        "transactions",
        ("kafka-v2",),
        ("Kafka v2: aborts by EndTxn v4, which leaves the epoch", 1918),
        ("Kafka v2: aborts as version 1 has to, which compares no epoch", 0),
    ),
    Mutant(
        "Kafka v2: a repeated commit that is called fenced is read as lost",
        ("kafka-v2",),
        patches=((Kafka, "commit_bumps", True),),
    ),
    Mutant(
        "Kafka: what has lost rows is aborted before the log says that it is void",
        _KAFKA,
        first_seed=143,
        rule="what has lost rows is aborted before it is void",
    ),
    Mutant("Kafka: a sweep takes newer runs' transactions, too", _KAFKA, rule=_SWEEPS),
    Mutant("PostgreSQL: a sweep takes newer runs' transactions, too", ("postgres", "postgres-staged"), rule=_SWEEPS),
    Mutant("files and S3: a sweep takes newer runs' files, too", ("files", *_S3), first_seed=2004, rule=_SWEEPS),
    *_mutants(
        "transactions",
        ("postgres", "postgres-staged"),
        ("PostgreSQL: a gid that is not there is lost, whatever its marker says", 0),
        ("PostgreSQL: a connection that was lost means that the rows are", 0),
        ("PostgreSQL: an abort does not end the writer's session", 213),
        ("PostgreSQL, staged: a copy that is merged already is lost", 0),
    ),
    *_mutants(
        "transactions",
        ("mariadb",),
        ("MariaDB: 1397 means lost, whatever the marker says", 0),
        ("MariaDB: 1397 means lost, also while the connection that prepared is there", 389),
    ),
    *_mutants(
        "transactions",
        ("files",),
        ("files: a held name that is gone is lost, without a look at the other one", 0),
        ("files: whoever tidies up behind a batch takes its published files, too", 0),
    ),
    *_mutants("transactions", _S3, ("S3: NoSuchUpload is lost, although the object is there", 0)),
    *_mutants(
        "staged",
        STAGED,
        ("rows that wait are deleted before it is noted that they are applied", 0),
        ("rows that wait are noted as applied before they are", 0),
        ("rows that wait: a store that is away ends a commit", 0),
    ),
    *_mutants(
        "staged",
        ("rabbitmq-stream",),
        ("RabbitMQ stream: what an earlier run has published is not learned when it is committed again", 5556),
        ("RabbitMQ stream: publishing begins behind the highest id, which may not be safe", 1557),
        ("RabbitMQ stream: a publisher believes what it has sent, instead of asking", 0),
        ("RabbitMQ stream: the next frame is sent although the last one was refused", 572),
        ("RabbitMQ stream: a publisher draws its ids", 0),
        ("RabbitMQ stream: each driver publishes under a name of its own", 0),
    ),
    *_mutants(
        "staged",
        ("rabbitmq-queue",),
        ("RabbitMQ queue: a message that is refused last is taken for confirmed", 0),
        ("RabbitMQ queue: a connection that broke is taken for one that was closed", 0),
        ("RabbitMQ queue: messages that come again have other ids", 0),
    ),
    *_mutants(
        "staged",
        ("pravega",),
        ("Pravega: the last transaction is not asked for before rows are written again", 163),
        ("Pravega: a transaction that is open is left so, and another one written", 1998),
        ("Pravega: a transaction that is being committed is taken for one that is not", 456),
        ("Pravega: the id of a transaction is not noted", 0),
    ),
    *_mutants(
        "staged",
        ("delta", "iceberg"),
        ("MERGE: several rows of a key are not looked for before the decision", 0),
    ),
    *_mutants(
        "staged", ("delta",), ("Delta: neither the label nor the application's version tells that a table has rows", 0)
    ),
    *_mutants(
        "staged",
        ("iceberg",),
        ("Iceberg: neither labels nor notes tell that a table has rows", 0),
        ("Iceberg: a merge takes the place of what others have committed since", 481),
    ),
    *_mutants(
        "operated",
        (*KINDS, *STAGED),
        ("the second half of a format's batch ignores that the log went on", 0),
        ("a claim that a driver kept is continued although another run has claimed", 353),
    ),
    *_mutants(
        "powered",
        KINDS,
        ("Spark's files are not made durable before a decision", 0),
        ("empty offsets of a decided batch are not written again", 0),
        ("a batch that was planned with lost files stays planned", 0),
    ),
]
