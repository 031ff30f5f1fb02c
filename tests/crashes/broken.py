"""Sinks with one fault each, which the matrix must catch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crashes.toy import ToyCommitter, ToySink, ToyWriter
from sparkonce.errors import PreflightError
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.sink import Facts, Owner, SinkCommitter, SinkWriter, WriterContext


class _ShowingWriter(ToyWriter):
    def prepare(self) -> Mapping[str, str | int]:
        fields = super().prepare()
        self.ask("COMMIT", "committed")
        return fields


class ShowsAtPrepare(ToySink):
    def writer(self, context: WriterContext) -> SinkWriter:
        return _ShowingWriter(self, context)


class _ForgetfulCommitter(ToyCommitter):
    def finish(self, verb: str, name: str) -> Finished:
        return super().finish("APPEND" if verb == "COMMIT" else verb, name)


class CommitsTwice(ToySink):
    """Its commit is not idempotent."""

    def committer(self) -> SinkCommitter:
        return _ForgetfulCommitter(self)


class _RepeatingCommitter(ToyCommitter):
    def finish(self, verb: str, name: str) -> Finished:
        answer = super().finish(verb, name)
        return super().finish("APPEND", name) if answer.outcome is Outcome.ALREADY_COMMITTED else answer


class CommitsAgainAfterAlready(ToySink):
    def committer(self) -> SinkCommitter:
        return _RepeatingCommitter(self)


class _HastyCommitter(ToyCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.LOST if verb == "COMMIT" else Outcome.RETRY, reason=reason)


class SaysLostForNoAnswer(ToySink):
    def committer(self) -> SinkCommitter:
        return _HastyCommitter(self)


class _HopefulCommitter(ToyCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        return Finished(outcome=Outcome.COMMITTED if verb == "COMMIT" else Outcome.RETRY, reason=reason)


class SaysCommittedForNoAnswer(ToySink):
    def committer(self) -> SinkCommitter:
        return _HopefulCommitter(self)


class _BlindCommitter(ToyCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return ()


class FindsNothing(ToySink):
    def committer(self) -> SinkCommitter:
        return _BlindCommitter(self)


class _ShortSightedCommitter(ToyCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return super().list_lingering([max(owners, key=lambda owner: owner.token)])


class FindsTheNewestRunOnly(ToySink):
    """What a worker of an older run prepares late stays open."""

    def committer(self) -> SinkCommitter:
        return _ShortSightedCommitter(self)


class _SweepingTooMuch(ToyCommitter):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return [handle for handle in super().list_lingering(owners) if self.hide(handle)]

    def hide(self, handle: Handle) -> bool:
        self.connection.ask(f"COMMIT {handle['name']}")
        return False


class CommitsWhatLingers(ToySink):
    """Takes what is prepared for decided, as Flink's older sinks do at recovery."""

    def committer(self) -> SinkCommitter:
        return _SweepingTooMuch(self)


class _RaisingCommitter(ToyCommitter):
    def unanswered(self, verb: str, reason: str) -> Finished:
        raise ConnectionError(reason)


class RaisesWhatTheClientRaises(ToySink):
    def committer(self) -> SinkCommitter:
        return _RaisingCommitter(self)


class RefusesToStartAgain(ToySink):
    def preflight(self, query: str, recorded: Facts | None) -> Facts:
        if recorded is not None:
            raise PreflightError("Once is enough.")
        return {}
