"""The two ends of a batch, in two processes of Spark's driver: before its tasks, and after them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from sparkonce.driver.halves import HalfRun, Handover, continued, resumed
from sparkonce.driver.outage import Timing
from sparkonce.driver.start import read_log
from sparkonce.errors import PrepareError, SupersededError
from sparkonce.log import DecisionLog
from sparkonce.protocol.events import BatchAsked
from sparkonce.protocol.handles import Handle
from sparkonce.protocol.state import State
from sparkonce.sink import TwoPhaseCommitSink
from sparkonce.spark.formats.kept import KeptRun
from sparkonce.spark.formats.task import SlotWritten
from sparkonce.version import __version__

_ABORT_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The knowledge that both ends of a batch share.

    Attributes:
        sink: The sink, its columns checked.
        log: The decision log.
        query: Spark's query id, or the job's.
        kept: The name of what this driver keeps of the run, see `kept.run_key`.
        moved: Whether the user says that the log was moved here, not copied.
        patience_s: How long systems that are away are waited for.
    """

    sink: TwoPhaseCommitSink
    log: DecisionLog
    query: str
    kept: str | None = None
    moved: bool = False
    patience_s: float = 300.0

    def begin(self, asked: BatchAsked) -> Handover | None:
        """Claims, if this driver has not done so yet, and judges the batch; finishes it if it is decided.

        Returns:
            What the tasks need to write the batch; None if they must not.
        """
        with KeptRun(self.kept) as kept, closing(self._run(self._known(kept))) as run:
            handover = run.begin_batch(asked)
            self._keep(kept, run)
            return handover

    def finish(self, handover: Handover, written: Sequence[SlotWritten]) -> None:
        """Decides and commits what the tasks have prepared."""
        handles = [one.handle for one in written if one.handle is not None]
        if len(handles) != len(written):
            raise PrepareError(f"Batch {handover.batch} was written by {len(handles)} of {len(written)} tasks.")
        with KeptRun(self.kept) as kept:
            run = self._run(resumed(handover, self.log))
            try:
                run.finish_batch(handover, handles, loser_possible=any(one.tried > 0 for one in written))
                self._keep(kept, run)
            finally:
                run.end()

    def check_decided(self, batch: int) -> None:
        """Checks that a batch whose rows were thrown away is decided.

        Raises:
            PrepareError: if it is not.
        """
        if read_log(self.log).decision(batch) is None:
            raise PrepareError(f"Batch {batch} was not written, and is not decided.")

    def abort(self, asked: BatchAsked, handover: Handover | None) -> None:
        """Undoes what a batch has prepared, unless it is decided: then it is finished.

        Spark calls this whenever a task or the end of a batch has failed, also after the decision, and also from a
        driver that another one has deposed: that one leaves all to the other.
        """
        with KeptRun(self.kept) as kept:
            token = handover.state.token if handover is not None else kept.found[1] if kept.found is not None else None
            newest = read_log(self.log).newest_run
            kept.forget()
            if token is None or newest is None or newest.token != token:
                return
            run = self._run(None, patience_s=_ABORT_WITHIN_S)
            try:
                run.run_batch(asked, _Undone())
            except (PrepareError, SupersededError) as error:
                if not isinstance(error, SupersededError) and _REASON not in error.message:
                    raise
            finally:
                run.close()

    def _known(self, kept: KeptRun) -> State | None:
        if kept.found is None:
            return None
        claim, token = kept.found
        return continued(claim, token, read_log(self.log), (self.sink.name,), moved=self.moved)

    def _keep(self, kept: KeptRun, run: HalfRun) -> None:
        if run.leaves_no_names:
            kept.keep(*run.owned)
        else:
            kept.forget()

    def _run(self, known: State | None, *, patience_s: float | None = None) -> HalfRun:
        return HalfRun(
            run=str(uuid.uuid4()),  # Spark's is not known here
            query=self.query,
            sinks={self.sink.name: self.sink},
            log=self.log,
            # Nothing tells of a speculative copy, so each batch looks for what losing copies left open.
            timing=Timing(outage_patience_s=patience_s or self.patience_s, sweep_every_s=0),
            library=__version__,
            moved=self.moved,
            known=known,
        )


_REASON = "Spark has given the batch up."


class _Undone:
    """The work of a batch that is only to be undone. See `sparkonce.driver.work.BatchWork`."""

    def write(
        self, sinks: object, only: object, computed: object = None
    ) -> tuple[Sequence[Handle], bool]:  # the same names as the protocol's
        """Writes nothing.

        Raises:
            PrepareError: always, so that the run undoes all.
        """
        del sinks, only, computed
        raise PrepareError(_REASON)

    def run_into_nothing(self) -> None:
        """Does nothing: Spark has run the plan."""

    def is_stopped(self) -> bool:
        """Tells that nothing was stopped."""
        return False
