"""A sink that forwards every call to another sink. A subclass overrides the methods that it wants to watch or break."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from sparkonce.protocol.handles import Finished, Handle
from sparkonce.sink import SinkCommitter, SinkWriter, TwoPhaseCommitSink


def _forward(cls: Any) -> None:
    """Forwards every public method and property of the base class to ``self._real``."""

    def passed_on(name: str, is_property: bool) -> Any:
        if is_property:
            return property(lambda self: getattr(self._real, name))
        return lambda self, *values, **named: getattr(self._real, name)(*values, **named)

    for name, member in vars(cls.__base__).items():
        if not name.startswith("_") and (isinstance(member, property) or inspect.isfunction(member)):
            setattr(cls, name, passed_on(name, isinstance(member, property)))
    abc.update_abstractmethods(cls)


class ForwardingSink(TwoPhaseCommitSink):
    """Forwards every call to another sink, and has its name and guarantee."""

    def __init__(self, real: TwoPhaseCommitSink) -> None:
        super().__init__(real.name, real.guarantee)
        self._real = real


class ForwardingWriter(SinkWriter):
    """Forwards every call to another writer."""

    def __init__(self, real: SinkWriter) -> None:
        self._real = real


class ForwardingCommitter(SinkCommitter):
    """Forwards every call to another committer."""

    def __init__(self, real: SinkCommitter) -> None:
        self._real = real


for _each in (ForwardingSink, ForwardingWriter, ForwardingCommitter):
    _forward(_each)


class HalfwaySink(ForwardingSink):
    """Wraps a sink, whose committer pauses halfway through a batch if `is_held` returns True, until `wait` returns.

    `is_held` is a class attribute, because only the driver has it, not the workers. Spark pickles sinks to its workers
    by reference, so this class must not be in the module that the query's process runs.
    """

    is_held: ClassVar[Callable[[], bool]]
    wait: ClassVar[Callable[[], None]]

    def committer(self) -> SinkCommitter:
        return _HalfwayCommitter(self._real.committer())  # type: ignore[abstract]


class _HalfwayCommitter(ForwardingCommitter):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        written = [handle for handle in handles if handle.transaction]
        if len(written) > 1 and HalfwaySink.is_held():
            self._real.commit(written[: len(written) // 2])
            HalfwaySink.wait()
        return self._real.commit(handles)
