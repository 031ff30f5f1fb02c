"""The last reads of a run: what systems hold, and what they hold open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sparkonce_lab.history import EventKind, Recorder
from sparkonce_lab.systems.base import VerifiedSystem

INSIST_S = 120.0
_AGAIN_S = 1.0

Answer = TypeVar("Answer")
Say = Callable[[str], None]


def read_systems(
    systems: Sequence[VerifiedSystem], recorder: Recorder, say: Say, *, insist_s: float = INSIST_S
) -> None:
    """Reads every system, and notes what could not be read.

    Args:
        systems: Which.
        recorder: Takes what they hold.
        say: Takes what could not be read.
        insist_s: How long each question is asked again while it is not answered.
    """
    for system in systems:
        with noting(f"the rows in {system.name}", recorder, say):
            recorder.keep(f"observed-{system.name}", _insist(system.read, insist_s))
        with noting(f"what {system.name} holds open", recorder, say):
            recorder.note(EventKind.OPEN, system=system.name, names=list(_insist(system.left_open, insist_s)))


@contextmanager
def noting(what: str, recorder: Recorder, say: Say) -> Iterator[None]:
    """Notes what cannot be read, so that the rest is read all the same. Its verdict then says that nobody looked."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        why = str(error) or repr(error)
        say(f"{what}: not read: {why}")
        recorder.note(EventKind.UNREAD, what=what, why=why)


def _insist(question: Callable[[], Answer], insist_s: float) -> Answer:
    """Asks a system again while it does not answer: it may have been struck just before."""
    give_up_at = time.monotonic() + insist_s
    while True:
        try:
            return question()
        except Exception:
            if time.monotonic() + _AGAIN_S > give_up_at:
                raise
        time.sleep(_AGAIN_S)
