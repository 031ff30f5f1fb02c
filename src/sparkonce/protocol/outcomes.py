"""Outcomes of finishing a handle. Never a bool: unknown is not failure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """The outcome of committing or aborting one handle."""

    COMMITTED = "committed"
    """This request committed it."""
    ALREADY_COMMITTED = "already committed"
    """An earlier request committed it."""
    ABORTED = "aborted"
    """The server aborted it, by this request or before it. Only an abort gives this."""
    RETRY = "retry"
    """The server asks for patience, or could not be reached. Ask again."""
    LOST = "lost"
    """Surely not applied and never will be: the server aborted it or fenced its producer."""
    DAMAGED = "damaged"
    """Still open, and rows of it are gone from the server: a commit would succeed over what is left."""
    UNKNOWN = "unknown"
    """The server's answer leaves it open. Destroys nothing: no abort, no delete, no healing."""


COMMITTED = frozenset({Outcome.COMMITTED, Outcome.ALREADY_COMMITTED})
FINAL = COMMITTED | {Outcome.ABORTED, Outcome.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcome of one handle, with the server's own words for the operator.

    Attributes:
        outcome: The outcome.
        reason: The server's error code and one sentence, empty when there is nothing to say.
        next_step: What the operator can do about it, where asking again will not help.
        in_flight: Whether an abort had no answer, and may still arrive to end whatever has the same name then.
    """

    outcome: Outcome
    reason: str = ""
    next_step: str = ""
    in_flight: bool = False
