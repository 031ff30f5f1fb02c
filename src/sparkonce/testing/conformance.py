"""The suite that every sink must pass, including your own. Run it with your own pytest (or unittest).

::

    class TestMySink(SinkConformance):
        def setup_method(self):
            self.table = create_empty_table()

        def make_sink(self):
            return MySink(self.table)

        def make_rows(self, start, count):
            return pa.record_batch({"number": range(start, start + count)})

        def visible(self):
            return ask_through_another_connection(f"SELECT number FROM {self.table}")

pytest creates an object of the class for each check, so each check has its own target, which is empty at first.
"""

from __future__ import annotations

from sparkonce.testing.abort_checks import AbortChecks
from sparkonce.testing.commit_checks import CommitChecks
from sparkonce.testing.sweep_checks import SweepChecks
from sparkonce.testing.system_checks import SystemChecks
from sparkonce.testing.trace_checks import TraceChecks

__all__ = ["SinkConformance"]


class SinkConformance(CommitChecks, AbortChecks, SweepChecks, TraceChecks, SystemChecks):
    """Checks of a `TwoPhaseCommitSink`. Its hooks are described in `sparkonce.testing.hooks.SinkHooks`."""

    @classmethod
    def checks(cls) -> list[str]:
        """Lists the names of this suite's checks, for running them without pytest."""
        return sorted(name for name in dir(cls) if name.startswith("test_") and callable(getattr(cls, name)))
