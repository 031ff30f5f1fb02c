"""AMQP 0-9-1 connections with pika, for the sink and the source of queues."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pika
from pika.exceptions import (
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

if TYPE_CHECKING:
    from sparkonce_rabbitmq.server import RabbitMQ

_HEARTBEAT_S = 30

_CLOSED_BY_BROKER = re.compile(r"ConnectionClosedByBroker: \((403|530)\)")
"""pika's errors for a server that closes the connection because it rejects the user or the virtual host."""

ACCESS_REFUSED, NOT_FOUND, LOCKED, FAILED = 403, 404, 405, 406
"""The codes that a server uses to close a channel permanently, unless the queue is temporarily down; see `is_final`."""
_NO_QUEUE = "no queue"


def amqp_parameters(server: RabbitMQ) -> pika.ConnectionParameters:
    """Returns pika's settings for a server. Raises OSError for a TLS file that cannot be read."""
    host, port = server.amqp_address
    context = server.ssl_context()
    return pika.ConnectionParameters(
        host,
        port,
        server.virtual_host,
        pika.PlainCredentials(server.user, server.password),
        heartbeat=_HEARTBEAT_S,
        socket_timeout=server.timeout_s,
        blocked_connection_timeout=server.timeout_s,
        ssl_options=None if context is None else pika.SSLOptions(context, host),
        client_properties={"connection_name": "sparkonce"},
    )


def is_refused_login(error: BaseException) -> bool:
    """Returns True if the server rejects the login. pika raises the same errors if the connection is lost."""
    refused = isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError)
    return refused and _CLOSED_BY_BROKER.search(str(error)) is not None


def is_final(error: ChannelClosedByBroker) -> bool:
    """Returns True if a retry cannot help after the server rejected a queue. A queue whose node is down may return."""
    if error.reply_code == NOT_FOUND:
        return _NO_QUEUE in error.reply_text
    return error.reply_code in (ACCESS_REFUSED, LOCKED)


def said(error: BaseException) -> str:
    """Describes an error, since several of pika's errors have no message."""
    if isinstance(error, ChannelClosedByBroker | ConnectionClosedByBroker):
        return str(error.reply_text)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
