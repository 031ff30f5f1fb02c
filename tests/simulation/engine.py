"""Runs parties that take turns: each one stops before every request, and a decision picks the one that continues.

A party (a driver, a task attempt) is a greenlet in which the product's own code runs. Its requests to servers go
through `Simulation.request`, which may pause the party while others continue. A party that is never resumed has
crashed. `Simulation.request` may also lose a request or its response, or apply the request when nobody is waiting for
it anymore.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from simulation.config import Config
    from simulation.dice import Dice

Answer = TypeVar("Answer")
Words = tuple[object, ...]
"""A description of the request, turned into text only if needed."""

BATCHES_APART_MS = 3_600_000
"""According to the servers' clocks, in addition to the time that passes in a schedule."""

_STARTED_AT_S = 1_000_000.0

MOST_TURNS = 600
"""After this many requests the schedule ends, and the fresh run starts."""


class NoAnswerError(Exception):
    """The party that sent the request will never get a response."""


class RefusedError(Exception):
    """The server has done nothing, and returns an error that the committer's table lacks, or maps to UNKNOWN."""


class Broken(BaseException):
    """Something happened that must never happen."""


UNDER_WAY: list[Simulation] = []
"""The current schedule, with its clock and decisions."""


class Party:
    """A driver, a task attempt, or a thread of a worker process."""

    __slots__ = ("dead", "greenlet", "name", "on_death", "paused", "ready")

    def __init__(self, name: str, run: Callable[[], None], on_death: Callable[[], None]) -> None:
        self.name = name
        self.greenlet = greenlet(run)
        self.paused = self.dead = False
        self.ready: Callable[[], bool] | None = None
        self.on_death = on_death

    def also_on_death(self, more: Callable[[], None]) -> None:
        """Registers a callback for when it is killed."""
        before = self.on_death

        def die() -> None:
            before()
            more()

        self.on_death = die


class Simulation:
    """One schedule.

    Args:
        config: The world of the schedule.
        dice: The decisions of the schedule.
        told: The list that receives descriptions of what happens; None for no descriptions.
    """

    def __init__(self, config: Config, dice: Dice, told: list[str] | None = None) -> None:
        self.config = config
        self.dice = dice
        self.told = told
        self.clock_s = _STARTED_AT_S
        self.newest_batch = 0
        self.peace = False
        self.over = False
        self.requests = 0
        self.parties: list[Party] = []
        self.current: Party | None = None
        self.flights: list[tuple[Words, Callable[[], Any]]] = []
        self.events: list[Callable[[], Callable[[], None] | None]] = []
        self.graveyard: list[Party] = []
        self.refusals: tuple[type[Exception], ...] = ()
        self.happened: dict[str, int] = {}
        self.oracle: Any
        self.kept_runs: dict[str, Any] = {}
        self._nonces = 0
        self._chance = dice.chance
        self._switches, self._rate = config.switches, config.rate
        self._request_faults = [
            name for name in ("reply lost", "request lost", "request late", "refused") if name in config.faults
        ]
        self._hub: Any = None

    # --- what parties do ----------------------------------------------------------------------------------------------

    def say(self, *words: object) -> None:
        """Records what happens."""
        if self.told is not None:
            self.told.append(self._told(words))

    def _told(self, words: Words) -> str:
        return ("" if self.current is None else f"{self.current.name}: ") + text(words)

    def stop_here(self) -> None:
        """A point where a party may be paused."""
        self.requests += 1
        if self.peace:
            return
        if self.over:
            raise GreenletExit
        if self._chance(self._switches):
            self.let_others_go_on()

    def let_others_go_on(self) -> None:
        """Pauses the party until it is chosen again."""
        if self.peace:
            return
        self._hub.switch()
        if self.over:
            raise GreenletExit

    def wait(self, ready: Callable[[], bool]) -> None:
        """Pauses the party until a condition holds."""
        if self.current is None or self.peace:
            if not ready():
                raise Broken("nobody is left to wait for")
            return
        self.current.ready = ready
        while not ready():
            self.let_others_go_on()
        self.current.ready = None

    def request(self, what: Words, apply: Callable[[], Answer]) -> Answer:
        """Sends a request to a server.

        Raises:
            NoAnswerError: If there is no response. The request may have been applied, or may be later.
            RefusedError: If the server does nothing, and returns an unknown error.
        """
        self.stop_here()
        if not self.peace and self._chance(self._rate) and self._request_faults:
            fault = self._request_faults[self.dice.pick(len(self._request_faults))]
            self.say(*what, "->", fault)
            self.note(fault)
            if fault == "refused":
                raise RefusedError(text(what))
            if fault == "reply lost":
                self._unheard(apply)
            elif fault == "request late":
                self.flights.append((what, apply))
            raise NoAnswerError(text(what))
        if self.told is None:
            return self._answer(apply)
        place = len(self.told)
        answer = self._answer(apply)
        self.told.insert(place, self._told((*what, "->", _plain(answer))))
        return answer

    def chance(self, fault: str) -> bool:
        """Decides whether a fault of the configuration happens now."""
        if self.peace or not self._chance(self._rate) or fault not in self.config.faults:
            return False
        self.note(fault)
        return True

    def note(self, fault: str) -> None:
        """Records that something went wrong."""
        self.happened[fault] = self.requests

    def gone_wrong(self, since: int = 0) -> set[str]:
        """Returns what has gone wrong since this many requests."""
        return {fault for fault, at in self.happened.items() if at >= since}

    def nonce(self) -> int:
        """Returns a unique number."""
        self._nonces += 1
        return self._nonces

    def time_ms(self, batch: int) -> int:
        """Returns the time by servers' clocks, for a party that is working on this batch."""
        return batch * BATCHES_APART_MS + int((self.clock_s - _STARTED_AT_S) * 1000)

    def hush(self) -> None:
        """Stops all faults and events from now on."""
        self._rate, self.events = 0.0, []

    def sleep(self, seconds: float) -> None:
        """Lets time pass for everybody."""
        self.clock_s += seconds
        self.stop_here()
        self.let_others_go_on()

    # --- who goes on --------------------------------------------------------------------------------------------------

    def start(self, name: str, run: Callable[[], None], on_death: Callable[[], None] = lambda: None) -> Party:
        """Adds a party that continues when it is chosen."""
        party = Party(name, run, on_death)
        self.parties.append(party)
        return party

    def kill(self, party: Party) -> None:
        """Kills a party without any clean-up."""
        if party not in self.parties:
            return
        party.dead = True
        self.parties.remove(party)
        self.graveyard.append(party)
        party.on_death()

    def go_on(self, most_turns: int, events: float) -> None:
        """Lets parties continue until none can, or the limit is reached."""
        self._hub = getcurrent()
        dice = self.dice
        for _ in range(most_turns):
            if dice.chance(events):
                self._happen()
            ready = [one for one in self.parties if not one.paused and (one.ready is None or one.ready())]
            if not ready:
                if not self._happen():
                    return
                continue
            party = ready[dice.pick(len(ready))] if len(ready) > 1 else ready[0]
            if party is not self.parties[0]:
                self.parties.remove(party)
                self.parties.insert(0, party)
            self._let(party)

    def _let(self, party: Party) -> None:
        self.current = party
        party.greenlet.parent = self._hub
        try:
            party.greenlet.switch()
        finally:
            self.current = None
        if party.greenlet.dead:
            self.parties.remove(party)

    def _happen(self) -> bool:
        """Lets a spontaneous event happen. Returns False if none can."""
        events = self.events
        first = self.dice.pick(len(events)) if events else 0
        for place in range(first - len(events), first):
            happens = events[place]()
            if happens is not None:
                happens()
                return True
        return False

    def land(self, place: int) -> None:
        """A request arrives late. Nobody waits for its response."""
        what, apply = self.flights.pop(place)
        self.say("arrives late:", *what)
        self._unheard(apply)

    def _unheard(self, apply: Callable[[], Any]) -> None:
        """Nobody receives the response, even if it is an error."""
        with suppress(*self.refusals):
            self._answer(apply)

    def _answer(self, apply: Callable[[], Answer]) -> Answer:
        try:
            return apply()
        except self.refusals:
            raise
        except Exception as error:
            self.oracle.failed(error)
            raise

    def end(self) -> None:
        """Nobody continues after this."""
        self.over, self.peace = True, False
        for party in (*self.parties, *self.graveyard):
            if not party.greenlet.dead:
                party.greenlet.parent = getcurrent()
                party.greenlet.throw(GreenletExit)


def text(words: Words) -> str:
    """The description, as it was recorded."""
    return " ".join(map(str, words))


def _plain(answer: object) -> str:
    said = str(sorted(map(str, answer)) if isinstance(answer, set) else answer)
    return said if len(said) <= 100 else said[:97] + "..."
