"""Settings, columns and preflight of the Pravega sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkonce.arguments import nonempty
from sparkonce.errors import ANEW, ConfigurationError, PreflightError, SchemaError
from sparkonce.session import SEEN_BY_ALL, driver_session, require_class
from sparkonce.sink import Facts, SinkCommitter, WorkerNeeds, spark_type
from sparkonce.write_ahead import Applies, CallSettings, WriteAheadSink
from sparkonce_pravega.application import PravegaApplication, PravegaCommitter, TransactionNotes
from sparkonce_pravega.client import CLIENT_CLASS, PravegaStream, reason
from sparkonce_pravega.cluster import CLIENT_JAR, Pravega

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT_S = 120.0
EVENT_LIMIT_BYTES = 8 * 2**20 - 1024
"""The largest value that is accepted. Pravega's client accepts events of up to 8 MiB, including the key."""


def never(*_: object) -> None:
    """Stands in for the user's function, because a stream has none."""
    raise NotImplementedError


class PravegaSink(WriteAheadSink):
    """Writes each batch to a Pravega stream, in one transaction.

    The column ``value`` is text or bytes. The optional column ``key``, which is text, contains the routing key.

    Example:
        ```python
        from sparkonce import ExactlyOnce
        from sparkonce_pravega import PravegaSink

        sink = PravegaSink("tcp://controller:9090", scope="shop", stream="orders")
        ExactlyOnce(sink, "/data/checkpoints/orders").start(orders)
        ```

    Args:
        controller: The controller's URI, such as ``tcp://host:9090``, or a `Pravega` that also has a user.
        scope: The stream's scope.
        stream: The stream, which must exist.
        folder: The folder in which rows wait; see `WriteAheadSink`.
        name: A name that is unique within the query and stays the same after a restart.

    Raises:
        ConfigurationError: If a setting is wrong.
    """

    def __init__(
        self,
        controller: str | Pravega,
        *,
        scope: str,
        stream: str,
        folder: str | Path | None = None,
        name: str = "pravega",
    ) -> None:
        super().__init__(never, applies=Applies.TRANSACTIONAL, per="batch", folder=folder, name=name)
        self.cluster = Pravega.of(controller)
        self.scope = nonempty("scope", scope, example="the stream's scope")
        self.stream = nonempty("stream", stream, example="the stream's name")

    def __repr__(self) -> str:
        return f"PravegaSink({self.cluster.controller!r}, stream='{self.scope}/{self.stream}', name={self.name!r})"

    def conditions(self) -> Sequence[str]:
        return (
            "controller.transaction.ttl.hours of Pravega, 24 by default, is longer than the query may be down with a "
            "half-committed batch, and so is the stream's retention time",
            "a reader of several segments of the stream may see the rows of one before those of another",
            SEEN_BY_ALL,
        )

    def columns(self, schema: pa.Schema) -> Sequence[str]:
        """Returns the columns.

        Raises:
            SchemaError: If a column is missing, unknown, or of the wrong type. The message names the column.
        """
        text = (pa.string(), pa.large_string())
        kinds = {"value": (*text, pa.binary(), pa.large_binary()), "key": text}
        if "value" not in schema.names:
            raise SchemaError(
                f"Sink {self.name!r} needs the column 'value', and the rows have {schema.names}.",
                next_step="Name the column with the event's bytes or text value.",
            )
        for column in schema:
            if column.name not in kinds:
                raise SchemaError(
                    f"Column {column.name!r} is neither 'value' nor 'key', the only columns of an event.",
                    next_step="Put it into the value, for example with to_json, or drop it.",
                )
            if column.type not in kinds[column.name]:
                raise SchemaError(
                    f"Column {column.name!r} is {spark_type(column.type)}, and must be "
                    f"{'string' if column.name == 'key' else 'string or binary'}.",
                    next_step="Cast it, or serialize it.",
                )
        return super().columns(schema)

    @property
    def writes_with_session(self) -> bool:
        """True, because Spark Connect has no session that the sink could use."""
        return True

    @property
    def takes_dead_letters(self) -> bool:
        """False, because Pravega may reject an event after the decision."""
        return False

    def checked(self, rows: DataFrame, mark: str = "") -> DataFrame:  # noqa: ARG002 - it does not report rejected rows
        """Returns the same rows, with a computation that fails for values that Pravega would reject later."""
        length = "octet_length(value)"
        return rows.where(
            f"CASE WHEN value IS NOT NULL AND {length} <= {EVENT_LIMIT_BYTES} THEN true "
            f"WHEN value IS NULL THEN raise_error('Sink {self._prefix}: a value is null.') "
            f"ELSE raise_error(concat('Sink {self._prefix}: a value has ', {length}, "
            f"' bytes, of {EVENT_LIMIT_BYTES} that an event may have.')) END"
        )

    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        """Checks that the stream exists, and that it is the stream recorded in the log."""
        facts = {**super().preflight(query, recorded), "stream": f"{self.scope}/{self.stream}"}
        if recorded is not None and recorded.get("stream") != facts["stream"]:
            raise PreflightError(
                f"Sink {self.name!r} writes to {facts['stream']}, and the query has written to {recorded['stream']}.",
                next_step=f"Give the sink the stream that it wrote to, or {ANEW}.",
            )
        try:
            found = self._opened().exists()
        except ConfigurationError:
            raise
        except Exception as error:
            raise PreflightError(
                f"controller={self.cluster.controller!r} cannot be queried about the stream: {reason(error)}",
                next_step=(
                    "Check that Pravega runs, that the driver reaches it and trusts its certificate, and that the "
                    "user may read the scope and update the stream."
                ),
            ) from error
        if not found:
            raise PreflightError(
                f"There is no stream {facts['stream']} at {self.cluster.controller}.",
                next_step="Create it, with as many segments as you need.",
            )
        TransactionNotes(self.folder().ledger.files).make()
        return facts

    def worker_needs(self) -> WorkerNeeds:
        return replace(super().worker_needs(), packages=("sparkonce_pravega",))

    def committer(self) -> SinkCommitter:
        folder = self.folder()
        settings = CallSettings(
            apply=never, is_applied=None, applies=Applies.TRANSACTIONAL, per="batch", parallel=1, wait_s=WAIT_S
        )
        application = PravegaApplication(folder, self.name, settings, self._opened())
        return PravegaCommitter(folder, self.name, self._prefix, settings, application)

    def _opened(self) -> PravegaStream:
        spark = driver_session(self.name)
        require_class(spark, CLIENT_JAR, CLIENT_CLASS)
        return PravegaStream(spark, self.cluster, self.scope, self.stream)
