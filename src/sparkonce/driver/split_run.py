"""A run whose batches begin in one process and end in another, with the tasks in between.

This is how Spark calls a sink that is a data source: once before a batch's tasks and once after them, in two separate
processes. The first process passes what the second one needs along with the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sparkonce import errors
from sparkonce.decision_log import DecisionLog
from sparkonce.driver.progress import BatchProgress, Stopwatch
from sparkonce.driver.run import RunDriver
from sparkonce.driver.start import read_log
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.coordinator import recorded_sinks
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.healing import HealingRefusal, heal
from sparkonce.protocol.ownership import Token
from sparkonce.protocol.state import State, batch_of, token_of, writing_of
from sparkonce.protocol.view import Claim, LogView
from sparkonce.sink import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A batch that one process has started, as passed through the tasks to the process that ends it.

    Attributes:
        state: The coordinator's state without the log, which is read again.
        position: The end of the log. A record that is found there later belongs to another run.
        effect: The write that the tasks carry out.
        owners: The owner of the transactions in each sink.
        opened_s: The earliest time at which a transaction may have been opened, by `time.monotonic`, which is the same
            clock in all processes of a machine.
    """

    state: State
    position: int
    effect: do.Write
    owners: Mapping[str, Owner]
    opened_s: float

    @property
    def batch(self) -> int:
        """Spark's batch id."""
        return batch_of(self.state).number


class SplitRun(RunDriver):
    """Carries out one half of a batch; see `RunDriver`."""

    def begin_batch(self, asked: on.BatchAsked) -> Handover | None:
        """Advances a batch to the point where its tasks write. A batch that is already decided is completed instead.

        Returns:
            The batch for its tasks, or None if the batch was completed instead.
        """
        with self._at_work:
            watch, opened_s = Stopwatch(), time.monotonic()
            effect = self._carry_out(asked, asked.batch, TasksEnded(), watch, (do.Done, do.Write))
            if isinstance(effect, do.Done):
                self._note_done(effect, watch)
                return None
            return Handover(
                state=replace(self.state, view=LogView()),
                position=self.state.view.end,
                # During healing, the tasks write all slots, because they cannot be run again for slots that turn out
                # to be missing.
                effect=replace(effect, only=None),
                owners=self._preparer.owners(effect.sinks, self.state),
                opened_s=opened_s,
            )

    def finish_batch(self, handover: Handover, handles: Sequence[Handle], *, loser_possible: bool) -> BatchProgress:
        """Commits a batch that the tasks have prepared."""
        with self._at_work:
            watch = Stopwatch()
            opened = partial(setattr, self._preparer, "opened_s", handover.opened_s)
            work = TasksEnded(self._needed(handles), loser_possible=loser_possible, taken=opened)
            return self._note_done(self._carry_out(handover.effect, handover.batch, work, watch), watch)

    def _needed(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        """Returns the handles. During healing, drops transactions without lost rows, which are swept afterwards."""
        writing, known = writing_of(self.state), self.state.finishing
        if known is None or writing.only is None:
            return handles
        plan = heal(known.decision.handles, tuple(sorted(handles)), known.lost, recorded_sinks(self.state))
        if isinstance(plan, HealingRefusal) or plan.write is None:
            return handles
        self.state = replace(self.state, writing=replace(writing, only=plan.write))
        return [one if one.key in plan.write else replace(one, transaction=()) for one in handles]

    @property
    def may_reuse_names(self) -> bool:
        """True if the next batch may reuse the names of this run's transactions."""
        return all(self._sweeper.generation(name) == 0 for name in self._sinks.by_name) and not self._sinks.live_long

    @property
    def owned(self) -> tuple[Claim, Token]:
        """The run's claim and its token."""
        return self.state.claim, token_of(self.state)


def resumed(handover: Handover, log: DecisionLog) -> State:
    """Returns the coordinator's state from a handover.

    Raises:
        SupersededError: If another run has claimed the query since.
    """
    view = read_log(log)
    if view.end != handover.position:
        raise errors.SupersededError(
            f"Batch {handover.batch} was begun when the decision log {log.location} ended before record "
            f"{handover.position}, and now it ends before record {view.end}: a newer run has claimed the query.",
            next_step="Nothing, if the newer run is the one that should run.",
        )
    return replace(handover.state, view=view)


def continued(claim: Claim, token: Token, view: LogView, sinks: Sequence[str], *, moved: bool) -> State | None:
    """Returns the state in which a run continues with its next batch; None if another run has claimed the log."""
    if view.newest_run is None or view.newest_run.token != token:
        return None
    return State(claim=claim, moved=moved, transactional=tuple(sinks), view=view, token=token, swept=True)


class TasksEnded:
    """A `sparkonce.driver.work.BatchWork` for a process that runs no tasks: they have ended or have not started yet.

    Args:
        handles: The handles that the tasks have prepared; None if the batch can only be aborted.
        loser_possible: True if there may be losing task attempts.
        taken: Called before the handles are returned.
    """

    NO_MORE_TASKS = "The batch has to be written again, and Spark's tasks have ended."

    def __init__(
        self,
        handles: Sequence[Handle] | None = None,
        *,
        loser_possible: bool = False,
        taken: Callable[[], object] = lambda: None,
    ) -> None:
        self._handles = handles
        self._loser_possible = loser_possible
        self._taken = taken

    def write(
        self,
        sinks: Mapping[str, Owner],  # noqa: ARG002 - the tasks have them
        only: frozenset[tuple[str, int]] | None,  # noqa: ARG002 - the tasks have it
        computed: Callable[[], None] | None = None,  # noqa: ARG002 - too late for that
    ) -> tuple[Sequence[Handle], bool]:
        """Returns the handles that the tasks have prepared.

        Raises:
            PrepareError: On the second call, and if there are no handles.
        """
        handles, self._handles = self._handles, None
        if handles is None:
            raise errors.PrepareError(self.NO_MORE_TASKS)
        self._taken()
        return handles, self._loser_possible

    def run_into_nothing(self) -> None:
        """Does nothing: the tasks of a decided batch discard its rows."""

    def is_stopped(self) -> bool:
        """Returns False, because this process cannot know whether the query was stopped."""
        return False
