"""The Redis sink: its settings, from which it creates its writers and its committer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sparkonce.arguments import flag, mapping, need_package, whole_number
from sparkonce.errors import ConfigurationError
from sparkonce.guarantees import Guarantee
from sparkonce.needs import WorkerNeeds, addresses_of, files_of
from sparkonce.protocol.ownership import NAME_PREFIX_LIMIT_BYTES
from sparkonce.sink import Facts, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.sinks._shared import settings
from sparkonce.sinks.redis.encoding import Shape

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.sinks.redis.nodes import Endpoint

_PORT = 6379
_DAY_S = 24 * 60 * 60

Structure = Literal["string", "hash", "list", "set", "sorted_set", "increment"]
"""The kinds of values that rows become."""


class RedisSink(TwoPhaseCommitSink):
    """Writes rows to Redis or a Redis Cluster: strings, hashes, lists, sets, sorted sets, or increments of numbers.

    EXACTLY_ONCE stages the rows in Redis, and scripts apply them once the batch is decided. Redis deletes each piece of
    rows in the step that applies it, so even increments are applied once, no matter how often a commit is retried.
    AT_LEAST_ONCE writes immediately. The final state is correct if keys are a function of the row, but a replay shows
    older values until it catches up, and may apply increments twice.

    The columns that are written depend on ``structure``. A setting names its column, and defaults to its own name:

    ============== ===================================================== ===============================================
    structure      columns                                               effect of a null
    ============== ===================================================== ===============================================
    ``string``     ``key``, ``value``                                    in ``value``: deletes the key
    ``hash``       ``key``, and ``fields`` or all other columns          in a field: deletes that field
    ``hash``       ``key``, ``field`` (required), ``value``              in ``value``: deletes the field
    ``list``       ``key``, ``value`` (an array, replaces the list)      in ``value``, or an empty one: deletes the key
    ``set``        ``key``, ``member``                                   is rejected
    ``sorted_set`` ``key``, ``member``, ``score``                        in ``score``: removes the member
    ``increment``  ``key``, ``amount``, optionally ``field``/``member``  in ``amount``: adds nothing
    ============== ===================================================== ===============================================

    Example:
        ```python
        from sparkonce import ExactlyOnce, RedisSink

        sink = RedisSink("redis://cache:6379/0", structure="hash", key_template="customer:{id}")
        ExactlyOnce(sink, "/data/checkpoints/customers").start(totals, output_mode="update")
        ```

    Args:
        url: ``redis://[user:password@]host[:port][/database]``, ``rediss://…`` or ``unix://…``. For a cluster, any
            node.
        structure: See the table. ``increment`` adds to a key, to a field of a hash (``field``) or to a member's score
            in a sorted set (``member``). Amounts of an integer type use INCRBY, others INCRBYFLOAT.
        key: The column that contains the key.
        key_template: Builds the key from columns instead, as in ``"user:{id}"``. Double braces are literal braces, so
            ``"{{user:{id}}}:name"`` has the hash tag ``user:7``.
        value: See the table.
        field: See the table.
        fields: See the table.
        member: See the table.
        score: See the table.
        amount: See the table.
        ttl: A column with the key's time to live in seconds, counted from when the row is applied; null for no limit.
        ttl_s: The time to live of all rows, in seconds.
        guarantee: EXACTLY_ONCE stages rows until their batch is decided; AT_LEAST_ONCE writes rows immediately.
        cluster: True for a Redis Cluster.
        sentinels: The addresses of Sentinels, ``[("host", 26379)]``. The master's address then comes from them instead
            of the URL.
        service: The name that the Sentinels use for the master.
        options: Other settings of `redis.Connection`, for example ``{"ssl_ca_certs": …}``.
        timeout_s: How long to wait for a connection or a response, in seconds.
        wait_replicas: The number of replicas that must confirm staged and applied rows (WAIT).
        staging_ttl_s: The time to live of staged rows, in seconds. It limits the time from a batch's start to its
            commit.
        ledger_ttl_s: The time to live of the query's ledger after its last batch, in seconds. It limits how long a
            query may be stopped.
        prefix: The prefix of all transaction names, and part of the sink's keys. Defaults to ``name``.
        name: A name that is unique within the query and stays the same after a restart.

    Raises:
        ConfigurationError: If a setting is unknown, or contradicts another. The message names it.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        structure: Structure = "string",
        key: str | None = None,
        key_template: str | None = None,
        value: str | None = None,
        field: str | None = None,
        fields: str | Sequence[str] | None = None,
        member: str | None = None,
        score: str | None = None,
        amount: str | None = None,
        ttl: str | None = None,
        ttl_s: int | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        cluster: bool = False,
        sentinels: Sequence[tuple[str, int]] = (),
        service: str = "",
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
        wait_replicas: int = 0,
        staging_ttl_s: int = 7 * _DAY_S,
        ledger_ttl_s: int = 30 * _DAY_S,
        prefix: str | None = None,
        name: str = "redis",
    ) -> None:
        super().__init__(name, guarantee)
        need_package("RedisSink", "redis", "redis", "redis")
        self.url = _checked_url(url)
        self.shape = Shape(
            structure=structure,
            key=key,
            key_template=key_template,
            value=value,
            field=field,
            fields=None if fields is None else settings.columns("fields", fields),
            member=member,
            score=score,
            amount=amount,
            ttl=ttl,
            ttl_s=ttl_s,
        )
        self.cluster = flag("cluster", cluster)
        self.sentinels = _addresses(sentinels)
        self.service = service
        self.options = mapping("options", options or {}, example="{'ssl_ca_certs': '/etc/ssl/ca.pem'}")
        self.timeout_s = settings.seconds("timeout_s", timeout_s)
        self.wait_replicas = whole_number("wait_replicas", wait_replicas, least=0)
        self.staging_ttl_s = whole_number("staging_ttl_s", staging_ttl_s, least=1)
        self.ledger_ttl_s = whole_number("ledger_ttl_s", ledger_ttl_s, least=1)
        self.prefix = settings.own_prefix(
            name if prefix is None else prefix, most_bytes=NAME_PREFIX_LIMIT_BYTES, without="{}"
        )
        self._check()

    def __repr__(self) -> str:
        servers = self.sentinels or self.url.rpartition("@")[2].rpartition("//")[2]
        return f"RedisSink({servers!r}, structure={self.shape.structure!r}, name={self.name!r})"

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        return self.shape.columns(schema)

    def conditions(self) -> Sequence[str]:
        """Returns the conditions that the server and its readers must meet."""
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            return ()
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            replay = "a replay after a failure shows older values again, until it catches up"
            more = ", and increments may be applied twice" if self.shape.structure == "increment" else ""
            return (
                f"keys are a function of the row, so that writing a second time ends in the same state; {replay}{more}",
            )
        return (
            "the server keeps what it has confirmed: appendonly=yes with appendfsync=always, and no failover to a "
            "replica that is behind (wait_replicas); a server without the newest finished batch is detected, and "
            "stops the query",
            "maxmemory-policy=noeviction, with room for a batch twice: staged, and applied",
            f"the query never pauses for longer than ledger_ttl_s={self.ledger_ttl_s}, and nobody deletes keys that "
            "begin with sparkonce:",
            "readers may see part of a batch while it is being applied",
        )

    def preflight(self, query: str, recorded: Facts | None) -> Facts:  # noqa: ARG002 - the same for every query
        """Checks the server: its durability, this user's permissions, and that it is still the recorded server."""
        from sparkonce.sinks.redis.nodes import Nodes
        from sparkonce.sinks.redis.preflight import Preflight

        nodes = Nodes(self.endpoint)
        try:
            found = Preflight(nodes, self.guarantee, self.prefix, self.wait_replicas).facts(recorded)
            return {**found, "ledger_ttl_s": str(self.ledger_ttl_s)}
        finally:
            nodes.close()

    def transaction_timeout_s(self, facts: Facts) -> float | None:  # noqa: ARG002 - the same for every run
        """Returns the time to live of staged rows."""
        return float(self.staging_ttl_s) if self.guarantee is Guarantee.EXACTLY_ONCE else None

    def worker_needs(self) -> WorkerNeeds:
        from sparkonce.sinks.redis.nodes import TLS_FILES

        by_url = () if self.url.startswith("unix:") else addresses_of(self.url, _PORT)
        return WorkerNeeds(
            modules=("redis",), files=files_of(self.options, TLS_FILES), addresses=self.sentinels or by_url
        )

    def writer(self, context: WriterContext) -> SinkWriter:
        """Creates the writer: a staging writer for EXACTLY_ONCE, otherwise a direct one."""
        from sparkonce.sinks.redis.nodes import Nodes
        from sparkonce.sinks.redis.writer import DirectRedisWriter, StagingWriter

        nodes = Nodes(self.endpoint)
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return DirectRedisWriter(nodes, self.shape, wait_replicas=self.wait_replicas)
        return StagingWriter(
            nodes,
            self.shape,
            context,
            prefix=context.owner.facts["prefix"],
            staging_ttl_s=self.staging_ttl_s,
            ledger_ttl_s=self.ledger_ttl_s,
            wait_replicas=self.wait_replicas,
        )

    def committer(self) -> SinkCommitter:
        """Creates the committer, which applies staged rows from the driver."""
        from sparkonce.sinks.redis.committer import RedisCommitter
        from sparkonce.sinks.redis.nodes import Nodes

        return RedisCommitter(
            Nodes(self.endpoint),
            self.name,
            staging_ttl_s=self.staging_ttl_s,
            ledger_ttl_s=self.ledger_ttl_s,
            wait_replicas=self.wait_replicas,
        )

    @property
    def endpoint(self) -> Endpoint:
        from sparkonce.sinks.redis.nodes import Endpoint

        return Endpoint(
            url=self.url,
            cluster=self.cluster,
            sentinels=self.sentinels,
            service=self.service,
            options=self.options,
            timeout_s=self.timeout_s,
        )

    def _check(self) -> None:
        if self.cluster and self.sentinels:
            raise ConfigurationError(
                f"cluster={self.cluster!r} and sentinels={self.sentinels!r} exclude each other.",
                next_step="Leave the Sentinels out: a Redis Cluster fails over on its own.",
            )
        if bool(self.sentinels) != bool(self.service):
            raise ConfigurationError(
                f"sentinels={self.sentinels!r} and service={self.service!r} belong together.",
                next_step="Give the Sentinels' addresses and the master's name there, or neither.",
            )
        if self.staging_ttl_s > self.ledger_ttl_s:
            raise ConfigurationError(
                f"staging_ttl_s={self.staging_ttl_s!r} and ledger_ttl_s={self.ledger_ttl_s!r} do not fit.",
                next_step="Let the ledger live at least as long as staged rows.",
            )


def _checked_url(url: Any) -> str:
    """Returns the URL, or rejects it without showing it, since it may contain a password."""
    if isinstance(url, str) and url.startswith(("redis://", "rediss://", "unix://")):
        return url
    raise ConfigurationError(
        "url is not a Redis URL.", next_step="Give redis://host:6379/0, rediss://… or unix://….", setting="url"
    )


def _addresses(sentinels: Any) -> tuple[tuple[str, int], ...]:
    try:
        return tuple((str(host), int(port)) for host, port in sentinels)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"sentinels={sentinels!r} is not a list of addresses.",
            next_step="Give [('host', 26379)].",
            setting="sentinels",
        ) from None
