"""Carries out the coordinator's effects, each in the room whose job it is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sparkonce.driver.finish import BatchFinisher
from sparkonce.driver.outage import Outage
from sparkonce.driver.positions import Positions
from sparkonce.driver.put import LogWriter
from sparkonce.driver.sinks import RunSinks
from sparkonce.driver.start import read_log
from sparkonce.driver.stops import Trouble
from sparkonce.driver.sweeper import Sweeper
from sparkonce.driver.validate import Validator
from sparkonce.driver.went_back import check_servers
from sparkonce.driver.work import BatchWork
from sparkonce.driver.write import BatchWriter
from sparkonce.log.base import DecisionLog
from sparkonce.protocol import effects as do
from sparkonce.protocol import events as on
from sparkonce.protocol.state import State


class Performer:
    """Carries out effects for one run.

    Args:
        sinks: Of the run.
        log: The decision log.
        sweeper: Of the run.
        positions: Those who are told how far the query has read.
        patience_s: How long a system that is away, or full, is waited for in each phase.
        accept_lost: Of each sink the newest batch that its server may have lost.

    Attributes:
        trouble: What the last effect has failed by.
        writer: Writes batches.
    """

    def __init__(
        self,
        sinks: RunSinks,
        log: DecisionLog,
        sweeper: Sweeper,
        positions: Positions,
        *,
        patience_s: float,
        accept_lost: Mapping[str, int],
    ) -> None:
        self._sinks = sinks
        self._log = log
        self._sweeper = sweeper
        self._positions = positions
        self._patience_s = patience_s
        self._accept_lost = accept_lost
        self.trouble = Trouble()
        validator = Validator(sinks, positions, self.trouble)
        self._log_writer = LogWriter(log, patience_s, self.trouble, validator.grown_old)
        self._finisher = BatchFinisher(sinks, sweeper, patience_s, self.trouble)
        self.writer = BatchWriter(sinks, sweeper, self._log_writer, validator, patience_s, self.trouble)

    def perform(self, effect: do.Effect, state: State, work: BatchWork) -> on.Event:
        """Does the one thing that is asked for, and returns what came of it.

        Raises:
            SparkonceError: if it cannot be done, and nothing can go on without it.
        """
        match effect:
            case do.ReadLog(view=view):
                outage = Outage(self._patience_s, is_stopped=work.is_stopped)
                return on.LogRead(view=read_log(self._log, view, outage))
            case do.Put():
                return self._log_writer.put(effect, state.view, work)
            case do.CheckServers():
                check_servers(effect, self._sinks.committer, self._accept_lost, self._patience_s, work.is_stopped)
                return on.ServersChecked()
            case do.Sweep():
                return self._sweep(effect, work)
            case do.Write():
                return self.writer.write(effect, state, work)
            case do.Validate():
                return self.writer.validate(effect)
            case do.Finish():
                return self._finisher.finish(effect)
            case do.RunIntoNothing():
                work.run_into_nothing()
                return on.PlanRun()
            case do.Deliver():
                return self.writer.deliver(effect, state, work)
            case do.RaiseFloor() | do.DeleteBelow():
                return self._log_writer.tidy(effect, work)
            case do.Conclude():
                return self._finisher.conclude(effect, work)
            case do.Report(offsets=offsets):
                self._positions.after_finish(offsets)
                return on.Reported()
            case do.Abort():
                return self._finisher.abort(effect)
            case _:
                raise TypeError(f"no way to perform {effect!r}")

    def asked_again(self, stop: do.Stop, state: State, work: BatchWork) -> do.Stop:
        """Asks the log once more before rows are called lost: a newer run may have healed the batch meanwhile.

        Raises:
            LogError: if the log cannot be read.
        """
        if stop.reason is not do.StopReason.LOST:
            return stop
        read = self.perform(do.ReadLog(view=state.view), state, work)
        if isinstance(read, on.LogRead) and read.view.end == state.view.end:
            return stop
        message = f"a newer run has claimed the query, while this one took rows for lost: {stop.message}"
        return do.Stop(reason=do.StopReason.SUPERSEDED, message=message)

    def _sweep(self, effect: do.Sweep, work: BatchWork) -> on.Event:
        if effect.optional:
            self._sweeper.batch_done(effect.runs)
        elif effect.best_effort:
            self._sweeper.sweep_now(effect.runs)
        else:
            # Also what a sink left open that has been EXACTLY_ONCE until now.
            names = {name for run in effect.runs for name, facts in run.sinks if dict(facts).get("prefix")}
            names.update(self._sinks.transactional)
            known = [name for name in self._sinks.by_name if name in names]
            until_s = time.monotonic() + self._patience_s
            self._sweeper.sweep_older(known, effect.runs, until_s, is_stopped=work.is_stopped)
        return on.Swept()
