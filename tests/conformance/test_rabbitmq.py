"""RabbitMQ: a stream, a super stream, and a queue, which is exactly once as long as nothing interrupts it."""

from __future__ import annotations

import pytest

from conformance.system_suite import SystemSuite, text_rows
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce.lab.systems.rabbitmq import RabbitQueueSystem, RabbitStreamSystem, RabbitSystem
from sparkonce.testing.hooks import SinkHooks

pytestmark = USES_RABBIT


class TestStream(SystemSuite):
    loses_whole_batches = True
    leaves_traces = False
    other_facts = SinkHooks.other_facts
    make_rows = staticmethod(text_rows)

    def new_system(self) -> RabbitSystem:
        return RabbitStreamSystem(server=rabbit_server())


@pytest.mark.slow
class TestSuperStream(TestStream):
    def new_system(self) -> RabbitSystem:
        return RabbitStreamSystem(3, server=rabbit_server())


class TestQueue(TestStream):
    loses_whole_batches = False
    leaves_traces = True

    def new_system(self) -> RabbitSystem:
        return RabbitQueueSystem(server=rabbit_server())
