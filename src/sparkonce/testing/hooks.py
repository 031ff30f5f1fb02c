"""The hooks of the conformance suite, which you implement."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.protocol.handles import Handle
    from sparkonce.sink import Facts, TwoPhaseCommitSink


_Check = TypeVar("_Check", bound=Callable[..., None])


def needs(hook: str) -> Callable[[_Check], _Check]:
    """Marks a check that a suite has only if it overrides this hook, or if its attribute of this name is True."""

    def mark(check: _Check) -> _Check:
        check.needs = hook  # type: ignore[attr-defined]
        return check

    return mark


class _LeftOut:
    """Stands in for a check that a suite does not have.

    An object of this class is not callable, so pytest and unittest do not collect it.
    """

    def __init__(self, check: Any) -> None:
        self.check = check

    def __repr__(self) -> str:
        return f"left out: the suite has no {self.check.needs}"


class SinkHooks:
    """Checks of a `TwoPhaseCommitSink`.

    Implement the three hooks that raise an error here; the others are optional.

    If a check needs a hook that your suite does not override, the check is not collected as a test, so no test is
    skipped. If your sink lacks an optional ability, say so with an attribute.

    Attributes:
        leaves_process: True if the sink can be pickled, as Spark does to send it to its workers. False is for test
            doubles that live in the memory of the test.
        leaves_traces: True if ``list_traces`` returns the commits that the system remembers.
        finds_missing: True if ``missing`` lists handles that are not committed.
        lists_open: True if ``list_lingering`` lists transactions before they are prepared.
        visible_within_s: How long it may take, in seconds, for committed rows to become visible, and for aborted ones
            to disappear.
        loses_whole_batches: True if one lost handle makes a commit return LOST for all of its handles, because the sink
            can only write a batch as a whole.
    """

    leaves_process: bool = True
    leaves_traces: bool = True
    finds_missing: bool = False
    lists_open: bool = True
    visible_within_s: float = 30.0
    loses_whole_batches: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in [name for name in dir(cls) if name.startswith("test_")]:
            found = inspect.getattr_static(cls, name)
            check = found.check if isinstance(found, _LeftOut) else found
            hook = getattr(check, "needs", None)
            if hook is None:
                continue
            has_hook = getattr(cls, hook) if type(getattr(cls, hook)) is bool else cls._overrides(hook)
            if has_hook == isinstance(found, _LeftOut):
                setattr(cls, name, check if has_hook else _LeftOut(check))

    @classmethod
    def _overrides(cls, hook: str) -> bool:
        return getattr(cls, hook) is not getattr(SinkHooks, hook)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def make_sink(self) -> TwoPhaseCommitSink:
        """Creates a new sink object at EXACTLY_ONCE, with the same target each time within one check."""
        raise NotImplementedError("make_sink must return the sink under test")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        """Returns rows with the numbers ``start`` to ``start + count - 1``, in columns that the sink accepts."""
        raise NotImplementedError("make_rows must return a record batch")

    def visible(self) -> Sequence[int]:
        """Returns the numbers of all rows that a reader currently sees, in any order.

        Duplicate rows are listed repeatedly.

        Query the system itself, through a separate connection, never through the sink.
        """
        raise NotImplementedError("visible must ask the system")

    def make_refused(self, number: int) -> pa.RecordBatch | None:  # noqa: ARG002 - for those that override it
        """Returns a row with this number that the system rejects, with the schema of `make_rows`.

        Returns None if the sink does not report rejected rows.
        """
        return None

    def make_direct_sink(self) -> TwoPhaseCommitSink | None:
        """Creates the same sink at AT_LEAST_ONCE, which shows rows without a decision.

        Returns None if the sink does not support that level.
        """
        return None

    def make_second_sink(self) -> TwoPhaseCommitSink | None:
        """Creates another sink of the query with the same target as `make_sink`, but with a different name."""
        return None

    def other_facts(self, facts: Facts) -> Facts | None:  # noqa: ARG002 - for those that override it
        """Returns the facts of another sink that must not find this sink's transactions; None if facts do not matter.

        For example, the facts of a sink whose prefix is one word longer.
        """
        return None

    def expire(self, handle: Handle) -> bool:  # noqa: ARG002 - for those that override it
        """Makes the system abort the transaction, as its timeout would. Returns False if that is not possible."""
        return False

    def restart_server(self) -> bool:
        """Stops the system abruptly and starts it again. Returns False if that is not possible."""
        return False
