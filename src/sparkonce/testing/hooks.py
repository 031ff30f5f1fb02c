"""The hooks that the conformance suite asks of whoever runs it."""

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
    """Marks a check that only a suite has which overrides this hook, or whose attribute of this name is True."""

    def mark(check: _Check) -> _Check:
        check.needs = hook  # type: ignore[attr-defined]
        return check

    return mark


class _LeftOut:
    """Stands for a check that a suite does not have. It is not callable, so neither pytest nor unittest collects it."""

    def __init__(self, check: Any) -> None:
        self.check = check

    def __repr__(self) -> str:
        return f"left out: the suite has no {self.check.needs}"


class SinkHooks:
    """Checks of a `TwoPhaseCommitSink`. Subclass it, and give the three hooks that raise here; the others are optional.

    A check that needs a hook which a suite does not override is no test of that suite: it is not collected, so nothing
    is skipped. A suite whose sink lacks an optional ability says so by an attribute.

    Attributes:
        leaves_process: Whether the sink can be pickled, as Spark does to bring it to its workers. False is for doubles
            that live in the memory of the test.
        leaves_traces: Whether ``list_traces`` tells what the system remembers of commits.
        finds_missing: Whether ``missing`` names what is not committed, which is optional.
        lists_open: Whether ``list_lingering`` lists transactions before they are prepared.
        visible_within_s: How long committed rows may take to be visible, and what is aborted to be gone.
        loses_whole_batches: Whether all handles of a commit are lost if one of them was lost before: the sink writes
            the rows of a batch in one piece, and does not write a part of it.
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
            given = getattr(cls, hook) if type(getattr(cls, hook)) is bool else cls._overrides(hook)
            if given == isinstance(found, _LeftOut):
                setattr(cls, name, check if given else _LeftOut(check))

    @classmethod
    def _overrides(cls, hook: str) -> bool:
        return getattr(cls, hook) is not getattr(SinkHooks, hook)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def make_sink(self) -> TwoPhaseCommitSink:
        """Makes a new sink object at EXACTLY_ONCE, for the same place each time within one check."""
        raise NotImplementedError("make_sink must return the sink under test")

    def make_rows(self, start: int, count: int) -> pa.RecordBatch:
        """Rows that carry the numbers ``start`` to ``start + count - 1``, in columns that the sink takes."""
        raise NotImplementedError("make_rows must return a record batch")

    def visible(self) -> Sequence[int]:
        """Returns the numbers of all rows that a reader sees now, in any order, one for each time that a row is there.

        Ask the system itself, through a connection of its own, never the sink.
        """
        raise NotImplementedError("visible must ask the system")

    def make_refused(self, number: int) -> pa.RecordBatch | None:  # noqa: ARG002 - for those that override it
        """A row that carries this number and that the system refuses, with the schema of `make_rows`.

        None if the sink does not tell what is refused.
        """
        return None

    def make_direct_sink(self) -> TwoPhaseCommitSink | None:
        """Makes the same sink at AT_LEAST_ONCE, which shows rows without a decision. None if there is no such sink."""
        return None

    def make_second_sink(self) -> TwoPhaseCommitSink | None:
        """Makes another sink of the query for the same place, as `make_sink` does but with another name."""
        return None

    def other_facts(self, facts: Facts) -> Facts | None:  # noqa: ARG002 - for those that override it
        """Facts of a neighbour that must not find this sink's transactions; None if facts do not tell them apart.

        For example those with a prefix that is longer by one word.
        """
        return None

    def expire(self, handle: Handle) -> bool:  # noqa: ARG002 - for those that override it
        """Makes the system give up the transaction, as its timeout does. Returns whether it can be made to."""
        return False

    def restart_server(self) -> bool:
        """Stops the system without warning and starts it again. Returns whether it can be done."""
        return False
