"""Calls that may hang, made beside each other and waited for up to a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

_THREADS = 8

Answer = TypeVar("Answer")


def within(deadline_s: float, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
    """What each call returned or raised; `TimeoutError` for those that have not by the deadline.

    They run beside each other in threads that do not keep the process alive.
    """
    give_up_at = time.monotonic() + deadline_s
    waiting: queue.SimpleQueue[tuple[Future[Answer], Callable[[], Answer]]] = queue.SimpleQueue()
    futures: list[Future[Answer]] = []
    for call in calls:
        futures.append(Future())
        waiting.put((futures[-1], call))

    def work() -> None:
        while time.monotonic() < give_up_at:
            try:
                future, call = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                future.set_exception(error)

    for _ in range(min(_THREADS, len(calls))):
        threading.Thread(target=work, name="within", daemon=True).start()
    return [_answer(future, give_up_at, deadline_s) for future in futures]


def _answer(future: Future[Any], give_up_at: float, deadline_s: float) -> Any:
    try:
        return future.result(max(0.0, give_up_at - time.monotonic()))
    except FutureTimeoutError:
        return TimeoutError(f"no answer within {deadline_s:g} s")
    except BaseException as error:  # noqa: BLE001 - the call's own
        return error
