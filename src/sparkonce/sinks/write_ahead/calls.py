"""Runs calls of the user's function at once, and waits for them up to a deadline."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress

from sparkonce.protocol.handles import COMMITTED, Finished, Outcome

Job = Callable[[], Finished]


class Calls:
    """Runs jobs by name, in threads that do not keep the process alive. A name has one running job at most.

    Args:
        parallel: How many run at once. With 1 they run in the order given, and none after one that is not committed.
    """

    def __init__(self, parallel: int) -> None:
        self._parallel = parallel
        self._running: dict[str, Future[Finished]] = {}

    def run(self, jobs: Mapping[str, Job], wait_s: float) -> dict[str, Finished]:
        """Runs each job whose name is not running yet, and waits for all.

        A job that is not done in time continues, and the next call with its name waits for it again.

        Args:
            jobs: The jobs, by name.
            wait_s: How long to wait for all together, in seconds.
        """
        new = {name: Future[Finished]() for name in jobs if name not in self._running}
        free = self._parallel - sum(not future.done() for future in self._running.values())
        futures = {name: new.get(name) or self._running[name] for name in jobs}
        queue = deque((new[name], job) for name, job in jobs.items() if name in new)
        self._running.update(new)
        for _ in range(min(free, len(queue))):
            threading.Thread(target=self._work, args=(queue,), name="sparkonce-apply", daemon=True).start()
        wait(futures.values(), timeout=wait_s)
        return {name: self._answer(name, future, wait_s) for name, future in futures.items()}

    def _work(self, queue: deque[tuple[Future[Finished], Job]]) -> None:
        while queue:
            try:
                future, job = queue.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = job()
            except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
                future.set_exception(error)
                _give_up(queue)
            else:
                future.set_result(answer)
                if self._parallel == 1 and answer.outcome not in COMMITTED:
                    _give_up(queue)

    def _answer(self, name: str, future: Future[Finished], wait_s: float) -> Finished:
        if future.cancel() or future.cancelled():
            del self._running[name]
            return Finished(outcome=Outcome.RETRY, reason="Not applied yet: it waits for those before it.")
        if not future.done():
            return Finished(
                outcome=Outcome.RETRY, reason=f"The function has not returned after {wait_s:g} s and is still running."
            )
        del self._running[name]
        return future.result()


def _give_up(queue: deque[tuple[Future[Finished], Job]]) -> None:
    """Cancels the jobs that have not begun."""
    with suppress(IndexError):
        while True:
            future, _ = queue.popleft()
            future.cancel()
            future.set_running_or_notify_cancel()
