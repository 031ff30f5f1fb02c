"""Parties that go on one at a time, and stop before each of their requests: whoever goes on next is a decision.

A party (a driver, a copy of a task) is a greenlet in which the product's own code runs. What it asks of a server goes
through `Simulation.request`. There the party may be left standing while others go on, for ever if need be; that is a
pause, and never to be woken is a crash. There, too, a request may be lost, its answer may be lost, or it may be applied
when nobody waits for it any more.
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
"""What is asked, made a text only where somebody wants to know."""

BATCHES_APART_MS = 3_600_000
"""By servers' clocks, beside what goes by in a schedule."""

_STARTED_AT_S = 1_000_000.0

MOST_TURNS = 600
"""After so many the schedule is over, and the fresh run comes."""


class NoAnswerError(Exception):
    """The party that asked will never get an answer."""


class RefusedError(Exception):
    """The server has done nothing, and answers what its committer's table does not list, or calls unknown."""


class Broken(BaseException):
    """Something happened that must never be."""


UNDER_WAY: list[Simulation] = []
"""The schedule whose clock and decisions count."""


class Party:
    """A driver, a copy of a task, or a thread of a worker process."""

    __slots__ = ("dead", "greenlet", "name", "on_death", "paused", "ready")

    def __init__(self, name: str, run: Callable[[], None], on_death: Callable[[], None]) -> None:
        self.name = name
        self.greenlet = greenlet(run)
        self.paused = self.dead = False
        self.ready: Callable[[], bool] | None = None
        self.on_death = on_death

    def also_on_death(self, more: Callable[[], None]) -> None:
        """Does this, too, when it is killed."""
        before = self.on_death

        def die() -> None:
            before()
            more()

        self.on_death = die


class Simulation:
    """One schedule.

    Args:
        config: Its world.
        dice: Its decisions.
        told: Where to write down what happens, in words; None where nobody wants to know.
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
        """Notes what happens."""
        if self.told is not None:
            self.told.append(self._told(words))

    def _told(self, words: Words) -> str:
        return ("" if self.current is None else f"{self.current.name}: ") + text(words)

    def stop_here(self) -> None:
        """Where a party may be left standing."""
        self.requests += 1
        if self.peace:
            return
        if self.over:
            raise GreenletExit
        if self._chance(self._switches):
            self.let_others_go_on()

    def let_others_go_on(self) -> None:
        """The party stands still until it is chosen again."""
        if self.peace:
            return
        self._hub.switch()
        if self.over:
            raise GreenletExit

    def wait(self, ready: Callable[[], bool]) -> None:
        """The party stands still until something is true."""
        if self.current is None or self.peace:
            if not ready():
                raise Broken("nobody is left to wait for")
            return
        self.current.ready = ready
        while not ready():
            self.let_others_go_on()
        self.current.ready = None

    def request(self, what: Words, apply: Callable[[], Answer]) -> Answer:
        """Asks a server.

        Raises:
            NoAnswerError: if no answer comes. The request may have been applied, or may be later.
            RefusedError: if the server does nothing, and answers what nobody has heard of.
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
        """Whether a fault of the configuration happens now."""
        if self.peace or not self._chance(self._rate) or fault not in self.config.faults:
            return False
        self.note(fault)
        return True

    def note(self, fault: str) -> None:
        """Something went wrong."""
        self.happened[fault] = self.requests

    def gone_wrong(self, since: int = 0) -> set[str]:
        """What has, since so many requests."""
        return {fault for fault, at in self.happened.items() if at >= since}

    def nonce(self) -> int:
        """A number that nobody else has."""
        self._nonces += 1
        return self._nonces

    def time_ms(self, batch: int) -> int:
        """What it is by servers' clocks, for who is at work on this batch."""
        return batch * BATCHES_APART_MS + int((self.clock_s - _STARTED_AT_S) * 1000)

    def hush(self) -> None:
        """No faults and no events from now on."""
        self._rate, self.events = 0.0, []

    def sleep(self, seconds: float) -> None:
        """Time goes by for everybody."""
        self.clock_s += seconds
        self.stop_here()
        self.let_others_go_on()

    # --- who goes on --------------------------------------------------------------------------------------------------

    def start(self, name: str, run: Callable[[], None], on_death: Callable[[], None] = lambda: None) -> Party:
        """A party that goes on when it is chosen."""
        party = Party(name, run, on_death)
        self.parties.append(party)
        return party

    def kill(self, party: Party) -> None:
        """It never goes on, and notices nothing of it."""
        if party not in self.parties:
            return
        party.dead = True
        self.parties.remove(party)
        self.graveyard.append(party)
        party.on_death()

    def go_on(self, most_turns: int, events: float) -> None:
        """Lets parties go on until none is left that can, or it has been enough."""
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
        """Something happens by itself; False if nothing can."""
        events = self.events
        first = self.dice.pick(len(events)) if events else 0
        for place in range(first - len(events), first):
            happens = events[place]()
            if happens is not None:
                happens()
                return True
        return False

    def land(self, place: int) -> None:
        """A request arrives late. Nobody waits for its answer."""
        what, apply = self.flights.pop(place)
        self.say("arrives late:", *what)
        self._unheard(apply)

    def _unheard(self, apply: Callable[[], Any]) -> None:
        """Nobody hears the answer, be it that the server refuses."""
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
        """Nobody goes on after this."""
        self.over, self.peace = True, False
        for party in (*self.parties, *self.graveyard):
            if not party.greenlet.dead:
                party.greenlet.parent = getcurrent()
                party.greenlet.throw(GreenletExit)


def text(words: Words) -> str:
    """As it is told."""
    return " ".join(map(str, words))


def _plain(answer: object) -> str:
    said = str(sorted(map(str, answer)) if isinstance(answer, set) else answer)
    return said if len(said) <= 100 else said[:97] + "..."
