"""Pravega's Java client in the JVM of the driver's session.

The loop over the rows is written in Java, too, because a call through py4j costs more than an event. Janino, which
Spark ships for generated code, compiles the loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from sparkonce.checks import one_line
from sparkonce.session import error_message, read_rows
from sparkonce_pravega.cluster import Pravega
from sparkonce_pravega.segments import StatusUnknownError, StreamSegments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

CLIENT_CLASS = "io.pravega.client.EventStreamClientFactory"
"""A class of Pravega's client. A session that has this class has the client."""

LEASE_MS = 90_000
"""The time after which Pravega aborts a transaction whose driver is gone. The client extends it automatically."""

_SETTLES_WITHIN_S = 60.0
_ASK_EVERY_S = 0.02
_TRANSIENT = ("COMMITTING", "ABORTING")

_COLUMNS = "value binary, key string"
"""The columns that the loop reads from every file: text as bytes, and null for a missing column."""

_SOURCE = """
import io.pravega.client.stream.Transaction;
import java.nio.ByteBuffer;
import java.util.Iterator;
import org.apache.spark.sql.Row;

public class SparkonceEvents {
    public long write(Object rows, Object transaction) throws Exception {
        Iterator each = (Iterator) rows;
        Transaction events = (Transaction) transaction;
        long written = 0;
        while (each.hasNext()) {
            Row row = (Row) each.next();
            ByteBuffer value = ByteBuffer.wrap((byte[]) row.get(0));
            if (row.isNullAt(1)) {
                events.writeEvent(value);
            } else {
                events.writeEvent((String) row.get(1), value);
            }
            written++;
        }
        events.flush();
        return written;
    }
}
"""


def reason(error: BaseException) -> str:
    """Returns an error's message and that of its innermost cause, because Pravega's client wraps errors repeatedly."""
    told, cause = error_message(error), getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    first = "" if cause is None else one_line(str(cause.toString()))
    return told if first in told else f"{told}, because of {first}"


class PravegaStream:
    """A stream and its transactions."""

    def __init__(self, spark: SparkSession, cluster: Pravega, scope: str, stream: str) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._pravega = self._jvm.io.pravega.client
        self._scope, self._stream = scope, stream
        self._config = cluster.client_config(self._jvm)
        self._events: Any = None

    def exists(self) -> bool:
        manager = self._pravega.admin.StreamManager.create(self._config)
        try:
            return bool(manager.checkStreamExists(self._scope, self._stream))
        finally:
            manager.close()

    @contextmanager
    def writer(self) -> Iterator[Any]:
        """Opens a writer of transactions. Transactions that it begins do not expire while it is open."""
        stream = self._pravega.stream
        factory = self._pravega.EventStreamClientFactory.withScope(self._scope, self._config)
        try:
            settings = stream.EventWriterConfig.builder().transactionTimeoutTime(LEASE_MS).build()
            made = factory.createTransactionalEventWriter(self._stream, stream.impl.ByteBufferSerializer(), settings)
            try:
                yield made
            finally:
                made.close()
        finally:
            factory.close()

    def write(self, transaction: Any, urls: Sequence[str]) -> int:
        """Writes the rows of these files one after another, and flushes. Returns the number of rows."""
        if self._events is None:
            compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(self._pravega.ClientConfig.builder().getClass().getClassLoader())
            compiler.cook(_SOURCE)
            self._events = compiler.getClassLoader().loadClass("SparkonceEvents").newInstance()
        written = 0
        for url in urls:
            rows = read_rows(self._spark, [url], schema=_COLUMNS)
            written += self._events.write(rows._jdf.toLocalIterator(), transaction)
        return written

    def segments(self) -> StreamSegments:
        """Returns the stream's segments, a context manager, to query their creation times."""
        return StreamSegments(self._jvm, self._config, self._scope, self._stream)

    def settled(self, writer: Any, transaction: str) -> str | None:
        """Returns the status of a transaction once it is stable; None if Pravega does not know the transaction."""
        uuid = self._jvm.java.util.UUID.fromString(transaction)
        give_up_at = time.monotonic() + _SETTLES_WITHIN_S
        while True:
            try:
                status = str(writer.getTxn(uuid).checkStatus().toString())
            except Py4JJavaError as error:
                if "NOT_FOUND" in (message := reason(error)):
                    return None
                raise StatusUnknownError(f"Pravega does not report the status of {transaction}: {message}") from error
            if status not in _TRANSIENT:
                return status
            if time.monotonic() >= give_up_at:
                raise StatusUnknownError(f"Transaction {transaction} is still {status}.")
            time.sleep(_ASK_EVERY_S)

    def abort(self, writer: Any, transaction: str) -> None:
        """Aborts an open transaction. Query the status afterward, because a commit may have been faster."""
        writer.getTxn(self._jvm.java.util.UUID.fromString(transaction)).abort()
