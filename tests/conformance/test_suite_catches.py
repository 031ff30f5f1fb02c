"""The suite must be able to fail: each sink here breaks one rule, and the checks that see it are named."""

from __future__ import annotations

import unittest

import pytest

from conformance.broken_committers import (
    AnswersInAnotherOrder,
    AnswersShort,
    AnswersWithBools,
    ConcludesByCommittingWhatIsPrepared,
    ConcludesByForgetting,
    ConcludesOnce,
    FailsOnNothing,
    ForgetsOlderBatches,
    ListsByQuery,
    ListsByStartOfToken,
    ListsByToken,
    ListsNothing,
    ListsOlderTokens,
    ListsTheFirstRunOnly,
    ListsWhatIsFinished,
    MissesTheFirstOnly,
    MissesWhatIsCommitted,
    RemembersItsOwnCommits,
    RemembersNothing,
    StopsAtTheFirstLoss,
    TakesASlotOnce,
    TracesOfEveryQuery,
    TracesOfTheNewestRunOnly,
    TracesTheBatchBefore,
    TracesTheLanesOfOthers,
    TracesTheNewestBatchOfAll,
    TracesWhatIsPrepared,
)
from conformance.broken_servers import (
    AbortDeletesWhatIsCommitted,
    AbortForgetsNothing,
    AbortSaysAbortedOfWhatIsCommitted,
    ChoosesWhatIsNotThere,
    CommitTakesAllOfTheOwner,
    DoublesOnSecondCommit,
    DropsTheSecondWrite,
    FactsChange,
    NegativeTimeout,
    OneTransactionForAllCopies,
    PrepareCommits,
    RevivesWhatIsAborted,
    SaysCommittedOfWhatIsLost,
    SaysCommittedOfWhatIsUnknown,
    SaysLostOfWhatIsCommitted,
    SaysUnknownOfWhatTimedOut,
    SecondAbortFails,
    Server,
    Sink,
    WritesAfterAbort,
    WritesAreVisible,
)
from conformance.broken_writers import (
    AbortDoesNothing,
    AbortNeedsABeginning,
    BeginsAtOnce,
    CloseAborts,
    CommitsWhatIsAborted,
    CountsFromTheFirstOffer,
    DiesWithItsWriter,
    GivesOneReason,
    HandleIsNotPlain,
    HandlesWhereNothingIsToFinish,
    TellsOneRefusedRowOnly,
    WritesWhatItRefuses,
)
from conformance.test_memory import TestMemorySink as Honest
from sparkonce.sinks.memory import MemorySink
from sparkonce.sinks.memory.sink import _Committer, _Writer
from sparkonce.testing.hooks import SinkHooks

BROKEN: list[tuple[type, str]] = [
    (DoublesOnSecondCommit, "test_a_repeated_commit_adds_nothing"),
    (DoublesOnSecondCommit, "test_a_new_committer_repeats_the_commit"),
    (AbortDeletesWhatIsCommitted, "test_an_abort_after_the_commit_comes_too_late"),
    (AbortSaysAbortedOfWhatIsCommitted, "test_an_abort_after_the_commit_comes_too_late"),
    (TakesASlotOnce, "test_two_sinks_of_a_query_do_not_disturb_each_other"),
    (TakesASlotOnce, "test_batches_follow_each_other"),
    (OneTransactionForAllCopies, "test_aborts_leave_the_other_slots_alone"),
    (PrepareCommits, "test_nothing_is_visible_before_the_commit"),
    (PrepareCommits, "test_an_abort_hides_for_ever"),
    (WritesAreVisible, "test_nothing_is_visible_before_the_commit"),
    (WritesAreVisible, "test_a_writer_gives_up_after_write"),
    (SaysCommittedOfWhatIsLost, "test_a_commit_after_an_abort_is_lost"),
    (SaysCommittedOfWhatIsLost, "test_a_lost_handle_does_not_stop_the_others"),
    (SaysCommittedOfWhatIsUnknown, "test_a_handle_that_names_nothing_is_never_committed"),
    (SaysLostOfWhatIsCommitted, "test_a_repeated_commit_adds_nothing"),
    (SaysLostOfWhatIsCommitted, "test_what_is_prepared_survives_a_restart_of_the_system"),
    (SaysUnknownOfWhatTimedOut, "test_a_transaction_that_timed_out_is_lost"),
    (RevivesWhatIsAborted, "test_a_commit_after_an_abort_is_lost"),
    (RevivesWhatIsAborted, "test_a_transaction_that_timed_out_is_lost"),
    (AbortForgetsNothing, "test_an_abort_hides_for_ever"),
    (AbortForgetsNothing, "test_a_writer_gives_up_after_prepare"),
    (WritesAfterAbort, "test_an_aborted_writer_cannot_bring_its_rows_back"),
    (SecondAbortFails, "test_a_repeated_abort_is_fine"),
    (DropsTheSecondWrite, "test_rows_of_several_writes_are_one_transaction"),
    (CommitTakesAllOfTheOwner, "test_a_commit_shows_exactly_its_rows"),
    (CommitTakesAllOfTheOwner, "test_a_late_commit_does_not_reach_a_later_batch"),
    (OneTransactionForAllCopies, "test_copies_of_a_slot_do_not_disturb_each_other"),
    (OneTransactionForAllCopies, "test_a_later_copy_may_win"),
    (CloseAborts, "test_a_commit_shows_exactly_its_rows"),
    (CloseAborts, "test_a_new_committer_commits"),
    (AbortDoesNothing, "test_a_writer_gives_up_after_begin"),
    (AbortDoesNothing, "test_a_writer_gives_up_after_write"),
    (BeginsAtOnce, "test_a_slot_without_rows_leaves_nothing"),
    (AbortNeedsABeginning, "test_a_writer_gives_up_before_it_begins"),
    (HandleIsNotPlain, "test_nothing_is_visible_before_the_commit"),
    (DiesWithItsWriter, "test_what_is_prepared_outlives_its_writer"),
    (HandlesWhereNothingIsToFinish, "test_without_transactions_rows_show_at_once"),
    (ListsByStartOfToken, "test_a_sweep_takes_exactly_the_runs_it_is_given"),
    (ListsByQuery, "test_a_sweep_takes_exactly_the_runs_it_is_given"),
    (ListsByQuery, "test_a_sweep_of_an_older_run_spares_the_newer_one"),
    (ListsByToken, "test_a_sweep_takes_exactly_the_runs_it_is_given"),
    (ListsOlderTokens, "test_a_sweep_takes_exactly_the_runs_it_is_given"),
    (ListsTheFirstRunOnly, "test_a_sweep_takes_exactly_the_runs_it_is_given"),
    (ListsNothing, "test_a_sweep_finds_what_a_dead_writer_left"),
    (ListsNothing, "test_a_later_copy_may_win"),
    (ListsWhatIsFinished, "test_what_is_finished_does_not_linger"),
    (ListsWhatIsFinished, "test_an_abort_hides_for_ever"),
    (TracesWhatIsPrepared, "test_a_trace_is_left_by_what_is_committed_and_by_nothing_else"),
    (TracesTheBatchBefore, "test_traces_say_which_batch_they_are_of"),
    (TracesTheNewestBatchOfAll, "test_traces_say_which_batch_they_are_of"),
    (TracesOfEveryQuery, "test_traces_of_one_query_only"),
    (TracesOfTheNewestRunOnly, "test_traces_of_one_query_only"),
    (TracesTheLanesOfOthers, "test_a_trace_is_left_by_what_is_committed_and_by_nothing_else"),
    (AnswersInAnotherOrder, "test_a_lost_handle_does_not_stop_the_others"),
    (AnswersShort, "test_all_slots_are_committed_by_one_call"),
    (AnswersWithBools, "test_a_commit_shows_exactly_its_rows"),
    (StopsAtTheFirstLoss, "test_a_lost_handle_does_not_stop_the_others"),
    (RemembersItsOwnCommits, "test_a_new_committer_repeats_the_commit"),
    (TakesASlotOnce, "test_a_slot_may_hold_other_rows_when_a_part_of_its_batch_is_written_again"),
    (ConcludesByForgetting, "test_concluding_a_batch_changes_nothing_for_readers"),
    (ConcludesByCommittingWhatIsPrepared, "test_concluding_a_batch_changes_nothing_for_readers"),
    (ConcludesOnce, "test_concluding_a_batch_changes_nothing_for_readers"),
    (ForgetsOlderBatches, "test_concluding_later_batches_forgets_nothing_too_early"),
    (FailsOnNothing, "test_nothing_to_do_is_done"),
    (MissesWhatIsCommitted, "test_what_is_committed_is_not_missing"),
    (MissesTheFirstOnly, "test_what_is_not_committed_is_missing"),
    (WritesWhatItRefuses, "test_refused_rows_are_told_and_the_others_are_written"),
    (TellsOneRefusedRowOnly, "test_refused_rows_are_told_and_the_others_are_written"),
    (GivesOneReason, "test_refused_rows_are_told_and_the_others_are_written"),
    (CountsFromTheFirstOffer, "test_refused_rows_are_told_and_the_others_are_written"),
    (CommitsWhatIsAborted, "test_a_copy_whose_rows_are_all_refused_is_aborted"),
    (FactsChange, "test_preflight_remembers"),
    (ChoosesWhatIsNotThere, "test_columns_are_chosen_among_those_there_are"),
    (NegativeTimeout, "test_the_timeout_is_a_time"),
]


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


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_sink_is_caught(broken: type, check: str) -> None:
    assert verdict(suite_over(broken), check).startswith("failed: ")


def test_an_honest_sink_passes_every_check() -> None:
    verdicts = {check: verdict(suite_over(Server), check) for check in Honest.checks()}
    assert {check: said for check, said in verdicts.items() if said != "passed"} == {}


def test_every_check_that_runs_here_catches_something() -> None:
    runs = {check for check in Honest.checks() if verdict(suite_over(Server), check) == "passed"}
    assert runs - {check for _, check in BROKEN} == set()


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
def test_what_a_suite_does_not_give_is_not_collected(given: dict[str, object], check: str) -> None:
    lacking = type("Lacking", (Honest,), given)
    assert check in Honest.checks()
    assert check not in lacking.checks()
    assert check not in unittest.TestLoader().getTestCaseNames(type("Case", (lacking, unittest.TestCase), {}))
    assert type("Given", (lacking,), {name: getattr(Honest, name) for name in given}).checks() == Honest.checks()


def test_a_system_that_remembers_nothing_has_to_say_so() -> None:
    said = verdict(suite_over(RemembersNothing), "test_traces_of_one_query_only")
    assert said.endswith("list_traces gives none: set leaves_traces = False")
