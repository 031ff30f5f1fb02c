"""The suite must be able to fail. Each test here has sinks that break a rule, and names the checks that detect it."""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.test_memory import TestMemorySink as Honest
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner, Refused, SinkCommitter, SinkWriter, WriterContext
from sparkonce.sinks.memory import MemoryServer, MemorySink
from sparkonce.sinks.memory.server import TransactionState
from sparkonce.sinks.memory.sink import _Committer, _owner, _token, _Writer
from sparkonce.testing.hooks import SinkHooks


class Server(MemoryServer):
    """The correct server, with its internals accessible to those that break it."""

    def state(self, number: int) -> TransactionState | None:
        return self.transactions().get(number)

    def put(self, number: int, state: TransactionState) -> None:
        self._transactions[number].state = state


class Sink(MemorySink):
    """A sink whose writer and committer can be replaced by broken ones."""

    server: Server
    writer_class: type[_Writer] = _Writer
    committer_class: type[_Committer] = _Committer

    def writer(self, context: WriterContext) -> SinkWriter:
        return self.writer_class(self.server, _owner(self.name, context.owner), self.guarantee)

    def committer(self) -> SinkCommitter:
        return self.committer_class(self.server, self.name)


def suite_over(broken: type) -> Honest:
    server = broken() if issubclass(broken, Server) else Server()
    halves: dict[str, object] = {}
    if issubclass(broken, _Writer):
        halves["writer_class"] = broken
    if issubclass(broken, _Committer):
        halves["committer_class"] = broken
    sink_class = broken if issubclass(broken, Sink) else type("SwappedSink", (Sink,), halves)

    class Suite(Honest):
        def make_sink(self) -> MemorySink:
            return sink_class(server)

        def make_second_sink(self) -> MemorySink:
            return sink_class(server, name="beside")

        def make_direct_sink(self) -> MemorySink:
            honest = super().make_direct_sink()
            return sink_class(server, guarantee=honest.guarantee)

    suite = Suite()
    suite.server = server
    return suite


def verdict(suite: Honest, check: str) -> str:
    try:
        getattr(suite, check)()
    except Exception as error:  # noqa: BLE001 - a broken sink may raise anything
        return f"failed: {error}"
    return "passed"


def caught(broken: type, *checks: str) -> None:
    """Each of these checks fails with a broken server, sink, writer or committer."""
    for check in checks:
        assert verdict(suite_over(broken), f"test_{check}").startswith("failed: "), (broken, check)


def test_a_sink_that_commits_again_doubles_its_rows_or_calls_them_lost():
    class DoublesOnSecondCommit(Server):
        def commit(self, number: int) -> Finished:
            if self.state(number) is TransactionState.COMMITTED:
                self._direct.extend(self._transactions[number].rows)
            return super().commit(number)

    class SaysLostOfWhatIsCommitted(Server):
        def commit(self, number: int) -> Finished:
            committed = self.state(number) is TransactionState.COMMITTED
            return Finished(outcome=Outcome.LOST) if committed else super().commit(number)

    class RemembersItsOwnCommits(_Committer):
        """Works only as long as the same driver lives."""

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

    class TakesASlotOnce(_Committer):
        """Its markers contain the batch and the slot, but not the task attempt."""

        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            done = self._server.__dict__.setdefault("slots", {})
            return [
                super(TakesASlotOnce, self).commit([handle])[0]
                if done.setdefault(handle.slot, handle) == handle
                else Finished(outcome=Outcome.ALREADY_COMMITTED)
                for handle in handles
            ]

    caught(DoublesOnSecondCommit, "a_repeated_commit_adds_nothing", "a_new_committer_repeats_the_commit")
    caught(
        SaysLostOfWhatIsCommitted, "a_repeated_commit_adds_nothing", "what_is_prepared_survives_a_restart_of_the_system"
    )
    caught(RemembersItsOwnCommits, "a_new_committer_repeats_the_commit")
    caught(
        TakesASlotOnce,
        "two_sinks_of_a_query_do_not_disturb_each_other",
        "batches_follow_each_other",
        "a_slot_may_hold_other_rows_when_a_part_of_its_batch_is_written_again",
    )


def test_an_abort_that_takes_back_what_is_committed():
    class AbortDeletesWhatIsCommitted(Server):
        def abort(self, number: int) -> Finished:
            answer = super().abort(number)
            if answer.outcome is Outcome.ALREADY_COMMITTED:
                self.put(number, TransactionState.ABORTED)
            return answer

    class AbortSaysAbortedOfWhatIsCommitted(Server):
        def abort(self, number: int) -> Finished:
            super().abort(number)
            return Finished(outcome=Outcome.ABORTED)

    caught(AbortDeletesWhatIsCommitted, "an_abort_after_the_commit_comes_too_late")
    caught(AbortSaysAbortedOfWhatIsCommitted, "an_abort_after_the_commit_comes_too_late")


def test_rows_that_show_before_the_commit():
    class PrepareCommits(Server):
        def prepare(self, number: int) -> None:
            super().prepare(number)
            self.put(number, TransactionState.COMMITTED)

    class WritesAreVisible(Server):
        def write(self, number: int | None, rows: object) -> None:
            super().write(None, rows)

    class HandleIsNotPlain(_Writer):
        def prepare(self) -> Mapping[str, str | int]:
            return {name: (value,) for name, value in super().prepare().items()}

    class HandlesWhereNothingIsToFinish(_Writer):
        def prepare(self) -> Mapping[str, str | int]:
            return dict(super().prepare()) or {"number": 0}

    caught(PrepareCommits, "nothing_is_visible_before_the_commit", "an_abort_hides_for_ever")
    caught(WritesAreVisible, "nothing_is_visible_before_the_commit", "a_writer_gives_up_after_write")
    caught(HandleIsNotPlain, "nothing_is_visible_before_the_commit")
    caught(HandlesWhereNothingIsToFinish, "without_transactions_rows_show_at_once")


def test_a_wrong_answer_about_what_is_lost_or_unknown():
    class SaysCommittedOfWhatIsLost(Server):
        def commit(self, number: int) -> Finished:
            answer = super().commit(number)
            return Finished(outcome=Outcome.COMMITTED) if answer.outcome is Outcome.LOST else answer

    class SaysCommittedOfWhatIsUnknown(Server):
        def commit(self, number: int) -> Finished:
            answer = super().commit(number)
            return Finished(outcome=Outcome.COMMITTED) if answer.outcome is Outcome.UNKNOWN else answer

    class SaysUnknownOfWhatTimedOut(Server):
        def commit(self, number: int) -> Finished:
            answer = super().commit(number)
            return Finished(outcome=Outcome.UNKNOWN) if answer.outcome is Outcome.LOST else answer

    class RevivesWhatIsAborted(Server):
        def commit(self, number: int) -> Finished:
            if self.state(number) is TransactionState.ABORTED:
                self.put(number, TransactionState.PREPARED)
                super().commit(number)
                return Finished(outcome=Outcome.LOST)
            return super().commit(number)

    caught(SaysCommittedOfWhatIsLost, "a_commit_after_an_abort_is_lost", "a_lost_handle_does_not_stop_the_others")
    caught(SaysCommittedOfWhatIsUnknown, "a_handle_that_names_nothing_is_never_committed")
    caught(SaysUnknownOfWhatTimedOut, "a_transaction_that_timed_out_is_lost")
    caught(RevivesWhatIsAborted, "a_commit_after_an_abort_is_lost", "a_transaction_that_timed_out_is_lost")


def test_an_abort_that_does_not_last():
    class AbortForgetsNothing(Server):
        def abort(self, number: int) -> Finished:
            if self.state(number) is TransactionState.COMMITTED:
                return Finished(outcome=Outcome.ALREADY_COMMITTED)
            return Finished(outcome=Outcome.ABORTED)

    class WritesAfterAbort(Server):
        def write(self, number: int | None, rows: object) -> None:
            if number is not None and self.state(number) is TransactionState.ABORTED:
                self.put(number, TransactionState.OPEN)
            super().write(number, rows)

    class SecondAbortFails(Server):
        def abort(self, number: int) -> Finished:
            if self.state(number) is TransactionState.ABORTED:
                return Finished(outcome=Outcome.UNKNOWN)
            return super().abort(number)

    caught(AbortForgetsNothing, "an_abort_hides_for_ever", "a_writer_gives_up_after_prepare")
    caught(WritesAfterAbort, "an_aborted_writer_cannot_bring_its_rows_back")
    caught(SecondAbortFails, "a_repeated_abort_is_fine")


def test_a_commit_of_other_rows_than_the_transactions():
    class DropsTheSecondWrite(Server):
        def write(self, number: int | None, rows: object) -> None:
            if number is None or not self._transactions[number].rows:
                super().write(number, rows)

    class CommitTakesAllOfTheOwner(Server):
        def commit(self, number: int) -> Finished:
            owner = self._transactions[number].owner if number in self._transactions else ""
            for other, transaction in self._transactions.items():
                if transaction.owner == owner and transaction.state is TransactionState.PREPARED:
                    super().commit(other)
            return super().commit(number)

    class OneTransactionForAllCopies(Server):
        def begin(self, owner: str) -> int:
            for number, open_owner in self.unfinished():
                if open_owner == owner:
                    self.put(number, TransactionState.OPEN)
                    return number
            return super().begin(owner)

    class CloseAborts(_Writer):
        def close(self) -> None:
            self.abort()

    caught(DropsTheSecondWrite, "rows_of_several_writes_are_one_transaction")
    caught(CommitTakesAllOfTheOwner, "a_commit_shows_exactly_its_rows", "a_late_commit_does_not_reach_a_later_batch")
    caught(
        OneTransactionForAllCopies,
        "aborts_leave_the_other_slots_alone",
        "copies_of_a_slot_do_not_disturb_each_other",
        "a_later_copy_may_win",
    )
    caught(CloseAborts, "a_commit_shows_exactly_its_rows", "a_new_committer_commits")


def test_a_sink_that_describes_itself_wrongly():
    class FactsChange(Sink):
        def preflight(self, query: str, recorded: Facts | None) -> Facts:
            return {"started": "again" if recorded else "first"}

    class ChoosesWhatIsNotThere(Sink):
        def columns(self, schema: object) -> Sequence[str]:
            return ["number", "word", "number"]

    class NegativeTimeout(Sink):
        def transaction_timeout_s(self, facts: Facts) -> float | None:
            return -1.0

    caught(FactsChange, "preflight_remembers")
    caught(ChoosesWhatIsNotThere, "columns_are_chosen_among_those_there_are")
    caught(NegativeTimeout, "the_timeout_is_a_time")


def test_a_writer_that_gives_up_badly_or_dies_with_its_rows():
    class AbortDoesNothing(_Writer):
        def abort(self) -> None:
            pass

    class BeginsAtOnce(_Writer):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)
            _Writer.begin(self)

        def begin(self) -> None:
            pass

    class AbortNeedsABeginning(_Writer):
        def abort(self) -> None:
            if self._number is None:
                raise RuntimeError("nothing to abort")
            super().abort()

    class DiesWithItsWriter(_Writer):
        def __del__(self) -> None:
            if self._number is not None and self._server.transactions()[self._number] is TransactionState.PREPARED:
                self._server.abort(self._number)

    caught(AbortDoesNothing, "a_writer_gives_up_after_begin", "a_writer_gives_up_after_write")
    caught(BeginsAtOnce, "a_slot_without_rows_leaves_nothing")
    caught(AbortNeedsABeginning, "a_writer_gives_up_before_it_begins")
    caught(DiesWithItsWriter, "what_is_prepared_outlives_its_writer")


def test_a_writer_that_reports_refused_rows_wrongly():
    class WritesWhatItRefuses(_Writer):
        def offer(self, rows: pa.RecordBatch) -> Refused:
            told = super().offer(rows)
            self.write(rows.take(pa.array(told.rows, pa.int64())))
            return told

    class TellsOneRefusedRowOnly(_Writer):
        def offer(self, rows: pa.RecordBatch) -> Refused:
            told = super().offer(rows)
            return Refused(rows=told.rows[:1], reasons=told.reasons[:1])

    class GivesOneReason(_Writer):
        def offer(self, rows: pa.RecordBatch) -> Refused:
            told = super().offer(rows)
            return Refused(rows=told.rows, reasons=told.reasons[:1])

    class CountsFromTheFirstOffer(_Writer):
        offered = 0

        def offer(self, rows: pa.RecordBatch) -> Refused:
            told, before = super().offer(rows), self.offered
            self.offered += rows.num_rows
            return Refused(rows=[before + row for row in told.rows], reasons=told.reasons)

    class CommitsWhatIsAborted(_Writer):
        def abort(self) -> None:
            if self._number is not None:
                self._server.prepare(self._number)

    caught(WritesWhatItRefuses, "refused_rows_are_told_and_the_others_are_written")
    caught(TellsOneRefusedRowOnly, "refused_rows_are_told_and_the_others_are_written")
    caught(GivesOneReason, "refused_rows_are_told_and_the_others_are_written")
    caught(CountsFromTheFirstOffer, "refused_rows_are_told_and_the_others_are_written")
    caught(CommitsWhatIsAborted, "a_copy_whose_rows_are_all_refused_is_aborted")


def test_a_sweep_of_too_much_or_too_little():
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

    caught(ListsByStartOfToken, "a_sweep_takes_exactly_the_runs_it_is_given")
    caught(ListsByQuery, "a_sweep_takes_exactly_the_runs_it_is_given", "a_sweep_of_an_older_run_spares_the_newer_one")
    caught(ListsByToken, "a_sweep_takes_exactly_the_runs_it_is_given")
    caught(ListsOlderTokens, "a_sweep_takes_exactly_the_runs_it_is_given")
    caught(ListsTheFirstRunOnly, "a_sweep_takes_exactly_the_runs_it_is_given")
    caught(ListsNothing, "a_sweep_finds_what_a_dead_writer_left", "a_later_copy_may_win")
    caught(ListsWhatIsFinished, "what_is_finished_does_not_linger", "an_abort_hides_for_ever")


def test_answers_that_do_not_fit_the_handles():
    class AnswersInAnotherOrder(_Committer):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            return sorted(super().commit(handles), key=lambda finished: finished.outcome is not Outcome.LOST)

    class AnswersShort(_Committer):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            return list(super().commit(handles))[:1]

    class AnswersWithBools(_Committer):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            return [finished.outcome is Outcome.COMMITTED for finished in super().commit(handles)]

    class StopsAtTheFirstLoss(_Committer):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            answers: list[Finished] = []
            for handle in handles:
                lost = any(answer.outcome is Outcome.LOST for answer in answers)
                answers.append(answers[-1] if lost else self._server.commit(int(handle["number"])))
            return answers

    class FailsOnNothing(_Committer):
        def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
            return (
                [Finished(outcome=Outcome.COMMITTED)] * max(1, len(handles)) if not handles else super().commit(handles)
            )

    caught(AnswersInAnotherOrder, "a_lost_handle_does_not_stop_the_others")
    caught(AnswersShort, "all_slots_are_committed_by_one_call")
    caught(AnswersWithBools, "a_commit_shows_exactly_its_rows")
    caught(StopsAtTheFirstLoss, "a_lost_handle_does_not_stop_the_others")
    caught(FailsOnNothing, "nothing_to_do_is_done")


def test_traces_of_the_wrong_transactions():
    class TracesWhatIsPrepared(_Committer):
        def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
            open_too = [
                Trace(token=_token(owner), committed=transaction_fields({"number": number}))
                for number, owner in self._server.unfinished()
            ]
            return [*super().list_traces(query, facts), *open_too]

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

    caught(TracesWhatIsPrepared, "a_trace_is_left_by_what_is_committed_and_by_nothing_else")
    caught(TracesTheBatchBefore, "traces_say_which_batch_they_are_of")
    caught(TracesTheNewestBatchOfAll, "traces_say_which_batch_they_are_of")
    caught(TracesOfEveryQuery, "traces_of_one_query_only")
    caught(TracesOfTheNewestRunOnly, "traces_of_one_query_only")
    caught(TracesTheLanesOfOthers, "a_trace_is_left_by_what_is_committed_and_by_nothing_else")


def test_a_conclusion_that_changes_what_readers_see():
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
                if (
                    handle.transaction
                    and self._server.commit(int(handle["number"])).outcome is Outcome.ALREADY_COMMITTED
                ):
                    self._server._direct.extend(self._server._transactions[int(handle["number"])].rows)

    class ForgetsOlderBatches(_Committer):
        def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
            if batch >= 100:
                self._server._transactions.clear()

    caught(ConcludesByForgetting, "concluding_a_batch_changes_nothing_for_readers")
    caught(ConcludesByCommittingWhatIsPrepared, "concluding_a_batch_changes_nothing_for_readers")
    caught(ConcludesOnce, "concluding_a_batch_changes_nothing_for_readers")
    caught(ForgetsOlderBatches, "concluding_later_batches_forgets_nothing_too_early")


def test_a_committer_that_misses_the_wrong_handles():
    class MissesWhatIsCommitted(_Committer):
        def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
            return handles

    class MissesTheFirstOnly(_Committer):
        def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
            return super().missing(handles)[:1]

    caught(MissesWhatIsCommitted, "what_is_committed_is_not_missing")
    caught(MissesTheFirstOnly, "what_is_not_committed_is_missing")


def test_an_honest_sink_passes_every_check():
    verdicts = {check: verdict(suite_over(Server), check) for check in Honest.checks()}
    assert {check: said for check, said in verdicts.items() if said != "passed"} == {}


def test_every_check_that_runs_here_catches_something():
    runs = {check for check in Honest.checks() if verdict(suite_over(Server), check) == "passed"}
    named = {f"test_{name}" for name in re.findall(r'"(\w+)"', Path(__file__).read_text())}
    assert runs - named == set()


@pytest.mark.parametrize(
    ("given", "check"),
    [
        ({"leaves_traces": False}, "test_traces_of_one_query_only"),
        ({"finds_missing": False}, "test_what_is_not_committed_is_missing"),
        ({"lists_open": False}, "test_an_aborted_writer_cannot_bring_its_rows_back"),
        ({"expire": SinkHooks.expire}, "test_a_transaction_that_timed_out_is_lost"),
        ({"make_refused": SinkHooks.make_refused}, "test_a_copy_whose_rows_are_all_refused_is_aborted"),
    ],
)
def test_what_a_suite_does_not_give_is_not_collected(given, check):
    lacking = type("Lacking", (Honest,), given)
    assert check in Honest.checks()
    assert check not in lacking.checks()
    assert check not in unittest.TestLoader().getTestCaseNames(type("Case", (lacking, unittest.TestCase), {}))
    assert type("Given", (lacking,), {name: getattr(Honest, name) for name in given}).checks() == Honest.checks()


def test_a_system_that_remembers_nothing_has_to_say_so():
    class RemembersNothing(_Committer):
        def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
            return SinkCommitter.list_traces(self, query, facts)

    said = verdict(suite_over(RemembersNothing), "test_traces_of_one_query_only")
    assert said.endswith("list_traces gives none: set leaves_traces = False")
