"""A thread that works until it is stopped. It stores its error, which `Background.check` raises."""

from __future__ import annotations

import abc
import threading


class Background(abc.ABC):
    """Work in a separate thread. A subclass defines the work."""

    def __init__(self, name: str, stops_within_s: float) -> None:
        self.stopping = threading.Event()
        self._stops_within_s = stops_within_s
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abc.abstractmethod
    def work(self) -> None:
        """Works until `stopping` is set."""

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the work, if there is one."""
        if self._error is not None:
            raise self.failed(self._error) from self._error

    def failed(self, error: BaseException) -> BaseException:
        """Returns the error that `check` raises for an error of the work."""
        return error

    def stop(self) -> None:
        """Stops the thread, and waits for its end. May be called repeatedly."""
        self.stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._stops_within_s)
        self.check()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the thread that waits
            self._error = error
