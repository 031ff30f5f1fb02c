"""Checks a stream before anything is claimed or written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from sparkonce.errors import PreflightError
from sparkonce_rabbitmq.sinks.connection import (
    NOT_AVAILABLE,
    PublisherConnection,
    StreamConnection,
    StreamRefusedError,
    connect_to,
)

if TYPE_CHECKING:
    from sparkonce_rabbitmq.server import RabbitMQ

_LEADER_WITHIN_S = 30.0
_POLL_S = 0.2
_NEXT_STEPS = {
    2: "Create the stream first: rabbitmqadmin declare queue name=… queue_type=stream, or rstream's create_stream.",
    8: "Give the right user and password.",
    11: "Give another user than guest, or allow it with loopback_users = none.",
    12: "Give the right virtual_host, or rabbitmqctl set_permissions -p VHOST USER CONFIGURE WRITE READ.",
    16: "Let the user write and read the stream: rabbitmqctl set_permissions -p VHOST USER '' STREAM STREAM.",
}


def check_stream(settings: RabbitMQ, stream: str, publisher: str) -> int:
    """Checks that the user can publish to the stream under this name, and query the stream's contents.

    Returns the maximum frame size that the server accepts.

    Raises:
        PreflightError: If the user cannot. The message names the setting and its value.
    """
    with _refusals(settings), closing(_connect(settings, stream)) as connection:
        connection.declare(stream, publisher)
        if publisher:
            connection.sequence(stream, publisher)
        return connection.frame_max


def partitions_of(settings: RabbitMQ, super_stream: str) -> Sequence[str]:
    """Returns the streams of a super stream, in partition order; raises PreflightError if the server does not."""
    with _refusals(settings), closing(StreamConnection(settings)) as connection:
        return connection.partitions_of(super_stream)


@contextmanager
def _refusals(settings: RabbitMQ) -> Iterator[None]:
    host, port = settings.stream_address
    try:
        yield
    except StreamRefusedError as error:
        step = _NEXT_STEPS.get(error.code, "Read the server's log, and start again.")
        raise PreflightError(
            f"RabbitMQ at {host}:{port} refuses: {error}.", next_step=step, setting="server"
        ) from error
    except OSError as error:
        raise PreflightError(
            f"RabbitMQ at {host}:{port} cannot be used for streams: {error}.",
            next_step="Check that it listens there, with the plugin rabbitmq_stream, and that the TLS settings match.",
            setting="server",
        ) from error


def _connect(settings: RabbitMQ, stream: str) -> PublisherConnection:
    """Connects, and waits for the stream's leader. A server that has just started may not have found it yet."""
    give_up_at = time.monotonic() + _LEADER_WITHIN_S
    while True:
        try:
            return connect_to(PublisherConnection, settings, stream, leader=True)
        except StreamRefusedError as error:
            if error.code != NOT_AVAILABLE or time.monotonic() >= give_up_at:
                raise
        time.sleep(_POLL_S)
