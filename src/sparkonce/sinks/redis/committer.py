"""The driver side of the Redis sink: applies staged chunks, each of them once, from any process.

Lists of chunks are applied in steps that never block a server for long.

Staged rows live for ``staging_ttl_s`` after they were prepared. The server reports how long ago a transaction was
prepared, and this process subtracts that from its own time, so nothing ever compares the clocks of two machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkonce.errors import UnknownOutcomeError, one_line
from sparkonce.protocol.handles import COMMITTED, Finished, Handle, Outcome
from sparkonce.protocol.horizon import SINKS_KEEP_BATCHES
from sparkonce.protocol.ownership import TransactionName
from sparkonce.protocol.traces import Trace
from sparkonce.sink import Facts, Owner
from sparkonce.sinks._shared.committing import FOREIGN, Claims, Every, HandleCommitter
from sparkonce.sinks.redis import names, scripts
from sparkonce.sinks.redis.encoding import CHUNK_VALUES
from sparkonce.sinks.redis.names import (
    HASH_SLOTS,
    Key,
    LedgerEntry,
    StagedTransaction,
    fields_of,
    ledger_key,
    ledger_of,
    pack_slots,
    single_key,
    slot_key,
    unpack_slots,
)
from sparkonce.sinks.redis.nodes import SCAN_COUNT, Nodes, RedisReply, Request, run_script
from sparkonce.sinks.redis.outcomes import Refusal, code_of, read_ledger, read_refusal
from sparkonce.sinks.redis.preflight import why_not_decide
from sparkonce.sinks.redis.writer import await_replicas

KEPT_BATCHES = SINKS_KEEP_BATCHES
TIDY_EVERY_BATCHES = 50
ATTEMPT_LIMIT_S = 30.0
"""The time that one call applies chunks before it returns RETRY, in seconds. The next call continues."""

_UNDECIDED = Finished(outcome=Outcome.UNKNOWN, reason="No reply from the server shows the transaction's state.")
_DELETE_AT_ONCE = 500


@dataclass(slots=True)
class _Pending:
    """A transaction while a call commits or aborts it.

    Attributes:
        seen: The number of the query's commits when the transaction began.
        known: The minimum number of commits that the ledger must have.
        verdict: The outcome, once known.
        slots: The hash slots of the staged rows.
        is_prepared: True if the ledger shows the transaction as prepared.
        waited_ms: The time since the transaction was prepared, by the server's clock.
        lists: The lists of the staged rows.
    """

    name: TransactionName
    seen: int
    known: int = 0
    verdict: Finished | None = None
    slots: tuple[int, ...] = ()
    is_prepared: bool = False
    waited_ms: int = 0
    lists: list[Key] = field(default_factory=list)


class RedisCommitter(HandleCommitter[StagedTransaction]):
    """Commits and aborts transactions by name.

    Args:
        nodes: This process's own connections.
        name: The sink's name, for the handles that `list_lingering` creates.
        staging_ttl_s: The time to live of staged rows.
        ledger_ttl_s: The time to live of a query's ledger after its last transaction.
        wait_replicas: The number of replicas that must have the committed rows.
    """

    handle_fields = frozenset({names.TRANSACTION, names.SEEN})

    def __init__(
        self, nodes: Nodes, name: str, *, staging_ttl_s: int, ledger_ttl_s: int, wait_replicas: int = 0
    ) -> None:
        self._nodes = nodes
        self._cluster = nodes.endpoint.cluster
        self._name = name
        self._staging_ttl_ms = staging_ttl_s * 1000
        self._ledger_ttl_ms = ledger_ttl_s * 1000
        self._wait_replicas = wait_replicas
        self._commits: dict[str, tuple[int, float]] = {}
        self._tidying = Every(TIDY_EVERY_BATCHES)

    def transaction_of(self, handle: Handle) -> StagedTransaction | Finished:
        return StagedTransaction.of(handle) or FOREIGN

    def commit_all(self, wanted: Mapping[StagedTransaction, Handle]) -> Mapping[StagedTransaction, Finished]:
        """Commits these transactions. Rows that an earlier call applied are not applied again."""
        pending = {one: _Pending(one.name, one.seen) for one in wanted}
        going = list(pending.values())
        self._decide(going, "check" if self._cluster else "single")
        if self._cluster:
            self._check_lists([one for one in going if one.verdict is None and one.is_prepared])
        self._apply([one for one in going if one.verdict is None])
        self._conclude([one for one in going if one.verdict is None])
        self._await_ledgers([one for one in going if one.verdict and one.verdict.outcome in COMMITTED])
        return {one: state.verdict or _UNDECIDED for one, state in pending.items()}

    def abort_all(self, wanted: Mapping[StagedTransaction, Handle]) -> Mapping[StagedTransaction, Finished]:
        """Aborts these transactions in the ledger, so that their writers can no longer prepare."""
        pending = {one: _Pending(one.name, one.seen) for one in wanted}
        going = list(pending.values())
        # A writer that died before it prepared has not recorded the hash slots of its rows.
        slots = pack_slots(range(HASH_SLOTS)) if self._cluster else ""
        requests = []
        for one in going:
            keys = [ledger_of(one.name)] if self._cluster else [ledger_of(one.name), single_key(one.name)]
            requests.append(run_script(scripts.ABORT, keys, str(one.name), one.name.batch, slots))
        for one, answer in zip(going, self._nodes.run(requests), strict=True):
            one.verdict = self._aborted(one, answer)
        self._delete([one for one in going if one.lists])
        return {one: state.verdict or _UNDECIDED for one, state in pending.items()}

    def list_lingering(self, owners: Sequence[Owner]) -> Sequence[Handle]:
        """Lists the open and prepared transactions of these runs, and aborted ones whose staged rows may remain."""
        claims = Claims(owners)
        return [
            Handle(sink=self._name, slot=0, opened_ms=entry.begun_ms, transaction=fields_of(name, entry.seen))
            for prefix, query in claims
            for name, entry in entries(self._nodes, ledger_key(prefix, query))
            if (entry.state in (names.OPEN, names.PREPARED) or self._may_have_rows(entry)) and claims.has(name)
        ]

    def _may_have_rows(self, entry: LedgerEntry) -> bool:
        """Returns True if an aborted transaction's staged rows may still exist."""
        return self._cluster and entry.state == names.ABORTED and bool(entry.slots)

    def list_traces(self, query: str, facts: Facts) -> Sequence[Trace]:
        """Lists the commits in the ledger, which retains `KEPT_BATCHES` batches for ``ledger_ttl_s``."""
        prefix = facts.get("prefix")
        if prefix is None:
            return ()
        return [
            Trace(token=name.token, committed=fields_of(name, entry.seen), batch=name.batch)
            for name, entry in entries(self._nodes, ledger_key(prefix, query))
            if entry.state in (names.COMMITTING, names.COMMITTED) and (name.prefix, name.query) == (prefix, query)
        ]

    def before_decision(self, facts: Facts) -> str:  # noqa: ARG002 - the servers are asked
        """Returns a reason not to decide the batch: a server may have started to evict keys during the run."""
        return why_not_decide(self._nodes)

    def conclude(self, batch: int, handles: Sequence[Handle]) -> None:
        """Periodically deletes the entries of old batches from the ledger."""
        if not self._tidying.is_due(batch):
            return
        for ledger in {ledger_of(one.name) for handle in handles if (one := StagedTransaction.of(handle))}:
            self._tidy(ledger, batch - KEPT_BATCHES)
            self._tidying.done(batch)

    def missing(self, handles: Sequence[Handle]) -> Sequence[Handle]:
        return missing(self._nodes, handles, self._ledger_ttl_ms)

    def begun_ms(self, handles: Sequence[Handle]) -> Sequence[int | None]:
        return begun_ms(self._nodes, handles, self._ledger_ttl_ms)

    def close(self) -> None:
        self._nodes.close()

    # --- commit -----------------------------------------------------------------------------------------------------

    def _decide(self, going: Sequence[_Pending], mode: str) -> None:
        """Marks each transaction in the ledger as being committed, or determines why it cannot be committed."""
        requests = []
        for one in going:
            ledger = ledger_of(one.name)
            keys = [ledger] if self._cluster else [ledger, single_key(one.name)]
            one.known = max(one.seen, self._remembered(ledger))
            args = (str(one.name), one.name.batch, one.known, scripts.END, mode, self._ledger_ttl_ms)
            requests.append(run_script(scripts.DECIDE, keys, *args))
        for one, answer in zip(going, self._nodes.run(requests), strict=True):
            if isinstance(answer, Refusal):
                one.verdict = read_refusal(answer)
                continue
            state = answer[0].decode()
            packed = answer[2].decode() if len(answer) > 2 else ""
            if state not in (names.COMMITTING, names.PREPARED):
                verdict = read_ledger(state, cluster=self._cluster)
                command = f"HSET '{ledger_of(one.name).name}' '{one.name}'"
                more = {
                    "restored": f" The ledger counts {int(answer[1])} commits, and this query has seen {one.known}.",
                    "not sure": f" If none of it is there, have it written again: {command} 'A:0:0:0:{packed}'. If "
                    f"all of it is there, mark it as committed: {command} 'D:0:{one.seen}:0:{packed}'.",
                }
                one.verdict = replace(verdict, reason=verdict.reason + more.get(state, ""))
            one.is_prepared = state == names.PREPARED
            one.waited_ms = int(answer[1])
            one.slots = tuple(unpack_slots(packed))
            one.lists = self._lists(one)
            if state in (names.COMMITTED, "expired") and packed:
                self._clean(one)
            elif state == names.PREPARED and mode == "go":
                one.verdict = Finished(outcome=Outcome.RETRY, reason="The ledger has not noted the commit yet.")

    def _lists(self, one: _Pending) -> list[Key]:
        return [slot_key(one.name, slot) for slot in one.slots] if self._cluster else [single_key(one.name)]

    def _check_lists(self, going: Sequence[_Pending]) -> None:
        """Before the decision, checks that every list of a prepared transaction is complete, and removes its expiry.

        If a list is missing after that, its node has lost it, perhaps after other lists were applied.
        """
        whole, expired, missing = [], [], []
        for one in going:
            requests = [
                Request(key.hash_slot, command)
                for key in one.lists
                for command in (("PERSIST", key.name), ("LINDEX", key.name, -1))
            ]
            answers = self._nodes.run(requests)[1::2]
            refused = next((answer for answer in answers if isinstance(answer, Refusal)), None)
            if refused is not None:
                one.verdict = read_refusal(refused)
            elif all(answer == scripts.END.encode() for answer in answers):
                whole.append(one)
            elif one.waited_ms >= self._staging_ttl_ms:
                expired.append(one)
            else:
                missing.append(one)
        self._decide(missing, "check")  # Another committer may have applied and deleted these lists since then.
        for one in missing:
            if one.verdict is None and one.is_prepared:
                one.verdict = self._missing(one)
        self._decide(expired, "give up")
        self._decide(whole, "go")

    def _missing(self, one: _Pending) -> Finished:
        return Finished(
            outcome=Outcome.UNKNOWN,
            reason=f"Staged rows of {one.name} are missing, and have not outlived staging_ttl_s: a server has lost the "
            "end of its log, or somebody deleted keys. It is not known whether it had applied them before.",
        )

    def _apply(self, going: Sequence[_Pending]) -> None:
        applying = Applying(self._nodes, time.monotonic() + ATTEMPT_LIMIT_S)
        results = applying.run([key for one in going for key in one.lists])
        for one in going:
            unfinished = [results[key] for key in one.lists if results[key] is not None]
            if not unfinished:
                continue
            worst = next((one for one in unfinished if one and one.outcome is Outcome.UNKNOWN), unfinished[0])
            one.verdict = worst if worst is None or worst.outcome is not Outcome.LOST else self._after_absent(one)

    def _after_absent(self, one: _Pending) -> Finished:
        """Returns the outcome of a commit whose list is absent: another committer may have finished the transaction."""
        ledger = ledger_of(one.name)
        answer = self._nodes.ask(Request(ledger.hash_slot, ("HGET", ledger.name, str(one.name))))
        if isinstance(answer, Refusal):
            return read_refusal(answer)
        if isinstance(answer, bytes) and LedgerEntry.parse(answer.decode()).state == names.COMMITTED:
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        return self._missing(one)

    def _conclude(self, going: Sequence[_Pending]) -> None:
        reached = await_replicas(
            self._nodes, [key.hash_slot for one in going for key in one.lists], self._wait_replicas
        )
        if going and reached < self._wait_replicas:
            reason = f"{reached} replicas have what was applied, and wait_replicas={self._wait_replicas}."
            for one in going:
                one.verdict = Finished(outcome=Outcome.RETRY, reason=reason)
            return
        requests, at_s = [], time.monotonic()
        for one in going:
            keys = [ledger_of(one.name)] if self._cluster else [ledger_of(one.name), single_key(one.name)]
            requests.append(run_script(scripts.CONCLUDE, keys, str(one.name), scripts.END, self._ledger_ttl_ms))
        for one, answer in zip(going, self._nodes.run(requests), strict=True):
            one.verdict = self._concluded(one, answer, at_s)
            if self._cluster and one.verdict.outcome is Outcome.COMMITTED:
                self._clean(one)

    def _await_ledgers(self, done: Sequence[_Pending]) -> None:
        """Waits until enough replicas have recorded the commits.

        If a replica without the commits became master, rows would seem lost.
        """
        reached = await_replicas(self._nodes, [ledger_of(one.name).hash_slot for one in done], self._wait_replicas)
        if reached < self._wait_replicas:
            reason = f"{reached} replicas know that it is committed, and wait_replicas={self._wait_replicas}."
            for one in done:
                one.verdict = Finished(outcome=Outcome.RETRY, reason=reason)

    def _remembered(self, ledger: Key) -> int:
        """Returns the number of commits that this process has seen in a ledger; 0 if it may have expired since then."""
        commits, at_s = self._commits.get(ledger.name, (0, 0.0))
        return commits if time.monotonic() - at_s < self._ledger_ttl_ms / 1000 else 0

    def _concluded(self, one: _Pending, answer: RedisReply, at_s: float) -> Finished:
        if isinstance(answer, Refusal):
            return read_refusal(answer)
        state, commits = answer[0].decode(), int(answer[1])
        if state not in ("committed", names.COMMITTED):
            return Finished(outcome=Outcome.UNKNOWN, reason=f"All rows are applied, but the ledger says {state!r}.")
        ledger = ledger_of(one.name)
        self._commits[ledger.name] = (max(commits, self._remembered(ledger)), at_s)
        return Finished(outcome=Outcome.COMMITTED if state == "committed" else Outcome.ALREADY_COMMITTED)

    def _clean(self, one: _Pending) -> Finished | None:
        """Deletes the remaining lists of an ended transaction. Returns the failure, or None if there is none."""
        answers = self._nodes.run([Request(key.hash_slot, ("UNLINK", key.name)) for key in one.lists])
        refusal = next((answer for answer in answers if isinstance(answer, Refusal)), None)
        if refusal is not None:
            return read_refusal(refusal)
        self._nodes.ask(run_script(scripts.CLEANED, [ledger_of(one.name)], str(one.name)))
        return None

    # --- abort ------------------------------------------------------------------------------------------------------

    def _aborted(self, one: _Pending, answer: RedisReply) -> Finished:
        if isinstance(answer, Refusal):
            return read_refusal(answer)
        state, packed = answer[0].decode(), answer[1].decode()
        if state in (names.COMMITTING, names.COMMITTED):
            return Finished(outcome=Outcome.ALREADY_COMMITTED)
        if state == names.ABORTED and packed:
            one.slots = tuple(unpack_slots(packed))
            one.lists = self._lists(one)
        return Finished(outcome=Outcome.ABORTED)

    def _delete(self, aborted: Sequence[_Pending]) -> None:
        """Deletes staged rows if the nodes allow it. The ledger records the others for the next sweep."""
        until = time.monotonic() + ATTEMPT_LIMIT_S
        for one in aborted:
            left = self._clean(one)
            if left is not None:
                one.verdict = Finished(
                    outcome=Outcome.ABORTED, reason=f"Its staged rows could not be deleted: {left.reason}"
                )
            if left is not None or time.monotonic() >= until:
                return

    # --- ledger -----------------------------------------------------------------------------------------------------

    def _tidy(self, ledger: Key, floor: int) -> None:
        """Deletes the entries of batches below the floor, and the remains of their lists."""
        if floor <= 0:
            return
        answer = self._nodes.ask(run_script(scripts.RAISE_FLOOR, [ledger], floor))
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(
                f"The ledger {ledger.name} cannot be tidied: {read_refusal(answer).reason}",
                next_step="Check that the server can be reached, then start the query again.",
            )
        over = [
            (name, entry)
            for name, entry in entries(self._nodes, ledger)
            if name.batch < floor and entry.state in (names.COMMITTED, names.ABORTED)
        ]
        gone = [
            str(name)
            for name, entry in over
            if not (self._cluster and entry.slots) or self._clean(_pending_of(name, entry)) is None
        ]
        for start in range(0, len(gone), _DELETE_AT_ONCE):
            self._nodes.ask(Request(ledger.hash_slot, ("HDEL", ledger.name, *gone[start : start + _DELETE_AT_ONCE])))


def _pending_of(name: TransactionName, entry: LedgerEntry) -> _Pending:
    return _Pending(name, entry.seen, lists=[slot_key(name, slot) for slot in unpack_slots(entry.slots)])


_VALUES_UNDER_WAY = 2 * CHUNK_VALUES
"""The maximum number of values in flight. A server finishes one client's commands before it serves the next client."""
_MOST_UNDER_WAY = 128
_MOVED_WITHIN_S = 1.0
"""The time limit for looking up a moved hash slot, in seconds. The next attempt handles a slot that is still moving."""

ABSENT = Finished(outcome=Outcome.LOST, reason="The list is absent.")


class Applying:
    """Applies lists until each is finished, or fails, or the time ``give_up_at`` of `time.monotonic` is reached."""

    def __init__(self, nodes: Nodes, give_up_at: float) -> None:
        self._nodes = nodes
        self._give_up_at = give_up_at
        self._window = 2

    def run(self, lists: Sequence[Key]) -> dict[Key, Finished | None]:
        """Applies the lists. Returns None for each finished list, and `ABSENT`, RETRY or UNKNOWN for the others.

        Redis may have carried out a request without a reply. Repeating the request is harmless, because each chunk is
        deleted in the step that applies it.
        """
        results: dict[Key, Finished | None] = {}
        going = list(lists)
        while going:
            if time.monotonic() >= self._give_up_at:
                late = Finished(outcome=Outcome.RETRY, reason=f"{len(going)} lists are not applied yet.")
                return {**results, **dict.fromkeys(going, late)}
            going = self._round(going, results)
        return results

    def _round(self, going: Sequence[Key], results: dict[Key, Finished | None]) -> list[Key]:
        # If there are only a few lists, send two requests for each, so that Redis never waits for the second one.
        turns = 2 if len(going) < self._window else 1
        batch = [key for key in going[: 64 * self._window] for _ in range(turns)]
        requests = [run_script(scripts.APPLY, [key], scripts.END, CHUNK_VALUES) for key in batch]
        answers = self._nodes.run(requests, window=self._window, follow=False, limit_s=_MOVED_WITHIN_S)
        applied = 0
        for key, answer in zip(batch, answers, strict=True):
            if key in results:
                continue
            more, values = self._read(key, answer, results)
            applied += values
            if not more and key not in results:
                results[key] = None
        self._window = max(2, min(_MOST_UNDER_WAY, _VALUES_UNDER_WAY * len(batch) // max(1, applied)))
        return [key for key in going if key not in results]

    @staticmethod
    def _read(key: Key, answer: RedisReply, results: dict[Key, Finished | None]) -> tuple[bool, int]:
        """Returns True if a list has more to apply, and the number of values that were applied.

        Records the result of a list that failed.
        """
        if isinstance(answer, Refusal):
            results[key] = read_refusal(answer)
            return False, 0
        state, values = answer[0], int(answer[1])
        if state == b"absent":
            results[key] = ABSENT
        elif state == b"failed":
            error, where, command = (text.decode(errors="backslashreplace") for text in answer[2:])
            results[key] = read_refusal(Refusal(code_of(error), one_line(error)), f"{command}, key {where!r}:")
        return state == b"more", values


def begun_ms(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[int | None]:
    """Returns when each transaction was prepared; None if it can no longer be committed.

    Uses the script of a commit, without changing any rows. The ledger lives for ``ledger_ttl_ms`` from now on.
    """
    asked = [one.name for handle in handles if (one := StagedTransaction.of(handle))]
    requests = [_state_request(nodes, name, ledger_ttl_ms) for name in asked]
    prepared = {
        name: answer
        for name, answer in zip(asked, _run(nodes, requests), strict=True)
        if answer[0].decode() == names.PREPARED
    }
    now_ms = time.time_ns() // 1_000_000
    keys = [
        (name, key)
        for name, answer in prepared.items()
        for key in (
            [slot_key(name, slot) for slot in unpack_slots(answer[2].decode())]
            if nodes.endpoint.cluster
            else [single_key(name)]
        )
    ]
    ends = _run(nodes, [Request(key.hash_slot, ("LINDEX", key.name, -1)) for _, key in keys])
    cut = {name for (name, _), end in zip(keys, ends, strict=True) if end != scripts.END.encode()}
    since_ms = {str(name): now_ms - int(answer[1]) for name, answer in prepared.items() if name not in cut}
    return [since_ms.get(str(handle[names.TRANSACTION])) for handle in handles]


def missing(nodes: Nodes, handles: Sequence[Handle], ledger_ttl_ms: int) -> list[Handle]:
    """Returns the handles that the ledger does not show as committed; see `sparkonce.sink.SinkCommitter.missing`."""
    # The ledger remembers transactions for its whole TTL. Rely on only half of it, because clocks may differ.
    since_ms = time.time_ns() // 1_000_000 - ledger_ttl_ms // 2
    asked = [handle for handle in handles if handle.opened_ms > since_ms]
    known = {one.name: handle for handle in asked if (one := StagedTransaction.of(handle))}
    requests = [
        Request(ledger.hash_slot, ("HGET", ledger.name, field))
        for name in known
        for ledger in [ledger_of(name)]
        for field in (str(name), names.FLOOR_FIELD)
    ]
    answers = _run(nodes, requests)
    found = []
    for (name, handle), entry, floor in zip(known.items(), answers[::2], answers[1::2], strict=True):
        forgotten = entry is None and name.batch < int(floor or 0)
        if not forgotten and (entry is None or LedgerEntry.parse(entry.decode()).state != names.COMMITTED):
            found.append(handle)
    return found


def _state_request(nodes: Nodes, name: TransactionName, ledger_ttl_ms: int) -> Request:
    keys = [ledger_of(name)] if nodes.endpoint.cluster else [ledger_of(name), single_key(name)]
    return run_script(scripts.DECIDE, keys, str(name), name.batch, 0, scripts.END, "check", ledger_ttl_ms)


def _run(nodes: Nodes, requests: Sequence[Request]) -> Sequence[RedisReply]:
    answers = nodes.run(requests)
    for answer in answers:
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(f"Redis does not report what it has: {read_refusal(answer).reason}")
    return answers


def entries(nodes: Nodes, ledger: Key) -> Iterator[tuple[TransactionName, LedgerEntry]]:
    """Yields the transactions in a ledger."""
    cursor, seen = b"0", set()
    while True:
        answer = nodes.ask(Request(ledger.hash_slot, ("HSCAN", ledger.name, cursor, "COUNT", SCAN_COUNT)))
        if isinstance(answer, Refusal):
            raise UnknownOutcomeError(
                f"The ledger {ledger.name} cannot be read: {read_refusal(answer).reason}",
                next_step="Check that the server can be reached, then start the query again.",
            )
        cursor, flat = answer
        for text, entry in zip(flat[::2], flat[1::2], strict=True):
            name = TransactionName.parse(text.decode())
            if name is not None and name not in seen:
                seen.add(name)
                yield name, LedgerEntry.parse(entry.decode())
        if int(cursor) == 0:
            return
