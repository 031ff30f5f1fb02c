"""If an AMQP 0-9-1 server goes down during a login, the login does not count as rejected."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pika
import pyarrow as pa
import pytest
from pika.exceptions import ProbableAccessDeniedError, ProbableAuthenticationError

from sparkonce.errors import OutageError, PreflightError
from sparkonce.sinks.write_ahead.application import ApplyToken
from sparkonce_lab.rig.process import HOST
from sparkonce_rabbitmq.queue.consumer import queue_is_there
from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.amqp import is_refused_login
from sparkonce_rabbitmq.sinks.queue_publisher import QueuePublish, check_exchange

HEADER = b"AMQP\x00\x00\x09\x01"


def frame(method: pika.amqp_object.Method) -> bytes:
    return pika.frame.Method(0, method).marshal()


class Dying:
    """A server that answers the first requests of a login, and closes the connection at the next one."""

    def __init__(self, answers: list[bytes]) -> None:
        self._answers = answers
        self._listener = socket.create_server((HOST, 0))
        self.settings = RabbitMQ(host=HOST, port=self._listener.getsockname()[1], timeout_s=5.0)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError), client.makefile("rb") as requests:
                    assert requests.read(len(HEADER)) == HEADER
                    for answer in self._answers:
                        client.sendall(answer)
                        head = requests.read(7)
                        requests.read(struct.unpack(">BHI", head)[2] + 1)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


START = frame(pika.spec.Connection.Start(server_properties={}, mechanisms="PLAIN", locales="en_US"))
TUNE = frame(pika.spec.Connection.Tune(channel_max=9, frame_max=1 << 17, heartbeat=60))


@pytest.fixture(params=[[START], [START, TUNE]], ids=["after the login", "before the virtual host"])
def settings(request) -> Iterator[RabbitMQ]:
    server = Dying(request.param)
    yield server.settings
    server.close()


def test_a_server_that_dies_while_somebody_logs_in_is_an_outage(settings):
    with pytest.raises(OutageError, match="cannot be reached"):
        queue_is_there(settings, "q")
    with pytest.raises(PreflightError, match="cannot be reached"):
        check_exchange(settings, "", "q")


def test_a_decided_batch_waits_for_such_a_server(settings):
    rows = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), [])
    with pytest.raises(ConnectionError, match="StreamLost"):
        QueuePublish(settings, "", "q")(rows, ApplyToken(id="t", query="q", batch=0, slots=(0,), rows=1))


@pytest.mark.parametrize("kind", [ProbableAuthenticationError, ProbableAccessDeniedError])
def test_only_a_server_refuses(kind):
    assert is_refused_login(kind("ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - Login was refused'"))
    assert is_refused_login(kind("ConnectionClosedByBroker: (530) 'NOT_ALLOWED - vhost nowhere not found'"))
    assert not is_refused_login(kind("ConnectionClosedByBroker: (320) 'CONNECTION_FORCED - shutdown'"))
    assert not is_refused_login(kind("StreamLostError: ('Transport indicated EOF',)"))
