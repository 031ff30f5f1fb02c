"""The setting of one check: runs, writers and committers of a sink, and assertions that fail with a full sentence."""

from __future__ import annotations

import pickle
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkonce.protocol.codec import decode_handle, encode_handle
from sparkonce.protocol.handles import Finished, Handle, Outcome, transaction_fields
from sparkonce.protocol.ownership import Token
from sparkonce.sink import Facts, Owner, SinkCommitter, SinkWriter, TwoPhaseCommitSink, WriterContext
from sparkonce.testing.elsewhere import commit_elsewhere

if TYPE_CHECKING:
    import pyarrow as pa

    from sparkonce.testing.hooks import SinkHooks

FINISH_WITHIN_S = 60.0
_POLL_S = 0.02
_SHOWS_WITHIN_S = 2.0


def require(holds: bool, sentence: str) -> None:
    """Fails the check with an AssertionError if a condition does not hold.

    The sentence describes what the sink must do and what it did.
    """
    if not holds:
        raise AssertionError(sentence)


class Scene:
    """The setting of one check. Everything that it opened is closed when the check is over."""

    def __init__(self, suite: SinkHooks, sink: TwoPhaseCommitSink) -> None:
        self.suite = suite
        self.sink = sink
        self.query = secrets.token_hex(6)
        self.facts: Facts = sink.preflight(self.query, None)
        self.owner = self.make_owner(position=7)
        self._writers: list[SinkWriter] = []
        self._committers: list[SinkCommitter] = []
        self._copies = 0
        self.committer = self.new_committer()

    def make_owner(
        self, *, position: int, nonce: str | None = None, query: str | None = None, facts: Facts | None = None
    ) -> Owner:
        """Creates a run of this query, or of another."""
        token = Token(position, secrets.token_hex(4) if nonce is None else nonce)
        return Owner(
            query=self.query if query is None else query, token=token, facts=self.facts if facts is None else facts
        )

    def new_committer(self, sink: TwoPhaseCommitSink | None = None) -> SinkCommitter:
        """Creates a committer that shares only the system with the others, as after a restart of the driver."""
        self._committers.append((sink or self.restarted_sink()).committer())
        return self._committers[-1]

    def restarted_sink(self) -> TwoPhaseCommitSink:
        """Returns the sink as another process has it: unpickled, or recreated if it cannot be pickled."""
        if not self.suite.leaves_process:
            return self.suite.make_sink()
        return self.travelled(self.sink)

    @staticmethod
    def travelled(sink: TwoPhaseCommitSink) -> TwoPhaseCommitSink:
        """Returns the sink after pickling and unpickling it."""
        copy = pickle.loads(pickle.dumps(sink))  # noqa: S301 - pickled on the same line
        require(copy.name == sink.name, f"the sink {sink.name!r} is called {copy.name!r} after pickling")
        return copy  # type: ignore[no-any-return]

    # --- writing ----------------------------------------------------------------------------------------------------

    def new_writer(self, *, owner: Owner | None = None, batch: int = 0, slot: int = 0) -> SinkWriter:
        """Creates the writer of another task attempt for a slot."""
        self._copies += 1
        context = WriterContext(
            owner=owner or self.owner, batch=batch, slot=slot, copy=f"1.{self._copies}.{self._copies - 1}"
        )
        self._writers.append(self.sink.writer(context))
        return self._writers[-1]

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        """Returns rows with the columns that the sink writes."""
        rows = self.suite.make_rows(start, count)
        require(rows.num_rows == count, f"make_rows({start}, {count}) gave {rows.num_rows} rows")
        return rows.select(list(self.sink.columns(rows.schema)))

    def open(
        self, start: int, count: int = 2, *, owner: Owner | None = None, batch: int = 0, slot: int = 0
    ) -> SinkWriter:
        """Creates a writer that has begun a transaction and written rows, but has not prepared it."""
        writer = self.new_writer(owner=owner, batch=batch, slot=slot)
        writer.begin()
        writer.write(self.rows(start, count))
        return writer

    def prepare(
        self, start: int, count: int = 2, *, owner: Owner | None = None, batch: int = 0, slot: int = 0
    ) -> Handle:
        """Prepares a transaction and closes its writer."""
        writer = self.open(start, count, owner=owner, batch=batch, slot=slot)
        handle = self.handle(writer.prepare(), rows=count, slot=slot)
        writer.close()
        return handle

    def handle(self, fields: Mapping[str, str | int], *, rows: int, slot: int = 0) -> Handle:
        """Creates the handle for what a writer prepared, serialized and deserialized as in the log."""
        require(bool(fields), "prepare must return the fields that finish the transaction, and returned none")
        for name, value in fields.items():
            plain = type(name) is str and type(value) in (str, int)
            require(plain, f"the handle's field {name!r} is {value!r}: it must be a plain str or int")
        handle = Handle(sink=self.sink.name, slot=slot, rows=rows, transaction=transaction_fields(fields))
        written = decode_handle(encode_handle(handle))
        require(written == handle, f"the handle {handle} is {written} once written down and read again")
        return written

    def empty(self, slot: int = 0) -> Handle:
        """Creates the handle of a slot without rows."""
        return Handle(sink=self.sink.name, slot=slot)

    # --- finishing --------------------------------------------------------------------------------------------------

    def commit(self, *handles: Handle, by: SinkCommitter | None = None) -> list[Outcome]:
        """Commits until no outcome is RETRY."""
        return self._finish("commit", (by or self.committer).commit, handles)

    def abort(self, *handles: Handle, by: SinkCommitter | None = None) -> list[Outcome]:
        """Aborts until no outcome is RETRY."""
        return self._finish("abort", (by or self.committer).abort, handles)

    def commit_elsewhere(self, *handles: Handle) -> list[Outcome]:
        """Commits in another process, until no outcome is RETRY."""
        return self._finish("commit", lambda some: commit_elsewhere(self.sink, some), handles)

    def sweep(self, owner: Owner | None = None) -> None:
        """Aborts a run's open transactions, as the driver does."""
        lingering = self.lingering(owner)
        outcomes = self.abort(*lingering)
        require(
            set(outcomes) <= {Outcome.ABORTED},
            f"what list_lingering found must be abortable: abort answered {_names(outcomes)}",
        )

    def lingering(self, *owners: Owner | None) -> list[Handle]:
        """Lists the open transactions of these runs, by default of this one, with a new committer."""
        asked = [owner or self.owner for owner in owners or (None,)]
        found = list(self.new_committer().list_lingering(asked))
        strangers = {handle.sink for handle in found} - {self.sink.name}
        require(not strangers, f"list_lingering of sink {self.sink.name!r} gave handles that name {sorted(strangers)}")
        return found

    def await_lingering(self) -> list[Handle]:
        """Lists this run's open transactions. Waits briefly until there are any."""
        give_up_at = time.monotonic() + _SHOWS_WITHIN_S
        while not (found := self.lingering()) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return found

    def _finish(
        self, verb: str, call: Callable[[Sequence[Handle]], Sequence[Finished]], handles: Sequence[Handle]
    ) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = list(range(len(handles)))
        give_up_at = time.monotonic() + FINISH_WITHIN_S
        while waiting:
            answers = list(call([handles[index] for index in waiting]))
            require(
                len(answers) == len(waiting), f"{verb} of {len(waiting)} handles must give as many answers: {answers}"
            )
            for index, answer in zip(waiting, answers, strict=True):
                require(
                    isinstance(answer, Finished) and isinstance(answer.outcome, Outcome),
                    f"{verb} must answer with Finished and an Outcome, never a bool: {answer!r}",
                )
                outcomes[index] = answer.outcome
            waiting = [index for index in waiting if outcomes[index] is Outcome.RETRY]
            require(time.monotonic() < give_up_at, f"{verb} still answers RETRY after {FINISH_WITHIN_S:g} s")
            if waiting:
                time.sleep(_POLL_S)
        return [outcomes[index] for index in range(len(handles))]

    # --- judging ----------------------------------------------------------------------------------------------------

    def expect_outcomes(self, outcomes: Sequence[Outcome], *allowed: frozenset[Outcome], what: str) -> None:
        """Checks each outcome against the set allowed at its position."""
        fits = len(outcomes) == len(allowed) and all(one in some for one, some in zip(outcomes, allowed, strict=True))
        wanted = ", ".join(" or ".join(sorted(one.name for one in some)) for some in allowed)
        require(fits, f"{what} must answer {wanted}, and answered {_names(outcomes)}")

    def expect_visible(self, *starts: int, count: int = 2, when: str) -> None:
        """Waits until a reader sees exactly the rows that start with these numbers."""
        wanted = sorted(start + index for start in starts for index in range(count))
        give_up_at = time.monotonic() + self.suite.visible_within_s
        while (seen := sorted(self.suite.visible())) != wanted:
            # Waiting does not remove surplus rows.
            too_many = any(seen.count(row) > wanted.count(row) for row in seen)
            if too_many or time.monotonic() >= give_up_at:
                require(False, f"{when} a reader must see the rows {wanted}, and sees {seen}")
            time.sleep(_POLL_S)

    def expect_at_most(self, *starts: int, count: int = 2, when: str) -> None:
        """Checks that a reader currently sees no rows other than these, and none of them twice."""
        allowed = [start + index for start in starts for index in range(count)]
        seen = sorted(self.suite.visible())
        fits = len(set(seen)) == len(seen) and set(seen) <= set(allowed)
        require(fits, f"{when} a reader may see the rows {allowed}, and sees {seen}")

    def expect_only(self, *starts: int, when: str) -> None:
        """Commits one more transaction, and checks that a reader sees exactly its rows and these rows.

        A system may show rows with a delay. However, once later rows are visible, earlier rows that are still invisible
        never appear.
        """
        later = self.prepare(_LATER, slot=99, batch=9)
        self.expect_outcomes(self.commit(later), COMMITTED, what="commit of a transaction that nothing disturbs")
        self.expect_visible(*starts, _LATER, when=when)

    def expect_nothing_lingers(self, when: str, owner: Owner | None = None) -> None:
        """Waits until the run has no open transactions."""
        give_up_at = time.monotonic() + self.suite.visible_within_s
        while (found := self.lingering(owner)) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        require(not found, f"{when} nothing may linger, and list_lingering found {[one.transaction for one in found]}")

    def forget_writers(self) -> None:
        """Drops every writer, as if its process had ended."""
        self._writers.clear()

    def close(self) -> None:
        """Closes everything that the check opened."""
        for committer in self._committers:
            committer.close()


_LATER = 900_000

COMMITTED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})
ALREADY_COMMITTED = frozenset({Outcome.ALREADY_COMMITTED})
ABORTED = frozenset({Outcome.ABORTED})
LOST = frozenset({Outcome.LOST})
GONE = frozenset({Outcome.LOST, Outcome.UNKNOWN})


@contextmanager
def scene(suite: SinkHooks, sink: TwoPhaseCommitSink | None = None) -> Iterator[Scene]:
    """Creates a scene around the suite's sink, or around the given one."""
    opened = Scene(suite, sink or suite.make_sink())
    try:
        yield opened
    finally:
        opened.close()


def altered(handle: Handle) -> Handle:
    """Creates a handle without a transaction, by altering its strings or, if there are none, its numbers."""
    fields = dict(handle.transaction)
    texts = {name: f"{value}-never" for name, value in fields.items() if isinstance(value, str)}
    numbers = {name: value + 1_000_000 for name, value in fields.items() if isinstance(value, int)}
    return replace(handle, transaction=transaction_fields({**fields, **(texts or numbers)}))


def _names(outcomes: Sequence[Outcome]) -> str:
    return ", ".join(one.name for one in outcomes) or "nothing"
