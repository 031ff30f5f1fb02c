"""Calls that may hang, made beside each other and waited for while any of them answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

TRIES_S = 15.0
"""The time for which a put whose outcome is not known is tried again."""
PAUSE_S = 0.2
_THREADS = 8

Answer = TypeVar("Answer")


def within(deadline_s: float, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
    """Returns what each call returned or raised; `TimeoutError` for those without an answer when all are given up.

    Gives up when no call has answered for the length of the deadline, and begins no other from then on. So a server
    that hangs is waited for once, however many calls there are, and a slow one gets through all of them.

    The calls run beside each other in threads that do not keep the process alive.
    """
    answers: list[Answer | BaseException] = [TimeoutError(f"no answer within {deadline_s:g} s") for _ in calls]
    waiting: queue.SimpleQueue[tuple[int, Callable[[], Answer]]] = queue.SimpleQueue()
    answered: queue.SimpleQueue[tuple[int, Answer | BaseException]] = queue.SimpleQueue()
    given_up = threading.Event()
    for numbered in enumerate(calls):
        waiting.put(numbered)

    def work() -> None:
        while not given_up.is_set():
            try:
                number, call = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answered.put((number, call()))
            except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
                answered.put((number, error))

    for _ in range(min(_THREADS, len(calls))):
        threading.Thread(target=work, name="within", daemon=True).start()
    try:
        for _ in calls:
            number, answer = answered.get(timeout=deadline_s)
            answers[number] = answer
    except queue.Empty:
        pass
    finally:
        given_up.set()
    return answers
