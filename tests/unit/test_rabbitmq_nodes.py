"""The choice of a node: any that answers, a replica, the leader, or a node behind a load balancer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparkonce_rabbitmq.server import RabbitMQ
from sparkonce_rabbitmq.sinks.connection import connect_to

GIVEN = ("given", 5552)
Node = tuple[str, int]
A, B, C, ELSEWHERE = (("a", 1), ("b", 1), ("c", 1), ("elsewhere", 1))


class Cluster:
    """A fake cluster, used instead of real connections.

    Args:
        nodes: The nodes that hold the stream, with its leader first.
        answers: The nodes that answer at the given address, in the order of the connections.
        down: The nodes that do not answer.
    """

    def __init__(self, nodes: Sequence[Node], answers: Sequence[Node], down: Sequence[Node] = ()) -> None:
        self.nodes, self.down = nodes, down
        self.said: dict[Node, Sequence[Node]] = {}
        self.answers = iter(answers)
        self.open: list[Any] = []
        self.asked: list[Node] = []

    def connection(self, _: RabbitMQ, address: Node | None = None) -> Any:
        cluster = self
        if address in self.down:
            raise ConnectionRefusedError(str(address))

        class Connection:
            advertised = next(self.answers) if address is None else address

            def nodes_of(self, _: str) -> Sequence[Node]:
                return cluster.said.get(self.advertised, cluster.nodes)

            def close(self) -> None:
                if self in cluster.open:
                    cluster.open.remove(self)

        made = Connection()
        self.open.append(made)
        self.asked.append(address or GIVEN)
        return made


def reached(cluster: Cluster, **asked: Any) -> Node:
    """Connects, and sees that no other connection stays open."""
    balancer = asked.pop("load_balancer", False)
    kind: Any = cluster.connection
    found = connect_to(kind, RabbitMQ(host="given", load_balancer=balancer), "s", **asked)
    assert cluster.open == [found]
    return found.advertised


def test_a_replica_is_read_from_before_the_leader():
    for node in (A, B):
        cluster = Cluster([A, B], [node])
        assert reached(cluster) == node
        assert cluster.asked == [GIVEN]

    assert reached(Cluster([A, B, C], [ELSEWHERE])) in (B, C)
    assert reached(Cluster([A, B, C], [ELSEWHERE], down=[B])) in (C, A)
    assert reached(Cluster([A, B, C], [ELSEWHERE], down=[B, C])) == A

    cluster = Cluster([A, B], [ELSEWHERE], down=[A, B])
    with pytest.raises(ConnectionRefusedError):
        reached(cluster)
    assert cluster.open == []


def test_the_leader_is_asked_where_a_stream_ends():
    assert reached(Cluster([A, B], [B]), leader=True) == A
    assert reached(Cluster([A, B], [A]), leader=True) == A

    cluster = Cluster([A, B], [B])
    cluster.said[A] = [C, A, B]
    with pytest.raises(ConnectionError, match="No node of the stream 's' was reached"):
        reached(cluster, leader=True)
    assert cluster.open == []
    balanced = Cluster([A, B], [B, *[A] * 100])
    balanced.said[A] = [C, A, B]
    with pytest.raises(ConnectionError):
        reached(balanced, leader=True, load_balancer=True)


def test_a_load_balancer_is_asked_until_a_good_node_answers():
    cluster = Cluster([A, B], [ELSEWHERE, ELSEWHERE, B])
    assert reached(cluster, load_balancer=True) == B
    assert set(cluster.asked) == {GIVEN}
    assert reached(Cluster([A, B], [B, ELSEWHERE, A]), leader=True, load_balancer=True) == A
    never = Cluster([A, B], [ELSEWHERE] * 100)
    with pytest.raises(ConnectionError, match="No node of the stream 's' was reached"):
        reached(never, load_balancer=True)
    assert never.open == []
