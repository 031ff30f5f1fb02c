"""Wrong rules of the source that reads a queue of RabbitMQ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from simulation.config import READING
from simulation.mutants import Mutant
from sparkonce.sources.rabbitmq.queue.memory import Memory
from sparkonce.sources.rabbitmq.queue.receiver import Receiver, _Waiting
from sparkonce.sources.rabbitmq.queue.segments import Segment, Segments, _segment


def _acknowledges_what_it_has(self: Receiver) -> int | None:
    tag = self._held[-1][0] if self._held else None
    self._held.clear()
    return tag


def _forgets_what_may_stand(self: Receiver) -> None:
    self._held.clear()
    self._waiting = _Waiting()


def _loads_no_ids(self: Receiver) -> None:
    _LOAD(self)
    self._memory = Memory(self._settings.remember)


_LOAD = Receiver._load


def _keeps_no_ids(self: Segments, segments: Sequence[tuple[int, Any]]) -> None:
    _FORGET(self, [(number, ()) for number, _ in segments])


_FORGET = Segments.forget


def _puts_as_if_alone(self: Segments, number: int, segment: Segment) -> None:
    self.files.put(_segment(number), segment.encode())


def _end_of_all(self: Receiver, begin: int, most_rows: int | None) -> int:
    if begin not in self._rows and begin < self._next:
        raise KeyError(begin)
    return _END(self, begin, most_rows)


_END = Receiver.end
_mutant = partial(Mutant, family="reading", kinds=READING)

READING_MUTANTS: Sequence[Mutant] = (
    _mutant(
        name="RabbitMQ source: messages are acknowledged before they are kept",
        patches=((Receiver, "acknowledge", _acknowledges_what_it_has),),
    ),
    _mutant(
        name="RabbitMQ source: a receiver that starts does not know what was kept before",
        patches=((Receiver, "_load", _loads_no_ids),),
    ),
    _mutant(
        name="RabbitMQ source: the ids of segments that are deleted are not kept",
        patches=((Segments, "forget", _keeps_no_ids),),
    ),
    _mutant(
        name="RabbitMQ source: a segment that may stand is forgotten with its connection",
        patches=((Receiver, "disconnected", _forgets_what_may_stand),),
    ),
    _mutant(
        name="RabbitMQ source: a batch that others have finished is planned",
        patches=((Receiver, "end", _end_of_all),),
    ),
    _mutant(
        name="RabbitMQ source: a number that another receiver has taken is taken for one's own",
        patches=((Segments, "put", _puts_as_if_alone),),
    ),
)
