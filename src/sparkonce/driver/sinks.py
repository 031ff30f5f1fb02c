"""The sinks of one run on the driver's side: their committers, facts, and reader monitors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from sparkonce import errors
from sparkonce.driver.lifetimes import Lifetime
from sparkonce.guarantees import Guarantee
from sparkonce.protocol.handles import Finished, Handle
from sparkonce.protocol.ownership import Token, short_query
from sparkonce.protocol.view import Claim, Run
from sparkonce.sink import Facts, Monitor, Owner, SinkCommitter, TwoPhaseCommitSink

logger = logging.getLogger("sparkonce")


class RunSinks:
    """The sinks of one run.

    Attributes:
        transactional: The names of the sinks whose writes are transactions (EXACTLY_ONCE).
        direct: The names of the sinks that write before the decision, without transactions (AT_LEAST_ONCE).
        after: The names of the sinks that write after the decision (AT_MOST_ONCE).
        claim: The run's claim, with the facts from its preflight. Set after the preflight.
        live_long: True if transactions may stay open as long as each system allows.
    """

    def __init__(self, sinks: Mapping[str, TwoPhaseCommitSink]) -> None:
        self.by_name = dict(sinks)
        names: dict[Guarantee, list[str]] = {guarantee: [] for guarantee in Guarantee}
        for name, sink in sinks.items():
            names[sink.guarantee].append(name)
        self.transactional = tuple(names[Guarantee.EXACTLY_ONCE])
        self.direct = tuple(names[Guarantee.AT_LEAST_ONCE])
        self.after = tuple(names[Guarantee.AT_MOST_ONCE])
        self.claim = Claim(nonce="", run="", query="")
        self.live_long = False
        self._facts: dict[str, Facts] = {}
        self._lives: dict[str, Lifetime | None] = {}
        self._committers: dict[str, SinkCommitter] = {}

    def committer(self, name: str) -> SinkCommitter:
        """Returns the committer of a sink, creating it on first use."""
        if name not in self._committers:
            self._committers[name] = self.by_name[name].committer()
        return self._committers[name]

    def facts(self, name: str) -> Facts:
        """Returns the facts that this run's preflight found about a sink."""
        # Read the attribute once, since `live_longest` may replace it in another thread.
        found = self._facts
        if name not in found:
            facts = dict(dict(self.claim.sinks)[name])
            found[name] = self.by_name[name].longest_lived(facts) if self.live_long else facts
        return found[name]

    def live_longest(self) -> None:
        """Lets transactions stay open as long as each system allows, for the rest of the run."""
        self.live_long = True
        self._facts, self._lives = {}, {}

    def owner(self, name: str, token: Token, generation: int) -> Owner:
        """Returns the owner of this run's transactions in a sink."""
        query = short_query(self.claim.query)
        return Owner(query=query, token=token, facts=self.facts(name), generation=generation)

    @staticmethod
    def owner_of(name: str, run: Run) -> Owner:
        """Returns the owner of transactions from any run in the log."""
        return Owner(query=short_query(run.query), token=run.token, facts=dict(dict(run.sinks)[name]))

    def lives(self, names: Iterable[str]) -> list[Lifetime]:
        """Lists the lifetimes of these sinks' transactions. Sinks whose transactions never time out are left out."""
        return [life for name in names if (life := self._life(name)) is not None]

    def _life(self, name: str) -> Lifetime | None:
        found = self._lives
        if name not in found:
            limit_s = self.by_name[name].transaction_timeout_s(self.facts(name))
            found[name] = None if limit_s is None else Lifetime(name, limit_s)
        return found[name]

    def monitors(self) -> list[Monitor]:
        """Creates the monitors of the sinks that have one."""
        query = short_query(self.claim.query)
        made = [sink.monitor(query, self.facts(name)) for name, sink in self.by_name.items()]
        return [one for one in made if one is not None]

    def ask(
        self, handles: Sequence[Handle], call: Callable[[SinkCommitter, list[Handle]], Sequence[Finished]]
    ) -> list[tuple[Handle, Finished]]:
        """Calls all sinks in parallel, each with its own handles. Returns the outcomes in handle order."""
        groups: dict[str, list[Handle]] = {}
        for handle in handles:
            groups.setdefault(handle.sink, []).append(handle)
        for name in groups:
            if name not in self.by_name:
                raise errors.ConfigurationError(
                    f"a decided batch holds transactions of sink {name!r}, and the query only has "
                    f"{sorted(self.by_name)}",
                    next_step="add the sink again, under this name, until its last batch is finished.",
                )
        if len(groups) == 1:
            ((name, group),) = groups.items()
            answers = {name: call(self.committer(name), group)}
        else:
            with ThreadPoolExecutor(max_workers=len(groups)) as pool:
                futures = {name: pool.submit(call, self.committer(name), group) for name, group in groups.items()}
                answers = {name: future.result() for name, future in futures.items()}
        found = {
            handle: answer
            for name, group in groups.items()
            for handle, answer in zip(group, answers[name], strict=True)
        }
        return [(handle, found[handle]) for handle in handles]

    def close(self) -> None:
        """Frees the connections of every committer."""
        committers, self._committers = self._committers, {}
        for name, committer in committers.items():
            try:
                committer.close()
            except Exception as error:  # noqa: PERF203
                logger.warning("sink=%s: its connections could not be closed: %s", name, error, exc_info=True)


class Monitors:
    """A thread that polls the sinks' monitors at the start of a run and regularly afterwards.

    Neither a batch nor the end of the run waits for the thread.

    Args:
        make: Creates the monitors, in the thread.
        every_s: The time between two checks, in seconds. With 0, there is no thread.
    """

    def __init__(self, make: Callable[[], Sequence[Monitor]], every_s: float) -> None:
        self._make = make
        self._every_s = every_s
        self._closed = threading.Event()
        self.batch_s = 0.0

    def start(self) -> None:
        """Starts the thread."""
        if self._every_s > 0:
            threading.Thread(target=self._run, name="sparkonce-monitor", daemon=True).start()

    def close(self) -> None:
        """Ends the thread once the check in progress is done."""
        self._closed.set()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                monitors = [stack.enter_context(closing(one)) for one in self._make()]
                while monitors:
                    for one in monitors:
                        try:
                            one.poll(self.batch_s)
                        except Exception as error:  # noqa: BLE001, PERF203 - the next check may succeed
                            logger.debug(
                                "Foreign transactions that block this query's readers could not be checked: %s", error
                            )
                    if self._closed.wait(self._every_s):
                        return
        except Exception as error:  # noqa: BLE001 - nothing in the query depends on it
            logger.debug("Foreign transactions that block this query's readers are not checked: %s", error)
