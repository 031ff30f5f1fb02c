"""Committers that break a rule of the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sparkonce.protocol.handles import Handle, transaction_fields
from sparkonce.protocol.outcomes import Finished, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, SinkCommitter
from sparkonce.sinks.memory import MemoryServer
from sparkonce.sinks.memory.sink import _Committer, _owner, _token


class ListsByStartOfToken(_Committer):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        starts = tuple(f"{self._name}.{owner.query}.{owner.token.position}" for owner in owners)
        return self._named(lambda owner: owner.startswith(starts))

    def _named(self, wanted: Callable[[str], bool]) -> list[Handle]:
        return [
            Handle(sink=self._name, slot=0, transaction=transaction_fields({"number": number}))
            for number, owner in self._server.unfinished()
            if wanted(owner)
        ]


class ListsByQuery(ListsByStartOfToken):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        queries = {owner.query for owner in owners}
        return self._named(lambda owner: owner.split(".")[1] in queries)


class ListsByToken(ListsByStartOfToken):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        tokens = {f"{owner.token.position}-{owner.token.nonce}" for owner in owners}
        return self._named(lambda owner: owner.split(".")[2] in tokens)


class ListsOlderTokens(_Committer):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        older = [
            Owner(query=owner.query, token=Token(position, owner.token.nonce), facts=owner.facts)
            for owner in owners
            for position in range(owner.token.position + 2)
        ]
        return super().list_lingering([*owners, *older])


class ListsTheFirstRunOnly(_Committer):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return super().list_lingering(owners[1:])


class ListsNothing(_Committer):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        return []


class ListsWhatIsFinished(_Committer):
    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        wanted = {_owner(self._name, owner) for owner in owners}
        return [
            Handle(sink=self._name, slot=0, transaction=transaction_fields({"number": number}))
            for number, transaction in self._server._transactions.items()
            if transaction.owner in wanted
        ]


class AnswersInAnotherOrder(_Committer):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return sorted(super().commit(handles), key=lambda finished: finished.outcome is not Outcome.LOST)


class TracesWhatIsPrepared(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        open_too = [
            Trace(token=_token(owner), committed=transaction_fields({"number": number}))
            for number, owner in self._server.unfinished()
        ]
        return [*super().list_traces(query, facts), *open_too]


class RemembersNothing(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        return SinkCommitter.list_traces(self, query, facts)


class TracesTheBatchBefore(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        return [replace(trace, batch=(trace.batch or 0) - 1) for trace in super().list_traces(query, facts)]


class TracesTheNewestBatchOfAll(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        found = super().list_traces(query, facts)
        return [replace(trace, batch=max(one.batch or 0 for one in found)) for trace in found]


class TracesOfEveryQuery(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        return [Trace(token=_token(owner)) for _, owner, _ in self._server.committed()]


class TracesOfTheNewestRunOnly(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        found = super().list_traces(query, facts)
        return [trace for trace in found if trace.token == max(one.token for one in found)]


class TracesTheLanesOfOthers(_Committer):
    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        return [replace(trace, lane=("number", -1)) for trace in super().list_traces(query, facts)]


class AnswersShort(_Committer):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return list(super().commit(handles))[:1]


class AnswersWithBools(_Committer):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [finished.outcome is Outcome.COMMITTED for finished in super().commit(handles)]  # type: ignore[misc]


class StopsAtTheFirstLoss(_Committer):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        answers: list[Finished] = []
        for handle in handles:
            lost = any(answer.outcome is Outcome.LOST for answer in answers)
            answers.append(answers[-1] if lost else self._server.commit(int(handle["number"])))
        return answers


class RemembersItsOwnCommits(_Committer):
    """Works as long as one driver lives."""

    def __init__(self, server: MemoryServer, name: str) -> None:
        super().__init__(server, name)
        self._done: set[Handle] = set()

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        answers = []
        for handle in handles:
            known = handle in self._done
            self._done.add(handle)
            answer = self._server.commit(int(handle["number"]))
            late = answer.outcome is Outcome.ALREADY_COMMITTED and not known
            answers.append(Finished(outcome=Outcome.LOST) if late else answer)
        return answers


class FailsOnNothing(_Committer):
    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return [Finished(outcome=Outcome.COMMITTED)] * max(1, len(handles)) if not handles else super().commit(handles)


class TakesASlotOnce(_Committer):
    """Its markers name the batch and the slot, and not the copy."""

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        done = self._server.__dict__.setdefault("slots", {})
        return [
            super(TakesASlotOnce, self).commit([handle])[0]
            if done.setdefault(handle.slot, handle) == handle
            else Finished(outcome=Outcome.ALREADY_COMMITTED)
            for handle in handles
        ]


class ConcludesByForgetting(_Committer):
    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        for handle in handles:
            if handle.transaction:
                self._server._transactions.pop(int(handle["number"]), None)


class ConcludesByCommittingWhatIsPrepared(_Committer):
    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        for number, _ in self._server.unfinished():
            self._server.commit(number)


class ConcludesOnce(_Committer):
    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        for handle in handles:
            if handle.transaction and self._server.commit(int(handle["number"])).outcome is Outcome.ALREADY_COMMITTED:
                self._server._direct.extend(self._server._transactions[int(handle["number"])].rows)


class ForgetsOlderBatches(_Committer):
    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        if batch >= 100:
            self._server._transactions.clear()


class MissesWhatIsCommitted(_Committer):
    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        return handles


class MissesTheFirstOnly(_Committer):
    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        return super().missing(handles)[:1]
