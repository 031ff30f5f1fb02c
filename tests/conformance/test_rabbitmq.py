"""RabbitMQ: a stream, a super stream, and a queue, which is exactly once as long as nothing interrupts it."""

from __future__ import annotations

import pytest

from conformance.system_suite import WaitingSuite, text_rows
from shared_servers import USES_RABBIT, rabbit_server
from sparkonce_lab.systems.rabbitmq import RabbitQueueSystem, RabbitStreamSystem, RabbitSystem

pytestmark = USES_RABBIT


class TestStream(WaitingSuite):
    loses_whole_batches = True
    finds_missing = True
    make_rows = staticmethod(text_rows)

    def new_system(self) -> RabbitSystem:
        return RabbitStreamSystem(server=self.server or rabbit_server())


@pytest.mark.slow
class TestSuperStream(TestStream):
    def new_system(self) -> RabbitSystem:
        return RabbitStreamSystem(3, server=rabbit_server())


@pytest.mark.slow
class TestQueue(TestStream):
    loses_whole_batches = False
    finds_missing = False

    def new_system(self) -> RabbitSystem:
        return RabbitQueueSystem(server=rabbit_server())
