"""The base of a committer, which reads handles and finishes their transactions in parallel.

A committer implements `transaction_of`, `commit_all` and `abort_all`. The base class itself answers for slots without
rows and for handles of newer versions. `Claims` selects the transactions of certain runs by comparing their names field
by field.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from sparkonce.protocol.handles import Finished, Handle, Outcome
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Owner, SinkCommitter, claimed_by

NOTHING = Finished(outcome=Outcome.COMMITTED, reason="The slot had no rows: there is nothing to finish.")
FOREIGN = Finished(outcome=Outcome.UNKNOWN, reason="The handle names no transaction of this sink.")

T = TypeVar("T", bound=Hashable)


class HandleCommitter(SinkCommitter, Generic[T]):
    """Commits and aborts transactions, each identified by a handle. ``T`` is a transaction as a value.

    `handle_fields` has the fields that handles may have. A handle with other fields was written by a newer version, and
    its transaction is left as it is. If `handle_fields` is empty, fields are not checked.
    """

    handle_fields: frozenset[str] = frozenset()

    @abc.abstractmethod
    def transaction_of(self, handle: Handle) -> T | Finished:
        """Returns the transaction that a handle refers to, or the answer `FOREIGN` for another sink's handle.

        Never called for the handle of a slot without rows.
        """

    @abc.abstractmethod
    def commit_all(self, wanted: Mapping[T, Handle]) -> Mapping[T, Finished]:
        """Commits these transactions, and returns an answer for each. See `SinkCommitter.commit`."""

    @abc.abstractmethod
    def abort_all(self, wanted: Mapping[T, Handle]) -> Mapping[T, Finished]:
        """Aborts these transactions, and returns an answer for each. See `SinkCommitter.abort`."""

    def commit(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return self._answers(handles, self.commit_all)

    def abort(self, handles: Sequence[Handle]) -> Sequence[Finished]:
        return self._answers(handles, self.abort_all)

    def _answers(
        self, handles: Sequence[Handle], finish: Callable[[Mapping[T, Handle]], Mapping[T, Finished]]
    ) -> list[Finished]:
        read = {handle: self._read(handle) for handle in handles}
        wanted = {found: handle for handle, found in read.items() if not isinstance(found, Finished)}
        answers = finish(wanted) if wanted else {}
        return [found if isinstance(found := read[handle], Finished) else answers[found] for handle in handles]

    def _read(self, handle: Handle) -> T | Finished:
        if not handle.transaction:
            return NOTHING
        fields = {name for name, _ in handle.transaction}
        strange = sorted(fields - self.handle_fields)
        # A handle that has some of this sink's fields may be from a newer version. A handle with none of them belongs
        # to another sink.
        return _newer(strange) if strange and fields & self.handle_fields else self.transaction_of(handle)


def _newer(strange: Sequence[str]) -> Finished:
    """Returns the answer for a handle that a newer version has written."""
    return Finished(
        outcome=Outcome.UNKNOWN,
        reason=f"The handle has fields that this version of sparkonce does not know: {', '.join(strange)}. Run the "
        "version that wrote it, which `sparkonce checkpoint history` names, or a newer one.",
    )


def finish_each(wanted: Sequence[T], finish: Callable[[T], Finished], *, at_once: int) -> dict[T, Finished]:
    """Finishes transactions, ``at_once`` of them in parallel, and returns the outcome of each.

    ``finish`` must not raise an error.
    """
    if len(wanted) < 2:
        return {one: finish(one) for one in wanted}
    with ThreadPoolExecutor(max_workers=min(at_once, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(finish, wanted), strict=True))


class Every:
    """A task that is due at an interval of batches.

    The interval is measured from the last time the task ran. A test for every nth batch id would miss batches without
    rows, which skip the task.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._from = 0

    def is_due(self, batch: int) -> bool:
        return batch >= self._from

    def done(self, batch: int) -> None:
        self._from = batch + self._batches


class Name(Protocol):
    """A transaction's name on the server as a value, such as `sparkonce.protocol.ownership.TransactionName`."""

    def belongs_to(self, prefix: str, query: str, tokens: frozenset[Token]) -> bool:
        """Returns True if one of these runs of this query created it, under exactly this prefix."""


class Claims:
    """The runs whose transactions are requested. Iterates over pairs of prefix and query.

    A run without a prefix in its facts wrote no transactions.
    """

    def __init__(self, owners: Sequence[Owner]) -> None:
        self._runs = claimed_by(owners)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def queries(self) -> list[str]:
        return sorted({query for _, query in self._runs})

    def has(self, name: Name) -> bool:
        """Returns True if one of these runs created the transaction with this name."""
        return any(name.belongs_to(prefix, query, tokens) for (prefix, query), tokens in self._runs.items())
