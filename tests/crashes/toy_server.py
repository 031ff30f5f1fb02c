"""A server with prepared transactions, as small as one can be: a line of words asks, a line answers.

A transaction is a file of numbers, and the folder it is in is its state. A rename from one to another is atomic, so it
may be killed at any time.

    ROWS name n n n     adds rows to the open transaction, and opens it
    PREPARE name        COMMIT name        ABORT name
    APPEND name         adds the rows to what is committed, each time it is asked: for sinks that are broken
    LIST                what is open or prepared
    SEE                 what is committed
"""

from __future__ import annotations

import os
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path

STATES = ("open", "prepared", "committed", "aborted")


class Store:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = threading.Lock()
        for state in STATES:
            (root / state).mkdir(parents=True, exist_ok=True)

    def ask(self, line: str) -> str:
        verb, *words = line.split()
        with self._turn:
            answer: Callable[..., str] = getattr(self, f"_{verb.lower()}")
            return answer(*words)

    def _rows(self, name: str, *numbers: str) -> str:
        if self._state(name) not in {"", "open"}:
            return self._state(name)
        with (self._root / "open" / name).open("a") as file:
            file.write("".join(f"{number}\n" for number in numbers))
        return "open"

    def _prepare(self, name: str) -> str:
        return "prepared" if self._move(name, "open", "prepared") else self._state(name) or "unknown"

    def _commit(self, name: str) -> str:
        if self._move(name, "prepared", "committed"):
            return "committed"
        return {"committed": "already", "aborted": "lost"}.get(self._state(name), "unknown")

    def _abort(self, name: str) -> str:
        if self._state(name) == "committed":
            return "already"
        if not self._move(name, "open", "aborted") and not self._move(name, "prepared", "aborted"):
            (self._root / "aborted" / name).touch()
        return "aborted"

    def _append(self, name: str) -> str:
        for path in [self._root / state / name for state in STATES]:
            if path.exists():
                with (self._root / "committed" / f"{name}+").open("a") as file:
                    file.write(path.read_text())
                path.rename(self._root / "aborted" / name)
                return "committed"
        return "unknown"

    def _list(self) -> str:
        return " ".join(path.name for state in ("open", "prepared") for path in (self._root / state).iterdir())

    def _see(self) -> str:
        return " ".join(path.read_text().replace("\n", " ") for path in (self._root / "committed").iterdir())

    def _state(self, name: str) -> str:
        return next((state for state in STATES if (self._root / state / name).exists()), "")

    def _move(self, name: str, before: str, after: str) -> bool:
        try:
            (self._root / before / name).rename(self._root / after / name)
        except FileNotFoundError:
            return False
        return True


def main(folder: str, port: str) -> None:
    stores: dict[str, Store] = {}

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                place, _, question = line.decode().partition(" ")
                if not line.endswith(b"\n"):
                    return  # the connection broke in the middle of it
                store = stores.setdefault(place, Store(Path(folder) / place))
                try:
                    self.wfile.write(f"{store.ask(question)}\n".encode())
                except OSError:
                    return

    class Toy(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that is gone is no error."""

    with Toy(("127.0.0.1", int(port)), Handler) as server:
        os.chdir(folder)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
